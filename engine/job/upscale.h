/* Upscaling of images: after the decoder (sluice_request.upscale), or alone (sluice_upscale). The stage reads
 * 8-bit images, so enlarging a saved PNG gives the same pixels as enlarging in the run. */
#ifndef SLUICE_JOB_UPSCALE_H
#define SLUICE_JOB_UPSCALE_H

#include "engine/job/job.h"

/* Sets job->upscale if the request enlarges its images. USAGE: there is no upscaler, or a result is larger
 * than SLUICE_SIDE_MAX. Call after the sizes of the images are known. */
enum status upscale_resolve(struct job *job, struct error *e);
/* Resolves a job that only enlarges request.init_image (job_context.upscales). */
enum status upscale_resolve_alone(struct job *job, struct error *e);

/* True if the enlarged images have alpha. */
bool upscale_has_alpha(const struct job *job);
/* Temporary bytes of enlarging an image's alpha. */
uint64_t upscale_alpha_bytes(const struct job *job);
/* Parameters for resampling an image's alpha with resample_begin: Pillow's Lanczos to the enlarged size. */
struct picture_part upscale_alpha_part(const struct job *job);

#endif
