/* Predictions: what a denoiser is given, what it is told of the noise in it, and what its output means. One
 * row a kind; a recipe names its own. Samples stand at a sigma: flow matching mixes, sample = sigma noise +
 * (1
 * - sigma) picture; the others add, sample = picture + sigma noise. Plain loops on the host.
 *
 * Sources: for mixing as schedule.h; for adding Karras et al., "Elucidating the Design Space of
 * Diffusion-Based Generative Models" (2022), section 5, with Salimans and Ho, "Progressive Distillation"
 * (2022), appendix D, for v. */
#ifndef SLUICE_SAMPLE_PREDICTION_H
#define SLUICE_SAMPLE_PREDICTION_H

#include <stdint.h>

/* What a sampler works with. */
enum prediction_form {
    PREDICTION_DERIVATIVE, /* d sample / d sigma */
    PREDICTION_DENOISED,   /* the picture's latent */
};

struct prediction {
    const char *name; /* that people choose it by: "flow", "eps", "v" */
    /* The factor on the sample that the denoiser reads. NULL: it reads the sample itself. */
    float (*input_scale)(float sigma);
    /* What it is told of a timestep. */
    float (*told)(float timestep);
    /* Its output, of n values, to the form that is wanted, in place. sample: what the call stood at. */
    void (*convert)(float *output, const float *sample, int64_t n, float sigma, enum prediction_form form);
    /* Where a run begins: n values of standard noise to a sample at sigma. picture: a latent to start from;
     * NULL: none. */
    void (*begin)(float *noise, const float *picture, int64_t n, float sigma);
};

/* Flow matching: the output is noise minus picture. Some models are told the part of noise, some that of
 * picture, 1 minus it. */
extern const struct prediction prediction_flow, prediction_flow_of_picture;
extern const struct prediction prediction_eps; /* the output is the noise */
extern const struct prediction prediction_v;   /* with a = 1 / sqrt(sigma^2 + 1): a noise - a sigma picture */

#endif
