/* Inpainting with a model that has no mask input: after every denoiser call the unmasked part of the sample
 * is overwritten with the input image's latent, noised to the level of the next step (without noise after the
 * last call). The unmasked region therefore stays fixed during sampling. Source: diffusers 0.42,
 * pipelines/stable_diffusion/pipeline_stable_diffusion_inpaint.py, the branch for 4-channel UNets. */
#ifndef SLUICE_API_INPAINT_BLEND_H
#define SLUICE_API_INPAINT_BLEND_H

#include "engine/api/job.h"

/* Blends one image after denoiser call i_call, in place. Does nothing unless job_blends_mask. scratch: a
 * buffer of as many floats as the sample has. */
void inpaint_blend(const struct job *job, int image, int i_call, float *scratch);

#endif
