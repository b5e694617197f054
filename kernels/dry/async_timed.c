/* The timed device with asynchronous launches. Event and fence numbers are times in picoseconds. */
#include "kernels/dry/async_timed.h"

#include <errno.h>
#include <stddef.h>

static struct async_timed *async_timed_of(struct device *device) {
    return (struct async_timed *)device;
}

static struct async_timed *async_timed_of_sys(struct sys *sys) {
    return (struct async_timed *)((char *)sys - offsetof(struct timed, sys));
}

static uint64_t now_of(struct device *device) {
    return virtual_threads_now(&async_timed_of(device)->threads);
}

static void take_time(struct async_timed *a, double seconds) {
    virtual_threads_pass(&a->threads, virtual_threads_now(&a->threads) + timed_picoseconds(seconds));
}

static enum status async_run(struct device *device, const struct op *op, void *workspace, struct error *e) {
    struct async_timed *a = async_timed_of(device);
    take_time(a, a->rates.launch_seconds);
    if (a->timed.compute < now_of(device)) a->timed.compute = now_of(device);
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
    if (a->timed.compute < now_of(device)) a->timed.compute = now_of(device);
    return a->below.device.memory->await_copy(device, fence);
}

static void async_wait_copy(struct device *device, uint64_t fence) {
    virtual_threads_pass(&async_timed_of(device)->threads, fence);
}

/* Does not yield: the caller may hold the store's lock, and no other thread has work. */
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

/* Models one disk: a read starts after all earlier reads. */
static int64_t async_read_at(struct sys *sys, int file, void *to, size_t bytes, int64_t offset) {
    struct async_timed *a = async_timed_of_sys(sys);
    uint64_t now = virtual_threads_now(&a->threads);
    a->timed.reader = a->disk > now ? a->disk : now;
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
    uint64_t until = seconds > 0 ? virtual_threads_now(threads) + timed_picoseconds(seconds) : 0;
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
