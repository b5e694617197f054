/* Pace: how long a stage takes when weights stream through a ring, and which blocks to keep so that the
 * stream flows evenly.
 *
 * The law: one copier moves blocks in the order of the visits and runs ahead as far as the ring has room;
 * bytes come free in the order of the visits when a visit's computing ends; a visit begins when the one
 * before it has ended and its bytes have arrived. Everything is a maximum or a sum of earlier times, so one
 * pass over the visits gives every time exactly. An independent simulator of the same law is
 * tools/residency_sim.py (its figures are in test_plan.c).
 *
 * Assumed: a block is one piece, so this is an upper bound: a block really begins when its first tensors are
 * there, and gains most where the ring holds only one; the ring loses no room at its end. What of a pool is
 * not pinned is copied to staging while the disk goes on: one such copy at a time. Where pictures lie in the
 * host's memory, operators wait for every byte of them over the bus, in either direction at its rate, and
 * hide none of it behind their computing; weights that travel meanwhile lose nothing by it. A rate of 0 is
 * unknown and takes no time. No clock, no randomness: pure functions. Knows no devices and no store. */
#ifndef SLUICE_RUN_PACE_H
#define SLUICE_RUN_PACE_H

#include "engine/run/plan.h"

/* Seconds that each of the three works, if it never waits. */
struct load {
    double busy[N_BOUNDS];
};

/* What a stage's copier sees: its blocks in the order of their visits, first those that come once, then those
 * that come in every evaluation. Made once, because a solver asks for thousands of plans of one stage. */
struct course {
    bool separate;
    int n, n_once, evaluations;
    int place[PLAN_BLOCKS_MAX]; /* in the stage */
    uint64_t bytes[PLAN_BLOCKS_MAX];
    /* Seconds: of computing; of the bus (only on a separate device); of the disk, which is the only link
     * where device and host are one memory. */
    double compute[PLAN_BLOCKS_MAX], bus[PLAN_BLOCKS_MAX], disk[PLAN_BLOCKS_MAX];
    double host[PLAN_BLOCKS_MAX]; /* of a copy within the host's memory: from a pool that is not pinned */
    double disk_rate, host_rate;
    struct load
        start; /* when each of the three is done with the first evaluation, if nothing waits for room */
};

struct pace {
    double seconds;            /* of the whole stage */
    double evaluation_seconds; /* of one evaluation, once they are all alike */
    double floor_seconds;      /* the first evaluation with all that comes once, then evaluations times the
                                  largest load; a ring that runs ahead over evaluations may beat it by itself */
    double first_floor_seconds, later_floor_seconds; /* of that the first evaluation, each later one */
    enum bound bound;                                /* what works longest in the whole stage */
};

/* pictures_on_host: see the plan. */
void course_make(const struct stage_need *need, const struct rates *rates, bool separate,
                 bool pictures_on_host, struct course *course);

/* What moves and computes up to the end of the first evaluation, and in every later one. On a separate device
 * everything is read from the disk once: into the pool if it is pooled. */
struct load course_first_load(const struct course *course);
struct load course_later_load(const struct course *course, const struct plan_stage *stage);

struct pace course_pace(const struct course *course, const struct plan_stage *stage);

/* course_pace's seconds, if they are at most `enough`; else any number between the two. Stops as soon as that
 * is certain. */
double course_seconds(const struct course *course, const struct plan_stage *stage, double enough);

/* No plan with these residents and this pool is predicted to be faster, but for rounding. Cheap. */
double course_bound(const struct course *course, const struct plan_stage *stage);

/* Chooses at most `most` bytes of eligible blocks to take out of a stream of blocks: a block is taken when
 * the cumulative bytes of the stream would run further ahead of the cumulative computing time, scaled to what
 * is to remain, than `allowance` bytes. stream, eligible and taken are sets by place. */
struct spread {
    const uint64_t *stream, *eligible;
    uint64_t most;
    double allowance;
};
void course_spread(const struct course *course, const struct spread *spread, uint64_t *taken);

/* course_pace for a plan of the whole run. */
struct pace pace_predict(const struct run_need *need, const struct plan *plan, int stage);

#endif
