#include "engine/api/stage_callbacks.h"

#include "engine/api/frame_conditioning.h"
#include "engine/api/inpaint_blend.h"
#include "engine/api/latents.h"
#include "engine/api/control_video.h"
#include "engine/api/preview.h"
#include "engine/api/progress.h"
#include "engine/api/stages.h"
#include "kernels/ops.h"

#include <stdio.h>
#include <string.h>

static enum status dump_step_latents(const struct job *job, int step, struct error *e) {
    char name[32];
    snprintf(name, sizeof name, "latent_%03d", step);
    return dump_save_latents(job->sys, job->request.dump, name, job->layout.latent, job->batch, e);
}

/* Dumps the sigma at which each step begins, and the sigma at which the last step ends. */
static enum status dump_sigmas(const struct job *job, struct error *e) {
    int32_t n = job->grid.n + 1;
    float *sigmas = job->sys->alloc(job->sys, LINE_HOST, (size_t)n * sizeof *sigmas);
    if (!sigmas) return error_set(e, MEMORY, "no memory for sigmas");
    for (int i = 0; i < n - 1; i++) sigmas[i] = job->grid.step[i].at.sigma;
    sigmas[n - 1] = job->grid.step[n - 2].to.sigma;
    dump_save(job->sys, job->request.dump, "sigmas", tensor_make(sigmas, DTYPE_F32, 1, &n), e);
    job->sys->release(job->sys, sigmas);
    return e->code;
}

enum status dump_run_start(const struct running *r, struct error *e) {
    const struct job *job = r->job;
    const char *folder = job->request.dump;
    for (int text = 0; text < job->n_texts; text++)
        for (int i = 0; i < job->n_encoded_prompts && e->code == OK; i++) {
            const struct prompt_tokens *tokens = &job->tokens[job->text_slot[text]][i];
            char number[16], name[32];
            snprintf(name, sizeof name, "%s%s", job_numbered("tokens", text, number), i ? "_uncond" : "");
            dump_save(job->sys, folder, name, tensor_make(tokens->ids, DTYPE_I32, 1, &tokens->n_ids), e);
        }
    if (e->code == OK) dump_sigmas(job, e);
    return e->code == OK && initial_latents_need_no_picture(job) ? dump_step_latents(job, 0, e) : e->code;
}

/* Copies the rows of one encoder's output to the encoder's place in the prompt's combined embedding. */
static void copy_rows(struct tensor to, int32_t row, int32_t column, struct tensor from) {
    for (int32_t i = 0; i < from.dim[0]; i++)
        memcpy((float *)to.data + (int64_t)(row + i) * to.dim[1] + column,
               (const float *)from.data + (int64_t)i * from.dim[1], (size_t)from.dim[1] * sizeof(float));
}

static double mean_of(const float *values, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)values[i];
    return sum / (double)n;
}

/* Prompt weighting: multiplies each token's row by its weight and restores the mean of each window, as
 * AUTOMATIC1111's web UI does (stable-diffusion-webui 1.10, modules/sd_emphasis.py, EmphasisOriginal). */
static void apply_emphasis(const struct prompt_tokens *tokens, struct tensor text) {
    int64_t columns = text.dim[1], n = tokens->window * columns;
    for (int first = 0; first < tokens->n_ids && tokens->weights; first += tokens->window) {
        float *rows = (float *)text.data + first * columns;
        double before = mean_of(rows, n);
        for (int64_t i = 0; i < n; i++) rows[i] *= tokens->weights[first + i / columns];
        double after = mean_of(rows, n);
        float restored = after == 0 ? 1 : (float)(before / after);
        for (int64_t i = 0; i < n; i++) rows[i] *= restored;
    }
}

/* Copies the embeddings that the encoder in this slot wrote into the combined prompt_embeds and pooled row,
 * unless the encoder wrote directly into these tensors. */
