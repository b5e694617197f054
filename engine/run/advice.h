/* Advice on what would make a run faster, and by how much. Each line is the solver's answer to a changed
 * budget or rate, and as accurate as its plans. A pure function. */
#ifndef SLUICE_RUN_ADVICE_H
#define SLUICE_RUN_ADVICE_H

#include "engine/run/plan.h"

enum { ADVICE_MAX = 8 };

enum advice_kind { ADVICE_RAM, ADVICE_VRAM, ADVICE_BUS, ADVICE_DISK };

struct advice {
    enum advice_kind kind;
    uint64_t extra_bytes;   /* of that memory */
    double factor;          /* of that rate, else 0 */
    double seconds;         /* of the whole run with the change */
    double step_seconds;    /* of one step of the currently longest stage, all groups, on average */
    bool computing_decides; /* more of it would not help: computation limits that stage */
};

struct plan_advice {
    double seconds, step_seconds; /* without a change */
    int stage;                    /* the longest stage */
    struct advice advice[ADVICE_MAX];
    int n;
};

/* Tries to raise the limiting budget by a quarter, a half and the whole of it, with any grouping of lanes,
 * and links of twice the rate. Stops at the smallest budget at which computation limits, found to 1/32 of the
 * last increment. The plan was chosen from these needs (it is a plan of needs[chosen]) and carries its
 * budgets. */
void plan_advise(const struct run_need *const *needs, int n, int chosen, const struct plan *plan,
                 struct plan_advice *advice);

#endif
