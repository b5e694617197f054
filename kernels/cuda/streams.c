/* Compute and copy streams. Recorded errors are reported by the next wait or run. */
#include "kernels/cuda/streams.h"

/* Sizes of the event and fence tables, which limit how far the host runs ahead of the GPU. A visit uses one
 * event, a copied piece of 16 MiB one fence. 256 visits are several steps of the largest models, 1,024 pieces
 * are 16 GiB in flight. */
enum { EVENTS = 256, FENCES = 1024, STALLS = 256 };

/* Timing events before and after a wait of the compute stream. */
struct stall {
    cudaEvent_t since, until;
};

struct streams {
    struct sys *sys;
    struct gpu_errors *errors;
    cudaStream_t compute, copies;
    cudaEvent_t event[EVENTS], fence[FENCES];
    cudaEvent_t done,
        finished; /* events at the end of the queued work, for streams_wait and streams_finish */
    struct stall stall[STALLS];

    pthread_mutex_t lock; /* guards `events`, `fences`, and lookups in the event table */
    uint64_t events,
        fences; /* numbers of the newest event and fence; only the operators' thread changes `events` */

    pthread_mutex_t copying; /* locked before `lock`; serialises fences, and guards awaited_event */
    uint64_t awaited_event;  /* newest event that the copy stream waits for */

    /* Fields used only by the thread that runs operators. */
    bool ran;                /* an operator was queued after the newest event */
    uint64_t awaited;        /* newest fence that the compute stream waits for */
    uint64_t stalls, summed; /* number of waits timed so far; number of them already added to `stalled` */
    double stalled;
};

void streams_runs(struct streams *s) {
    s->ran = true;
}

uint64_t streams_record_event(struct streams *s) {
    if (!s->ran || gpu_errors_lost(s->errors)) return s->events;
    uint64_t event = s->events + 1;
    cudaEvent_t slot = s->event[event % EVENTS];
    cudaError_t code = event > EVENTS ? cudaEventSynchronize(slot) : cudaSuccess;
    pthread_mutex_lock(&s->lock);
    if (code == cudaSuccess) code = cudaEventRecord(slot, s->compute);
    s->events = event;
    pthread_mutex_unlock(&s->lock);
    s->ran = false;
    gpu_errors_note(s->errors, code, "cudaEventRecord after operators");
    return event;
}

/* Copies from pageable memory block the caller until done; no lock is held meanwhile, so operators and other
 * copies proceed. The fence is therefore numbered after the copy: concurrent copies may be in either order,
 * and each copy precedes the fence that its caller gets. */
uint64_t streams_copy(struct streams *s, void *to, const void *from, size_t bytes, uint64_t event) {
    cudaError_t code = cudaSuccess;
    pthread_mutex_lock(&s->copying);
    if (event > s->awaited_event) { /* no earlier copy waits for this event yet */
        pthread_mutex_lock(&s->lock);
        /* An event that is more than EVENTS events old has passed, so the copy need not wait for it. */
        if (event + EVENTS > s->events) code = cudaStreamWaitEvent(s->copies, s->event[event % EVENTS], 0);
        pthread_mutex_unlock(&s->lock);
        s->awaited_event = event;
    }
    pthread_mutex_unlock(&s->copying);
    if (code == cudaSuccess) code = cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, s->copies);
    pthread_mutex_lock(&s->copying);
    uint64_t fence =
        s->fences + 1; /* only this function changes s->fences, so it may be read without the lock */
    cudaEvent_t slot = s->fence[fence % FENCES];
    if (code == cudaSuccess && fence > FENCES) code = cudaEventSynchronize(slot);
    pthread_mutex_lock(&s->lock);
    if (code == cudaSuccess) code = cudaEventRecord(slot, s->copies);
    s->fences = fence;
    pthread_mutex_unlock(&s->lock);
    gpu_errors_note(
        s->errors, code,
        "copying to the GPU"); /* the fence's event is recorded before the caller gets the fence's number */
    pthread_mutex_unlock(&s->copying);
    return fence;
}

void streams_wait_copy(struct streams *s, uint64_t fence) {
    pthread_mutex_lock(&s->lock);
    bool there = !fence || fence + FENCES <= s->fences;
    pthread_mutex_unlock(&s->lock);
    if (there || gpu_errors_lost(s->errors)) return;
    gpu_errors_note(s->errors, cudaEventSynchronize(s->fence[fence % FENCES]), "waiting for a copy");
}

void streams_move(struct streams *s, void *to, const void *from, size_t bytes) {
    pthread_mutex_lock(&s->copying);
    cudaError_t code = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, s->copies);
    if (code == cudaSuccess) code = cudaStreamSynchronize(s->copies);
    gpu_errors_note(s->errors, code, "copying within the GPU");
    pthread_mutex_unlock(&s->copying);
}

/* Adds the seconds of the oldest timed wait of the compute stream to `stalled`. */
static cudaError_t add_oldest_stall(struct streams *s) {
    struct stall *stall = &s->stall[s->summed % STALLS];
    float milliseconds = 0;
    cudaError_t code = cudaEventSynchronize(stall->until);
    if (code == cudaSuccess) code = cudaEventElapsedTime(&milliseconds, stall->since, stall->until);
    s->stalled += (double)milliseconds * 1e-3;
    s->summed++;
    return code;
}

