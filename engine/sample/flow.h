/* Flow matching: the schedule, guidance and the Euler step, in float32 and in diffusers' order of operations,
 * so that timesteps and sigmas equal diffusers' bit for bit. Source: diffusers 0.42,
 * schedulers/scheduling_flow_match_euler_discrete.py, pipelines/z_image and pipelines/flux. */
#ifndef SLUICE_SAMPLE_FLOW_H
#define SLUICE_SAMPLE_FLOW_H

#include <stdbool.h>
#include <stdint.h>

/* Evenly spaced values u from 1 to 1/n, shifted. */
struct flow_options {
    int n;            /* at least 1 */
    bool grid_f64;    /* u are made in f64 and rounded (NumPy's linspace), not in f32 (PyTorch's) */
    bool exponential; /* sigma = s / (s + (1/u - 1)), not s u / (1 + (s - 1) u): the same but for roundings */
    double shift;     /* s, above 0 */
};

/* e^mu, mu linear in the number of tokens: at base_tokens base_mu, at most_tokens most_mu, and on beyond both
 * (diffusers 0.42, pipelines/flux, calculate_shift). */
double flow_shift_of_tokens(int64_t tokens, int base_tokens, double base_mu, int most_tokens, double most_mu);

/* Of n steps those that a picture to start from leaves to run: the last n * strength, at least none. Returns
 * the first (diffusers 0.42, pipelines/flux/pipeline_flux_img2img.py, get_timesteps). */
int flow_first_step(int n, double strength);

/* noise := sigma noise + (1 - sigma) sample: where a picture to start from begins. */
void flow_begin(float *noise, const float *sample, int64_t n, float sigma);

/* sigmas: n + 1 values, the last 0; timesteps: n values, 1000 sigma. */
void flow_schedule(const struct flow_options *options, float *sigmas, float *timesteps);

/* cond := cond + (scale - 1) (cond - uncond), which is uncond + scale (cond - uncond). */
void flow_guide(float *cond, const float *uncond, int64_t n, double scale);

/* sample := sample + (next - sigma) * velocity. */
void flow_step(float *sample, const float *velocity, int64_t n, float sigma, float next);

#endif
