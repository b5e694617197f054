/* Flow matching: the schedule, guidance and the Euler step, in float32 and in diffusers' order of operations,
 * so that timesteps and sigmas equal diffusers' bit for bit. Source: diffusers 0.42,
 * schedulers/scheduling_flow_match_euler_discrete.py and pipelines/z_image. */
#ifndef SLUICE_SAMPLE_FLOW_H
#define SLUICE_SAMPLE_FLOW_H

#include <stdint.h>

/* sigmas: n + 1 values, the last 0; timesteps: n values, 1000 sigma. n at least 1, shift above 0. */
void flow_schedule(int n, double shift, float *sigmas, float *timesteps);

/* cond := cond + (scale - 1) (cond - uncond), which is uncond + scale (cond - uncond). */
void flow_guide(float *cond, const float *uncond, int64_t n, double scale);

/* sample := sample + (next - sigma) * velocity. */
void flow_step(float *sample, const float *velocity, int64_t n, float sigma, float next);

#endif
