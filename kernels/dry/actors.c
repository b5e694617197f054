/* Actors: see actors.h. Each but the first has a stack; turns are changed by ucontext. */
#include "kernels/dry/actors.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

enum { STACK_BYTES = 256 << 10 };

static struct actor *running(const struct actors *a) {
    return (struct actor *)&a->actor[a->current];
}

/* ---- turns ---- */

/* The address sanitizer must know of other stacks. */
static void leave_stack(struct actor *from, const struct actor *to) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(from->state == ACTOR_ENDED ? NULL : &from->shadow, to->stack,
                                   to->stack ? STACK_BYTES : 0);
#else
    (void)from, (void)to;
#endif
}

static void enter_stack(struct actor *self) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(self->shadow, NULL, NULL);
#else
    (void)self;
#endif
}

/* When this one could go on; false if it cannot. */
static bool may_run(const struct actor *actor, uint64_t *when) {
    *when = actor->now;
    if (actor->state == ACTOR_RUNS) return true;
    if (actor->state != ACTOR_WAITS || !actor->until) return false;
    *when = actor->until > actor->now ? actor->until : actor->now;
    return true;
}

/* Whoever is first goes on, the caller before all others of its time. False if nobody can. */
static bool next_turn(struct actors *a) {
    struct actor *self = running(a);
    uint64_t first, when;
    int next = may_run(self, &first) ? a->current : -1;
    for (int i = 0; i < ACTORS_MAX; i++)
        if (may_run(&a->actor[i], &when) && (next < 0 || when < first)) next = i, first = when;
    if (next < 0) return false;
    struct actor *other = &a->actor[next];
    other->state = ACTOR_RUNS;
    other->now = first;
    if (other == self) return true;
    a->current = next;
    leave_stack(self, other);
    swapcontext(&self->context, &other->context);
    enter_stack(self);
    return true;
}

/* makecontext hands on integers. */
static void actor_main(unsigned high, unsigned low) {
    struct actors *a = (struct actors *)(((uintptr_t)high << 32) | low);
    struct actor *self = running(a);
    enter_stack(self);
    self->main(self->argument);
    self->state = ACTOR_ENDED;
    actors_wake(a, self);
    next_turn(a); /* and never again */
}

/* ---- time ---- */

void actors_begin(struct actors *a, struct sys *sys) {
    *a = (struct actors){.sys = sys};
    a->actor[0].state = ACTOR_RUNS;
}

uint64_t actors_now(const struct actors *a) {
    return running(a)->now;
}

void actors_delay(struct actors *a, uint64_t until) {
    struct actor *self = running(a);
    if (until > self->now) self->now = until;
}

void actors_pass(struct actors *a, uint64_t until) {
    actors_delay(a, until);
    next_turn(a);
}

/* ---- others ---- */

/* getcontext may return twice, as far as the compiler knows: it has a function of its own. */
static void make_context(struct actors *a, struct actor *actor) {
    uintptr_t self = (uintptr_t)a;
    getcontext(&actor->context);
    actor->context.uc_stack.ss_sp = actor->stack;
    actor->context.uc_stack.ss_size = STACK_BYTES;
    makecontext(&actor->context, (void (*)(void))actor_main, 2, (unsigned)(self >> 32), (unsigned)self);
}

struct actor *actors_start(struct actors *a, void (*main)(void *), void *argument) {
    struct actor *actor = a->actor;
    while (actor < a->actor + ACTORS_MAX && actor->state != ACTOR_NONE) actor++;
    if (actor == a->actor + ACTORS_MAX) return NULL;
    void *stack = a->sys->alloc(a->sys, LINE_HOST, STACK_BYTES);
    if (!stack) return NULL;
    *actor = (struct actor){
        .state = ACTOR_RUNS, .now = actors_now(a), .main = main, .argument = argument, .stack = stack};
    make_context(a, actor);
    return actor;
}

void actors_join(struct actors *a, struct actor *actor) {
    while (actor->state != ACTOR_ENDED && actors_wait(a, actor, 0)) {
    }
    a->sys->release(a->sys, actor->stack);
    *actor = (struct actor){0};
}

bool actors_wait(struct actors *a, const void *where, uint64_t until) {
    struct actor *self = running(a);
    self->state = ACTOR_WAITS;
    self->where = where;
    self->until = until;
    if (next_turn(a)) return true;
    self->state = ACTOR_RUNS;
    return false;
}

void actors_wake(struct actors *a, const void *where) {
    uint64_t now = actors_now(a);
    for (int i = 0; i < ACTORS_MAX; i++) {
        struct actor *other = &a->actor[i];
        if (other->state != ACTOR_WAITS || other->where != where) continue;
        other->state = ACTOR_RUNS;
        if (other->now < now) other->now = now;
    }
}
