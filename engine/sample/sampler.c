/* Samplers and guidance: see sampler.h. */
#include "engine/sample/sampler.h"

#include <stddef.h>

void guidance_plain(float *cond, const float *uncond, int64_t n, double scale) {
    float g = (float)(scale - 1);
    for (int64_t i = 0; i < n; i++) cond[i] = cond[i] + g * (cond[i] - uncond[i]);
}

static void sampler_update_euler(const struct sampler_update *u) {
    float step = u->sigmas[u->step + 1] - u->sigmas[u->step];
    for (int64_t i = 0; i < u->n; i++) u->sample[i] = u->sample[i] + step * u->output[i];
}

const struct sampler sampler_euler = {
    .name = "euler", .form = PREDICTION_DERIVATIVE, .evaluations = 1, .update = sampler_update_euler};

const struct sampler *const samplers[] = {&sampler_euler, NULL};
