/* Flow matching: the schedule, guidance and the Euler step, in float32 and in diffusers' order of operations,
 * so that timesteps and sigmas equal diffusers' bit for bit. Source: diffusers 0.42,
 * schedulers/scheduling_flow_match_euler_discrete.py and pipelines/z_image. */
#ifndef SLUICE_SAMPLE_FLOW_H
#define SLUICE_SAMPLE_FLOW_H

#include <stdbool.h>
#include <stdint.h>

/* Evenly spaced values u from 1 to 1/n, shifted. */
struct flow_options {
    int n;            /* at least 1 */
    bool grid_f64;    /* u are made in f64 and rounded (NumPy's linspace), not in f32 (PyTorch's) */
    bool exponential; /* sigma = e^mu / (e^mu + (1/u - 1)), not s u / (1 + (s - 1) u): other roundings */
    double shift;     /* s, above 0 */
    double mu;        /* where exponential */
};

/* sigmas: n + 1 values, the last 0; timesteps: n values, 1000 sigma. */
void flow_schedule(const struct flow_options *options, float *sigmas, float *timesteps);

/* cond := cond + (scale - 1) (cond - uncond), which is uncond + scale (cond - uncond). */
void flow_guide(float *cond, const float *uncond, int64_t n, double scale);

/* sample := sample + (next - sigma) * velocity. */
void flow_step(float *sample, const float *velocity, int64_t n, float sigma, float next);

#endif
