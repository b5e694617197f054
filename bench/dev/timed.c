/* The timed dry devices: a simulated clock. Event and fence numbers are times in picoseconds. */
#include "bench/dev/timed.h"

#include <errno.h>
#include <stddef.h>

static uint64_t picoseconds(double seconds) {
    return (uint64_t)(seconds * 1e12 + 0.5);
}

static struct timed *timed_of(struct device *device) {
    return (struct timed *)device;
}

static uint64_t later(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

/* Reports an event to the trace callback; events without duration are skipped. */
static void trace_event(struct timed *t, enum timed_event event, uint64_t start, uint64_t end,
                        uint64_t bytes) {
    if (t->trace && end > start) t->trace(t->trace_user, event, start, end, bytes);
}

static void timed_cost(const struct device *device, const struct op *op, struct op_cost *cost) {
    (void)device, (void)op;
    *cost = (struct op_cost){0};
}

static enum status timed_prepare(struct device *device, const struct op *op, struct error *e) {
    (void)device, (void)op, (void)e;
    return OK;
}

static enum status timed_run(struct device *device, const struct op *op, void *workspace, struct error *e) {
    struct timed *t = timed_of(device);
    (void)workspace, (void)e;
    uint64_t start = t->compute;
    t->compute += picoseconds(op_seconds(op, &t->rates));
    trace_event(t, TIMED_OPERATOR, start, t->compute, 0);
    return OK;
}

static void *timed_reserve(struct device *device, size_t bytes) {
    struct sys *sys = &timed_of(device)->sys;
    return sys->reserve(sys, bytes);
}

static int timed_commit(struct device *device, void *memory, size_t bytes) {
    (void)device, (void)memory, (void)bytes;
    return 0;
}

static void timed_decommit(struct device *device, void *memory, size_t bytes) {
    (void)device, (void)memory, (void)bytes;
}

static void timed_unreserve(struct device *device, void *memory, size_t bytes) {
    struct sys *sys = &timed_of(device)->sys;
    sys->unreserve(sys, memory, bytes);
}

static uint64_t timed_record_event(struct device *device) {
    return timed_of(device)->compute;
}

static uint64_t timed_copy(struct device *device, void *to, const void *from, size_t bytes, uint64_t event) {
    struct timed *t = timed_of(device);
    (void)to, (void)from;
    uint64_t start = later(later(t->copies, t->reader), event);
    t->copies = start + picoseconds((double)bytes / t->bus);
    trace_event(t, TIMED_COPY, start, t->copies, bytes);
    return t->copies;
}

static double timed_await_copy(struct device *device, uint64_t fence) {
    struct timed *t = timed_of(device);
    uint64_t before = t->compute;
    t->compute = later(before, fence);
    trace_event(t, TIMED_STALL, before, t->compute, 0);
    return (double)(t->compute - before) * 1e-12;
}

static void timed_wait_copy(struct device *device, uint64_t fence) {
    struct timed *t = timed_of(device);
    t->reader = later(t->reader, fence);
}

static void timed_finish(struct device *device) {
    struct timed *t = timed_of(device);
    t->compute = later(t->compute, t->copies);
}

static const struct device_memory timed_memory = {
    .reserve = timed_reserve,
    .commit = timed_commit,
    .decommit = timed_decommit,
    .unreserve = timed_unreserve,
    .record_event = timed_record_event,
    .copy = timed_copy,
    .await_copy = timed_await_copy,
    .wait_copy = timed_wait_copy,
    .finish = timed_finish,
};

static void timed_destroy(struct device *device) {
    (void)device;
}

static struct timed *timed_of_sys(struct sys *sys) {
    return (struct timed *)((char *)sys - offsetof(struct timed, sys));
}

static double timed_clock(struct sys *sys) {
    return (double)timed_of_sys(sys)->compute * 1e-12;
}

static int64_t timed_read_at(struct sys *sys, int file, void *to, size_t bytes, int64_t offset) {
    struct timed *t = timed_of_sys(sys);
    (void)file, (void)to, (void)offset;
    uint64_t start = t->reader;
    t->reader += picoseconds((double)bytes / t->disk);
    trace_event(t, TIMED_READ, start, t->reader, bytes);
    return (int64_t)bytes;
}

static int timed_open(struct sys *sys, const char *path) {
    (void)sys, (void)path;
    return 0;
}

static int timed_identify(struct sys *sys, int file, struct file_identity *identity) {
    (void)sys, (void)file;
    *identity = (struct file_identity){.regular = true};
    return 0;
}

static void timed_close(struct sys *sys, int file) {
    (void)sys, (void)file;
}

/* Reserves address space only. No page is ever written, so models of any size fit. */
static void *timed_map(struct sys *sys, enum memory_line line, size_t bytes) {
    (void)line;
    return sys->reserve(sys, bytes);
}

static void timed_unmap(struct sys *sys, enum memory_line line, void *memory, size_t bytes) {
    (void)line;
    if (memory) sys->unreserve(sys, memory, bytes);
}

static void timed_discard(struct sys *sys, void *memory, size_t bytes) {
    (void)sys, (void)memory, (void)bytes;
}

void timed_init(struct timed *timed, const struct op_rates *rates, double bus, double disk) {
    *timed = (struct timed){.device = {.name = "timed",
                                       .memory = &timed_memory,
                                       .cost = timed_cost,
                                       .prepare = timed_prepare,
                                       .run = timed_run,
                                       .destroy = timed_destroy},
                            .rates = *rates,
                            .bus = bus,
                            .disk = disk};
    struct sys *sys = &timed->sys;
    sys_init_machine(sys);
    sys->clock = timed_clock;
    sys->open = timed_open;
    sys->identify = timed_identify;
    sys->read_at = timed_read_at;
    sys->close = timed_close;
    sys->map = timed_map;
    sys->unmap = timed_unmap;
    sys->discard = timed_discard;
    sys->use_large_pages = timed_discard;
}

/* ---- the asynchronous device ---- */

static struct async_timed *async_timed_of(struct device *device) {
    return (struct async_timed *)device;
}

static struct async_timed *async_timed_of_sys(struct sys *sys) {
    return (struct async_timed *)((char *)sys - offsetof(struct timed, sys));
}

/* Returns the virtual time of the running virtual thread. */
static uint64_t now_of(struct device *device) {
    return virtual_threads_now(&async_timed_of(device)->threads);
}

static void take_time(struct async_timed *a, double seconds) {
    virtual_threads_pass(&a->threads, virtual_threads_now(&a->threads) + picoseconds(seconds));
}

static enum status async_run(struct device *device, const struct op *op, void *workspace, struct error *e) {
    struct async_timed *a = async_timed_of(device);
    take_time(a, a->rates.launch_seconds);
    a->timed.compute = later(a->timed.compute, now_of(device));
    return a->below.device.run(device, op, workspace, e);
}

static uint64_t async_copy(struct device *device, void *to, const void *from, size_t bytes, uint64_t event) {
    struct async_timed *a = async_timed_of(device);
    take_time(a, a->rates.piece_seconds);
    a->timed.reader = now_of(device);
    return a->below.device.memory->copy(device, to, from, bytes, event);
}

static double async_await_copy(struct device *device, uint64_t fence) {
    struct async_timed *a = async_timed_of(device);
    a->timed.compute = later(a->timed.compute, now_of(device));
    return a->below.device.memory->await_copy(device, fence);
}

static void async_wait_copy(struct device *device, uint64_t fence) {
    virtual_threads_pass(&async_timed_of(device)->threads, fence);
}

/* Does not switch to another virtual thread: the caller may hold the store's lock, and no other thread has
 * work. */
static void async_finish(struct device *device) {
    struct async_timed *a = async_timed_of(device);
    virtual_threads_delay(&a->threads, a->timed.compute);
    virtual_threads_delay(&a->threads, a->timed.copies);
}

static enum status async_wait(struct device *device, double *stalled, struct error *e) {
    struct async_timed *a = async_timed_of(device);
    (void)stalled;
    virtual_threads_pass(&a->threads, a->timed.compute);
    return e->code;
}

static int async_pin(struct device *device, void *memory, size_t bytes) {
    struct async_timed *a = async_timed_of(device);
    (void)memory;
    take_time(a, a->rates.pin_seconds * (double)bytes);
    return 0;
}

static void async_unpin(struct device *device, void *memory, size_t bytes) {
    (void)device, (void)memory, (void)bytes;
}

static double async_clock(struct sys *sys) {
    return (double)virtual_threads_now(&async_timed_of_sys(sys)->threads) * 1e-12;
}

/* Simulates one disk: a read starts after all earlier reads have ended. */
static int64_t async_read_at(struct sys *sys, int file, void *to, size_t bytes, int64_t offset) {
    struct async_timed *a = async_timed_of_sys(sys);
    uint64_t now = virtual_threads_now(&a->threads);
    a->timed.reader = later(a->disk, now);
    int64_t n = a->below.sys.read_at(sys, file, to, bytes, offset);
    a->disk = a->timed.reader;
    virtual_threads_pass(&a->threads, a->disk);
    return n;
}

static int async_thread_start(struct sys *sys, struct sys_thread **thread, void (*main)(void *),
                              void *argument) {
    struct virtual_thread *started = virtual_threads_start(&async_timed_of_sys(sys)->threads, main, argument);
    *thread = (struct sys_thread *)started;
    return started ? 0 : -ENOMEM;
}

static void async_thread_join(struct sys *sys, struct sys_thread *thread) {
    virtual_threads_join(&async_timed_of_sys(sys)->threads, (struct virtual_thread *)thread);
}

static void async_wait_there(struct sys *sys, pthread_cond_t *there, pthread_mutex_t *lock, double seconds) {
    struct virtual_threads *threads = &async_timed_of_sys(sys)->threads;
    uint64_t until = seconds > 0 ? virtual_threads_now(threads) + picoseconds(seconds) : 0;
    pthread_mutex_unlock(lock);
    virtual_threads_wait(threads, there, until);
    pthread_mutex_lock(lock);
}

static void async_wake(struct sys *sys, pthread_cond_t *there) {
    virtual_threads_wake(&async_timed_of_sys(sys)->threads, there);
}

void async_timed_init(struct async_timed *a, const struct op_rates *rates, double bus, double disk,
                      const struct host_rates *host) {
    timed_init(&a->timed, rates, bus, disk);
    a->below = a->timed;
    a->rates = *host;
    a->disk = 0;
    virtual_threads_begin(&a->threads, &a->below.sys);
    a->memory = *a->below.device.memory;
    a->memory.copy = async_copy;
    a->memory.await_copy = async_await_copy;
    a->memory.wait_copy = async_wait_copy;
    a->memory.finish = async_finish;
    a->memory.wait = async_wait;
    a->memory.pin = async_pin;
    a->memory.unpin = async_unpin;
    a->timed.device.memory = &a->memory;
    a->timed.device.run = async_run;
    struct sys *sys = &a->timed.sys;
    sys->clock = async_clock;
    sys->read_at = async_read_at;
    sys->thread_start = async_thread_start;
    sys->thread_join = async_thread_join;
    sys->wait = async_wait_there;
    sys->wake = async_wake;
}
