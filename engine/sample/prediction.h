/* Prediction types (flow, eps, v): the timestep a denoiser expects and what its output means. One table
 * entry per type. Plain loops on the host.
 *
 * Sources: for flow matching as in schedule.h; for eps and v Karras et al., "Elucidating the Design Space
 * of Diffusion-Based Generative Models" (2022), section 5, and Salimans and Ho, "Progressive Distillation"
 * (2022), appendix D. */
#ifndef SLUICE_SAMPLE_PREDICTION_H
#define SLUICE_SAMPLE_PREDICTION_H

#include "engine/sample/grid.h"

/* The form in which a sampler takes the prediction. */
enum prediction_form {
    PREDICTION_DERIVATIVE, /* d(sample / signal) / d sigma: the noise; for flow matching noise minus image */
    PREDICTION_DENOISED,   /* the predicted latent of the finished image (x0) */
    PREDICTION_OUTPUT,     /* unconverted; the sampler converts it */
};

struct prediction {
    const char *name; /* for --prediction: "flow", "eps", "v" */
    bool is_flow;     /* flow matching */
    /* The timestep input of the denoiser, from a training timestep. */
    float (*timestep_input)(float timestep);
    /* Factor on the sample that the denoiser reads. NULL: the grid point's. */
    float (*input_scale)(const struct grid_point *at);
    /* Converts the denoiser's output (n values) to a form, in place. sample, at: the sample it was computed
     * from and its noise level. */
    void (*convert)(float *output, const float *sample, int64_t n, const struct grid_point *at,
                    enum prediction_form form);
};

/* Flow matching: the output is noise minus image. The timestep input is sigma (prediction_flow), 1 - sigma
 * (inverted), or the timestep (timestep). */
extern const struct prediction prediction_flow, prediction_flow_inverted, prediction_flow_timestep;
extern const struct prediction prediction_eps; /* the output is the noise */
/* the output is signal * noise - noise_factor * image, for a sample of variance 1 */
extern const struct prediction prediction_v;

float prediction_input_scale(const struct prediction *prediction, const struct grid_point *at);

#endif
