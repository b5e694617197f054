/* Grids: the noise levels that the steps of a run go through, each with the timestep that a denoiser is told.
 *
 * A sample holds signal parts of the picture and noise parts of standard noise; which, is the grid's form:
 *
 *   ADDED      1, sigma                                          Euler, Heun, DPM2, LMS
 *   PRESERVED  1 / sqrt(1 + sigma^2), sigma / sqrt(1 + sigma^2)  DDIM, PNDM, DPM-Solver++, UniPC, LCM, TCD
 *   MIXED      1 - sigma, sigma                                  flow matching
 *
 * The first two are one thing twice: the one is the other divided by its signal. Each scheduler of diffusers
 * has one of them, and a run has that of its scheduler, so that its latents are diffusers' at every step,
 * with nothing of the picture left at the first step (PRESERVED: signal 0) as with something left at the end.
 * Samplers are written for any signal and noise; so sampler and grid are chosen apart. Denoisers read samples
 * of variance 1, PRESERVED as they are, ADDED divided by sqrt(1 + sigma^2); those of flow matching read
 * theirs as they are.
 *
 * A step goes from its `at` to its `to`. That is the next step's `at`, but for schedulers that leap over a
 * fixed number of timesteps (DDIM, PNDM): with other spacings than `leading` they end a little beside where
 * the next step takes the sample to be. */
#ifndef SLUICE_SAMPLE_GRID_H
#define SLUICE_SAMPLE_GRID_H

#include "engine/sample/noise_table.h"

#include <stdint.h>

enum grid_form { GRID_MIXED, GRID_ADDED, GRID_PRESERVED };

struct grid_point {
    float timestep;      /* what training calls it; 0 at the end */
    float sigma;         /* MIXED: the part of noise; else noise for one of signal, at most FLT_MAX */
    float signal, noise; /* of the sample */
    float input_scale;   /* what the denoiser reads of the sample, before the prediction's own */
};

struct grid_step {
    struct grid_point at, to;
};

struct grid {
    enum grid_form form;
    int n, n_whole;                  /* steps; and as many as there were before any was left out */
    struct grid_step *step;          /* room for n asked for and GRID_STEPS_MORE: its owner's */
    float start;                     /* of standard noise, where a run begins without a picture */
    int leap;                        /* timesteps that a step leaps over; 0: from point to point */
    bool continuous;                 /* a timestep is log(sigma) / 4 */
    const struct noise_table *table; /* of models that add noise; else NULL */
};

/* What a sampler may add to a grid (see sampler.h). */
enum { GRID_STEPS_MORE = 1 };

struct grid_point grid_point_of_sigma(enum grid_form form, float sigma, float timestep);
/* PRESERVED. */
struct grid_point grid_point_of_abar(float abar, float timestep);

/* What models are told of a sigma that are told the level itself (grid.continuous). */
float grid_continuous_timestep(float sigma);
/* A point within a step: its timestep is the one that training calls that sigma, where there
 * is no table the one that lies between the ends' as sigma does. */
struct grid_point grid_between(const struct grid *grid, int step, float sigma);
/* Leaves out the first steps. */
void grid_skip(struct grid *grid, int first);

/* Standard noise to the sample that a run begins with, in place: of picture and noise at the first step,
 * where there is a picture; n values. */
void grid_begin(const struct grid *grid, float *noise, const float *picture, int64_t n);
/* out := the sample that picture and noise are at that point. out may be either. */
void grid_mix(const struct grid_point *at, const float *picture, const float *noise, float *out, int64_t n);

#endif
