/* Decoded previews (--preview vae, --preview taesd): a second run inside a stage callback of the denoising
 * stage. The preview job decodes one latent. The preview job's plan takes the least memory possible: all
 * weights stream, none stay resident. The parent job's plan counts the preview's memory in the denoising
 * stage, whose weight readers continue during a preview. */
#ifndef SLUICE_API_PREVIEW_RUN_H
#define SLUICE_API_PREVIEW_RUN_H

#include "engine/api/running.h"

/* Makes job->preview_job from a resolved request. Fails as job_open does. The parent job closes the preview
 * job, also after failure. */
enum status preview_run_open(struct job *job, struct error *e);
/* Host bytes of the preview job's descriptors during the parent job; 0 without a preview job. */
uint64_t preview_run_host_bytes(const struct job *job);
/* Adds the preview job's memory and time to the need of a stage. A stage without previews (runs_previews
 * false) only gets the memory that libraries hold for the whole run. */
void preview_run_add_need(const struct job *job, bool runs_previews, struct stage_need *need);
/* Decodes one latent frame [C, Y, X] to *rgb [Y, X, 3] U8. Channels may be any distance apart. The device
 * must be idle. job_release(job->preview_job) frees the memory of *rgb, also after failure. */
enum status preview_run(struct running *r, struct tensor frame, struct tensor *rgb, struct error *e);

#endif
