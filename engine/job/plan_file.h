/* Reads plan files (--plan), as `sluice plan --json` writes them (plan_json.h). */
#ifndef SLUICE_JOB_PLAN_FILE_H
#define SLUICE_JOB_PLAN_FILE_H

#include "engine/job/job.h"

#include <jansson.h>

/* Reads a plan for this job from JSON text. Takes from the text: resident blocks, blocks held in pinned host
 * memory, ring and staging sizes, whether residents stay for later stages ("keep"), direct reads, image
 * groups, VAE tiling and, unless the request sets a budget, the budget. Everything else is computed from the
 * job. Fails with META or JSON if the text is not a plan, with BUDGET if the plan was made for another
 * request, model or device. */
enum status plan_file_read(struct job *job, const char *text, struct error *e);

/* The request's adapters as a plan lists them, a new JSON list or NULL without memory. File names need not be
 * UTF-8: invalid bytes are replaced. */
json_t *plan_file_loras(const struct job *job);

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
