/* Decoded previews (--preview vae, --preview taesd): a second run inside a stage callback of the denoising
 * stage. The preview job decodes one latent. Its own plan is the smallest possible: all weights stream,
 * nothing stays resident. The parent job's plan counts that memory in the denoising stage, whose weight
 * readers continue meanwhile. */
#ifndef SLUICE_API_PREVIEW_RUN_H
#define SLUICE_API_PREVIEW_RUN_H

#include "engine/api/running.h"

/* Makes job->preview_job from a resolved request. Fails as job_open does; the parent job closes it, also
 * after failure. */
enum status preview_run_open(struct job *job, struct error *e);
/* Host bytes of the preview job's descriptors during the parent job; 0 without a preview job. */
uint64_t preview_run_host_bytes(const struct job *job);
/* Adds the preview job's memory and time to a stage's need: all of it for the stage that shows previews
 * (runs_previews), else only what libraries hold for the whole run. */
void preview_run_add_need(const struct job *job, bool runs_previews, struct stage_need *need);
/* Decodes a latent frame [C, Y X], rows at any distance, to *rgb [Y, X, 3] U8. The device must be idle.
 * job_release(job->preview_job) frees the memory of *rgb, also after failure. */
enum status preview_run(struct running *r, struct tensor frame, struct tensor *rgb, struct error *e);

#endif
