/* Previews after each step (--preview): the denoiser's current estimate of the finished image
 * (pred_original_sample in diffusers), one per image of the batch. The estimate is computed from the guided
 * prediction, before the sampler moves the sample. The run never reads the estimate, so previews change no
 * pixels. --preview vae and taesd decode the estimate by a second run, of job->preview_job, inside the
 * callback of the denoising stage. */
#ifndef SLUICE_GENERATE_PREVIEW_H
#define SLUICE_GENERATE_PREVIEW_H

#include "engine/generate/running.h"

/* Computes the estimate of one image from its guided denoiser output, before the sampler moves the sample. */
void preview_capture(const struct job *job, int image, int i_call, const float *output);
/* Passes the captured estimate to the on_preview callback as an RGB image, mapped linearly or decoded (of a
 * video only the first frame). Skips estimates with NaN or infinity. */
enum status preview_emit(struct running *r, int image, int step, struct error *e);

#endif
