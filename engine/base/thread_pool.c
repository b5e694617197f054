/* Thread pool: see thread_pool.h. One atomic word holds the loop's number, whether the loop is open to
 * threads, and the number of threads inside. So joining and closing cannot race. */
#include "engine/base/thread_pool.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

/* bits of `state`, the pool's atomic word: loop number << 32 | OFFERED | threads inside */
static const uint64_t OFFERED = (uint64_t)1 << 31;
static const uint64_t INSIDE = ((uint64_t)1 << 31) - 1;

/* Number of portions into which each thread's share of a loop is divided. 8 portions cost little, and a late
 * thread then causes little waiting. */
enum { STEPS = 8 };

struct thread_pool {
    struct sys *sys;
    int n_members, n_started; /* number of threads including the calling thread: planned; started */
    struct sys_thread **thread;
    thread_pool_work *work;
    const void *context;
    int64_t n, step;
    atomic_llong next;       /* index of the first item that no thread has taken */
    atomic_int n_members_at; /* number of threads that have taken items of this loop */
    atomic_ullong state;
    atomic_int n_asleep;
    atomic_bool caller_asleep, closing;
    pthread_mutex_t lock; /* held from a thread's last check of `state` until the thread sleeps */
    pthread_cond_t begins, ended;
};

/* Spins until the condition is true, for at most 50 us. Returns whether it is true. */
static bool thread_pool_spin(struct thread_pool *thread_pool,
                             bool (*condition)(struct thread_pool *thread_pool, uint32_t last_loop),
                             uint32_t last_loop) {
    enum { SPINS = 64 };
    static const double spin_seconds = 50e-6;
    double until = 0;
    for (;;) {
        for (int i = 0; i < SPINS; i++) {
            if (condition(thread_pool, last_loop)) return true;
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
        }
        double now = thread_pool->sys->clock(thread_pool->sys);
        if (!until) until = now + spin_seconds;
        if (now >= until) return false;
    }
}

/* True if the pool offers a loop that this thread has not joined yet, or the pool closes. */
static bool thread_pool_has_work(struct thread_pool *thread_pool, uint32_t last_loop) {
    uint64_t state = atomic_load(&thread_pool->state);
    return ((state & OFFERED) && (uint32_t)(state >> 32) != last_loop) || atomic_load(&thread_pool->closing);
}

/* True if no thread is inside a loop. */
static bool thread_pool_is_empty(struct thread_pool *thread_pool, uint32_t last_loop) {
    (void)last_loop;
    return !(atomic_load(&thread_pool->state) & INSIDE);
}

/* Takes and processes items until none are left. */
static void thread_pool_take(struct thread_pool *thread_pool) {
    int64_t first;
    int member = -1;
    while ((first = atomic_fetch_add(&thread_pool->next, thread_pool->step)) < thread_pool->n) {
        int64_t end = first + thread_pool->step < thread_pool->n ? first + thread_pool->step : thread_pool->n;
        if (member < 0) member = atomic_fetch_add(&thread_pool->n_members_at, 1);
        thread_pool->work(thread_pool->context, first, end, member);
    }
}

/* Joins the current loop unless it is closed. *last_loop gets the loop's number. */
static bool thread_pool_enter(struct thread_pool *thread_pool, uint32_t *last_loop) {
    unsigned long long state = atomic_load(&thread_pool->state);
    do {
        if (!(state & OFFERED)) return false;
        *last_loop = (uint32_t)(state >> 32);
    } while (!atomic_compare_exchange_weak(&thread_pool->state, &state, state + 1));
    return true;
}

/* Wakes all sleeping threads. */
static void thread_pool_wake(struct thread_pool *thread_pool) {
    if (!atomic_load(&thread_pool->n_asleep)) return;
    pthread_mutex_lock(&thread_pool->lock);
    pthread_cond_broadcast(&thread_pool->begins);
    pthread_mutex_unlock(&thread_pool->lock);
}

