#include "engine/generate/images.h"

#include "engine/generate/dump.h"
#include "engine/generate/second_pass.h"
#include "engine/generate/upscale.h"
#include "engine/job/controls.h"
#include "engine/job/layout.h"
#include "kernels/ops.h"

#include <stdio.h>
#include <string.h>

/* Adds the pixels of an image to a hash, as RGB triples or RGBA quadruples. */
static void hash_pixels(struct sha256_ctx *sha, struct tensor rgb, struct tensor alpha) {
    const uint8_t *colours = rgb.data, *opacity = alpha.data;
    int64_t pixels = (int64_t)rgb.dim[0] * rgb.dim[1];
    if (!alpha.rank) sha256_update(sha, 3 * (size_t)pixels, colours);
    for (int64_t i = 0; i < pixels && alpha.rank; i++) {
        sha256_update(sha, 3, colours + 3 * i);
        sha256_update(sha, 1, opacity + i);
    }
}

/* Hashes an image and passes it to on_image. rgb: [Y, X, 3] U8, packed; alpha: [Y, X] U8, or rank 0. */
static void emit(struct running *r, int image, int frame, struct tensor rgb, struct tensor alpha) {
    /* The metadata has the settings of the caller's request, which the first pass runs with. */
    const struct job *job = r->pass, *first = job->context.first_pass, *requested = first ? first : job;
    struct report *report = r->report;
    struct sha256_ctx sha;
    char sha256[SHA256_HEX];
    bool last = frame + 1 == job->request.frames;
    sha256_init(&sha);
    hash_pixels(&sha, rgb, alpha);
    sha256_end(&sha, sha256);
    if (!frame) sha256_init(&r->frames);
    hash_pixels(&r->frames, rgb, alpha);
    if (last) sha256_end(&r->frames, report->image_sha256[image]);
    const struct component *tiny = job_tiny_decoder(job);
    char controls[CONTROLS_TEXT_BYTES];
    struct sluice_image out = {
        .struct_size = sizeof out,
        .index = image,
        .width = rgb.dim[1],
        .height = rgb.dim[0],
        .rgb = rgb.data,
        .seed = job->request.seed + (uint64_t)image,
        .sha256 = sha256,
        .frame = frame,
        .frames = job->request.frames,
        .sampler = job->settings.decode_only ? NULL : requested->settings.sampling.sampler->name,
        .scheduler = job->settings.decode_only ? NULL : sampling_schedule_name(&requested->settings.sampling),
        .prediction = job->settings.decode_only ? NULL : requested->settings.sampling.prediction->name,
        .cfg_scale = requested->request.cfg_scale,
        .cfg_scale_low = job->settings.decode_only ? 0 : requested->request.cfg_scale_low,
        .loras = job->settings.decode_only ? NULL : job->context.adapters->names,
        .negative_prompt = requested->settings.n_prompts > 1 ? requested->request.negative_prompt : NULL,
        .video_sha256 = last ? report->image_sha256[image] : NULL,
        .slg_scale = job_skips_layers(requested) ? requested->request.slg_scale : 0,
        .cfg_norm = job->settings.decode_only ? 0 : requested->request.cfg_norm,
        .cfg_until = job->settings.decode_only ? 1 : requested->request.cfg_until,
        .decoder = tiny ? tiny->family->name : NULL,
        .alpha = alpha.data,
        .controls = controls_text(job, controls),
        .first_width = first ? first->request.width : 0,
        .first_height = first ? first->request.height : 0,
        .hires_strength = first ? first->request.hires_strength : 0,
        .hires_steps = first ? first->request.hires_steps : 0,
        .enlarged = job->upscale.from.width ? job->upscale.to.width / job->upscale.from.width : 0,
    };
    if (r->options->on_image) r->options->on_image(r->options->user, &out);
    if (last) report->n_images = image + 1;
}

/* Copies a decoded frame from layout.rgb and layout.alpha to the upscaler's input images. */
static void keep_frame(const struct job *job, int image, int frame) {
    const struct layout *l = &job->layout;
    int32_t at = (int32_t)(image * job->request.frames + frame);
    struct tensor to = tensor_slice(l->upscale.decoded, at, 1);
    memcpy(to.data, l->rgb.data, (size_t)tensor_bytes(&to));
    if (!l->upscale.decoded_alpha.rank) return;
    to = tensor_slice(l->upscale.decoded_alpha, at, 1);
    memcpy(to.data, l->alpha.data, (size_t)tensor_bytes(&to));
}

static enum status emit_frame(struct running *r, int image, int frame, struct tensor picture,
                              struct error *e) {
    struct job *job = r->pass;
    struct context x = {.device = job->device, .error = e};
    struct tensor rgb = job->layout.rgb, packed = rgb;
    double stalled = 0;
    if (job->request.dump) {
        /* The first image's file name has no number; names of video frames always have a number. */
        char name[48] = "decoded";
        size_t n = strlen(name);
        if (image) n += (size_t)snprintf(name + n, sizeof name - n, "_%03d", image);
        if (job->request.frames > 1) snprintf(name + n, sizeof name - n, "_frame_%04d", frame);
        if (dump_save_picture(job->sys, job->request.dump, name, picture, e) != OK) return e->code;
    }
    op_image_to_rgb(&x, rgb, picture);
    if (device_wait(job->device, &stalled, e) != OK) return e->code;
    layout_split_alpha(&job->layout);
    packed.dim[2] = 3;
    packed.row_bytes = 3;
    if (job->upscale.to.width)
        keep_frame(job, image, frame);
    else if (job->second_pass)
        second_pass_enlarge(r, image, packed);
    else
        emit(r, image, frame, packed, job->layout.alpha);
    return e->code;
}

enum status images_decoded(struct running *r, int stage, int evaluation, struct error *e) {
    struct job *job = r->pass;
    const struct frame_chunk *chunk = &job->latents.chunks[evaluation % job->latents.n_chunks];
    struct tensor frames = tensor_slice(job->layout.picture, 0, chunk->n_frames);
    if (check_finite(frames, "the decoded image", job->layout.stages[stage].name, -1, e) != OK)
        return e->code;
    for (int32_t i = 0; i < chunk->n_frames && e->code == OK; i++) {
        struct tensor picture = tensor_reshape(tensor_slice(frames, i, 1), 3, frames.dim + 1);
        emit_frame(r, evaluation / job->latents.n_chunks, chunk->first_frame + i, picture, e);
    }
    return e->code;
}

enum status images_enlarged(struct running *r, int stage, int evaluation, struct error *e) {
    const struct job *job = r->pass;
    const struct layout *l = &job->layout;
    int frames = job->context.upscales ? 1 : job->request.frames;
    if (upscale_ended(r, stage, evaluation, e) != OK) return e->code;
    if (job->second_pass)
        second_pass_enlarge(r, evaluation, l->upscale.rgb);
    else
        emit(r, evaluation / frames, evaluation % frames, l->upscale.rgb, l->upscale.alpha);
    return OK;
}
