/* The host's turns: see turns.h. */
#include "engine/api/turns.h"

#include "engine/api/given.h"
#include "engine/api/kept.h"
#include "engine/api/latents.h"
#include "engine/api/led.h"
#include "engine/api/preview.h"
#include "engine/api/progress.h"
#include "engine/api/stages.h"
#include "kernels/ops.h"

#include <stdio.h>
#include <string.h>

/* ---- dumps ---- */

static enum status turn_dump_latents(const struct job *job, int step, struct error *e) {
    char name[32];
    snprintf(name, sizeof name, "latent_%03d", step);
    return dump_save_latents(job->sys, job->request.dump, name, job->layout.latent, job->batch, e);
}

/* Where the steps begin, and where the last one ends. */
static enum status turn_dump_sigmas(const struct job *job, struct error *e) {
    int32_t n = job->grid.n + 1;
    float *sigmas = job->sys->alloc(job->sys, LINE_HOST, (size_t)n * sizeof *sigmas);
    if (!sigmas) return error_set(e, MEMORY, "no memory for sigmas");
    for (int i = 0; i < n - 1; i++) sigmas[i] = job->grid.step[i].at.sigma;
    sigmas[n - 1] = job->grid.step[n - 2].to.sigma;
    dump_save(job->sys, job->request.dump, "sigmas", tensor_make(sigmas, DTYPE_F32, 1, &n), e);
    job->sys->release(job->sys, sigmas);
    return e->code;
}

enum status turn_dump_start(const struct running *r, struct error *e) {
    const struct job *job = r->job;
    const char *folder = job->request.dump;
    for (int text = 0; text < job->n_texts; text++)
        for (int i = 0; i < job->n_read && e->code == OK; i++) {
            const struct prompt_tokens *tokens = &job->tokens[job->text_slot[text]][i];
            char number[16], name[32];
            snprintf(name, sizeof name, "%s%s", job_numbered("tokens", text, number), i ? "_uncond" : "");
            dump_save(job->sys, folder, name, tensor_make(tokens->ids, DTYPE_I32, 1, &tokens->n_ids), e);
        }
    if (e->code == OK) turn_dump_sigmas(job, e);
    return e->code == OK && start_is_early(job) ? turn_dump_latents(job, 0, e) : e->code;
}

/* ---- texts ---- */

/* Rows of an encoder's own tensor to where the recipe's conditioning has them in the prompt's text. */
static void turn_place_rows(struct tensor to, int32_t row, int32_t column, struct tensor from) {
    for (int32_t i = 0; i < from.dim[0]; i++)
        memcpy((float *)to.data + (int64_t)(row + i) * to.dim[1] + column,
               (const float *)from.data + (int64_t)i * from.dim[1], (size_t)from.dim[1] * sizeof(float));
}

static double turn_mean(const float *values, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)values[i];
    return sum / (double)n;
}

/* Each token's row times its weight, and what that changed of a window's mean undone: as AUTOMATIC1111's web
 * UI does (stable-diffusion-webui 1.10, modules/sd_emphasis.py, EmphasisOriginal). */
static void turn_weigh(const struct prompt_tokens *tokens, struct tensor text) {
    int64_t columns = text.dim[1], n = tokens->window * columns;
    for (int first = 0; first < tokens->n_ids && tokens->weights; first += tokens->window) {
        float *rows = (float *)text.data + first * columns;
        double before = turn_mean(rows, n);
        for (int64_t i = 0; i < n; i++) rows[i] *= tokens->weights[first + i / columns];
        double after = turn_mean(rows, n);
        float restored = after == 0 ? 1 : (float)(before / after);
        for (int64_t i = 0; i < n; i++) rows[i] *= restored;
    }
}

/* What the encoder in that slot wrote of a prompt, where that is not its place already. */
static void turn_place(const struct job *job, int slot, int prompt) {
    const struct layout *l = &job->layout;
    const struct recipe *recipe = job->model->recipe;
    const struct text_places p = layout_place_texts(job, prompt);
    for (int i = 0; i < recipe->n_conditions; i++) {
        const struct condition *c = &recipe->condition[i];
        struct tensor own = l->encoder_text[c->slot][prompt], row = l->encoder_pooled[c->slot][prompt];
        int32_t dropped = job->tokens[c->slot][prompt].dropped, at = p.row[i];
        if (c->what == CONDITION_POOLED) {
            if (c->slot == slot && row.data != l->pooled[prompt].data)
                turn_place_rows(l->pooled[prompt], 0, p.column[i], row);
            continue;
        }
        if (c->slot != slot || own.data == l->text[prompt].data) continue;
        if (own.rank)
            turn_place_rows(l->text[prompt], at, p.column[i],
                            tensor_slice(own, dropped, own.dim[0] - dropped));
        for (int k = 0; k < job->n_encoded; k++) {
            if (job->encoded[k].slot != slot) continue;
            turn_place_rows(l->text[prompt], at, p.column[i], l->encoded[k].tokens);
            at += l->encoded[k].tokens.dim[0];
        }
    }
}

