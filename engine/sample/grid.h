/* Noise grids: the noise levels that the steps of a run go through, each with its timestep.
 *
 * A sample is signal * image + noise * standard noise. Both factors follow from sigma and the grid's form:
 *
 *   variance exploding:   1, sigma (Euler, Heun, DPM2, LMS)
 *   variance preserving:  1 / sqrt(1 + sigma^2), sigma / sqrt(1 + sigma^2) (DDIM, DPM-Solver++, UniPC, LCM)
 *   flow matching:        1 - sigma, sigma
 *
 * The first two are equivalent: dividing a variance-exploding sample by sqrt(1 + sigma^2) gives a
 * variance-preserving sample. A run uses the form of the model's diffusers scheduler, so that latents match
 * diffusers at every step, also with zero terminal SNR (signal 0). Samplers work for any signal and noise, so
 * sampler and grid are independent choices. Denoisers read samples of variance 1: variance-preserving and
 * flow samples unchanged, variance-exploding samples divided by sqrt(1 + sigma^2).
 *
 * A step goes from noise level `at` to noise level `to`, which is the next step's `at`. Steps of DDIM and
 * PNDM, however, span a fixed number of timesteps; with spacings other than `leading` their `to` differs
 * slightly from the next step's `at`. */
#ifndef SLUICE_SAMPLE_GRID_H
#define SLUICE_SAMPLE_GRID_H

#include "engine/sample/noise_table.h"

#include <stdint.h>

enum grid_form { GRID_FLOW, GRID_VARIANCE_EXPLODING, GRID_VARIANCE_PRESERVING };

struct grid_point {
    float timestep;      /* training timestep; 0 at the end of the run */
    float sigma;         /* flow matching: equal to `noise`; else noise / signal, at most FLT_MAX */
    float signal, noise; /* factors: sample = signal * image + noise * standard noise */
    float input_scale;   /* factor on the sample to get the denoiser's input */
};

struct grid_step {
    struct grid_point at, to;
};

struct grid {
    enum grid_form form;
    int n, n_total; /* n: number of steps that run; n_total: also counts the steps that img2img skips */
    struct grid_step *step;    /* array for the requested steps + GRID_EXTRA_STEPS; owned by the caller */
    float init_noise_sigma;    /* standard deviation of the initial noise of text-to-image */
    int timestep_stride;       /* timesteps per step (DDIM, PNDM); 0: a step ends where the next begins */
    bool continuous_timesteps; /* timesteps are log(sigma) / 4 (EDM) */
    const struct noise_table *table; /* noise levels by training timestep; NULL for flow models */
};

/* Number of steps that a sampler may add to a grid (adjust_grid in sampler.h). */
enum { GRID_EXTRA_STEPS = 1 };

struct grid_point grid_point_of_sigma(enum grid_form form, float sigma, float timestep);
/* The point of a variance-preserving grid for a value of alphas_cumprod. */
struct grid_point grid_point_of_alpha(float alpha, float timestep);

/* The timestep of a sigma where continuous_timesteps is set: log(sigma) / 4. */
float grid_continuous_timestep(float sigma);
/* A noise level within a step. The timestep is looked up in the training table, or without a table
 * interpolated linearly in sigma. */
struct grid_point grid_between(const struct grid *grid, int step, float sigma);
/* Removes the first steps of the grid (img2img). */
void grid_skip(struct grid *grid, int first);

/* Turns standard noise into the first sample, in place: noised to the first step's level if there is an image
 * latent (picture, n values), else scaled by init_noise_sigma. */
void grid_initial_sample(const struct grid *grid, float *noise, const float *picture, int64_t n);
/* Noises a latent: out := at->signal * picture + at->noise * noise. out may be picture or noise. */
void grid_add_noise(const struct grid_point *at, const float *picture, const float *noise, float *out,
                    int64_t n);

#endif
