/* Advice: what would make a run faster, by how much. Each line is the solver's own answer to a changed budget
 * or rate, so it is as good as its plans. A pure function. */
#ifndef SLUICE_RUN_ADVICE_H
#define SLUICE_RUN_ADVICE_H

#include "engine/run/plan.h"

enum { ADVICE_MAX = 8 };

enum advice_kind { ADVICE_RAM, ADVICE_VRAM, ADVICE_BUS, ADVICE_DISK };

struct advice {
    enum advice_kind kind;
    uint64_t extra_bytes;   /* of that memory */
    double factor;          /* of that rate, else 0 */
    double seconds;         /* of the whole run then */
    double step_seconds;    /* of one step of the stage that takes longest now, all groups, on average */
    bool computing_decides; /* from there on more of it would not help: computing binds that stage */
};

struct plan_advice {
    double seconds, step_seconds; /* as things are */
    int stage;                    /* the one that takes longest */
    struct advice advice[ADVICE_MAX];
    int n;
};

/* Asks for a quarter, a half and twice the budget that binds (up to the least that makes computing decide,
 * found to a 32nd of the step before), where other lanes may compute together too, and for links of twice the
 * rate. The plan was chosen from these needs (it is of needs[chosen]) and has its budgets. */
void plan_advise(const struct run_need *const *needs, int n, int chosen, const struct plan *plan,
                 struct plan_advice *advice);

#endif
