/* What a mask leaves: see kept.h. */
#include "engine/api/kept.h"

#include <string.h>

/* The picture's latent with the run's noise where the step behind this call begins; within a step where that
 * ends, also for samplers that stand between: so diffusers has it for KDPM2. */
static void kept_noised(const struct job *job, int image, int i_call, float *out) {
    const struct layout *l = &job->layout;
    const float *picture = l->kept[image].data;
    int64_t n = tensor_elements(&l->kept[image]);
    if (i_call + 1 == job->n_calls) {
        memcpy(out, picture, (size_t)n * sizeof *out);
        return;
    }
    const struct denoiser_call *call = &job->calls[i_call];
    const struct grid_point *at = call->ends_step ? &call[1].at : &job->grid.step[call->step].to;
    grid_mix(at, picture, l->kept_noise[image].data, out, n);
}

void kept_put_back(const struct job *job, int image, int i_call, float *scratch) {
    const struct layout *l = &job->layout;
    const float *draws = l->mask.data;
    float *sample = l->latent[image].data;
    int64_t pixels = tensor_elements(&l->mask), n = tensor_elements(&l->latent[image]);
    if (!l->mask.rank) return;
    kept_noised(job, image, i_call, scratch);
    for (int64_t i = 0; i < n; i++)
        if (draws[i % pixels] == 0) sample[i] = scratch[i];
}
