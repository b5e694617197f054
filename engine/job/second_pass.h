/* The second pass (--hires, or --upscaler of LTX): a job at a larger size. It begins at the enlarged result
 * of the first pass, and uses the first pass's prompts and references. Both passes run under one plan:
 * layout_open appends the second pass's stages to the first pass's. */
#ifndef SLUICE_JOB_SECOND_PASS_H
#define SLUICE_JOB_SECOND_PASS_H

#include "engine/job/job.h"

#include <jansson.h>

/* Size of the second pass: both sides times the scale, rounded down to the model's step (--hires), or times
 * the latent upscaler's factor. */
struct picture_size second_pass_size(const struct job *job);
/* Checks the request's fields of the second pass, fills in their defaults and sets settings.hires. USAGE for
 * invalid values, for --hires with an input image, a mask or a video, and for --upscaler with --hires. */
enum status second_pass_resolve(struct job *job, struct error *e);
/* Returns the request of the second pass's job, whose pointers are those of the job's request. flow_shift: of
 * the caller's request; 0: computed from the second pass's size. A latent upscaler's second pass has no
 * shift. */
struct sluice_request second_pass_request(const struct job *job, double flow_shift);
/* True for the job of a second pass that begins with the stage of a latent upscaler (stage_upsample). */
bool second_pass_upsamples(const struct job *job);
/* Returns a new JSON object that describes the second pass in a plan; NULL: the request has none, or no
 * memory. */
json_t *second_pass_json(const struct job *job);
/* Resize of an image of the first pass to the second pass's size. job: of the second pass. */
struct picture_part second_pass_enlargement(const struct job *job);
/* Memory for enlarging one image of the first pass, in bytes. job: of the second pass. */
uint64_t second_pass_resampling_bytes(const struct job *job);

#endif
