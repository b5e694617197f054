/* Decides the plan of a job: from a plan file (--plan), or the fastest plan under the budgets. */
#ifndef SLUICE_JOB_PLANNER_H
#define SLUICE_JOB_PLANNER_H

#include "engine/job/job.h"

#include <jansson.h>

/* Sets job->plan and lays the job out for it: the request's plan file if it has one, else a new plan for the
 * budgets. plan_check then checks whether the plan fits.
 *
 * A plan file is the output of `sluice plan --json` (plan_json.h). Taken from it: resident blocks, blocks
 * held in pinned host memory, ring and staging sizes, whether residents stay for later stages ("keep"),
 * direct reads, image groups, VAE tiling and, unless the request sets a budget, the budget. Everything else
 * is computed from the job. Fails with META or JSON if the text is not a plan, with BUDGET if it was made for
 * another request, model or device. */
enum status planner_decide(struct job *job, struct error *e);
/* Sets job->plan to the fastest plan under the request's budgets, and lays the job out for it. */
enum status planner_choose(struct job *job, struct error *e);

/* The request's adapters as a plan lists them, a new JSON list or NULL without memory. File names need not be
 * UTF-8: invalid bytes are replaced. */
json_t *planner_list_loras(const struct job *job);

/* Limits on the threads that read a stage's weights, which a user may add to a plan file: how far to read
 * ahead, whether blocks may wrap around the ring's end, when to wait. */
struct plan_copier_limit {
    const char *key;
    size_t offset; /* of the int32_t in struct plan_stage */
    int most;
};
enum { PLAN_COPIER_LIMITS = 3 };
extern const struct plan_copier_limit plan_copier_limits[PLAN_COPIER_LIMITS];

#endif
