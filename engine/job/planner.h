/* Decides the plan of a job: from a plan file (--plan), or the fastest plan under the budgets. Makes each
 * candidate layout, measures it by a dry run and frees it. */
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
/* The enlargement of the result (--upscale-model), as in a plan's JSON; NULL: the request has none, or no
 * memory. */
json_t *planner_describe_upscaled(const struct job *job);

/* Limits on prefetching that a user may add to a stage of a plan file: how far ahead readers may read,
 * whether across the end of an evaluation, and whether copies wait for the previous visit. */
struct plan_copier_limit {
    const char *key;
    size_t offset; /* offset of the limit, an int32_t, in struct plan_stage */
    int most;
};
enum { PLAN_COPIER_LIMITS = 3 };
extern const struct plan_copier_limit plan_copier_limits[PLAN_COPIER_LIMITS];

/* Measures the memory need and time of every candidate layout, and lays the job out for the first one. Fails
 * with USAGE, META or JSON for invalid rates, DEVICE or MEMORY. */
enum status candidates_measure(struct job *job, struct error *e);
/* Adds the preview job's memory and time to the measured need of a stage. A stage without previews
 * (runs_previews false) only gets the memory that libraries hold for the whole run. Does nothing without a
 * preview job. */
void candidates_add_preview(const struct job *job, bool runs_previews, struct stage_need *need);
/* True if weights are read with O_DIRECT, past the page cache. direct_io: the request's choice. model_bytes,
 * memory_bytes: size of the model and of the machine's memory. Pure function, so that the same flags give the
 * same plan. */
bool candidates_read_direct(const char *direct_io, uint64_t model_bytes, uint64_t memory_bytes);

#endif
