/* Threads on a virtual clock. Each thread but the first has its own stack; ucontext switches stacks. */
#include "bench/dev/virtual_threads.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

enum { STACK_BYTES = 256 << 10 };

static struct virtual_thread *running(const struct virtual_threads *a) {
    return (struct virtual_thread *)&a->thread[a->current];
}

/* Announces a stack switch to AddressSanitizer, which requires it. */
static void leave_stack(struct virtual_thread *from, const struct virtual_thread *to) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(from->state == VIRTUAL_THREAD_ENDED ? NULL : &from->shadow, to->stack,
                                   to->stack ? STACK_BYTES : 0);
#else
    (void)from, (void)to;
#endif
}

static void enter_stack(struct virtual_thread *self) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(self->shadow, NULL, NULL);
#else
    (void)self;
#endif
}

/* Returns true if the virtual thread can run; *when: the earliest time. */
static bool can_run(const struct virtual_thread *thread, uint64_t *when) {
    *when = thread->now;
    if (thread->state == VIRTUAL_THREAD_RUNS) return true;
    if (thread->state != VIRTUAL_THREAD_WAITS || !thread->until) return false;
    *when = thread->until > thread->now ? thread->until : thread->now;
    return true;
}

/* Switches to the virtual thread with the least time, in a tie to the caller. False: no thread can run. */
static bool switch_to_next(struct virtual_threads *a) {
    struct virtual_thread *self = running(a);
    uint64_t first, when;
    int next = can_run(self, &first) ? a->current : -1;
    for (int i = 0; i < VIRTUAL_THREADS_MAX; i++)
        if (can_run(&a->thread[i], &when) && (next < 0 || when < first)) next = i, first = when;
    if (next < 0) return false;
    struct virtual_thread *other = &a->thread[next];
    other->state = VIRTUAL_THREAD_RUNS;
    other->now = first;
    if (other == self) return true;
    a->current = next;
    leave_stack(self, other);
    swapcontext(&self->context, &other->context);
    enter_stack(self);
    return true;
}

/* makecontext passes only integers, so a pointer is passed as two halves. */
static void virtual_thread_main(unsigned high, unsigned low) {
    struct virtual_threads *a = (struct virtual_threads *)(((uintptr_t)high << 32) | low);
    struct virtual_thread *self = running(a);
    enter_stack(self);
    self->main(self->argument);
    self->state = VIRTUAL_THREAD_ENDED;
    virtual_threads_wake(a, self);
    switch_to_next(a);
}

void virtual_threads_begin(struct virtual_threads *a, struct sys *sys) {
    *a = (struct virtual_threads){.sys = sys};
    a->thread[0].state = VIRTUAL_THREAD_RUNS;
}

uint64_t virtual_threads_now(const struct virtual_threads *a) {
    return running(a)->now;
}

void virtual_threads_delay(struct virtual_threads *a, uint64_t until) {
    struct virtual_thread *self = running(a);
    if (until > self->now) self->now = until;
}

void virtual_threads_pass(struct virtual_threads *a, uint64_t until) {
    virtual_threads_delay(a, until);
    switch_to_next(a);
}

/* Calls getcontext in a separate function, because the compiler assumes that getcontext may return twice. */
static void make_context(struct virtual_threads *a, struct virtual_thread *thread) {
    uintptr_t self = (uintptr_t)a;
    getcontext(&thread->context);
    thread->context.uc_stack.ss_sp = thread->stack;
    thread->context.uc_stack.ss_size = STACK_BYTES;
    makecontext(&thread->context, (void (*)(void))virtual_thread_main, 2, (unsigned)(self >> 32),
                (unsigned)self);
}

struct virtual_thread *virtual_threads_start(struct virtual_threads *a, void (*main)(void *),
                                             void *argument) {
    struct virtual_thread *thread = a->thread;
    while (thread < a->thread + VIRTUAL_THREADS_MAX && thread->state != VIRTUAL_THREAD_NONE) thread++;
    if (thread == a->thread + VIRTUAL_THREADS_MAX) return NULL;
    void *stack = a->sys->alloc(a->sys, LINE_HOST, STACK_BYTES);
    if (!stack) return NULL;
    *thread = (struct virtual_thread){.state = VIRTUAL_THREAD_RUNS,
                                      .now = virtual_threads_now(a),
                                      .main = main,
                                      .argument = argument,
                                      .stack = stack};
    make_context(a, thread);
    return thread;
}

void virtual_threads_join(struct virtual_threads *a, struct virtual_thread *thread) {
    while (thread->state != VIRTUAL_THREAD_ENDED && virtual_threads_wait(a, thread, 0)) {
    }
    a->sys->release(a->sys, thread->stack);
    *thread = (struct virtual_thread){0};
}

bool virtual_threads_wait(struct virtual_threads *a, const void *where, uint64_t until) {
    struct virtual_thread *self = running(a);
    self->state = VIRTUAL_THREAD_WAITS;
    self->where = where;
    self->until = until;
    if (switch_to_next(a)) return true;
    self->state = VIRTUAL_THREAD_RUNS;
    return false;
}

void virtual_threads_wake(struct virtual_threads *a, const void *where) {
    uint64_t now = virtual_threads_now(a);
    for (int i = 0; i < VIRTUAL_THREADS_MAX; i++) {
        struct virtual_thread *other = &a->thread[i];
        if (other->state != VIRTUAL_THREAD_WAITS || other->where != where) continue;
        other->state = VIRTUAL_THREAD_RUNS;
        if (other->now < now) other->now = now;
    }
}
