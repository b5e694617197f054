/* Searches the plan of one stage: see plan_search.c. Pure functions. */
#ifndef SLUICE_RUN_PLAN_SEARCH_H
#define SLUICE_RUN_PLAN_SEARCH_H

#include "engine/run/plan.h"

struct plan_search_input {
    const struct run_need *need;
    const struct plan *budget;
    int stage;
    uint64_t other_stages_bytes; /* device bytes that residents of other stages occupy */
    const uint64_t *residents;   /* bit set of residents that the caller requires; NULL: the search chooses */
};

/* Writes residents, ring, pool, staging and placement of full-frame buffers to *stage. Leaves *stage
 * unchanged if no plan fits. */
void plan_search(const struct plan_search_input *input, struct plan_stage *stage);
/* Lower bound of the predicted seconds of any plan of this stage, up to rounding; 0 if rates are unknown. */
double plan_search_bound(const struct run_need *need, int stage);

#endif
