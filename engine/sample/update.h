/* What updates of samples are made of. Only samplers include it. */
#ifndef SLUICE_SAMPLE_UPDATE_H
#define SLUICE_SAMPLE_UPDATE_H

#include "engine/sample/sampler.h"

/* A tensor with its factor in a sum. */
struct term {
    double factor;
    const float *values;
};

enum { TERMS_MAX = 8 };

/* out := the sum of so many terms, in their order, factors rounded to float32. out may be one of them. */
void update_sum(float *out, int64_t n, const struct term *terms, int n_terms);
/* to := from. */
void update_keep(float *to, const float *from, int64_t n);
/* The newest of n past tensors becomes values, the oldest is lost. */
void update_push(float *const *past, int n_past, const float *values, int64_t n);

/* What a sample is divided by to stand at a sigma (see grid.h): its signal, but of mixed ones nothing. */
double update_scale(const struct grid *grid, const struct grid_point *p);
/* The step that an update is in. */
const struct grid_step *update_step(const struct sampler_update *u);

/* The sample, from `at`, moved to a point by a derivative: both ends of the line through it. */
void update_along(const struct sampler_update *u, const float *from, const struct grid_point *at,
                  const struct grid_point *to, const float *derivative);
/* What a step from `at` towards the picture to a sigma is made of, in the scale of `to`: factors of sample
 * and picture. Also from a point without signal. */
struct towards {
    double sample, picture;
};
struct towards update_towards(const struct grid_point *at, double sigma, double scale);

/* A step from one sigma to another with noise: first down to less than it, then, with the factor `keep` on
 * that, up by noise. */
struct ancestral {
    double down, keep, up;
};
struct ancestral update_ancestral(const struct grid *grid, double from, double to);

#endif
