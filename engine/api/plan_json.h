/* Plans as JSON: printed for people and scripts, read back for --plan. The keys are fixed by the surface. */
#ifndef SLUICE_API_PLAN_JSON_H
#define SLUICE_API_PLAN_JSON_H

#include "engine/api/job.h"

#include <jansson.h>

/* A new reference, or NULL without memory. */
json_t *plan_json(const struct job *job);

/* Reads a plan for this job: residents, rings, keep and, unless the request has one, the budget are taken
 * from text; everything else follows from the job. META or JSON for what is no plan, BUDGET for a plan of
 * another job. */
enum status plan_read(struct job *job, const char *text, struct error *e);
/* The plan that the request brings, or one that is made for its budget. */
enum status plan_take(struct job *job, struct error *e);

#endif
