/* Schedules: the sigmas that the steps of a run go through, and the timesteps that training calls them by.
 * One row a schedule; a recipe names its own. In float32 and in diffusers' order of operations, so that both
 * equal diffusers' bit for bit. Source: diffusers 0.42, schedulers/scheduling_flow_match_euler_discrete.py,
 * pipelines/z_image and pipelines/flux. */
#ifndef SLUICE_SAMPLE_SCHEDULE_H
#define SLUICE_SAMPLE_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

struct schedule_options {
    int n;            /* steps, at least 1 */
    bool grid_f64;    /* evenly spaced values are made in f64 and rounded (NumPy's linspace), not in f32
                         (PyTorch's) */
    bool exponential; /* sigma = s / (s + (1/u - 1)), not s u / (1 + (s - 1) u): the same but for roundings */
    double shift;     /* s, above 0 */
};

struct schedule {
    const char *name;       /* that people choose it by */
    const char *class_name; /* in scheduler_config.json */
    /* n + 1 sigmas, falling, the last one 0; n timesteps. */
    void (*fill)(const struct schedule_options *options, float *sigmas, float *timesteps);
};

/* Flow matching: evenly spaced values u from 1 to 1/n, shifted; a timestep is 1000 sigma. */
extern const struct schedule schedule_flow;

extern const struct schedule *const schedules[]; /* NULL-terminated */

/* e^mu, mu linear in the number of tokens: at base_tokens base_mu, at most_tokens most_mu, and on beyond both
 * (diffusers 0.42, pipelines/flux, calculate_shift). */
double schedule_shift_of_tokens(int64_t tokens, int base_tokens, double base_mu, int most_tokens,
                                double most_mu);

/* Of n steps those that a picture to start from leaves to run: the last n * strength, at least none. Returns
 * the first (diffusers 0.42, pipelines/flux/pipeline_flux_img2img.py, get_timesteps). */
int schedule_first_step(int n, double strength);

#endif
