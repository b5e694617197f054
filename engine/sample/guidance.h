/* Guidance: combines the predictions for the prompt (cond) and the negative prompt (uncond). One function per
 * guidance rule; the recipe chooses the rule. Plain loops on the host. */
#ifndef SLUICE_SAMPLE_GUIDANCE_H
#define SLUICE_SAMPLE_GUIDANCE_H

#include "engine/base/tensor.h"

/* Sets cond to the guided prediction. cond and uncond are [C, F, Y, X] f32. A token of the denoiser is patch
 * x patch latent pixels of a frame with all channels; Y and X are multiples of patch. scale 1 leaves cond
 * unchanged up to rounding. */
typedef void guidance_rule(struct tensor cond, struct tensor uncond, int patch, double scale);

/* Classifier-free guidance uncond + scale (cond - uncond), as cond + (scale - 1) (cond - uncond). */
guidance_rule guidance_cfg;
/* Classifier-free guidance, then each token is rescaled to the L2 norm of cond: diffusers 0.42,
 * pipelines/qwenimage. A token of zeros stays zero, where the reference divides by 0. */
guidance_rule guidance_cfg_keep_norm;
/* Classifier-free guidance, then each token with an L2 norm above that of cond is rescaled to the norm of
 * cond: diffusers 0.42, pipelines/longcat_image (enable_cfg_renorm with cfg_renorm_min 0). */
guidance_rule guidance_cfg_limit_norm;

/* Limit of the guided norm (--cfg-norm; diffusers 0.42, pipelines/z_image, cfg_normalization). guidance_norm
 * returns the L2 norm over all values of an f32 prediction. guidance_limit_norm scales a guided prediction
 * down to the norm `most` if its norm is larger. */
double guidance_norm(struct tensor prediction);
void guidance_limit_norm(struct tensor guided, double most);

/* Skip-layer guidance (--slg-layers): guided + scale (cond - skipped). skipped: prediction of the same prompt
 * without some blocks; cond: prediction before classifier-free guidance. Before classifier-free guidance
 * guidance_slg_begin sets skipped := scale (cond - skipped); after classifier-free guidance guidance_slg_add
 * adds skipped to the prediction. All tensors are f32 of one shape (diffusers 0.42,
 * pipelines/stable_diffusion_3/pipeline_stable_diffusion_3.py). */
void guidance_slg_begin(struct tensor skipped, struct tensor cond, double scale);
void guidance_slg_add(struct tensor guided, struct tensor skipped);

/* Guidance of LTX-2 for one stream, the video or its sound. With x = sample - sigma * prediction, of the
 * prompt and of each other pass (stg: spatio-temporal guidance; isolated: without attention between video and
 * sound):
 *
 *     sum = x + (cfg_scale - 1) (x - x_negative) + stg_scale (x - x_stg)
 *             + (modality_scale - 1) (x - x_isolated)
 *     guided = sum * (rescale * std(x) / std(sum) + 1 - rescale)
 *
 * and the guided prediction is (sample - guided) / sigma. std: standard deviation over all n values, with
 * divisor n - 1. Absent passes (NULL) add nothing. Source: diffusers 0.42, pipelines/ltx2/pipeline_ltx2.py.
 */
struct denoised_guidance {
    const float *sample;
    float sigma;                            /* above 0 */
    const float *negative, *stg, *isolated; /* predictions of the other passes, or NULL */
    double cfg_scale, stg_scale, modality_scale, rescale;
};
/* Replaces the n values of the prompt's prediction by the guided prediction. */
void guidance_denoised(float *prediction, int64_t n, const struct denoised_guidance *guidance);

#endif
