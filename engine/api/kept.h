/* Inpainting with a model that sees no mask: what the mask leaves of a picture is put back into the sample
 * after every call, at the noise that the next step begins with; after the last the picture's latent itself.
 * So the model draws around what is there all the way. Source: diffusers 0.42,
 * pipelines/stable_diffusion/pipeline_stable_diffusion_inpaint.py, the branch of 4 channels. */
#ifndef SLUICE_API_KEPT_H
#define SLUICE_API_KEPT_H

#include "engine/api/job.h"

/* Nothing, where the host heeds no mask (job_keeps). scratch: as many values as a sample has. */
void kept_put_back(const struct job *job, int image, int i_call, float *scratch);

#endif
