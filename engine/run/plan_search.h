/* The search for one stage's plan: see plan_search.c. Pure functions. */
#ifndef SLUICE_RUN_PLAN_SEARCH_H
#define SLUICE_RUN_PLAN_SEARCH_H

#include "engine/run/plan.h"

/* What a stage is solved for. */
struct plan_question {
    const struct run_need *need;
    const struct plan *budget;
    int stage;
    uint64_t kept;             /* on the device, by other stages */
    const uint64_t *residents; /* NULL: to be chosen */
};

/* Writes residents, ring, pool, staging and where pictures lie to *stage, which stays as it is where nothing
 * fits. */
void plan_search(const struct plan_question *question, struct plan_stage *stage);
/* No plan of this stage is predicted to be faster, but for rounding; 0 where rates are unknown. */
double plan_search_bound(const struct run_need *need, int stage);

#endif
