/* The end of a sampler step: guidance, preview, sampler update, inpainting blend, the next model input. */
#ifndef SLUICE_GENERATE_DENOISE_H
#define SLUICE_GENERATE_DENOISE_H

#include "engine/generate/running.h"

/* After a denoiser evaluation: applies guidance and moves the samples of a batch group to the next noise
 * level. Dumps and records each finished step. Fails with NONFINITE, naming the step. */
enum status denoise_evaluation_ended(struct running *r, int stage, int evaluation, struct error *e);
/* After the last denoiser stage: hashes the latents and saves them (--save-latent). */
enum status denoise_stage_ended(struct running *r, int stage, struct error *e);
/* Writes the denoiser's input for call i_call: the sample times input_scale, with clean frames (--init-img of
 * TI2V) put in. Skips the scaling if the input tensor is the sample itself. */
void scale_model_input(const struct job *job, int image, int i_call);

#endif
