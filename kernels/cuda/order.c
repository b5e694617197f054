/* Order: see order.h. What is noted in failures surfaces at the next wait or run. */
#include "kernels/cuda/order.h"

/* How far the host may run ahead. A visit takes a mark, a piece of 16 MiB a ticket: 256 visits are several
 * steps of the largest models, 1,024 pieces 16 GiB on their way. */
enum { MARKS = 256, TICKETS = 1024, STALLS = 256 };

struct stall {
    cudaEvent_t since, until;
};

struct order {
    struct sys *sys;
    struct failures *failures;
    cudaStream_t compute, copies;
    cudaEvent_t mark[MARKS], ticket[TICKETS];
    cudaEvent_t done, finished;
    struct stall stall[STALLS];

    pthread_mutex_t lock; /* guards the next two, and that no event is recorded anew while it is looked up */
    uint64_t marks, tickets; /* the last that there is; marks grow on the operators' thread alone */

    pthread_mutex_t copying; /* one copy after another; taken before lock. Guards the next one */
    uint64_t followed;       /* the last mark that the copies' stream waits for */

    /* The operators' thread's own. */
    bool ran;                /* since the last mark */
    uint64_t awaited;        /* the last ticket that the operators' stream waits for */
    uint64_t stalls, summed; /* of the ring: recorded, in stalled */
    double stalled;
};

/* ---- marks ---- */

void order_runs(struct order *o) {
    o->ran = true;
}

uint64_t order_mark(struct order *o) {
    if (!o->ran || failures_lost(o->failures)) return o->marks;
    uint64_t mark = o->marks + 1;
    cudaEvent_t event = o->mark[mark % MARKS];
    cudaError_t code = mark > MARKS ? cudaEventSynchronize(event) : cudaSuccess;
    pthread_mutex_lock(&o->lock);
    if (code == cudaSuccess) code = cudaEventRecord(event, o->compute);
    o->marks = mark;
    pthread_mutex_unlock(&o->lock);
    o->ran = false;
    failures_note(o->failures, code, "a mark behind operators");
    return mark;
}

/* The copies' stream waits for the mark. One that is MARKS old has passed; so has one that a copy before this
 * one waits for, as far as this one goes. */
static cudaError_t follow(struct order *o, uint64_t mark) {
    cudaError_t code = cudaSuccess;
    if (mark <= o->followed) return code;
    pthread_mutex_lock(&o->lock);
    if (mark + MARKS > o->marks) code = cudaStreamWaitEvent(o->copies, o->mark[mark % MARKS], 0);
    pthread_mutex_unlock(&o->lock);
    o->followed = mark;
    return code;
}

/* ---- copies ---- */

/* Out of memory that is not pinned the driver lets the caller wait: only copying is held then, so that
 * operators go on. */
uint64_t order_copy(struct order *o, void *to, const void *from, size_t bytes, uint64_t mark) {
    pthread_mutex_lock(&o->copying);
    uint64_t ticket = o->tickets + 1; /* changes only here */
    cudaEvent_t event = o->ticket[ticket % TICKETS];
    cudaError_t code = ticket > TICKETS ? cudaEventSynchronize(event) : cudaSuccess;
    if (code == cudaSuccess) code = follow(o, mark);
    if (code == cudaSuccess) code = cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, o->copies);
    pthread_mutex_lock(&o->lock);
    if (code == cudaSuccess) code = cudaEventRecord(event, o->copies);
    o->tickets = ticket;
    pthread_mutex_unlock(&o->lock);
    failures_note(o->failures, code, "a copy to the GPU"); /* before anybody has the ticket */
    pthread_mutex_unlock(&o->copying);
    return ticket;
}

void order_wait_copy(struct order *o, uint64_t ticket) {
    pthread_mutex_lock(&o->lock);
    bool there = !ticket || ticket + TICKETS <= o->tickets;
    pthread_mutex_unlock(&o->lock);
    if (there || failures_lost(o->failures)) return;
    failures_note(o->failures, cudaEventSynchronize(o->ticket[ticket % TICKETS]), "the wait for a copy");
}

/* ---- operators that wait ---- */

static cudaError_t sum_oldest(struct order *o) {
    struct stall *stall = &o->stall[o->summed % STALLS];
    float milliseconds = 0;
    cudaError_t code = cudaEventSynchronize(stall->until);
    if (code == cudaSuccess) code = cudaEventElapsedTime(&milliseconds, stall->since, stall->until);
    o->stalled += (double)milliseconds * 1e-3;
    o->summed++;
    return code;
}

static bool is_under_way(cudaEvent_t event) {
    if (cudaEventQuery(event) != cudaErrorNotReady) return false;
    (void)cudaGetLastError(); /* it counts as an error otherwise */
    return true;
}

