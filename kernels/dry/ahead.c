/* The timed device behind a host that runs ahead: see ahead.h. Events and fences are times. */
#include "kernels/dry/ahead.h"

#include <errno.h>
#include <stddef.h>

static struct ahead *ahead_of(struct device *device) {
    return (struct ahead *)device;
}

static struct ahead *ahead_of_sys(struct sys *sys) {
    return (struct ahead *)((char *)sys - offsetof(struct timed, sys));
}

static uint64_t now_of(struct device *device) {
    return actors_now(&ahead_of(device)->actors);
}

/* So long of whoever's time it is. */
static void take_time(struct ahead *a, double seconds) {
    actors_pass(&a->actors, actors_now(&a->actors) + timed_picoseconds(seconds));
}

/* ---- the queues ---- */

static enum status ahead_run(struct device *device, const struct op *op, void *workspace, struct error *e) {
    struct ahead *a = ahead_of(device);
    take_time(a, a->rates.launch_seconds);
    if (a->timed.compute < now_of(device)) a->timed.compute = now_of(device);
    return a->below.device.run(device, op, workspace, e);
}

static uint64_t ahead_copy(struct device *device, void *to, const void *from, size_t bytes, uint64_t event) {
    struct ahead *a = ahead_of(device);
    take_time(a, a->rates.piece_seconds);
    a->timed.reader = now_of(device);
    return a->below.device.memory->copy(device, to, from, bytes, event);
}

/* Operators wait; the host goes on. */
static double ahead_await_copy(struct device *device, uint64_t fence) {
    struct ahead *a = ahead_of(device);
    if (a->timed.compute < now_of(device)) a->timed.compute = now_of(device);
    return a->below.device.memory->await_copy(device, fence);
}

static void ahead_wait_copy(struct device *device, uint64_t fence) {
    actors_pass(&ahead_of(device)->actors, fence);
}

/* Whoever waits for both queues may hold the store's lock: nobody else has a turn, nor anything to do. */
static void ahead_finish(struct device *device) {
    struct ahead *a = ahead_of(device);
    actors_delay(&a->actors, a->timed.compute);
    actors_delay(&a->actors, a->timed.copies);
}

static enum status ahead_wait(struct device *device, double *stalled, struct error *e) {
    struct ahead *a = ahead_of(device);
    (void)stalled;
    actors_pass(&a->actors, a->timed.compute);
    return e->code;
}

static int ahead_pin(struct device *device, void *memory, size_t bytes) {
    struct ahead *a = ahead_of(device);
    (void)memory;
    take_time(a, a->rates.pin_seconds * (double)bytes);
    return 0;
}

static void ahead_unpin(struct device *device, void *memory, size_t bytes) {
    (void)device, (void)memory, (void)bytes;
}

/* ---- the world ---- */

static double ahead_clock(struct sys *sys) {
    return (double)actors_now(&ahead_of_sys(sys)->actors) * 1e-12;
}

/* One disk: a read waits for those that were asked for before it. */
static int64_t ahead_read_at(struct sys *sys, int file, void *to, size_t bytes, int64_t offset) {
    struct ahead *a = ahead_of_sys(sys);
    uint64_t now = actors_now(&a->actors);
    a->timed.reader = a->disk > now ? a->disk : now;
    int64_t n = a->below.sys.read_at(sys, file, to, bytes, offset);
    a->disk = a->timed.reader;
    actors_pass(&a->actors, a->disk);
    return n;
}

static int ahead_thread_start(struct sys *sys, struct sys_thread **thread, void (*main)(void *),
                              void *argument) {
    struct actor *actor = actors_start(&ahead_of_sys(sys)->actors, main, argument);
    *thread = (struct sys_thread *)actor;
    return actor ? 0 : -ENOMEM;
}

static void ahead_thread_join(struct sys *sys, struct sys_thread *thread) {
    actors_join(&ahead_of_sys(sys)->actors, (struct actor *)thread);
}

static void ahead_wait_there(struct sys *sys, pthread_cond_t *there, pthread_mutex_t *lock, double seconds) {
    struct actors *actors = &ahead_of_sys(sys)->actors;
    uint64_t until = seconds > 0 ? actors_now(actors) + timed_picoseconds(seconds) : 0;
    pthread_mutex_unlock(lock);
    actors_wait(actors, there, until);
    pthread_mutex_lock(lock);
}

static void ahead_wake(struct sys *sys, pthread_cond_t *there) {
    actors_wake(&ahead_of_sys(sys)->actors, there);
}

void ahead_init(struct ahead *a, const struct op_rates *rates, double bus, double disk,
                const struct ahead_rates *host) {
    timed_init(&a->timed, rates, bus, disk);
    a->below = a->timed;
    a->rates = *host;
    a->disk = 0;
    actors_begin(&a->actors, &a->below.sys);
    a->memory = *a->below.device.memory;
    a->memory.copy = ahead_copy;
    a->memory.await_copy = ahead_await_copy;
    a->memory.wait_copy = ahead_wait_copy;
    a->memory.finish = ahead_finish;
    a->memory.wait = ahead_wait;
    a->memory.pin = ahead_pin;
    a->memory.unpin = ahead_unpin;
    a->timed.device.memory = &a->memory;
    a->timed.device.run = ahead_run;
    struct sys *sys = &a->timed.sys;
    sys->clock = ahead_clock;
    sys->read_at = ahead_read_at;
    sys->thread_start = ahead_thread_start;
    sys->thread_join = ahead_thread_join;
    sys->wait = ahead_wait_there;
    sys->wake = ahead_wake;
}
