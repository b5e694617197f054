#include "engine/generate/upscale.h"

#include "engine/generate/dump.h"
#include "engine/job/upscale.h"
#include "kernels/ops.h"

#include <stdio.h>
#include <string.h>

/* Pixels of the image that an evaluation enlarges. */
static struct sluice_picture picture_of(const struct job *job, int evaluation) {
    const struct layout *l = &job->layout;
    if (job->context.upscales) return job->pictures.fitted[PICTURE_INIT];
    struct sluice_picture picture = {.width = job->upscale.from.width, .height = job->upscale.from.height};
    picture.rgb = tensor_slice(l->upscale.decoded, evaluation, 1).data;
    if (l->upscale.decoded_alpha.rank)
        picture.alpha = tensor_slice(l->upscale.decoded_alpha, evaluation, 1).data;
    return picture;
}

void upscale_begins(const struct running *r, int evaluation) {
    const struct job *job = r->pass;
    struct sluice_picture picture = picture_of(job, evaluation);
    float *to = job->layout.upscale.input.data;
    int64_t n = tensor_elements(&job->layout.upscale.input);
    for (int64_t i = 0; i < n; i++) to[i] = (float)picture.rgb[i] / 255;
}

/* Enlarges the image's alpha to layout.upscale.alpha. resample_push_row takes RGBA rows; their colours are 0,
 * and the resampled colours are not used. */
static enum status enlarge_alpha(const struct job *job, const struct sluice_picture *picture,
                                 struct error *e) {
    struct tensor alpha = job->layout.upscale.alpha;
    struct picture_part part = upscale_alpha_part(job);
    struct sys *sys = job->sys;
    char *memory = sys_new(sys, 1, upscale_alpha_bytes(job), "the alpha of an enlarged image", e);
    if (!memory) return e->code;
    size_t width = (size_t)picture->width;
    uint8_t *row = (uint8_t *)memory + resample_bytes(job->upscale.from, &part);
    struct resampling resampling;
    /* Pitch 0: all rows of colours overwrite one row. */
    resample_begin(&resampling, job->upscale.from, &part, memory, row + RGBA * width, 0);
    resampling.alpha = alpha.data;
    resampling.alpha_pitch = (size_t)alpha.row_bytes;
    for (size_t y = 0; y < (size_t)picture->height; y++) {
        for (size_t x = 0; x < width; x++) row[RGBA * x + 3] = picture->alpha[y * width + x];
        resample_push_row(&resampling, row);
    }
    sys->release(sys, memory);
    return OK;
}

enum status upscale_ended(struct running *r, int stage, int evaluation, struct error *e) {
    const struct job *job = r->pass;
    const struct layout *l = &job->layout;
    struct context x = {.device = job->device, .error = e};
    struct tensor enlarged = tensor_reshape(l->upscale.enlarged, 3, l->upscale.enlarged.dim + 1);
    struct sluice_picture picture = picture_of(job, evaluation);
    double stalled = 0;
    if (check_finite(enlarged, "the enlarged image", l->stages[stage].name, -1, e) != OK) return e->code;
    if (job->request.dump) {
        char name[48] = "enlarged";
        size_t n = strlen(name);
        if (evaluation) snprintf(name + n, sizeof name - n, "_%03d", evaluation);
        if (dump_save_picture(job->sys, job->request.dump, name, enlarged, e) != OK) return e->code;
    }
    op_image_to_rgb(&x, l->upscale.rgb, enlarged);
    if (device_wait(job->device, &stalled, e) != OK) return e->code;
    return l->upscale.alpha.rank ? enlarge_alpha(job, &picture, e) : OK;
}
