/* The paced device (paced.h). Copies are done in slices. Each slice has an earliest end time, until which the
 * copy thread sleeps. So the rate holds over many slices even if a single sleep takes too long. Operators run
 * on the caller's thread and are finished when run() returns, so an event has always passed. */
#include "bench/dev/paced.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

enum { QUEUE = 256, SLICE_BYTES = 256 << 10 };

struct copy {
    char *to;
    const char *from;
    size_t bytes;
};

struct paced {
    struct device device;
    struct sys *sys;
    struct device *compute;
    double rate;
    pthread_mutex_t lock; /* guards queue, submitted, done and stopping */
    pthread_cond_t changed;
    struct sys_thread *thread;
    struct copy queue[QUEUE];
    uint64_t submitted, done; /* numbers of the most recently submitted and the most recently finished copy */
    bool stopping;
    double free_at; /* time when the simulated bus is free; used by the copy thread only */
};

static struct paced *paced_of(struct device *device) {
    return (struct paced *)device;
}

static void paced_cost(const struct device *device, const struct op *op, struct op_cost *cost) {
    const struct paced *p = (const struct paced *)device;
    p->compute->cost(p->compute, op, cost);
}

static enum status paced_prepare(struct device *device, const struct op *op, struct error *e) {
    struct device *compute = paced_of(device)->compute;
    return compute->prepare(compute, op, e);
}

static enum status paced_run(struct device *device, const struct op *op, void *workspace, struct error *e) {
    struct device *compute = paced_of(device)->compute;
    return compute->run(compute, op, workspace, e);
}

static void *paced_reserve(struct device *device, size_t bytes) {
    struct sys *sys = paced_of(device)->sys;
    return sys->reserve(sys, bytes);
}

static int paced_commit(struct device *device, void *memory, size_t bytes) {
    struct sys *sys = paced_of(device)->sys;
    return sys->commit(sys, LINE_DEVICE, memory, bytes);
}

static void paced_decommit(struct device *device, void *memory, size_t bytes) {
    struct sys *sys = paced_of(device)->sys;
    sys->decommit(sys, LINE_DEVICE, memory, bytes);
}

static void paced_unreserve(struct device *device, void *memory, size_t bytes) {
    struct sys *sys = paced_of(device)->sys;
    sys->unreserve(sys, memory, bytes);
}

/* Copies slice by slice, at the rate of the simulated bus. */
static void carry(struct paced *p, const struct copy *copy) {
    double now = p->sys->clock(p->sys);
    if (p->free_at < now) p->free_at = now;
    for (size_t at = 0; at < copy->bytes; at += SLICE_BYTES) {
        size_t bytes = copy->bytes - at < SLICE_BYTES ? copy->bytes - at : SLICE_BYTES;
        memcpy(copy->to + at, copy->from + at, bytes);
        if (p->rate <= 0) continue;
        p->free_at += (double)bytes / p->rate;
        double left = p->free_at - p->sys->clock(p->sys);
        if (left <= 0) continue;
        struct timespec span = {.tv_sec = (time_t)left};
        span.tv_nsec = (long)((left - (double)span.tv_sec) * 1e9);
        nanosleep(&span, NULL);
    }
}

static void copier_main(void *argument) {
    struct paced *p = argument;
    pthread_mutex_lock(&p->lock);
    while (true) {
        while (p->done == p->submitted && !p->stopping) pthread_cond_wait(&p->changed, &p->lock);
        if (p->done == p->submitted) break;
        struct copy copy = p->queue[p->done % QUEUE];
        pthread_mutex_unlock(&p->lock);
        carry(p, &copy);
        pthread_mutex_lock(&p->lock);
        p->done++;
        pthread_cond_broadcast(&p->changed);
    }
    pthread_mutex_unlock(&p->lock);
}

static uint64_t paced_record_event(struct device *device) {
    (void)device;
    return 0;
}

static uint64_t paced_copy(struct device *device, void *to, const void *from, size_t bytes, uint64_t event) {
    struct paced *p = paced_of(device);
    (void)event;
    pthread_mutex_lock(&p->lock);
    while (p->submitted - p->done == QUEUE) pthread_cond_wait(&p->changed, &p->lock);
    p->queue[p->submitted % QUEUE] = (struct copy){to, from, bytes};
    uint64_t fence = ++p->submitted;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    return fence;
}

static void paced_wait_copy(struct device *device, uint64_t fence) {
    struct paced *p = paced_of(device);
    pthread_mutex_lock(&p->lock);
    while (p->done < fence) pthread_cond_wait(&p->changed, &p->lock);
    pthread_mutex_unlock(&p->lock);
}

/* Waits for a copy by blocking the calling thread, because operators run on this thread. */
static double paced_await_copy(struct device *device, uint64_t fence) {
    struct sys *sys = paced_of(device)->sys;
    double since = sys->clock(sys);
    paced_wait_copy(device, fence);
    return sys->clock(sys) - since;
}

static void paced_finish(struct device *device) {
    paced_wait_copy(device, paced_of(device)->submitted);
}

static void paced_move(struct device *device, void *to, const void *from, size_t bytes) {
    (void)device;
    memcpy(to, from, bytes);
}

static const struct device_memory paced_memory = {
    .reserve = paced_reserve,
    .commit = paced_commit,
    .decommit = paced_decommit,
    .unreserve = paced_unreserve,
    .record_event = paced_record_event,
    .copy = paced_copy,
    .await_copy = paced_await_copy,
    .wait_copy = paced_wait_copy,
    .finish = paced_finish,
    .move = paced_move,
};

static void paced_destroy(struct device *device) {
    struct paced *p = paced_of(device);
    struct sys *sys = p->sys;
    pthread_mutex_lock(&p->lock);
    p->stopping = true;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    if (p->thread) sys->thread_join(sys, p->thread);
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
    sys->release(sys, p);
}

struct device *paced_open(struct sys *sys, struct device *compute, double bytes_per_second, struct error *e) {
    struct paced *p = sys_new(sys, 1, sizeof *p, "the paced device", e);
    if (!p) return NULL;
    *p = (struct paced){.device = {.name = "paced",
                                   .memory = &paced_memory,
                                   .cost = paced_cost,
                                   .prepare = paced_prepare,
                                   .run = paced_run,
                                   .destroy = paced_destroy},
                        .sys = sys,
                        .compute = compute,
                        .rate = bytes_per_second};
    if (compute) { /* `compute` NULL: the device has no operators and only copies */
        p->device.chunks = compute->chunks;
        p->device.operands = compute->operands;
    }
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->changed, NULL);
    int failed = sys->thread_start(sys, &p->thread, copier_main, p);
    if (!failed) return &p->device;
    error_set(e, DEVICE, "cannot start the copy thread" FOUND "%s", strerror(-failed));
    p->thread = NULL;
    paced_destroy(&p->device);
    return NULL;
}
