/* The table of prediction types: implements prediction.h. */
#include "engine/sample/prediction.h"

#include <math.h>
#include <stddef.h>

static float timestep_input_sigma(float timestep) {
    return timestep / 1000;
}

static float timestep_input_one_minus_sigma(float timestep) {
    return (1000 - timestep) / 1000;
}

static float timestep_input_unscaled(float timestep) {
    return timestep;
}

static void prediction_convert_flow(float *output, const float *sample, int64_t n,
                                    const struct grid_point *at, enum prediction_form form) {
    if (form != PREDICTION_DENOISED) return;
    for (int64_t i = 0; i < n; i++) output[i] = sample[i] - at->noise * output[i];
}

static void prediction_convert_eps(float *output, const float *sample, int64_t n, const struct grid_point *at,
                                   enum prediction_form form) {
    if (form != PREDICTION_DENOISED) return;
    for (int64_t i = 0; i < n; i++) output[i] = (sample[i] - at->noise * output[i]) / at->signal;
}

static void prediction_convert_v(float *output, const float *sample, int64_t n, const struct grid_point *at,
                                 enum prediction_form form) {
    float variance = at->noise * at->noise + at->signal * at->signal;
    float factor = -at->noise / sqrtf(variance);
    if (form == PREDICTION_OUTPUT) return;
    for (int64_t i = 0; i < n; i++) {
        float denoised = sample[i] * at->signal / variance + output[i] * factor;
        output[i] = form == PREDICTION_DENOISED ? denoised : (sample[i] - at->signal * denoised) / at->noise;
    }
}

const struct prediction prediction_flow = {.name = "flow",
                                           .is_flow = true,
                                           .timestep_input = timestep_input_sigma,
                                           .convert = prediction_convert_flow};
const struct prediction prediction_flow_inverted = {.name = "flow",
                                                    .is_flow = true,
                                                    .timestep_input = timestep_input_one_minus_sigma,
                                                    .convert = prediction_convert_flow};
const struct prediction prediction_flow_timestep = {.name = "flow",
                                                    .is_flow = true,
                                                    .timestep_input = timestep_input_unscaled,
                                                    .convert = prediction_convert_flow};
const struct prediction prediction_eps = {
    .name = "eps", .timestep_input = timestep_input_unscaled, .convert = prediction_convert_eps};
const struct prediction prediction_v = {
    .name = "v", .timestep_input = timestep_input_unscaled, .convert = prediction_convert_v};
