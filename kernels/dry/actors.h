/* Actors: threads of a virtual clock. They take turns on the thread that begins them, so that nothing happens
 * at the same time twice in another order: each has a time of its own, in picoseconds, and whoever's time is
 * the least goes on. Actor 0 is who called actors_begin.
 *
 * An actor gives others their turn where it lets time pass, waits or joins, and nowhere else; it may hold no
 * lock then but the one that it waits with. Knows no devices and no rates. */
#ifndef SLUICE_DRY_ACTORS_H
#define SLUICE_DRY_ACTORS_H

#include "engine/base/sys.h"

#include <ucontext.h>

enum { ACTORS_MAX = 16 };

enum actor_state { ACTOR_NONE, ACTOR_RUNS, ACTOR_WAITS, ACTOR_ENDED };

struct actor {
    enum actor_state state;
    uint64_t now;
    const void *where; /* it waits there */
    uint64_t until;    /* and at most so long; 0: without end */
    void (*main)(void *argument);
    void *argument;
    void *stack;
    ucontext_t context;
    void *shadow; /* the address sanitizer's, while it does not run */
};

struct actors {
    struct sys *sys; /* stacks are of its heap */
    struct actor actor[ACTORS_MAX];
    int current;
};

/* In place. */
void actors_begin(struct actors *actors, struct sys *sys);

/* The time of the one that runs. */
uint64_t actors_now(const struct actors *actors);
/* It has come to this time, if it is not later already. Others have their turn with pass, not with delay. */
void actors_pass(struct actors *actors, uint64_t until);
void actors_delay(struct actors *actors, uint64_t until);

/* Begins another, now. NULL if there is no memory, or ACTORS_MAX. */
struct actor *actors_start(struct actors *actors, void (*main)(void *), void *argument);
/* Waits for its end and forgets it. */
void actors_join(struct actors *actors, struct actor *actor);

/* Until somebody wakes whoever waits there, or that time has come (0: never). False if nobody is left who
 * could: everybody waits for ever. */
bool actors_wait(struct actors *actors, const void *where, uint64_t until);
void actors_wake(struct actors *actors, const void *where);

#endif
