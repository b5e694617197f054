#include "engine/generate/second_pass.h"

#include "engine/generate/denoise.h"
#include "engine/generate/dump.h"
#include "engine/generate/frame_conditioning.h"
#include "engine/generate/initial_latents.h"
#include "engine/job/second_pass.h"
#include "engine/pictures/resample.h"

/* Enlarges a latent [C, 1, Y, X] by nearest neighbour, as PyTorch's interpolate(mode="nearest"). */
static void enlarge_nearest(struct tensor from, struct tensor to) {
    const float *source = from.data;
    float *result = to.data, down = (float)from.dim[2] / (float)to.dim[2],
          across = (float)from.dim[3] / (float)to.dim[3];
    for (int32_t c = 0; c < to.dim[0]; c++)
        for (int32_t y = 0; y < to.dim[2]; y++)
            for (int32_t x = 0; x < to.dim[3]; x++) {
                int32_t row = (int32_t)((float)y * down), column = (int32_t)((float)x * across);
                if (row >= from.dim[2]) row = from.dim[2] - 1;
                if (column >= from.dim[3]) column = from.dim[3] - 1;
                *result++ = source[((int64_t)c * from.dim[2] + row) * from.dim[3] + column];
            }
}

/* The two source pixels of a result pixel along one axis, and the weight of the second. */
struct tap {
    int32_t first, second;
    float share;
};

static struct tap bilinear_tap(int32_t at, int32_t from, int32_t to) {
    float position = ((float)at + 0.5F) * ((float)from / (float)to) - 0.5F;
    if (position < 0) position = 0;
    int32_t first = (int32_t)position;
    return (struct tap){first, first + 1 < from ? first + 1 : first, position - (float)first};
}

/* Enlarges a latent as PyTorch's interpolate(mode="bilinear", align_corners=False). */
static void enlarge_bilinear(struct tensor from, struct tensor to) {
    float *result = to.data;
    for (int32_t c = 0; c < to.dim[0]; c++)
        for (int32_t y = 0; y < to.dim[2]; y++) {
            struct tap down = bilinear_tap(y, from.dim[2], to.dim[2]);
            const float *plane = (const float *)from.data + (int64_t)c * from.dim[2] * from.dim[3],
                        *above = plane + (int64_t)down.first * from.dim[3],
                        *below = plane + (int64_t)down.second * from.dim[3];
            for (int32_t x = 0; x < to.dim[3]; x++) {
                struct tap across = bilinear_tap(x, from.dim[3], to.dim[3]);
                float upper = (1 - across.share) * above[across.first] + across.share * above[across.second],
                      lower = (1 - across.share) * below[across.first] + across.share * below[across.second];
                *result++ = (1 - down.share) * upper + down.share * lower;
            }
        }
}

/* Uses prediction[0] for the enlarged latent: the second pass writes it in its first step only. */
enum status second_pass_begin(struct running *r, struct error *e) {
    struct job *first = r->job, *second = first->second_pass;
    const struct layout *l = &second->layout;
    if (first->settings.hires >= HIRES_LANCZOS) return OK;
    if (first->settings.hires == HIRES_UPSCALER) {
        /* The upscaler reads the clean frame of image-to-video, not the sample there. */
        for (int i = 0; i < first->latents.batch; i++)
            frame_conditioning_put_clean(first, first->layout.latent[i]);
        return OK;
    }
    for (int i = 0; i < first->latents.batch; i++) {
        struct tensor from = first->layout.latent[i], to = l->prediction[0];
        first->settings.hires == HIRES_BILINEAR ? enlarge_bilinear(from, to) : enlarge_nearest(from, to);
        draw_noise(r, i, l->latent[i]);
        begin_sampling(second, i, to.data);
    }
    return first->request.dump ? dump_step_latents(second, 0, e) : OK;
}

/* Mixes a clean latent with noise, at the sigma of the second pass's first step. to, clean: the video's
 * latent [C, F, Y, X] or the sound's [C, 1, L, B]; clean may be `to`. The noise is drawn in the order of the
 * denoiser's tokens: [F Y X, C], or [L, C B]. noise: scratch memory for as many values. */
static void add_token_noise(struct running *r, int image, struct tensor to, struct tensor clean,
                            float *noise) {
    const struct grid_point *at = &r->pass->schedule.grid.step[0].at;
    bool is_sound = to.data != r->pass->layout.latent[image].data;
    int64_t inner = is_sound ? to.dim[3] : 1, C = to.dim[0], n = tensor_elements(&to), tokens = n / C / inner;
    const float *from = clean.data;
    float *out = to.data;
    generator_normals(&r->generators[image], noise, n);
    for (int64_t c = 0; c < C; c++)
        for (int64_t t = 0; t < tokens; t++)
            for (int64_t b = 0; b < inner; b++) {
                int64_t i = (c * tokens + t) * inner + b;
                out[i] = at->noise * noise[(t * C + c) * inner + b] + at->signal * from[i];
            }
}

/* Uses prediction[0] for the noise: the second pass writes it in its first step only. Source: diffusers 0.42,
 * pipelines/ltx2/pipeline_ltx2_condition.py, prepare_latents and prepare_audio_latents. */
enum status second_pass_upsampled(struct running *r, struct error *e) {
    const struct job *first = r->job, *second = r->pass;
    const struct layout *l = &second->layout;
    for (int i = 0; i < second->latents.batch; i++) {
        struct tensor latent = l->latent[i], sound = job_sound(second, latent);
        if (check_finite(latent, "the enlarged latent", "upsample", -1, e) != OK) return e->code;
        add_token_noise(r, i, latent, latent, l->prediction[0].data);
        if (sound.rank)
            add_token_noise(r, i, sound, job_sound(first, first->layout.latent[i]), l->prediction[0].data);
        scale_model_input(second, i, 0);
    }
    return first->request.dump ? dump_step_latents(second, 0, e) : OK;
}

void second_pass_enlarge(struct running *r, int image, struct tensor rgb) {
    const struct job *second = r->job->second_pass;
    struct picture_part part = second_pass_enlargement(second);
    struct tensor to = second->layout.enlarged[image];
    struct resampling resampling;
    resample_begin(&resampling, (struct picture_size){rgb.dim[1], rgb.dim[0]}, &part,
                   second->layout.resampling.data, to.data, (size_t)to.dim[1] * 3);
    for (int32_t y = 0; y < rgb.dim[0]; y++)
        resample_push_row(&resampling, (const uint8_t *)rgb.data + (int64_t)y * rgb.dim[1] * 3);
}
