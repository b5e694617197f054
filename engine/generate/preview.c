#include "engine/generate/preview.h"

#include "engine/base/text.h"
#include "engine/generate/frame_conditioning.h"
#include "engine/job/layout.h"
#include "kernels/ops.h"

#include <math.h>
#include <string.h>

/* Maps one latent frame (channel planes [Y, X], `apart` floats from plane to plane) to RGB on the contact
 * sheet. */
static void paint_frame(const struct latent_colours *colours, const float *planes, int64_t apart, int32_t Y,
                        int32_t X, uint8_t *to, int64_t row_bytes) {
    for (int32_t y = 0; y < Y; y++)
        for (int32_t x = 0; x < X; x++) {
            float rgb[3];
            memcpy(rgb, colours->bias, sizeof rgb);
            for (int c = 0; c < colours->n; c++)
                for (int k = 0; k < 3; k++)
                    rgb[k] += planes[c * apart + (int64_t)y * X + x] * colours->rgb[c][k];
            for (int k = 0; k < 3; k++)
                to[y * row_bytes + 3 * x + k] = (uint8_t)lrintf(255 * fminf(fmaxf(rgb[k], 0), 1));
        }
}

void preview_capture(const struct job *job, int image, int i_call, const float *output) {
    const struct layout *l = &job->layout;
    const float *repaint = l->mask.data, *input = l->inpaint_latent[image].data;
    float *denoised = l->denoised.data;
    int64_t n = tensor_elements(&l->denoised);
    memcpy(denoised, output, (size_t)tensor_bytes(&l->denoised));
    job->settings.sampling.prediction->convert(denoised, l->latent[image].data, n,
                                               &job->schedule.calls[i_call].at, PREDICTION_DENOISED);
    /* Shows the input image in the unmasked region, which the inpainting blend restores. */
    for (int64_t i = 0, pixels = l->mask.rank ? tensor_elements(&l->mask) : 0; pixels && i < n; i++)
        if (repaint[i % pixels] == 0) denoised[i] = input[i];
    frame_conditioning_put_clean(job, l->denoised);
}

/* Calls on_preview. alpha: rank 0 without alpha. */
static void emit_rgb(const struct running *r, int image, int step, struct tensor rgb, struct tensor alpha) {
    struct sluice_preview out = {.struct_size = sizeof out,
                                 .index = image,
                                 .step = step + 1,
                                 .of = r->pass->schedule.grid.n,
                                 .width = rgb.dim[1],
                                 .height = rgb.dim[0],
                                 .rgb = rgb.data,
                                 .seed = r->pass->request.seed + (uint64_t)image,
                                 .alpha = alpha.data};
    r->options->on_preview(r->options->user, &out);
}

static bool decode_tick(void *user, const struct visit *visit, double done, struct error *e) {
    struct running *r = user;
    (void)visit, (void)done;
    if (!atomic_load_explicit(r->cancelled, memory_order_relaxed)) return true;
    error_set(e, CANCELLED, "cancelled" WHERE "a preview");
    return false;
}

static enum status decode_stage_ended(void *user, int stage, struct error *e) {
    (void)user, (void)stage;
    return e->code;
}

static enum status decode_evaluation_ended(void *user, const struct visit *visit, struct error *e) {
    (void)user, (void)visit;
    return e->code;
}

/* Decodes one latent frame [C, Y, X] to *rgb [Y, X, 3] U8 and, with alpha, to the preview job's layout.alpha
 * [Y, X] U8. Channel planes may be any distance apart in memory. The device must be idle.
 * layout_release(job->preview_job) frees the memory of both, also after failure. */
static enum status decode_frame(struct running *r, struct tensor frame, struct tensor *rgb, struct error *e) {
    struct job *inner = r->pass->preview_job;
    struct run_hooks hooks = {.user = r,
                              .evaluation_ended = decode_evaluation_ended,
                              .stage_ended = decode_stage_ended,
                              .tick = decode_tick};
    struct residents none = {.sys = inner->sys, .device = inner->device->memory ? inner->device : NULL};
    struct context x = {.device = inner->device, .error = e};
    double stalled = 0;
    if (layout_allocate(inner, e) != OK) return e->code;
    struct layout *l = &inner->layout;
    struct run run = layout_run(inner, l, &hooks);
    run.nested = true;
    size_t bytes = (size_t)frame.dim[1] * sizeof(float);
    for (int32_t c = 0; c < frame.dim[0]; c++)
        memcpy((char *)l->latent->data + (size_t)c * bytes, (const char *)frame.data + c * frame.row_bytes,
               bytes);
    executor_run(&run, inner->need, &inner->plan, &none, NULL, e);
    residents_destroy(&none);
    if (e->code != OK) return e->code;
    *rgb = l->rgb;
    op_image_to_rgb(&x, l->rgb, tensor_reshape(l->picture, 3, l->rgb.dim));
    if (device_wait(inner->device, &stalled, e) == OK) layout_split_alpha(l);
    return e->code;
}

enum status preview_emit(struct running *r, int image, int step, struct error *e) {
    const struct job *job = r->pass;
    const struct layout *l = &job->layout;
    struct error not_finite = {0};
    if (check_finite(l->denoised, "a preview", "denoise", step, &not_finite) != OK) return OK;
    if (job->preview_job) {
        struct tensor rgb;
        char line[1024];
        if (decode_frame(r, latent_frame(l->denoised, job->latents.n_reference_frames), &rgb, e) == OK &&
            check_finite(job->preview_job->layout.picture, "a preview", "denoise", step, e) == OK)
            emit_rgb(r, image, step, rgb, job->preview_job->layout.alpha);
        layout_release(job->preview_job);
        if (e->code != MEMORY && e->code != NONFINITE) return e->code;
        /* Turns previews off for the rest of the run, for example after an error; the run goes on. */
        log_line(r->options, SLUICE_WARNING, "no more previews in this run: %s",
                 error_line(e, line, sizeof line));
        r->no_previews = true;
        *e = (struct error){0};
        return OK;
    }
    struct tensor latent = l->denoised, rgb = l->preview;
    int32_t Y = latent.dim[2], X = latent.dim[3], columns = rgb.dim[1] / X;
    int64_t frame = (int64_t)Y * X, row_bytes = (int64_t)rgb.dim[1] * 3;
    memset(rgb.data, 0, (size_t)tensor_bytes(&rgb));
    for (int32_t i = 0; i < job->latents.F - job->latents.n_reference_frames; i++)
        paint_frame(job->model->recipe->colours,
                    (float *)latent.data + (job->latents.n_reference_frames + i) * frame,
                    latent.dim[1] * frame, Y, X,
                    (uint8_t *)rgb.data + i / columns * Y * row_bytes + i % columns * X * 3, row_bytes);
    emit_rgb(r, image, step, rgb, (struct tensor){0});
    return OK;
}
