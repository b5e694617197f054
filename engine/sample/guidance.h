/* Guidance: what becomes of a denoiser's two predictions, that of the prompt and that of the negative one.
 * One row a rule; a recipe names its own. Plain loops on the host. */
#ifndef SLUICE_SAMPLE_GUIDANCE_H
#define SLUICE_SAMPLE_GUIDANCE_H

#include "engine/base/tensor.h"

/* cond := the guided prediction. Both are [C, F, Y, X], f32; a token of the denoiser is patch x patch pixels
 * of a frame, all their channels, and Y and X are multiples of patch. scale 1: cond as it is, or nearly. */
typedef void guidance_rule(struct tensor cond, struct tensor uncond, int patch, double scale);

/* uncond + scale (cond - uncond), as cond + (scale - 1) (cond - uncond). */
guidance_rule guidance_plain;
/* The same, then each token as long (L2) as cond's was: diffusers 0.42, pipelines/qwenimage. A token of
 * nothing but zeros stays, where the reference divides by its length. */
guidance_rule guidance_keep_norm;

/* Skip-layer guidance, which any rule may be followed by: away from the prediction of the same prompt that
 * leaves some blocks out, guided + scale (cond - skipped); cond is what it was before the rule. First, then
 * last: skipped := scale (cond - skipped); guided := guided + skipped. All are of one shape, f32 (diffusers
 * 0.42, pipelines/stable_diffusion_3/pipeline_stable_diffusion_3.py). */
void guidance_begin_skipped(struct tensor skipped, struct tensor cond, double scale);
void guidance_add_skipped(struct tensor guided, struct tensor skipped);

#endif
