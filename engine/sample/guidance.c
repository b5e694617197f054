/* The rules of guidance: implements guidance.h. */
#include "engine/sample/guidance.h"

#include <math.h>

void guidance_cfg(struct tensor cond, struct tensor uncond, int patch, double scale) {
    float g = (float)(scale - 1), *c = cond.data;
    const float *u = uncond.data;
    (void)patch;
    for (int64_t i = 0; i < tensor_elements(&cond); i++) c[i] = c[i] + g * (c[i] - u[i]);
}

/* Layout of the latent values of one token: `plane` is the stride between channels, `row` between the token's
 * pixel rows. */
struct token_values {
    int channels, patch;
    int64_t plane, row;
};

/* Applies guidance to one token, then rescales it to the norm that cond had before guidance. cond, uncond:
 * the token's first value. only_shorten: a token whose norm is smaller stays unchanged. */
static void guide_token(float *cond, const float *uncond, const struct token_values *at, float scale,
                        bool only_shorten) {
    double before = 0, after = 0;
    for (int c = 0; c < at->channels; c++)
        for (int y = 0; y < at->patch; y++)
            for (int x = 0; x < at->patch; x++) {
                int64_t i = c * at->plane + y * at->row + x;
                before += (double)cond[i] * (double)cond[i];
                cond[i] = uncond[i] + scale * (cond[i] - uncond[i]);
                after += (double)cond[i] * (double)cond[i];
            }
    float factor = only_shorten ? fminf((float)sqrt(before) / ((float)sqrt(after) + 1e-8F), 1)
                   : after > 0  ? (float)sqrt(before) / (float)sqrt(after)
                                : 1;
    for (int c = 0; c < at->channels; c++)
        for (int y = 0; y < at->patch; y++)
            for (int x = 0; x < at->patch; x++) cond[c * at->plane + y * at->row + x] *= factor;
}

/* Applies guide_token to every token of [C, F, Y, X] predictions. */
static void guide_tokens(struct tensor cond, struct tensor uncond, int patch, double scale,
                         bool only_shorten) {
    int32_t X = cond.dim[3], rows = cond.dim[1] * cond.dim[2];
    struct token_values at = {cond.dim[0], patch, (int64_t)rows * X, X};
    for (int32_t y = 0; y < rows; y += patch)
        for (int32_t x = 0; x < X; x += patch) {
            int64_t first = (int64_t)y * X + x;
            guide_token((float *)cond.data + first, (const float *)uncond.data + first, &at, (float)scale,
                        only_shorten);
        }
}

void guidance_cfg_keep_norm(struct tensor cond, struct tensor uncond, int patch, double scale) {
    guide_tokens(cond, uncond, patch, scale, false);
}

void guidance_cfg_limit_norm(struct tensor cond, struct tensor uncond, int patch, double scale) {
    guide_tokens(cond, uncond, patch, scale, true);
}

double guidance_norm(struct tensor prediction) {
    const float *values = prediction.data;
    double sum = 0;
    for (int64_t i = 0; i < tensor_elements(&prediction); i++) sum += (double)values[i] * (double)values[i];
    return sqrt(sum);
}

void guidance_limit_norm(struct tensor guided, double most) {
    float *values = guided.data;
    double norm = guidance_norm(guided);
    float factor = (float)(most / norm);
    for (int64_t i = 0; norm > most && i < tensor_elements(&guided); i++) values[i] *= factor;
}

void guidance_slg_begin(struct tensor skipped, struct tensor cond, double scale) {
    float *s = skipped.data, factor = (float)scale;
    const float *c = cond.data;
    for (int64_t i = 0; i < tensor_elements(&cond); i++) s[i] = (c[i] - s[i]) * factor;
}

void guidance_slg_add(struct tensor guided, struct tensor skipped) {
    float *g = guided.data;
    const float *s = skipped.data;
    for (int64_t i = 0; i < tensor_elements(&guided); i++) g[i] += s[i];
}

/* Returns the standard deviation of n values, with divisor n - 1 as torch.std. */
static double deviation(const float *values, int64_t n) {
    double mean = 0, sum = 0;
    for (int64_t i = 0; i < n; i++) mean += (double)values[i] / (double)n;
    for (int64_t i = 0; i < n; i++) sum += ((double)values[i] - mean) * ((double)values[i] - mean);
    return sqrt(sum / (double)(n - 1));
}

void guidance_denoised(float *prediction, int64_t n, const struct denoised_guidance *g) {
    const float *pass[] = {g->negative, g->stg, g->isolated};
    const float factor[] = {(float)(g->cfg_scale - 1), (float)g->stg_scale, (float)(g->modality_scale - 1)};
    enum { PASSES = sizeof pass / sizeof *pass };
    float sigma = g->sigma, rescale = (float)g->rescale;
    for (int64_t i = 0; i < n; i++) prediction[i] = g->sample[i] - sigma * prediction[i];
    double before = rescale > 0 ? deviation(prediction, n) : 0;
    for (int64_t i = 0; i < n; i++) {
        float x = prediction[i];
        for (int k = 0; k < PASSES; k++)
            if (pass[k]) prediction[i] += factor[k] * (x - (g->sample[i] - sigma * pass[k][i]));
    }
    double after = rescale > 0 ? deviation(prediction, n) : 0;
    float scale = after > 0 ? rescale * (float)(before / after) + (1 - rescale) : 1;
    for (int64_t i = 0; i < n; i++) prediction[i] = (g->sample[i] - scale * prediction[i]) / sigma;
}
