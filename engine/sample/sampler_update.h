/* Helper functions of sampler updates, for sampler_*.c only. */
#ifndef SLUICE_SAMPLE_SAMPLER_SAMPLER_UPDATE_H
#define SLUICE_SAMPLE_SAMPLER_SAMPLER_UPDATE_H

#include "engine/sample/sampler.h"

/* A tensor and its weight in a sum. */
struct term {
    double factor;
    const float *values;
};

enum { TERMS_MAX = 8 };

/* out := the weighted sum of the terms, added in the given order with weights rounded to float32. out may be
 * one of the terms' tensors. */
void update_sum(float *out, int64_t n, const struct term *terms, int n_terms);
void update_copy(float *to, const float *from, int64_t n);
/* Copies values to the front of a history of n_past tensors and drops the oldest tensor. */
void update_push(float *const *past, int n_past, const float *values, int64_t n);

/* Divisor that turns a sample into sample / signal (grid.h): the signal, or 1 for flow matching. */
double update_scale(const struct grid *grid, const struct grid_point *p);
const struct grid_step *update_step(const struct sampler_update *u);

/* sample := `from` (a sample at noise level `at`), moved along a derivative (PREDICTION_DERIVATIVE) to noise
 * level `to`. */
void update_along_derivative(const struct sampler_update *u, const float *from, const struct grid_point *at,
                             const struct grid_point *to, const float *derivative);
/* Weights of sample and predicted image in a step from `at` down to a sigma; `scale` multiplies the result.
 * Also works at signal 0. */
struct towards {
    double sample, picture;
};
struct towards update_towards(const struct grid_point *at, double sigma, double scale);

/* Ancestral step: goes down to sigma `down`, below the step's target sigma, multiplies the sample by `keep`,
 * and adds noise of standard deviation `up`. */
struct ancestral {
    double down, keep, up;
};
struct ancestral update_ancestral(const struct grid *grid, double from, double to);

#endif
