/* Advice on which budget or link would make a run faster, and by how much. Each entry comes from a plan that
 * is solved for a changed budget or rate, and is as accurate as predicted times. A pure function. */
#ifndef SLUICE_RUN_ADVICE_H
#define SLUICE_RUN_ADVICE_H

#include "engine/run/plan.h"

enum { ADVICE_MAX = 8 };

enum advice_kind { ADVICE_RAM, ADVICE_VRAM, ADVICE_BUS, ADVICE_DISK };

struct advice {
    enum advice_kind kind;
    uint64_t extra_bytes; /* bytes added to the budget of memory `kind` (RAM or VRAM); 0 for links */
    double factor;        /* factor on the rate of the link `kind`; 0 for memory */
    double seconds;       /* seconds of the whole run with the change */
    double step_seconds;  /* mean seconds of one step of the longest stage with the change */
    /* Computation limits the stage after the change: a further increase would not help. */
    bool computing_decides;
};

struct plan_advice {
    double seconds, step_seconds; /* without a change */
    int stage;                    /* index of the longest stage, which the advice is about */
    struct advice advice[ADVICE_MAX];
    int n;
};

/* Tries the limiting budget raised by 25, 50 and 100 %, with any grouping of lanes, and links of twice the
 * rate. Stops at the smallest budget at which computation limits the stage, found to 1/32 of the last
 * increment. `plan` must be a plan of needs[chosen], solved for the budgets that the plan contains. The
 * needs are equal before and after the call. */
void plan_advise(struct run_need *const *needs, int n, int chosen, const struct plan *plan,
                 struct plan_advice *advice);

#endif