/* A thread of the pool: waits for a loop, takes items, leaves the loop. */
static void member_main(void *argument) {
    struct thread_pool *thread_pool = argument;
    uint32_t last_loop = 0;
    while (!atomic_load(&thread_pool->closing)) {
        if (!thread_pool_spin(thread_pool, thread_pool_has_work, last_loop)) {
            pthread_mutex_lock(&thread_pool->lock);
            atomic_fetch_add(&thread_pool->n_asleep, 1);
            while (!thread_pool_has_work(thread_pool, last_loop))
                pthread_cond_wait(&thread_pool->begins, &thread_pool->lock);
            atomic_fetch_sub(&thread_pool->n_asleep, 1);
            pthread_mutex_unlock(&thread_pool->lock);
        }
        if (!thread_pool_enter(thread_pool, &last_loop)) continue;
        thread_pool_take(thread_pool);
        uint64_t before = atomic_fetch_sub(&thread_pool->state, 1); /* leaves the loop */
        if ((before & (OFFERED | INSIDE)) != 1 || !atomic_load(&thread_pool->caller_asleep)) continue;
        pthread_mutex_lock(&thread_pool->lock); /* the last thread of a closed loop wakes the caller */
        pthread_cond_signal(&thread_pool->ended);
        pthread_mutex_unlock(&thread_pool->lock);
    }
}

void thread_pool_run(struct thread_pool *thread_pool, int64_t n, thread_pool_work *work,
                     const void *context) {
    if (n <= 0) return;
    if (n == 1 || thread_pool->n_started == 1) {
        work(context, 0, n, 0);
        return;
    }
    int64_t step = n / ((int64_t)thread_pool->n_started * STEPS);
    thread_pool->work = work;
    thread_pool->context = context;
    thread_pool->n = n;
    thread_pool->step = step > 0 ? step : 1;
    atomic_store(&thread_pool->next, 0);
    atomic_store(&thread_pool->n_members_at, 0);
    atomic_store(&thread_pool->state, ((atomic_load(&thread_pool->state) >> 32) + 1) << 32 | OFFERED);
    thread_pool_wake(thread_pool);
    thread_pool_take(thread_pool);
    atomic_fetch_and(&thread_pool->state, ~OFFERED);
    if (thread_pool_spin(thread_pool, thread_pool_is_empty, 0)) return;
    pthread_mutex_lock(&thread_pool->lock);
    atomic_store(&thread_pool->caller_asleep, true);
    while (!thread_pool_is_empty(thread_pool, 0)) pthread_cond_wait(&thread_pool->ended, &thread_pool->lock);
    atomic_store(&thread_pool->caller_asleep, false);
    pthread_mutex_unlock(&thread_pool->lock);
}

struct thread_pool *thread_pool_open(struct sys *sys, int members, struct error *e) {
    struct thread_pool *thread_pool = sys_new(sys, 1, sizeof *thread_pool, "the compute threads", e);
    struct sys_thread **thread = sys_new(sys, (size_t)members, sizeof *thread, "the compute threads", e);
    if (!thread_pool || !thread) {
        sys->release(sys, thread_pool);
        sys->release(sys, thread);
        return NULL;
    }
    thread_pool->sys = sys;
    thread_pool->n_members = members;
    thread_pool->n_started = 1;
    thread_pool->thread = thread;
    pthread_mutex_init(&thread_pool->lock, NULL);
    pthread_cond_init(&thread_pool->begins, NULL);
    pthread_cond_init(&thread_pool->ended, NULL);
    return thread_pool;
}

enum status thread_pool_start(struct thread_pool *thread_pool, struct error *e) {
    while (thread_pool->n_started < thread_pool->n_members) {
        struct sys_thread **thread = &thread_pool->thread[thread_pool->n_started];
        int failed = thread_pool->sys->thread_start(thread_pool->sys, thread, member_main, thread_pool);
        if (failed)
            return error_set(
                e, MEMORY, "cannot start compute thread %d of %d" FOUND "%s" EXPECTED "fewer threads: -t %d",
                thread_pool->n_started + 1, thread_pool->n_members, strerror(-failed),
                thread_pool->n_started);
        thread_pool->n_started++;
    }
    return OK;
}

void thread_pool_close(struct thread_pool *thread_pool) {
    if (!thread_pool) return;
    atomic_store(&thread_pool->closing, true);
    thread_pool_wake(thread_pool);
    for (int i = 1; i < thread_pool->n_started; i++)
        thread_pool->sys->thread_join(thread_pool->sys, thread_pool->thread[i]);
    pthread_cond_destroy(&thread_pool->ended);
    pthread_cond_destroy(&thread_pool->begins);
    pthread_mutex_destroy(&thread_pool->lock);
    thread_pool->sys->release(thread_pool->sys, thread_pool->thread);
    thread_pool->sys->release(thread_pool->sys, thread_pool);
}

int thread_pool_members(const struct thread_pool *thread_pool) {
    return thread_pool->n_members;
}
