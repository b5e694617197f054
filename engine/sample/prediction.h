/* Predictions: what a denoiser is told of the noise in a sample, and what its output means. One row a kind.
 * Where a sample stands, and what of it is read, grid.h says. Plain loops on the host.
 *
 * Sources: for flow matching as schedule.h; for noise that is added Karras et al., "Elucidating the Design
 * Space of Diffusion-Based Generative Models" (2022), section 5, with Salimans and Ho, "Progressive
 * Distillation" (2022), appendix D, for v. */
#ifndef SLUICE_SAMPLE_PREDICTION_H
#define SLUICE_SAMPLE_PREDICTION_H

#include "engine/sample/grid.h"

/* What a sampler works with. */
enum prediction_form {
    PREDICTION_DERIVATIVE, /* d sample / d sigma, of the sample divided by its signal where noise is added:
                              the noise; of flow matching noise minus picture */
    PREDICTION_DENOISED,   /* the picture's latent */
    PREDICTION_OUTPUT,     /* as the denoiser gave it: the update converts it itself */
};

struct prediction {
    const char *name; /* that people choose it by: "flow", "eps", "v" */
    bool mixes;       /* for grids that mix; else for those where noise is added */
    /* What it is told of a timestep. */
    float (*told)(float timestep);
    /* The factor on the sample that the denoiser reads. NULL: the point's own. */
    float (*input_scale)(const struct grid_point *at);
    /* Its output, of n values, to the form that is wanted, in place. sample: what the call stood at. */
    void (*convert)(float *output, const float *sample, int64_t n, const struct grid_point *at,
                    enum prediction_form form);
};

/* Flow matching: the output is noise minus picture. Some models are told the part of noise, some that of
 * picture, 1 minus it, some the timestep itself. */
extern const struct prediction prediction_flow, prediction_flow_of_picture, prediction_flow_of_timestep;
extern const struct prediction prediction_eps; /* the output is the noise */
/* signal noise - noise picture, of signal and noise in a sample of variance 1. */
extern const struct prediction prediction_v;

float prediction_input_scale(const struct prediction *prediction, const struct grid_point *at);

#endif