/* Queues the wait for a copy even if the copy has finished: the ordering of operators must not depend on the
 * query's result. */
static cudaError_t await_event(struct streams *s, uint64_t fence) {
    cudaError_t code = cudaSuccess;
    pthread_mutex_lock(&s->lock);
    if (fence + FENCES > s->fences) code = cudaStreamWaitEvent(s->compute, s->fence[fence % FENCES], 0);
    pthread_mutex_unlock(&s->lock);
    return code;
}

/* If the copy has not finished, the wait is queued between two timing events. */
void streams_await(struct streams *s, uint64_t fence) {
    if (fence <= s->awaited || gpu_errors_lost(s->errors)) return;
    s->awaited = fence;
    cudaError_t code = cudaSuccess;
    if (cudaEventQuery(s->fence[fence % FENCES]) == cudaErrorNotReady) {
        (void)cudaGetLastError(); /* clears cudaErrorNotReady */
        if (s->stalls - s->summed == STALLS) code = add_oldest_stall(s);
        struct stall *stall = &s->stall[s->stalls % STALLS];
        if (code == cudaSuccess) code = cudaEventRecord(stall->since, s->compute);
        if (code == cudaSuccess) code = await_event(s, fence);
        if (code == cudaSuccess) code = cudaEventRecord(stall->until, s->compute);
        if (code == cudaSuccess) s->stalls++;
    } else {
        code = await_event(s, fence);
    }
    gpu_errors_note(s->errors, code, "cudaStreamWaitEvent");
}

/* Blocks until the work queued on the compute stream has finished. */
static cudaError_t wait_for_compute(struct streams *s, cudaEvent_t slot) {
    cudaError_t code = cudaEventRecord(slot, s->compute);
    return code == cudaSuccess ? cudaEventSynchronize(slot) : code;
}

enum status streams_wait(struct streams *s, double *stalled, struct error *e) {
    if (gpu_errors_lost(s->errors)) return gpu_errors_take(s->errors, e);
    cudaError_t code = wait_for_compute(s, s->done);
    while (code == cudaSuccess && s->summed < s->stalls) code = add_oldest_stall(s);
    *stalled += s->stalled;
    s->stalled = 0;
    if (gpu_errors_check(s->errors, code, "waiting for operators", e) != OK) return e->code;
    return gpu_errors_take(s->errors, e);
}

void streams_finish(struct streams *s) {
    if (gpu_errors_lost(s->errors)) return;
    pthread_mutex_lock(&s->lock);
    uint64_t last = s->fences;
    pthread_mutex_unlock(&s->lock);
    streams_wait_copy(s, last);
    gpu_errors_note(s->errors, wait_for_compute(s, s->finished), "waiting for operators");
}

/* Applies `each` (create or destroy) to all CUDA events until one call fails; flags: flags of a new event. */
static cudaError_t for_all_events(struct streams *s,
                                  cudaError_t (*each)(cudaEvent_t *event, unsigned flags)) {
    cudaError_t code = cudaSuccess;
    for (int i = 0; i < EVENTS && code == cudaSuccess; i++) code = each(&s->event[i], cudaEventDisableTiming);
    for (int i = 0; i < FENCES && code == cudaSuccess; i++) code = each(&s->fence[i], cudaEventDisableTiming);
    if (code == cudaSuccess) code = each(&s->done, cudaEventDisableTiming);
    if (code == cudaSuccess) code = each(&s->finished, cudaEventDisableTiming);
    for (int i = 0; i < STALLS && code == cudaSuccess; i++) {
        code = each(&s->stall[i].since, 0);
        if (code == cudaSuccess) code = each(&s->stall[i].until, 0);
    }
    return code;
}

/* Blocking sync: host threads sleep while they wait for the GPU, because other threads need the CPU cores to
 * read weights. */
static cudaError_t create(cudaEvent_t *event, unsigned flags) {
    return cudaEventCreateWithFlags(event, cudaEventBlockingSync | flags);
}

static cudaError_t destroy(cudaEvent_t *event, unsigned flags) {
    (void)flags;
    if (*event) (void)cudaEventDestroy(*event);
    return cudaSuccess;
}

struct streams *streams_open(struct sys *sys, cudaStream_t compute, cudaStream_t copies,
                             struct gpu_errors *errors, struct error *e) {
    struct streams *s = sys_new(sys, 1, sizeof *s, "the CUDA event tables", e);
    if (!s) return NULL;
    *s = (struct streams){.sys = sys, .errors = errors, .compute = compute, .copies = copies};
    pthread_mutex_init(&s->lock, NULL);
    pthread_mutex_init(&s->copying, NULL);
    if (gpu_errors_check(errors, for_all_events(s, create), "cudaEventCreate", e) == OK) return s;
    streams_close(s);
    return NULL;
}

void streams_close(struct streams *s) {
    if (!s) return;
    if (!gpu_errors_lost(s->errors)) for_all_events(s, destroy);
    pthread_mutex_destroy(&s->copying);
    pthread_mutex_destroy(&s->lock);
    s->sys->release(s->sys, s);
}
