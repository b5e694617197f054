/* Threads on a virtual clock (coroutines). Each virtual thread has its own time in picoseconds; the thread
 * with the least time runs next, on the OS thread that calls virtual_threads_begin, so every run has the same
 * order. Thread 0 is the caller.
 *
 * A thread yields only where it advances time, waits or joins; at these points the thread may hold no lock
 * except the lock that it waits with. */
#ifndef SLUICE_DEV_VIRTUAL_THREADS_H
#define SLUICE_DEV_VIRTUAL_THREADS_H

#include "engine/base/sys.h"

#include <ucontext.h>

enum { VIRTUAL_THREADS_MAX = 16 };

enum virtual_thread_state {
    VIRTUAL_THREAD_NONE,
    VIRTUAL_THREAD_RUNS,
    VIRTUAL_THREAD_WAITS,
    VIRTUAL_THREAD_ENDED
};

struct virtual_thread {
    enum virtual_thread_state state;
    uint64_t now;
    const void *where; /* address that the virtual thread waits on */
    uint64_t until;    /* end of the wait in virtual picoseconds; 0: no timeout */
    void (*main)(void *argument);
    void *argument;
    void *stack;
    ucontext_t context;
    void *shadow; /* AddressSanitizer's fake stack while the thread is suspended */
};

struct virtual_threads {
    struct sys *sys; /* allocator of the threads' stacks */
    struct virtual_thread thread[VIRTUAL_THREADS_MAX];
    int current;
};

void virtual_threads_begin(struct virtual_threads *threads, struct sys *sys);

/* Returns the running virtual thread's time in picoseconds. */
uint64_t virtual_threads_now(const struct virtual_threads *threads);
/* Advance the running virtual thread's time to `until`, if later. virtual_threads_pass also lets other
 * threads run. */
void virtual_threads_pass(struct virtual_threads *threads, uint64_t until);
void virtual_threads_delay(struct virtual_threads *threads, uint64_t until);

/* Starts a virtual thread at the current virtual time. NULL: no memory, or VIRTUAL_THREADS_MAX reached. */
struct virtual_thread *virtual_threads_start(struct virtual_threads *threads, void (*main)(void *),
                                             void *argument);
void virtual_threads_join(struct virtual_threads *threads, struct virtual_thread *thread);

/* Blocks the running virtual thread until another thread wakes this address, or until the given time (0: no
 * timeout). False: deadlock. */
bool virtual_threads_wait(struct virtual_threads *threads, const void *where, uint64_t until);
void virtual_threads_wake(struct virtual_threads *threads, const void *where);

#endif
