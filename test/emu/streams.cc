/* Emulated CUDA streams: host threads that run queued operations in order. Each record of an event makes a
 * new instance; a wait is for the latest instance at the time of the call.
 *
 * Copies between the device and pinned or registered memory run on the stream's thread. Pageable host memory
 * is read during the call (host to device) or makes the caller wait (device to host), and such copies are
 * counted. */
#include "internal.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

enum { OPERATIONS = 1024, ARGUMENTS = 4096, MAGIC = 0x57AE };

/* One record of an event (cudaEventRecord). */
struct instance {
    uint32_t done, users;
    double seconds;
    bool timed;
    instance *next;
};

enum kind { KERNEL, COPY, SET, RECORD, WAIT, STOP };

struct operation {
    kind what;
    cudaError_t fails;
    launch kernel;
    void *to;
    const void *from;
    void *snapshot; /* copied source data of pageable memory, freed after the copy to the device */
    size_t bytes;
    int value;
    instance *event;
    alignas(16) char arguments[ARGUMENTS];
};

struct emu_stream {
    uint32_t magic;
    quiet_lock queueing;
    uint32_t n_queued, n_done; /* number of operations queued and done; both counters wrap */
    pthread_t thread;
    uint64_t random;
    char done; /* address for TSan annotations */
    operation ring[OPERATIONS];
};

struct emu_event {
    uint32_t magic;
    bool timed;
    quiet_lock changing;
    instance *latest;
};

static quiet_lock instances_lock;
static instance *free_instances;

/* Returns an instance of an event. Under TSan instances are never reused, because a reused instance would
 * carry the ordering of the earlier use. */
static instance *instance_make() {
    instance *i = nullptr;
    lock(&instances_lock);
    if (free_instances && !WITH_TSAN) i = free_instances, free_instances = i->next;
    unlock(&instances_lock);
    if (!i) i = (instance *)malloc(sizeof *i);
    if (!i) refuse("no memory for events");
    *i = instance{0, 1, 0, false, nullptr};
    return i;
}

static void instance_drop(instance *i) {
    if (!i || __atomic_sub_fetch(&i->users, 1, __ATOMIC_ACQ_REL)) return;
    if (WITH_TSAN) {
        free(i);
        return;
    }
    lock(&instances_lock);
    i->next = free_instances;
    free_instances = i;
    unlock(&instances_lock);
}

static instance *instance_use(instance *i) {
    if (i) __atomic_add_fetch(&i->users, 1, __ATOMIC_ACQ_REL);
    return i;
}

static bool instance_done(const instance *i) {
    return !i || __atomic_load_n(&i->done, __ATOMIC_ACQUIRE);
}

static void instance_await(instance *i) {
    if (!i) return;
    while (!instance_done(i)) futex_wait(&i->done, 0);
    after(i);
}

/* Copies nothing once the GPU is lost: the program may free memory that queued copies read. */
static void run_copy(const operation *o, uint64_t *random) {
    delay(now.copies_us, random);
    lock(&copying);
    if (struck()) {
        unlock(&copying);
        free(o->snapshot);
        return;
    }
    if (!o->snapshot && range_cover(o->from, o->bytes) < COVER_DEVICE)
        refuse("copy of %zu bytes from %p: the memory was freed before the copy ran", o->bytes, o->from);
    if (range_cover(o->to, o->bytes) == COVER_PART)
        refuse("copy of %zu bytes to %p: the memory was freed before the copy ran", o->bytes, o->to);
    memcpy(o->to, o->snapshot ? o->snapshot : o->from, o->bytes);
    unlock(&copying);
    free(o->snapshot);
}

static void run_kernel(worker *w, const operation *o, uint64_t *random) {
    delay(now.kernels_us, random);
    if (o->fails)
        strike(o->fails);
    else if (!struck())
        worker_run(w, &o->kernel), tell_watcher(o->kernel.name);
}

