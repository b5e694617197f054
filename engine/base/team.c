/* See team.h. What a member may do is one number, so that joining and closing cannot cross: which piece of
 * work it is, whether it is still offered, and how many members are inside. */
#include "engine/base/team.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

/* state: number of the work << 32 | OFFERED | members inside */
static const uint64_t OFFERED = (uint64_t)1 << 31;
static const uint64_t INSIDE = ((uint64_t)1 << 31) - 1;

/* A member's share is taken in so many steps: few enough to cost nothing, many enough that whoever is late
 * leaves little to wait for. */
enum { STEPS = 8 };

struct team {
    struct sys *sys;
    int n_members, n_started; /* the calling thread is the first */
    struct sys_thread **thread;
    team_work *work;
    const void *context;
    int64_t n, step;
    atomic_llong next;       /* the first item that nobody took */
    atomic_int n_members_at; /* who took some */
    atomic_ullong state;
    atomic_int n_asleep;
    atomic_bool caller_asleep, closing;
    pthread_mutex_t lock; /* held by who falls asleep, from its last look on */
    pthread_cond_t begins, ended;
};

static void team_pause(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Has the awaited come within 50 us? */
static bool team_looks(struct team *team, bool (*has_come)(struct team *team, uint32_t seen), uint32_t seen) {
    enum { LOOKS = 64 };
    static const double patience_s = 50e-6;
    double until = 0;
    for (;;) {
        for (int i = 0; i < LOOKS; i++) {
            if (has_come(team, seen)) return true;
            team_pause();
        }
        double now = team->sys->clock(team->sys);
        if (!until) until = now + patience_s;
        if (now >= until) return false;
    }
}

static bool team_offers(struct team *team, uint32_t seen) {
    uint64_t state = atomic_load(&team->state);
    return ((state & OFFERED) && (uint32_t)(state >> 32) != seen) || atomic_load(&team->closing);
}

static bool team_is_empty(struct team *team, uint32_t seen) {
    (void)seen;
    return !(atomic_load(&team->state) & INSIDE);
}

static void team_take(struct team *team) {
    int64_t first;
    int member = -1;
    while ((first = atomic_fetch_add(&team->next, team->step)) < team->n) {
        int64_t end = first + team->step < team->n ? first + team->step : team->n;
        if (member < 0) member = atomic_fetch_add(&team->n_members_at, 1);
        team->work(team->context, first, end, member);
    }
}

/* Goes inside unless the work is no longer offered. *seen becomes the number of the work. */
static bool team_enter(struct team *team, uint32_t *seen) {
    unsigned long long state = atomic_load(&team->state);
    do {
        if (!(state & OFFERED)) return false;
        *seen = (uint32_t)(state >> 32);
    } while (!atomic_compare_exchange_weak(&team->state, &state, state + 1));
    return true;
}

static void team_leave(struct team *team) {
    uint64_t before = atomic_fetch_sub(&team->state, 1);
    if ((before & (OFFERED | INSIDE)) != 1 || !atomic_load(&team->caller_asleep)) return;
    pthread_mutex_lock(&team->lock);
    pthread_cond_signal(&team->ended);
    pthread_mutex_unlock(&team->lock);
}

static void team_sleep(struct team *team, uint32_t seen) {
    pthread_mutex_lock(&team->lock);
    atomic_fetch_add(&team->n_asleep, 1);
    while (!team_offers(team, seen)) pthread_cond_wait(&team->begins, &team->lock);
    atomic_fetch_sub(&team->n_asleep, 1);
    pthread_mutex_unlock(&team->lock);
}

static void team_wake(struct team *team) {
    if (!atomic_load(&team->n_asleep)) return;
    pthread_mutex_lock(&team->lock);
    pthread_cond_broadcast(&team->begins);
    pthread_mutex_unlock(&team->lock);
}

static void member_main(void *argument) {
    struct team *team = argument;
    uint32_t seen = 0;
    while (!atomic_load(&team->closing)) {
        if (!team_looks(team, team_offers, seen)) team_sleep(team, seen);
        if (!team_enter(team, &seen)) continue;
        team_take(team);
        team_leave(team);
    }
}

void team_run(struct team *team, int64_t n, team_work *work, const void *context) {
    if (n <= 0) return;
    if (n == 1 || team->n_started == 1) {
        work(context, 0, n, 0);
        return;
    }
    int64_t step = n / ((int64_t)team->n_started * STEPS);
    team->work = work;
    team->context = context;
    team->n = n;
    team->step = step > 0 ? step : 1;
    atomic_store(&team->next, 0);
    atomic_store(&team->n_members_at, 0);
    atomic_store(&team->state, ((atomic_load(&team->state) >> 32) + 1) << 32 | OFFERED);
    team_wake(team);
    team_take(team);
    atomic_fetch_and(&team->state, ~OFFERED);
    if (team_looks(team, team_is_empty, 0)) return;
    pthread_mutex_lock(&team->lock);
    atomic_store(&team->caller_asleep, true);
    while (!team_is_empty(team, 0)) pthread_cond_wait(&team->ended, &team->lock);
    atomic_store(&team->caller_asleep, false);
    pthread_mutex_unlock(&team->lock);
}

struct team *team_open(struct sys *sys, int members, struct error *e) {
    struct team *team = sys->alloc(sys, LINE_HOST, sizeof *team);
    struct sys_thread **thread = sys->alloc(sys, LINE_HOST, (size_t)members * sizeof *thread);
    if (!team || !thread) {
        sys->release(sys, team);
        sys->release(sys, thread);
        error_set(e, MEMORY, "no memory for %d threads that compute", members);
        return NULL;
    }
    team->sys = sys;
    team->n_members = members;
    team->n_started = 1;
    team->thread = thread;
    pthread_mutex_init(&team->lock, NULL);
    pthread_cond_init(&team->begins, NULL);
    pthread_cond_init(&team->ended, NULL);
    return team;
}

enum status team_start(struct team *team, struct error *e) {
    while (team->n_started < team->n_members) {
        struct sys_thread **thread = &team->thread[team->n_started];
        int failed = team->sys->thread_start(team->sys, thread, member_main, team);
        if (failed) {
            error_set(e, MEMORY, "thread %d of %d that compute cannot be started", team->n_started + 1,
                      team->n_members);
            error_found(e, "%s", strerror(-failed));
            return error_expected(e, "a system with room for it, or -t %d", team->n_started);
        }
        team->n_started++;
    }
    return OK;
}

void team_close(struct team *team) {
    if (!team) return;
    atomic_store(&team->closing, true);
    team_wake(team);
    for (int i = 1; i < team->n_started; i++) team->sys->thread_join(team->sys, team->thread[i]);
    pthread_cond_destroy(&team->ended);
    pthread_cond_destroy(&team->begins);
    pthread_mutex_destroy(&team->lock);
    team->sys->release(team->sys, team->thread);
    team->sys->release(team->sys, team);
}

int team_members(const struct team *team) {
    return team->n_members;
}