static void place_prompt_embeds(const struct job *job, int slot, int prompt) {
    const struct layout *l = &job->layout;
    const struct recipe *recipe = job->model->recipe;
    const struct text_places p = layout_place_texts(job, prompt);
    for (int i = 0; i < recipe->n_conditions; i++) {
        const struct condition *c = &recipe->condition[i];
        struct tensor encoded = l->encoder_text[c->slot][prompt], row = l->encoder_pooled[c->slot][prompt];
        int32_t dropped = job->tokens[c->slot][prompt].drop_idx, at = p.row[i];
        if (c->what == CONDITION_POOLED) {
            if (c->slot == slot && row.data != l->pooled[prompt].data)
                copy_rows(l->pooled[prompt], 0, p.column[i], row);
            continue;
        }
        if (c->slot != slot || encoded.data == l->text[prompt].data) continue;
        if (encoded.rank)
            copy_rows(l->text[prompt], at, p.column[i],
                      tensor_slice(encoded, dropped, encoded.dim[0] - dropped));
        for (int k = 0; k < job->n_encoded; k++) {
            if (job->encoded[k].slot != slot) continue;
            copy_rows(l->text[prompt], at, p.column[i], l->encoded[k].tokens);
            at += l->encoded[k].tokens.dim[0];
        }
    }
}

/* After the last text stage (stage -1: all prompts came from the prompt cache): dumps the complete prompt
 * embeddings and logs the estimated time. */
static enum status finish_prompt_embeds(struct running *r, int stage, struct error *e) {
    static const char *const texts[PROMPTS_MAX] = {"cond", "uncond"}, *const pooled[PROMPTS_MAX] = {
                                                                          "pooled", "pooled_uncond"};
    const struct job *job = r->job;
    const struct layout *l = &job->layout;
    const char *folder = job->request.dump;
    if (l->kind[stage + 1]->encodes_prompts || e->code != OK) return e->code;
    for (int i = 0; i < job->n_prompts && folder && e->code == OK; i++) {
        if (l->text[i].rank) dump_save(job->sys, folder, texts[i], l->text[i], e);
        if (l->pooled[i].rank && e->code == OK) dump_save(job->sys, folder, pooled[i], l->pooled[i], e);
    }
    if (e->code == OK) progress_log_estimate(r);
    return e->code;
}

/* Stores embeddings in the prompt cache. A failure only logs a warning: the next run encodes the prompt
 * again. */
static void store_prompt_embeds(struct running *r, int slot, int prompt) {
    struct error failed = {0};
    char line[1024];
    prompt_cache_store(r->job, slot, prompt, &failed);
    if (failed.code != OK)
        session_log(r->session, SLUICE_WARNING, "cannot save a prompt's embeddings in the prompt cache: %s",
                    error_line(&failed, line, sizeof line));
}

enum status on_text_stage_end(struct running *r, int stage, struct error *e) {
    const struct job *job = r->job;
    const struct layout *l = &job->layout;
    int slot = l->slot[stage];
    for (int k = 0; k < job->prompt_cache_hits.n_misses[slot] && e->code == OK; k++) {
        int i = job->prompt_cache_hits.misses[slot][k];
        struct tensor text = l->encoder_text[slot][i], pooled = l->encoder_pooled[slot][i];
        if (text.rank) apply_emphasis(&job->tokens[slot][i], text);
        if (text.rank) check_finite(text, "the prompt embedding", l->stages[stage].name, -1, e);
        if (pooled.rank && e->code == OK)
            check_finite(pooled, "the prompt embedding", l->stages[stage].name, -1, e);
        if (e->code == OK) store_prompt_embeds(r, slot, i);
        if (e->code == OK) place_prompt_embeds(job, slot, i);
    }
    return finish_prompt_embeds(r, stage, e);
}

enum status on_prompts_cached(struct running *r, struct error *e) {
    const struct job *job = r->job;
    bool hit = false;
    for (int slot = 0; slot < SLOTS_MAX; slot++)
        for (int i = 0; i < PROMPTS_MAX; i++) {
            if (!prompt_cache_hit(job, slot, i)) continue;
            if (prompt_cache_copy(job, slot, i, e) != OK) return e->code;
            place_prompt_embeds(job, slot, i);
            hit = true;
        }
    return hit ? finish_prompt_embeds(r, -1, e) : OK;
}

