#include "engine/api/preview.h"

#include "engine/api/frame_conditioning.h"
#include "engine/api/preview_run.h"
#include "engine/api/initial_latents.h"
#include "engine/base/text.h"

#include <math.h>
#include <string.h>

/* Number of columns of a video's preview: a contact sheet of latent frames with about as many columns as
 * rows. */
static int32_t preview_columns(int32_t frames) {
    int32_t columns = 1;
    while (columns * columns < frames) columns++;
    return columns;
}

/* Number of latent frames in a preview, without VACE reference frames in front of the video. */
static int32_t preview_frames(const struct job *job) {
    return job->F - job->n_reference_frames;
}

static uint8_t preview_level(float value) {
    return (uint8_t)lrintf(255 * fminf(fmaxf(value, 0), 1));
}

/* Maps one latent frame (planes [Y, X], `apart` floats between channels) to RGB on the sheet. */
static void preview_paint(const struct latent_colours *colours, const float *planes, int64_t apart, int32_t Y,
                          int32_t X, uint8_t *to, int64_t row_bytes) {
    for (int32_t y = 0; y < Y; y++)
        for (int32_t x = 0; x < X; x++) {
            float rgb[3];
            memcpy(rgb, colours->bias, sizeof rgb);
            for (int c = 0; c < colours->n; c++)
                for (int k = 0; k < 3; k++)
                    rgb[k] += planes[c * apart + (int64_t)y * X + x] * colours->rgb[c][k];
            for (int k = 0; k < 3; k++) to[y * row_bytes + 3 * x + k] = preview_level(rgb[k]);
        }
}

static void preview_colour(const struct job *job, struct tensor latent, struct tensor rgb) {
    int32_t Y = latent.dim[2], X = latent.dim[3], columns = preview_columns(preview_frames(job));
    int64_t frame = (int64_t)Y * X, row_bytes = (int64_t)rgb.dim[1] * 3;
    memset(rgb.data, 0, (size_t)tensor_bytes(&rgb));
    for (int32_t i = 0; i < preview_frames(job); i++)
        preview_paint(job->model->recipe->colours,
                      (float *)latent.data + (job->n_reference_frames + i) * frame, latent.dim[1] * frame, Y,
                      X, (uint8_t *)rgb.data + i / columns * Y * row_bytes + i % columns * X * 3, row_bytes);
}

void preview_tensors(const struct job *job, struct layout *l, struct arena *arena, bool *ok) {
    int32_t columns = preview_columns(preview_frames(job));
    int32_t rows = (preview_frames(job) + columns - 1) / columns;
    if (job->preview == PREVIEW_NONE) return;
    l->denoised = arena_tensor(arena, DTYPE_F32, 4, (int32_t[]){job->C, job->F, job->Y, job->X}, ok);
    if (job->preview == PREVIEW_LATENT)
        l->preview = arena_tensor(arena, DTYPE_U8, 3, (int32_t[]){rows * job->Y, columns * job->X, 3}, ok);
}

/* No preview after the last step: the decoded image follows, unless decoding is off. */
static bool preview_has_step(const struct job *job, int step) {
    bool last = step + 1 == job->grid.n;
    return (step + 1) % job->request.preview_every == 0 && (!last || job->request.no_decode);
}

int preview_count(const struct job *job) {
    int n = 0;
    for (int step = 0; step < job->grid.n && job->preview != PREVIEW_NONE; step++)
        n += preview_has_step(job, step) ? job->batch : 0;
    return n;
}

bool preview_due(const struct running *r, int i_call) {
    const struct denoiser_call *call = &r->job->calls[i_call];
    return r->job->preview != PREVIEW_NONE && call->ends_step && preview_has_step(r->job, call->step);
}

/* Replaces the unmasked part of the preview by the input image (inpainting without a mask input). */
static void preview_blend_mask(const struct job *job, int image) {
    const struct layout *l = &job->layout;
    const float *repaint = l->mask.data, *input = l->inpaint_latent[image].data;
    float *denoised = l->denoised.data;
    int64_t pixels = tensor_elements(&l->mask), n = tensor_elements(&l->denoised);
    for (int64_t i = 0; i < n && l->mask.rank; i++)
        if (repaint[i % pixels] == 0) denoised[i] = input[i];
}

void preview_capture(const struct job *job, int image, int i_call, const float *output) {
    struct tensor to = job->layout.denoised;
    memcpy(to.data, output, (size_t)tensor_bytes(&to));
    job->sampling.prediction->convert(to.data, job->layout.latent[image].data, tensor_elements(&to),
                                      &job->calls[i_call].at, PREDICTION_DENOISED);
    preview_blend_mask(job, image);
    frame_conditioning_put_clean(job, to);
}

static void preview_emit_rgb(const struct running *r, int image, int step, struct tensor rgb) {
    const struct sluice_session_options *to = &r->session->options;
    struct sluice_preview out = {.struct_size = sizeof out,
                                 .index = image,
                                 .step = step + 1,
                                 .of = r->job->grid.n,
                                 .width = rgb.dim[1],
                                 .height = rgb.dim[0],
                                 .rgb = rgb.data,
                                 .seed = r->job->request.seed + (uint64_t)image};
    to->on_preview(to->user, &out);
}

/* Decodes and shows a preview (of a video only the first frame). If memory is short or the preview has NaN,
 * turns previews off for the rest of the run instead of failing. */
static enum status preview_decode(struct running *r, int image, int step, struct error *e) {
    struct job *inner = r->job->preview_job;
    struct tensor rgb;
    char line[1024];
    if (preview_run(r, latent_frame(r->job->layout.denoised, r->job->n_reference_frames), &rgb, e) == OK &&
        check_finite(inner->layout.picture, "a preview", "denoise", step, e) == OK)
        preview_emit_rgb(r, image, step, rgb);
    job_release(inner);
    if (e->code != MEMORY && e->code != NONFINITE) return e->code;
    session_log(r->session, SLUICE_WARNING, "no more previews in this run: %s",
                error_line(e, line, sizeof line));
    r->no_previews = true;
    *e = (struct error){0};
    return OK;
}

enum status preview_emit(struct running *r, int image, int step, struct error *e) {
    const struct job *job = r->job;
    const struct layout *l = &job->layout;
    struct error not_finite = {0};
    if (r->no_previews) return OK;
    if (check_finite(l->denoised, "a preview", "denoise", step, &not_finite) != OK) return OK;
    if (job->preview_job) return preview_decode(r, image, step, e);
    preview_colour(job, l->denoised, l->preview);
    preview_emit_rgb(r, image, step, l->preview);
    return OK;
}
