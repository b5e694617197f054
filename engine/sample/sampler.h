/* Samplers and guidance: how a sample moves from one sigma of a schedule to the next. One row a sampler; the
 * rest of the engine knows no more of it than the row says: evaluations of a step, past tensors that are kept
 * (and so planned), noise that is drawn, the update. Plain loops on the host. */
#ifndef SLUICE_SAMPLE_SAMPLER_H
#define SLUICE_SAMPLE_SAMPLER_H

#include "engine/sample/prediction.h"

#include <stdbool.h>

enum { SAMPLER_EVALUATIONS_MAX = 4, SAMPLER_HISTORY_MAX = 4 };

/* What an update after one evaluation is given. All tensors have n values. */
struct sampler_update {
    const float *sigmas; /* of the run: n_steps + 1 */
    int n_steps, step, evaluation;
    float *sample;         /* moves to where the next evaluation, or the next step, reads it */
    float *output;         /* the denoiser's, guided, in the sampler's form; may be overwritten */
    float *const *history; /* the sampler's own tensors of this image; what they hold before the first step
                              nobody may read */
    const float *noise;    /* standard normals, in the update that ends a step before the last; else NULL */
    int64_t n;
};

struct sampler {
    const char *name; /* that people choose it by */
    enum prediction_form form;
    int evaluations; /* of a step, at most */
    int history;     /* tensors kept for each image */
    bool draws;      /* noise, once a step, but in the last one, which ends without any */
    /* The sigma of evaluation 1 and on of a step; negative: this step has no more. NULL with one evaluation,
     * which stands at the step's sigma. */
    float (*sigma_of)(const float *sigmas, int step, int evaluation);
    void (*update)(const struct sampler_update *u);
};

extern const struct sampler sampler_euler;

extern const struct sampler *const samplers[]; /* NULL-terminated */

/* What becomes of two predictions: cond := the guided one, of n values. scale 1: cond as it is. */
typedef void guidance_rule(float *cond, const float *uncond, int64_t n, double scale);

/* uncond + scale (cond - uncond), as cond + (scale - 1) (cond - uncond). */
guidance_rule guidance_plain;

#endif