/* After the last text, or before the first stage (-1) if all are recalled, what denoisers read is whole: it
 * is dumped, and the time that is left is told once. */
static enum status turn_conditioning_ended(struct running *r, int stage, struct error *e) {
    static const char *const texts[PROMPTS_MAX] = {"cond", "uncond"}, *const pooled[PROMPTS_MAX] = {
                                                                          "pooled", "pooled_uncond"};
    const struct job *job = r->job;
    const struct layout *l = &job->layout;
    const char *folder = job->request.dump;
    if (l->kind[stage + 1]->of_texts || e->code != OK) return e->code;
    for (int i = 0; i < job->n_prompts && folder && e->code == OK; i++) {
        if (l->text[i].rank) dump_save(job->sys, folder, texts[i], l->text[i], e);
        if (l->pooled[i].rank && e->code == OK) dump_save(job->sys, folder, pooled[i], l->pooled[i], e);
    }
    if (e->code == OK) progress_predict(r);
    return e->code;
}

/* What cannot be kept is computed again another time: no reason to end the run. */
static void turn_keep(struct running *r, int slot, int prompt) {
    struct error failed = {0};
    char line[1024];
    recalled_keep(r->job, slot, prompt, &failed);
    if (failed.code != OK)
        session_say(r->session, SLUICE_WARNING, "a prompt's conditioning is not kept: %s",
                    error_line(&failed, line, sizeof line));
}

enum status turn_text_ended(struct running *r, int stage, struct error *e) {
    const struct job *job = r->job;
    const struct layout *l = &job->layout;
    int slot = l->slot[stage];
    for (int k = 0; k < job->recalled.n_lacking[slot] && e->code == OK; k++) {
        int i = job->recalled.lacking[slot][k];
        struct tensor text = l->encoder_text[slot][i], pooled = l->encoder_pooled[slot][i];
        if (text.rank) turn_weigh(&job->tokens[slot][i], text);
        if (text.rank) check_finite(text, "the conditioning", l->stages[stage].name, -1, e);
        if (pooled.rank && e->code == OK)
            check_finite(pooled, "the conditioning", l->stages[stage].name, -1, e);
        if (e->code == OK) turn_keep(r, slot, i);
        if (e->code == OK) turn_place(job, slot, i);
    }
    return turn_conditioning_ended(r, stage, e);
}

enum status turn_texts_recalled(struct running *r, struct error *e) {
    const struct job *job = r->job;
    bool any = false;
    for (int slot = 0; slot < SLOTS_MAX; slot++)
        for (int i = 0; i < PROMPTS_MAX; i++) {
            if (!recalled_has(job, slot, i)) continue;
            if (recalled_copy(job, slot, i, e) != OK) return e->code;
            turn_place(job, slot, i);
            any = true;
        }
    return any ? turn_conditioning_ended(r, -1, e) : OK;
}

/* ---- pictures in ---- */

/* Which one an evaluation is of. */
static int turn_encoded(const struct job *job, int stage, int evaluation) {
    int n_chunks = job->layout.stages[stage].n_chunks;
    return layout_find_encoded(job, job->layout.slot[stage], n_chunks, evaluation / n_chunks);
}

enum status turn_picture_begins(struct running *r, int stage, int evaluation, struct error *e) {
    return start_fill(r->job, turn_encoded(r->job, stage, evaluation),
                      evaluation % r->job->layout.stages[stage].n_chunks, e);
}

enum status turn_picture_encoded(struct running *r, int stage, int evaluation, struct error *e) {
    return start_encoded(&r->start, turn_encoded(r->job, stage, evaluation),
                         evaluation % r->job->layout.stages[stage].n_chunks, e);
}

enum status turn_encode_ended(struct running *r, int stage, struct error *e) {
    (void)stage;
    if (r->job->request.dump && !start_is_early(r->job)) turn_dump_latents(r->job, 0, e);
    return e->code;
}

/* ---- calls ---- */