static void run_record(const operation *o) {
    instance *i = o->event;
    i->seconds = seconds_now();
    before(i);
    __atomic_store_n(&i->done, 1, __ATOMIC_RELEASE);
    futex_wake(&i->done);
    instance_drop(i);
}

static void run(emu_stream *s, worker *w, operation *o) {
    switch (o->what) {
    case KERNEL:
        run_kernel(w, o, &s->random);
        break;
    case COPY:
        run_copy(o, &s->random);
        break;
    case SET:
        if (range_cover(o->to, o->bytes) != COVER_DEVICE)
            refuse("cudaMemsetAsync of %zu bytes at %p: the memory was freed before it ran", o->bytes, o->to);
        memset(o->to, o->value, o->bytes);
        break;
    case RECORD:
        run_record(o);
        break;
    case WAIT:
        instance_await(o->event);
        instance_drop(o->event);
        break;
    case STOP:
        break;
    }
}

static void *stream_main(void *user) {
    emu_stream *s = (emu_stream *)user;
    worker *w = worker_create();
    for (kind last = KERNEL; last != STOP;) {
        uint32_t n = s->n_done, queued;
        while ((queued = __atomic_load_n(&s->n_queued, __ATOMIC_ACQUIRE)) == n) futex_wait(&s->n_queued, n);
        operation *o = &s->ring[n % OPERATIONS];
        after(o);
        last = o->what;
        run(s, w, o);
        before(&s->done);
        __atomic_store_n(&s->n_done, n + 1, __ATOMIC_RELEASE);
        futex_wake(&s->n_done);
    }
    worker_destroy(w);
    return nullptr;
}

static emu_stream *stream_check(cudaStream_t s, const char *call) {
    if (!s || s == (cudaStream_t)1 || s == (cudaStream_t)2) refuse("%s: on the default stream", call);
    if (s->magic != MAGIC) refuse("%s: %p is not a stream", call, (void *)s);
    return s;
}

static void await_done(emu_stream *s, uint32_t n) {
    for (uint32_t done; (int32_t)((done = __atomic_load_n(&s->n_done, __ATOMIC_ACQUIRE)) - n) < 0;)
        futex_wait(&s->n_done, done);
    after(&s->done);
}

/* Reserves an operation in the stream's queue; the caller fills the operation and calls queue_end. */
static operation *queue_begin(emu_stream *s, kind what) {
    lock(&s->queueing);
    uint32_t done;
    while (s->n_queued - (done = __atomic_load_n(&s->n_done, __ATOMIC_ACQUIRE)) == OPERATIONS)
        futex_wait(&s->n_done, done);
    operation *o = &s->ring[s->n_queued % OPERATIONS];
    o->what = what;
    o->fails = cudaSuccess;
    o->snapshot = nullptr;
    return o;
}

/* Publishes the operation in the stream's queue; returns the number of operations queued so far. */
static uint32_t queue_end(emu_stream *s, operation *o) {
    before(o);
    uint32_t n = s->n_queued + 1;
    __atomic_store_n(&s->n_queued, n, __ATOMIC_RELEASE);
    futex_wake(&s->n_queued);
    unlock(&s->queueing);
    return n;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    cudaError_t bad = need_device();
    if (bad || (bad = planned_failure(EMU_STREAM_CREATE))) return report(bad);
    if (flags != cudaStreamNonBlocking)
        refuse("cudaStreamCreate: needs cudaStreamNonBlocking, else the stream waits for the default stream");
    emu_stream *s = (emu_stream *)calloc(1, sizeof *s);
    if (!s) return report(cudaErrorMemoryAllocation);
    s->magic = MAGIC;
    s->random = (now.seed * 2 + 1) ^ 0xA3EC647659359ACDull;
    if (pthread_create(&s->thread, nullptr, stream_main, s)) {
        free(s);
        return report(cudaErrorMemoryAllocation);
    }
    *stream = s;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    emu_stream *s = stream_check(stream, "cudaStreamDestroy");
    queue_end(s, queue_begin(s, STOP));
    pthread_join(s->thread, nullptr);
    s->magic = 0;
    free(s);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    emu_stream *s = stream_check(stream, "cudaStreamSynchronize");
    await_done(s, __atomic_load_n(&s->n_queued, __ATOMIC_ACQUIRE));
    cudaError_t bad = struck();
    return report(bad ? bad : planned_failure(EMU_SYNCHRONIZE));
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    emu_stream *s = stream_check(stream, "cudaStreamQuery");
    uint32_t n = __atomic_load_n(&s->n_queued, __ATOMIC_ACQUIRE);
    if (struck()) return report(struck());
    if (__atomic_load_n(&s->n_done, __ATOMIC_ACQUIRE) != n) return cudaErrorNotReady;
    after(&s->done);
    return cudaSuccess;
}

