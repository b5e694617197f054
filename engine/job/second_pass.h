/* The second pass (--hires): a job at a larger size. It begins at the enlarged result of the first pass, and
 * uses the first pass's prompts and references. Both passes run under one plan: layout_open appends the
 * second pass's stages to the first pass's. */
#ifndef SLUICE_JOB_SECOND_PASS_H
#define SLUICE_JOB_SECOND_PASS_H

#include "engine/job/job.h"

/* Size of the second pass: both sides times the scale, rounded down to the model's step. */
struct picture_size second_pass_size(const struct job *job);
/* Checks the request's fields of the second pass, fills in their defaults and sets settings.hires. USAGE for
 * invalid values, and for requests with an input image, a mask or a video. */
enum status second_pass_resolve(struct job *job, struct error *e);
/* Resize of an image of the first pass to the second pass's size. job: of the second pass. */
struct picture_part second_pass_enlargement(const struct job *job);
/* Memory for enlarging one image of the first pass, in bytes. job: of the second pass. */
uint64_t second_pass_resampling_bytes(const struct job *job);

#endif
