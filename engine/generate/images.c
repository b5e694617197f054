#include "engine/generate/images.h"

#include "engine/generate/dump.h"
#include "engine/generate/running.h"
#include "engine/generate/second_pass.h"
#include "engine/job/controls.h"
#include "engine/job/layout.h"
#include "kernels/ops.h"

#include <stdio.h>
#include <string.h>

static enum status emit_frame(struct running *r, int image, int frame, struct tensor picture,
                              struct error *e) {
    struct job *job = r->pass;
    struct report *report = r->report;
    struct context x = {.device = job->device, .error = e};
    struct tensor rgb = job->layout.rgb;
    char sha256[SHA256_HEX];
    double stalled = 0;
    bool last = frame + 1 == job->request.frames;
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
    sha256_hex(rgb.data, (size_t)tensor_bytes(&rgb), sha256);
    if (!frame) sha256_init(&r->frames);
    sha256_update(&r->frames, (size_t)tensor_bytes(&rgb), rgb.data);
    if (last) sha256_end(&r->frames, report->image_sha256[image]);
    layout_split_alpha(&job->layout);
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
        .sampler = job->settings.decode_only ? NULL : job->settings.sampling.sampler->name,
        .scheduler = job->settings.decode_only ? NULL : sampling_schedule_name(&job->settings.sampling),
        .prediction = job->settings.decode_only ? NULL : job->settings.sampling.prediction->name,
        .cfg_scale = job->request.cfg_scale,
        .cfg_scale_low = job->settings.decode_only ? 0 : job->request.cfg_scale_low,
        .loras = job->settings.decode_only ? NULL : job->context.adapters->names,
        .negative_prompt = job->settings.n_prompts > 1 ? job->request.negative_prompt : NULL,
        .video_sha256 = last ? report->image_sha256[image] : NULL,
        .slg_scale = job_branches(job) > job->settings.n_prompts ? job->request.slg_scale : 0,
        .cfg_norm = job->settings.decode_only ? 0 : job->request.cfg_norm,
        .cfg_until = job->settings.decode_only ? 1 : job->request.cfg_until,
        .decoder = tiny ? tiny->family->name : NULL,
        .alpha = job->layout.alpha.data,
        .controls = controls_text(job, controls),
    };
    if (r->options->on_image) r->options->on_image(r->options->user, &out);
    if (last) report->n_images = image + 1;
    return OK;
}

enum status images_decoded(struct running *r, int stage, int evaluation, struct error *e) {
    struct job *job = r->pass;
    if (job->second_pass) return second_pass_take_image(r, evaluation, e);
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
