/* Prediction types (flow, eps, v): the timestep input that a denoiser expects and the meaning of its output.
 * One table entry per type. Plain loops on the host.
 *
 * Sources: flow matching as in schedule.h; eps and v: Karras et al., "Elucidating the Design Space of
 * Diffusion-Based Generative Models" (2022), section 5, and Salimans and Ho, "Progressive Distillation"
 * (2022), appendix D. */
#ifndef SLUICE_SAMPLE_PREDICTION_H
#define SLUICE_SAMPLE_PREDICTION_H

#include "engine/sample/grid.h"

enum prediction_form {
    PREDICTION_DERIVATIVE, /* d(sample / signal) / d sigma: noise; flow: noise minus image */
    PREDICTION_DENOISED,   /* the predicted latent of the finished image (x0) */
    PREDICTION_OUTPUT,     /* the denoiser's output as it is; the sampler converts it */
};

struct prediction {
    const char *name; /* --prediction value: "flow", "eps", "v" */
    bool is_flow;
    /* Computes the denoiser's timestep input from a training timestep. */
    float (*timestep_input)(float timestep);
    /* Converts the denoiser's output (n values) to another prediction form, in place. sample: the sample that
     * was evaluated; at: the sample's noise level. */
    void (*convert)(float *output, const float *sample, int64_t n, const struct grid_point *at,
                    enum prediction_form form);
};

/* Flow matching: the output is noise minus image. The timestep input is sigma (prediction_flow), 1 - sigma
 * (inverted), or the timestep (timestep). */
extern const struct prediction prediction_flow, prediction_flow_inverted, prediction_flow_timestep;
extern const struct prediction prediction_eps; /* the denoiser's output is the noise */
/* v prediction: the output is signal * noise - noise_factor * image, for a sample of variance 1. */
extern const struct prediction prediction_v;

#endif
