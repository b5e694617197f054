/* Previews after each step (--preview): the denoiser's current estimate of the finished image
 * (pred_original_sample in diffusers), one per image of the batch. The estimate is computed from the guided
 * prediction, before the sampler moves the sample. The run never reads the estimate, so previews change no
 * pixels. */
#ifndef SLUICE_API_PREVIEW_H
#define SLUICE_API_PREVIEW_H

#include "engine/api/running.h"

/* Adds the tensors that previews need to a layout's arena. */
void preview_tensors(const struct job *job, struct layout *l, struct arena *arena, bool *ok);
/* True if previews follow denoiser call i_call. */
bool preview_due(const struct running *r, int i_call);
/* Computes the estimate of one image from its guided denoiser output, before the sampler moves the sample. */
void preview_capture(const struct job *job, int image, int i_call, const float *output);
/* Passes the captured estimate to the on_preview callback as an RGB image, mapped linearly or decoded. Skips
 * estimates with NaN or infinity. */
enum status preview_emit(struct running *r, int image, int step, struct error *e);
int preview_count(const struct job *job);

#endif