/* The index in job.encoded of the picture that an evaluation encodes. */
static int encoded_index(const struct job *job, int stage, int evaluation) {
    int n_chunks = job->layout.stages[stage].n_chunks;
    return layout_find_encoded(job, job->layout.slot[stage], n_chunks, evaluation / n_chunks);
}

enum status on_encode_begin(struct running *r, int stage, int evaluation, struct error *e) {
    return initial_latents_fill_input(r->job, encoded_index(r->job, stage, evaluation),
                                      evaluation % r->job->layout.stages[stage].n_chunks, e);
}

enum status on_encode_end(struct running *r, int stage, int evaluation, struct error *e) {
    return initial_latents_take_encoded(&r->initial_latents, encoded_index(r->job, stage, evaluation),
                                        evaluation % r->job->layout.stages[stage].n_chunks, e);
}

enum status on_encode_stage_end(struct running *r, int stage, struct error *e) {
    (void)stage;
    if (r->job->request.dump && !initial_latents_need_no_picture(r->job)) dump_step_latents(r->job, 0, e);
    return e->code;
}

/* Updates one image after a denoiser call: applies guidance to the prediction, converts the prediction to the
 * form that the sampler expects, and moves the sample. */
static enum status update_image(struct running *r, int i_call, int image, int place, struct error *e) {
    struct job *job = r->job;
    struct layout *l = &job->layout;
    const struct recipe *recipe = job->model->recipe;
    const struct sampling *s = &job->sampling;
    const struct denoiser_call *call = &job->calls[i_call];
    struct tensor sample = l->latent[image];
    float *output = l->prediction[place].data, *history[SAMPLER_HISTORY_MAX];
    int64_t n = tensor_elements(&sample);
    bool draws = s->sampler->draws_noise != NOISE_NEVER && job->grid.step[call->step].to.noise > 0 &&
                 (s->sampler->draws_noise == NOISE_EVERY_EVALUATION || call->ends_step);
    struct tensor skipped = l->prediction[PROMPTS_MAX * l->images_per_group + place];
    for (int k = 0; k < s->sampler->history; k++) history[k] = l->history[image][k].data;
    if (call->slg_scale != 0) guidance_slg_begin(skipped, l->prediction[place], call->slg_scale);
    if (call->scale != 1)
        recipe->guide(l->prediction[place], l->prediction[l->images_per_group + place], recipe->patch,
                      call->scale);
    if (call->slg_scale != 0) guidance_slg_add(l->prediction[place], skipped);
    if (preview_due(r, i_call)) preview_capture(job, image, i_call, output);
    s->prediction->convert(output, sample.data, n, &call->at, s->sampler->form);
    if (draws) initial_latents_draw(&r->initial_latents, image, l->noise);
    s->sampler->update(&(struct sampler_update){.grid = &job->grid,
                                                .prediction = s->prediction,
                                                .solver = &s->solver,
                                                .step = call->step,
                                                .evaluation = call->evaluation,
                                                .sample = sample.data,
                                                .output = output,
                                                .history = history,
                                                .noise = draws ? l->noise.data : NULL,
                                                .n = n});
    inpaint_blend(job, image, i_call, output);
    if (i_call + 1 < job->n_calls) scale_model_input(job, image, i_call + 1);
    check_finite(sample, "the latent", "denoise", call->step, e);
    if (e->code == OK && preview_due(r, i_call)) preview_emit(r, image, call->step, e);
    return e->code;
}

enum status on_denoise_end(struct running *r, int stage, int evaluation, struct error *e) {
    struct job *job = r->job;
    const struct layout *l = &job->layout;
    int groups = l->choice.groups, group = evaluation % groups, first, n;
    int i_call = job->spans[l->span[stage]].first_call + evaluation / groups;
    const struct denoiser_call *call = &job->calls[i_call];
    layout_images(l, job->batch, group, &first, &n);
    for (int i = 0; i < n && e->code == OK; i++) update_image(r, i_call, first + i, i, e);
    if (e->code != OK || group + 1 < groups || !call->ends_step) return e->code;
    if (job->request.dump) dump_step_latents(job, call->step + 1, e);
    progress_step_ended(r, call->step);
    return e->code;
}

