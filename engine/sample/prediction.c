/* Predictions: see prediction.h. */
#include "engine/sample/prediction.h"

#include <math.h>
#include <stddef.h>

/* Of flow and of noise: the output is the derivative already. */
static void prediction_convert_derivative(float *output, const float *sample, int64_t n, float sigma,
                                          enum prediction_form form) {
    if (form == PREDICTION_DERIVATIVE) return;
    for (int64_t i = 0; i < n; i++) output[i] = sample[i] - sigma * output[i];
}

/* ---- flow ---- */

static float prediction_told_noise(float timestep) {
    return timestep / 1000;
}

static float prediction_told_picture(float timestep) {
    return (1000 - timestep) / 1000;
}

static void prediction_begin_mixed(float *noise, const float *picture, int64_t n, float sigma) {
    for (int64_t i = 0; i < n && picture; i++) noise[i] = sigma * noise[i] + (1 - sigma) * picture[i];
}

/* ---- noise that is added ---- */

static float prediction_input_scale(float sigma) {
    return 1 / sqrtf(sigma * sigma + 1);
}

static float prediction_told_timestep(float timestep) {
    return timestep;
}

/* The picture is sample a^2 - sigma a output. */
static void prediction_convert_v(float *output, const float *sample, int64_t n, float sigma,
                                 enum prediction_form form) {
    float square = 1 / (sigma * sigma + 1), factor = -sigma / sqrtf(sigma * sigma + 1);
    for (int64_t i = 0; i < n; i++) {
        float denoised = sample[i] * square + output[i] * factor;
        output[i] = form == PREDICTION_DENOISED ? denoised : (sample[i] - denoised) / sigma;
    }
}

static void prediction_begin_added(float *noise, const float *picture, int64_t n, float sigma) {
    for (int64_t i = 0; i < n; i++) noise[i] = sigma * noise[i] + (picture ? picture[i] : 0);
}

/* ---- the table ---- */

const struct prediction prediction_flow = {"flow", NULL, prediction_told_noise, prediction_convert_derivative,
                                           prediction_begin_mixed};
const struct prediction prediction_flow_of_picture = {"flow", NULL, prediction_told_picture,
                                                      prediction_convert_derivative, prediction_begin_mixed};
const struct prediction prediction_eps = {"eps", prediction_input_scale, prediction_told_timestep,
                                          prediction_convert_derivative, prediction_begin_added};
const struct prediction prediction_v = {"v", prediction_input_scale, prediction_told_timestep,
                                        prediction_convert_v, prediction_begin_added};