/* One image: its prediction, guided and in the sampler's form, moves its sample. */
static enum status turn_update(struct running *r, int i_call, int image, int place, struct error *e) {
    struct job *job = r->job;
    struct layout *l = &job->layout;
    const struct recipe *recipe = job->model->recipe;
    const struct sampling *s = &job->sampling;
    const struct denoiser_call *call = &job->calls[i_call];
    struct tensor sample = l->latent[image];
    float *output = l->prediction[place].data, *history[SAMPLER_HISTORY_MAX];
    int64_t n = tensor_elements(&sample);
    bool draws = s->sampler->draws != DRAWS_NOTHING && job->grid.step[call->step].to.noise > 0 &&
                 (s->sampler->draws == DRAWS_ALWAYS || call->ends_step);
    struct tensor skipped = l->prediction[PROMPTS_MAX * l->together + place];
    for (int k = 0; k < s->sampler->history; k++) history[k] = l->history[image][k].data;
    if (call->slg_scale != 0) guidance_begin_skipped(skipped, l->prediction[place], call->slg_scale);
    if (call->scale != 1)
        recipe->guide(l->prediction[place], l->prediction[l->together + place], recipe->patch, call->scale);
    if (call->slg_scale != 0) guidance_add_skipped(l->prediction[place], skipped);
    if (preview_is_due(r, i_call)) preview_take(job, image, i_call, output);
    s->prediction->convert(output, sample.data, n, &call->at, s->sampler->form);
    if (draws) start_draw(&r->start, image, l->noise);
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
    kept_put_back(job, image, i_call, output);
    if (i_call + 1 < job->n_calls) start_scale_input(job, image, i_call + 1);
    check_finite(sample, "the latent", "denoise", call->step, e);
    if (e->code == OK && preview_is_due(r, i_call)) preview_hand_out(r, image, call->step, e);
    return e->code;
}

enum status turn_call_ended(struct running *r, int stage, int evaluation, struct error *e) {
    struct job *job = r->job;
    const struct layout *l = &job->layout;
    int groups = l->choice.groups, group = evaluation % groups, first, n;
    int i_call = job->spans[l->span[stage]].first_call + evaluation / groups;
    const struct denoiser_call *call = &job->calls[i_call];
    layout_images(l, job->batch, group, &first, &n);
    for (int i = 0; i < n && e->code == OK; i++) turn_update(r, i_call, first + i, i, e);
    if (e->code != OK || group + 1 < groups || !call->ends_step) return e->code;
    if (job->request.dump) turn_dump_latents(job, call->step + 1, e);
    progress_step_ended(r, call->step);
    return e->code;
}

enum status turn_denoise_ended(struct running *r, int stage, struct error *e) {
    const struct job *job = r->job;
    const struct layout *l = &job->layout;
    struct report *report = &r->session->report;
    if (l->span[stage] + 1 < job->n_spans) return OK;
    for (int i = 0; i < job->batch; i++) {
        given_put(job, l->latent[i]);
        led_cut(job, l->latent[i]);
        sha256_hex(l->video[i].data, (size_t)tensor_bytes(&l->video[i]), report->latent_sha256[i]);
    }
    report->n_latents = job->batch;
    if (job->request.save_latent)
        latents_save(job->sys, job->request.save_latent, "latent", job->model->recipe->name, l->video,
                     job->batch, e);
    return e->code;
}

/* ---- pictures out ---- */

/* The first picture under the plain name, others numbered; frames of videos always. */
static enum status turn_dump_frame(const struct job *job, int image, int frame, struct tensor picture,
                                   struct error *e) {
    char name[48] = "decoded";
    size_t n = strlen(name);
    if (image) n += (size_t)snprintf(name + n, sizeof name - n, "_%03d", image);
    if (job->request.frames > 1) snprintf(name + n, sizeof name - n, "_frame_%04d", frame);
    return dump_save_picture(job->sys, job->request.dump, name, picture, e);
}

static enum status turn_hand_out(struct running *r, int image, int frame, struct tensor picture,
                                 struct error *e) {
    struct job *job = r->job;
    struct sluice_session *s = r->session;
    struct context x = {.device = job->device, .error = e};
    struct tensor rgb = job->layout.rgb;
    char sha256[SHA256_HEX];
    double stalled = 0;
    bool last = frame + 1 == job->request.frames;
    if (job->request.dump && turn_dump_frame(job, image, frame, picture, e) != OK) return e->code;
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
        .loras = job->decode_only ? NULL : r->session->adapted.names,
        .negative_prompt = job->n_prompts > 1 ? job->request.negative_prompt : NULL,
        .video_sha256 = last ? s->report.image_sha256[image] : NULL,
        .slg_scale = job_branches(job) > job->n_prompts ? job->request.slg_scale : 0,
        .decoder = tiny ? tiny->family->name : NULL,
    };
    if (s->options.on_image) s->options.on_image(s->options.user, &out);
    if (last) s->report.n_images = image + 1;
    return OK;
}

enum status turn_chunk_decoded(struct running *r, int stage, int evaluation, struct error *e) {
    struct job *job = r->job;
    const struct frame_chunk *chunk = &job->chunks[evaluation % job->n_chunks];
    struct tensor frames = tensor_slice(job->layout.picture, 0, chunk->n_frames);
    if (check_finite(frames, "the picture", job->layout.stages[stage].name, -1, e) != OK) return e->code;
    for (int32_t i = 0; i < chunk->n_frames && e->code == OK; i++) {
        struct tensor picture = tensor_reshape(tensor_slice(frames, i, 1), 3, frames.dim + 1);
        turn_hand_out(r, evaluation / job->n_chunks, chunk->first_frame + i, picture, e);
    }
    return e->code;
}