/* Queued even where the copy is over: whoever runs operators may not rely on having asked. */
static cudaError_t await_event(struct order *o, uint64_t ticket) {
    cudaError_t code = cudaSuccess;
    pthread_mutex_lock(&o->lock);
    if (ticket + TICKETS > o->tickets) code = cudaStreamWaitEvent(o->compute, o->ticket[ticket % TICKETS], 0);
    pthread_mutex_unlock(&o->lock);
    return code;
}

/* The same between two events that tell the time. */
static cudaError_t await_timed(struct order *o, uint64_t ticket) {
    cudaError_t code = o->stalls - o->summed == STALLS ? sum_oldest(o) : cudaSuccess;
    struct stall *stall = &o->stall[o->stalls % STALLS];
    if (code == cudaSuccess) code = cudaEventRecord(stall->since, o->compute);
    if (code == cudaSuccess) code = await_event(o, ticket);
    if (code == cudaSuccess) code = cudaEventRecord(stall->until, o->compute);
    if (code == cudaSuccess) o->stalls++;
    return code;
}

void order_await(struct order *o, uint64_t ticket) {
    if (ticket <= o->awaited || failures_lost(o->failures)) return;
    o->awaited = ticket;
    bool waits = is_under_way(o->ticket[ticket % TICKETS]);
    failures_note(o->failures, waits ? await_timed(o, ticket) : await_event(o, ticket),
                  "operators that wait for a copy");
}

/* ---- the host waits ---- */

static cudaError_t wait_for_compute(struct order *o, cudaEvent_t event) {
    cudaError_t code = cudaEventRecord(event, o->compute);
    return code == cudaSuccess ? cudaEventSynchronize(event) : code;
}

enum status order_wait(struct order *o, double *stalled, struct error *e) {
    if (failures_lost(o->failures)) return failures_take(o->failures, e);
    cudaError_t code = wait_for_compute(o, o->done);
    while (code == cudaSuccess && o->summed < o->stalls) code = sum_oldest(o);
    *stalled += o->stalled;
    o->stalled = 0;
    if (failures_check(o->failures, code, "the wait for operators", e) != OK) return e->code;
    return failures_take(o->failures, e);
}

void order_finish(struct order *o) {
    if (failures_lost(o->failures)) return;
    pthread_mutex_lock(&o->lock);
    uint64_t last = o->tickets;
    pthread_mutex_unlock(&o->lock);
    order_wait_copy(o, last);
    failures_note(o->failures, wait_for_compute(o, o->finished), "the wait for operators");
}

/* ---- opening ---- */

/* Waiting threads sleep: the processors have weights to read. */
static cudaError_t create(cudaEvent_t *events, int n, unsigned flags) {
    cudaError_t code = cudaSuccess;
    for (int i = 0; i < n && code == cudaSuccess; i++)
        code = cudaEventCreateWithFlags(&events[i], cudaEventBlockingSync | flags);
    return code;
}

static void destroy(cudaEvent_t *events, int n) {
    for (int i = 0; i < n; i++)
        if (events[i]) (void)cudaEventDestroy(events[i]);
}

static cudaError_t create_all(struct order *o) {
    cudaError_t code = create(o->mark, MARKS, cudaEventDisableTiming);
    if (code == cudaSuccess) code = create(o->ticket, TICKETS, cudaEventDisableTiming);
    if (code == cudaSuccess) code = create(&o->done, 1, cudaEventDisableTiming);
    if (code == cudaSuccess) code = create(&o->finished, 1, cudaEventDisableTiming);
    for (int i = 0; i < STALLS && code == cudaSuccess; i++) {
        code = create(&o->stall[i].since, 1, 0);
        if (code == cudaSuccess) code = create(&o->stall[i].until, 1, 0);
    }
    return code;
}

static void destroy_all(struct order *o) {
    destroy(o->mark, MARKS);
    destroy(o->ticket, TICKETS);
    destroy(&o->done, 1);
    destroy(&o->finished, 1);
    for (int i = 0; i < STALLS; i++) {
        destroy(&o->stall[i].since, 1);
        destroy(&o->stall[i].until, 1);
    }
}

struct order *order_open(struct sys *sys, cudaStream_t compute, cudaStream_t copies,
                         struct failures *failures, struct error *e) {
    struct order *o = sys->alloc(sys, LINE_HOST, sizeof *o);
    if (!o) {
        error_set(e, MEMORY, "no memory for the GPU's events");
        return NULL;
    }
    *o = (struct order){.sys = sys, .failures = failures, .compute = compute, .copies = copies};
    pthread_mutex_init(&o->lock, NULL);
    pthread_mutex_init(&o->copying, NULL);
    if (failures_check(failures, create_all(o), "events", e) == OK) return o;
    order_close(o);
    return NULL;
}

void order_close(struct order *o) {
    if (!o) return;
    if (!failures_lost(o->failures)) destroy_all(o);
    pthread_mutex_destroy(&o->copying);
    pthread_mutex_destroy(&o->lock);
    o->sys->release(o->sys, o);
}