enum status on_denoise_stage_end(struct running *r, int stage, struct error *e) {
    const struct job *job = r->job;
    const struct layout *l = &job->layout;
    struct report *report = &r->session->report;
    if (l->span[stage] + 1 < job->n_spans) return OK;
    for (int i = 0; i < job->batch; i++) {
        frame_conditioning_put_clean(job, l->latent[i]);
        control_video_cut_references(job, l->latent[i]);
        sha256_hex(l->video[i].data, (size_t)tensor_bytes(&l->video[i]), report->latent_sha256[i]);
    }
    report->n_latents = job->batch;
    if (job->request.save_latent)
        latents_save(job->sys, job->request.save_latent, "latent", job->model->recipe->name, l->video,
                     job->batch, e);
    return e->code;
}

/* Dumps a decoded frame. The first image has no number in its file name; frames of videos always have a
 * number. */
static enum status dump_decoded_frame(const struct job *job, int image, int frame, struct tensor picture,
                                      struct error *e) {
    char name[48] = "decoded";
    size_t n = strlen(name);
    if (image) n += (size_t)snprintf(name + n, sizeof name - n, "_%03d", image);
    if (job->request.frames > 1) snprintf(name + n, sizeof name - n, "_frame_%04d", frame);
    return dump_save_picture(job->sys, job->request.dump, name, picture, e);
}

static enum status emit_frame(struct running *r, int image, int frame, struct tensor picture,
                              struct error *e) {
    struct job *job = r->job;
    struct sluice_session *s = r->session;
    struct context x = {.device = job->device, .error = e};
    struct tensor rgb = job->layout.rgb;
    char sha256[SHA256_HEX];
    double stalled = 0;
    bool last = frame + 1 == job->request.frames;
    if (job->request.dump && dump_decoded_frame(job, image, frame, picture, e) != OK) return e->code;
    op_image_to_rgb(&x, rgb, picture);
    if (device_wait(job->device, &stalled, e) != OK) return e->code;
    sha256_hex(rgb.data, (size_t)tensor_bytes(&rgb), sha256);
    if (!frame) sha256_init(&r->frames);
    sha256_update(&r->frames, (size_t)tensor_bytes(&rgb), rgb.data);
    if (last) sha256_end(&r->frames, s->report.image_sha256[image]);
    const struct component *tiny = job_tiny_decoder(job);
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
        .sampler = job->decode_only ? NULL : job->sampling.sampler->name,
        .scheduler = job->decode_only ? NULL : sampling_schedule_name(&job->sampling),
        .prediction = job->decode_only ? NULL : job->sampling.prediction->name,
        .cfg_scale = job->request.cfg_scale,
        .cfg_scale_low = job->decode_only ? 0 : job->request.cfg_scale_low,
        .loras = job->decode_only ? NULL : r->session->adapters.names,
        .negative_prompt = job->n_prompts > 1 ? job->request.negative_prompt : NULL,
        .video_sha256 = last ? s->report.image_sha256[image] : NULL,
        .slg_scale = job_branches(job) > job->n_prompts ? job->request.slg_scale : 0,
        .decoder = tiny ? tiny->family->name : NULL,
    };
    if (s->options.on_image) s->options.on_image(s->options.user, &out);
    if (last) s->report.n_images = image + 1;
    return OK;
}

enum status on_decode_end(struct running *r, int stage, int evaluation, struct error *e) {
    struct job *job = r->job;
    const struct frame_chunk *chunk = &job->chunks[evaluation % job->n_chunks];
    struct tensor frames = tensor_slice(job->layout.picture, 0, chunk->n_frames);
    if (check_finite(frames, "the decoded image", job->layout.stages[stage].name, -1, e) != OK)
        return e->code;
    for (int32_t i = 0; i < chunk->n_frames && e->code == OK; i++) {
        struct tensor picture = tensor_reshape(tensor_slice(frames, i, 1), 3, frames.dim + 1);
        emit_frame(r, evaluation / job->n_chunks, chunk->first_frame + i, picture, e);
    }
    return e->code;
}