void emu_launch(const char *name, const void *function, dim3 grid, dim3 block, size_t shared_bytes,
                cudaStream_t stream, void (*call)(void *), const void *arguments, size_t bytes) {
    if (!stream) refuse("kernel %s: on the default stream", name);
    emu_stream *s = stream_check(stream, name);
    uint64_t threads = (uint64_t)block.x * block.y * block.z;
    if (!grid.x || !grid.y || !grid.z || grid.x > 0x7FFFFFFF || grid.y > 65535 || grid.z > 65535)
        refuse("kernel %s: a grid of (%u, %u, %u) blocks", name, grid.x, grid.y, grid.z);
    if (!threads || threads > 1024 || block.z > 64)
        refuse("kernel %s: a block of (%u, %u, %u) threads", name, block.x, block.y, block.z);
    if (bytes > ARGUMENTS) refuse("kernel %s: %zu bytes of arguments", name, bytes);
    if (shared_bytes > shared_limit(function))
        refuse("kernel %s: %zu bytes of dynamic shared memory; limit %zu, by default or cudaFuncSetAttribute",
               name, shared_bytes, shared_limit(function));
    cudaError_t fails = planned_failure(EMU_LAUNCH);
    if (struck() || (fails && !is_sticky(fails))) {
        report(struck() ? struck() : fails);
        return;
    }
    if (!kernel_loaded(function)) count_late_kernel();
    operation *o = queue_begin(s, KERNEL);
    o->fails = fails;
    o->kernel = launch{name, function, grid, block, shared_bytes, call, o->arguments};
    quiet_copy(o->arguments, arguments, bytes);
    queue_end(s, o);
}

void emu_check_argument(const char *kernel, int i, const void *pointer) {
    /* A pointer to the end of an allocation is valid too, because a tensor may be empty. */
    if (!pointer || range_cover(pointer, 1) >= COVER_DEVICE ||
        range_cover((const char *)pointer - 1, 1) >= COVER_DEVICE)
        return;
    refuse("kernel %s: argument %d, %p, is neither device memory nor pinned", kernel, i, pointer);
}

static emu_event *event_check(cudaEvent_t e, const char *call) {
    if (!e || e->magic != MAGIC) refuse("%s: %p is not an event", call, (void *)e);
    return e;
}

