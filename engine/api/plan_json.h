/* Plans as JSON, written by `plan --json` and read by --plan. Scripts rely on the keys. */
#ifndef SLUICE_API_PLAN_JSON_H
#define SLUICE_API_PLAN_JSON_H

#include "engine/api/job.h"

#include <jansson.h>

/* The job's plan as a new JSON object (the caller's reference), or NULL without memory. */
json_t *plan_json(const struct job *job);

/* Reads a plan for this job from JSON text. Takes from the text: resident blocks, blocks held in pinned host
 * memory, ring and staging sizes, whether residents stay for later stages ("keep"), direct reads, image
 * groups, VAE tiling and, unless the request sets a budget, the budget. Everything else is computed from the
 * job. Fails with META or JSON if the text is not a plan, with BUDGET if the plan was made for another
 * request, model or device. */
enum status plan_read(struct job *job, const char *text, struct error *e);
/* Sets job->plan: the request's plan file if it has one, else a new plan for the budgets. */
enum status plan_take(struct job *job, struct error *e);

#endif
