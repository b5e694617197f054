/* The schedule of a job: noise levels of the steps, and the denoiser calls. */
#ifndef SLUICE_JOB_SCHEDULE_H
#define SLUICE_JOB_SCHEDULE_H

#include "engine/job/job.h"

/* Fills job->schedule from the resolved request. Fails with MEMORY. */
enum status schedule_make(struct job *job, struct error *e);
/* True if previews are shown after this step. The last step has no preview, because the decoded image
 * follows, unless decoding is off. */
bool schedule_previews_step(const struct job *job, int step);
/* Number of previews of the run, over all images. */
int schedule_count_previews(const struct job *job);

#endif
