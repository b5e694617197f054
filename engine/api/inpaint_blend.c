#include "engine/api/inpaint_blend.h"

#include <string.h>

/* Writes the input image's latent to out, noised to the level at which the next step begins, or without noise
 * after the last denoiser call. After an evaluation within a step the level is also that of the step's end,
 * even if the sampler's next evaluation is in the middle of the step (as diffusers does for KDPM2). */
static void inpaint_noised_latent(const struct job *job, int image, int i_call, float *out) {
    const struct layout *l = &job->layout;
    const float *picture = l->inpaint_latent[image].data;
    int64_t n = tensor_elements(&l->inpaint_latent[image]);
    if (i_call + 1 == job->n_calls) {
        memcpy(out, picture, (size_t)n * sizeof *out);
        return;
    }
    const struct denoiser_call *call = &job->calls[i_call];
    const struct grid_point *at = call->ends_step ? &call[1].at : &job->grid.step[call->step].to;
    grid_add_noise(at, picture, l->inpaint_noise[image].data, out, n);
}

void inpaint_blend(const struct job *job, int image, int i_call, float *scratch) {
    const struct layout *l = &job->layout;
    const float *draws = l->mask.data;
    float *sample = l->latent[image].data;
    int64_t pixels = tensor_elements(&l->mask), n = tensor_elements(&l->latent[image]);
    if (!l->mask.rank) return;
    inpaint_noised_latent(job, image, i_call, scratch);
    for (int64_t i = 0; i < n; i++)
        if (draws[i % pixels] == 0) sample[i] = scratch[i];
}