static instance *event_latest(emu_event *e) {
    lock(&e->changing);
    instance *i = instance_use(e->latest);
    unlock(&e->changing);
    return i;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    cudaError_t bad = need_device();
    if (bad || (bad = planned_failure(EMU_EVENT_CREATE))) return report(bad);
    emu_event *e = (emu_event *)calloc(1, sizeof *e);
    if (!e) return report(cudaErrorMemoryAllocation);
    e->magic = MAGIC;
    e->timed = !(flags & cudaEventDisableTiming);
    *event = e;
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    emu_event *e = event_check(event, "cudaEventDestroy");
    instance_drop(e->latest);
    e->magic = 0;
    free(e);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    emu_event *e = event_check(event, "cudaEventRecord");
    emu_stream *s = stream_check(stream, "cudaEventRecord");
    if (struck()) return report(struck());
    instance *i = instance_make();
    i->timed = e->timed;
    lock(&e->changing);
    instance *old = e->latest;
    e->latest = instance_use(i);
    unlock(&e->changing);
    instance_drop(old);
    operation *o = queue_begin(s, RECORD);
    o->event = i;
    queue_end(s, o);
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    emu_event *e = event_check(event, "cudaStreamWaitEvent");
    emu_stream *s = stream_check(stream, "cudaStreamWaitEvent");
    if (struck()) return report(struck());
    operation *o = queue_begin(s, WAIT);
    o->event = event_latest(e);
    queue_end(s, o);
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    instance *i = event_latest(event_check(event, "cudaEventQuery"));
    bool done = instance_done(i);
    if (done && i) after(i);
    instance_drop(i);
    if (struck()) return report(struck());
    return done ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    instance *i = event_latest(event_check(event, "cudaEventSynchronize"));
    instance_await(i);
    instance_drop(i);
    cudaError_t bad = struck();
    return report(bad ? bad : planned_failure(EMU_SYNCHRONIZE));
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end) {
    instance *a = event_latest(event_check(start, "cudaEventElapsedTime"));
    instance *b = event_latest(event_check(end, "cudaEventElapsedTime"));
    cudaError_t bad = !a || !b || !a->timed || !b->timed       ? cudaErrorInvalidResourceHandle
                      : !instance_done(a) || !instance_done(b) ? cudaErrorNotReady
                                                               : cudaSuccess;
    if (!bad) *milliseconds = (float)(1e3 * (b->seconds - a->seconds));
    instance_drop(a);
    instance_drop(b);
    return bad == cudaErrorNotReady ? bad : report(bad);
}

static bool is_device(const void *memory, size_t bytes, const char *end) {
    switch (range_cover(memory, bytes)) {
    case COVER_PART:
        refuse("cudaMemcpyAsync: %zu bytes %s %p pass the end of their allocation", bytes, end, memory);
    case COVER_DEVICE:
        return true;
    default:
        return false;
    }
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream) {
    emu_stream *s = stream_check(stream, "cudaMemcpyAsync");
    cudaError_t bad = struck() ? struck() : planned_failure(EMU_COPY);
    if (bad) return report(bad);
    if (!bytes) return cudaSuccess;
    bool to_device = is_device(to, bytes, "to"), from_device = is_device(from, bytes, "from");
    enum cudaMemcpyKind is = to_device     ? from_device ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice
                             : from_device ? cudaMemcpyDeviceToHost
                                           : cudaMemcpyHostToHost;
    if (kind != cudaMemcpyDefault && kind != is)
        refuse("cudaMemcpyAsync: kind %d given, but a copy of %p to %p has kind %d", kind, from, to, is);
    bool to_pageable = !to_device && range_cover(to, bytes) == COVER_NONE;
    bool from_pageable = !from_device && range_cover(from, bytes) == COVER_NONE;
    count_copy(bytes, to_pageable || from_pageable);
    void *snapshot = nullptr;
    if (from_pageable) {
        snapshot = malloc(bytes);
        if (!snapshot) return report(cudaErrorMemoryAllocation);
        memcpy(snapshot, from, bytes);
    }
    operation *o = queue_begin(s, COPY);
    o->to = to, o->from = from, o->bytes = bytes, o->snapshot = snapshot;
    uint32_t n = queue_end(s, o);
    if (to_pageable) await_done(s, n);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
    emu_stream *s = stream_check(stream, "cudaMemsetAsync");
    if (struck()) return report(struck());
    if (!bytes) return cudaSuccess;
    if (range_cover(to, bytes) != COVER_DEVICE)
        refuse("cudaMemsetAsync: %zu bytes at %p are not device memory", bytes, to);
    operation *o = queue_begin(s, SET);
    o->to = to, o->value = value, o->bytes = bytes;
    queue_end(s, o);
    return cudaSuccess;
}
