#include "engine/job/layout.h"

#include "engine/job/pictures.h"
#include "engine/job/prompts.h"
#include "engine/job/request.h"
#include "engine/job/second_pass.h"
#include "engine/job/upscale.h"

#include <stdio.h>
#include <string.h>

static void connect_text(const struct job *job, const struct layout *l, int s, struct lane *lanes) {
    int slot = l->slot[s], source = recipe_source_slot(job->model->recipe, slot);
    for (int i = 0; i < l->stages[s].n_lanes; i++) {
        int prompt = job->prompts.hits.misses[slot][i];
        const struct prompt_tokens *tokens = &job->prompts.tokens[slot][prompt];
        lanes[i] = (struct lane){.prompt = prompt,
                                 .tokens = tokens->ids,
                                 .n_tokens = tokens->n_ids,
                                 .keys = {tokens->first_key, tokens->n_keys},
                                 .window = tokens->window,
                                 .clip_skip = job->request.clip_skip,
                                 .pooled_row = tokens->pooled_row,
                                 .text = l->encoder_text[slot][prompt],
                                 .pooled = l->encoder_pooled[slot][prompt]};
        if (source < SLOTS_MAX) lanes[i].source = l->encoder_text[source][prompt];
        prompts_list_vision_spans(job, slot, prompt, lanes[i].vision_spans);
        for (int k = 0, n = 0; k < job->pictures.n_encoded; k++)
            if (job->pictures.encoded[k].kind == ENCODED_VISION && lanes[i].vision_spans[n].height)
                lanes[i].vision_spans[n++].rows = l->encoded[k].tokens;
    }
}

/* Connects the lanes of a vision encoder or VAE encoder, one per input picture. */
static void connect_encode(const struct job *job, const struct layout *l, int s, struct lane *lanes) {
    const struct stage *stage = &l->stages[s];
    int source = recipe_source_slot(job->model->recipe, l->slot[s]);
    for (int i = 0; i < stage->n_lanes; i++) {
        const struct encoded_tensors *t = &l->encoded[job_find_encoded(job, l->slot[s], stage->n_chunks, i)];
        lanes[i] = (struct lane){
            .tiled = l->choice.tiled, .picture = t->picture, .moments = t->moments, .text = t->tokens};
        if (source < SLOTS_MAX)
            lanes[i].source = l->encoded[job_find_encoded(job, source, stage->n_chunks, i)].tokens;
    }
}

/* Fills in SDXL's add_time_ids: original size, crop, then target size or aesthetic score. */
static void fill_time_ids(const struct job *job, struct lane *lane) {
    enum { SIZES = 6, SCORE = 4 };
    static const float score[PROMPTS_MAX] = {6, 2.5F};
    float height = (float)job->request.height, width = (float)job->request.width;
    const float sizes[SIZES] = {height, width, 0, 0, height, width};
    enum add_time_ids_rule rule = job->model->recipe->denoising.add_time_ids;
    if (rule == ADD_TIME_IDS_NONE) return;
    memcpy(lane->add_time_ids, sizes, sizeof sizes);
    lane->n_add_time_ids = SIZES;
    if (rule == ADD_TIME_IDS_SIZES) return;
    lane->add_time_ids[SCORE] = score[lane->prompt];
    lane->n_add_time_ids = SCORE + 1;
}

/* Lists the places of the reference images in prompt_embeds: the rows of their vision tokens, written by the
 * text encoder with image_prompt.pad. */
static void list_picture_places(const struct job *job, int prompt,
                                struct vision_span vision_spans[LANE_REFERENCES_MAX]) {
    const struct recipe *recipe = job->model->recipe;
    const struct text_places places = prompts_place_texts(job, prompt);
    for (int i = 0; i < recipe->text.n_conditions; i++) {
        int slot = recipe->text.condition[i].slot;
        if (!recipe->slot[slot].text.image_prompt.pad || prompt >= job->settings.n_encoded_prompts) continue;
        prompts_list_vision_spans(job, slot, prompt, vision_spans);
        for (int k = 0; k < LANE_REFERENCES_MAX && vision_spans[k].height; k++)
            vision_spans[k].first += places.row[i] - job->prompts.tokens[slot][prompt].drop_idx;
    }
}

/* Lanes of a group of images: the lane index is branch * images_per_group + image (job_span_branch). Groups
 * smaller than the largest have padding lanes. */
static void connect_denoise(const struct job *job, const struct layout *l, int s, struct lane *lanes) {
    const struct job_span *span = &job->schedule.spans[l->span[s]];
    int n_lanes = l->images_per_group * job_span_branches(span), groups = l->choice.groups;
    int hoisted = l->choice.hoisted >> l->span[s] & 1 ? span->n_calls : 0;
    for (int i = 0; i < groups * n_lanes; i++) {
        int group = i / n_lanes, branch = i % n_lanes / l->images_per_group, place = i % l->images_per_group,
            first, n;
        int prompt = span->n_prompts > 1 && branch == job_span_branch(span, BRANCH_NEGATIVE);
        layout_images(l, job->latents.batch, group, &first, &n);
        int image = place < n ? first + place : first;
        lanes[i] =
            (struct lane){.prompt = prompt,
                          .text = l->text[prompt],
                          .pooled = l->pooled[prompt],
                          .latent = l->input[image],
                          .concat = l->concat[image],
                          .image = l->image,
                          .n_clean_frames = job->latents.n_clean_frames,
                          .prediction = l->prediction[i % n_lanes],
                          .sound = job_sound(job, l->input[image]),
                          .sound_prediction = job_sound(job, l->prediction[i % n_lanes]),
                          .fps = (float)job->request.fps,
                          .isolated = span->isolated && branch == job_span_branch(span, BRANCH_ISOLATED),
                          .guidance = (float)job->request.guidance,
                          .operand = job->device->operands.in[job->settings.precision],
                          .hoisted = hoisted,
                          .keeps_prefix = l->choice.keeps_prefix,
                          .padding = place >= n};
        if (span->stg && branch == job_span_branch(span, BRANCH_STG)) {
            lanes[i].stg_blocks = job->request.stg_blocks;
            lanes[i].n_stg_blocks = job->request.n_stg_blocks;
        }
        if (span->n_slg_calls && branch == job_span_branch(span, BRANCH_SKIP)) {
            lanes[i].skip_layers = job->request.slg_layers;
            lanes[i].n_skip_layers = job->request.n_slg_layers;
            lanes[i].evaluations.first = span->first_slg_call * groups;
            lanes[i].evaluations.n = span->n_slg_calls * groups;
        } else if (prompt && span->n_guided_calls < span->n_calls) {
            lanes[i].evaluations.n = span->n_guided_calls * groups;
        }
        memcpy(lanes[i].reference, l->reference, sizeof l->reference);
        list_picture_places(job, prompt, lanes[i].vision_spans);
        fill_time_ids(job, &lanes[i]);
    }
}

/* Restricts the lane's range of evaluations to [first, end). n: number of the stage's evaluations. */
static void limit_evaluations(struct lane *lane, int first, int end, int n) {
    int own = lane->evaluations.first, own_end = own + lane->evaluations.n;
    if (lane->evaluations.n && own > first) first = own;
    if (lane->evaluations.n && own_end < end) end = own_end;
    lane->evaluations.first = first;
    lane->evaluations.n = first == 0 && end == n ? 0 : first < end ? end - first : -1;
}

/* True if one computation reads controls i and k: family_control.combines_images. */
static bool control_joins(const struct job *job, int i, int k) {
    const struct job_control *a = &job->controls[i], *b = &job->controls[k];
    return a->component == b->component && a->component >= 0 && a->start == b->start && a->end == b->end &&
           job->model->component[a->component].family->control.combines_images;
}

/* Index of the first control that the same computation as control i's reads. */
static int first_joined(const struct job *job, int i) {
    int first = 0;
    while (first < i && !control_joins(job, i, first)) first++;
    return first;
}

/* True if control i adds nothing: strength 0. A network that reads several images adds residuals even if all
 * strengths are 0, because they are factors of its input. */
static bool is_off(const struct job *job, int i) {
    for (int k = 0; k < job->n_controls; k++)
        if (k != i && control_joins(job, i, k)) return false;
    return job->controls[i].strength == 0;
}

/* Writes the range [*first, *end) of calls in which control i runs, counted from the span's first call. */
static void find_window(const struct job *job, int i, const struct job_span *span, int *first, int *end) {
    const struct denoiser_call *calls = job->schedule.calls + span->first_call;
    *first = *end = 0;
    for (int k = 0; k < span->n_calls && !is_off(job, i); k++) {
        if (!job_control_runs(job, i, calls[k].step)) continue;
        if (!*end) *first = k;
        *end = k + 1;
    }
}

/* Connects the lanes of the control network that reads control `first`, and the controls that it joins. A
 * lane is a copy of its denoiser lane, or, if it only adds residuals, of the lane that computes them. */
static void connect_control(const struct job *job, const struct layout *l, int s, int first,
                            const struct lane *denoisers, struct lane *lanes) {
    const struct stage *stage = &l->stages[s];
    const struct job_span *span = &job->schedule.spans[l->span[s]];
    const struct component *c = &job->model->component[job->controls[first].component];
    bool one_branch = job->request.guess_mode || c->control.conditional_lanes;
    int first_call, end_call, groups = stage->n_groups;
    find_window(job, first, span, &first_call, &end_call);
    for (int i = 0; i < groups * stage->n_lanes; i++) {
        int branch = i % stage->n_lanes / l->images_per_group;
        /* Branch 0, the conditional prompt, computes the residuals of all branches of an image. */
        int shared = c->family->control.conditional_only ? branch * l->images_per_group : 0;
        lanes[i] = denoisers[i - shared];
        lanes[i].evaluations = denoisers[i].evaluations;
        lanes[i].denoiser = &denoisers[i];
        lanes[i].residuals_of = shared;
        lanes[i].keeps_prefix = false;
        memset(lanes[i].reference, 0, sizeof lanes[i].reference); /* networks read no references */
        lanes[i].skip_layers = NULL;
        lanes[i].n_skip_layers = 0;
        lanes[i].guess_mode = job->request.guess_mode;
        for (int k = first; k < job->n_controls; k++)
            if (k == first || control_joins(job, first, k))
                lanes[i].control[lanes[i].n_controls++] = (struct lane_control){
                    l->control_input[k], (float)job->controls[k].strength, job->controls[k].mode};
        limit_evaluations(&lanes[i], first_call * groups, one_branch && branch ? 0 : end_call * groups,
                          stage->evaluations);
    }
}

static void connect_decode(const struct job *job, const struct layout *l, int s, struct lane *lanes) {
    (void)s;
    for (int i = 0; i < job->latents.batch; i++)
        lanes[i] = (struct lane){.tiled = l->choice.tiled, .latent = l->video[i], .picture = l->picture};
}

static void connect_sound(const struct job *job, const struct layout *l, int s, struct lane *lanes) {
    for (int i = 0; i < l->stages[s].n_lanes; i++)
        lanes[i] = (struct lane){.sound = job_sound(job, l->latent[i]), .mel = l->mel[i], .wave = l->wave};
}

static void connect_upscale(const struct job *job, const struct layout *l, int s, struct lane *lanes) {
    (void)job;
    for (int i = 0; i < l->stages[s].n_lanes; i++)
        lanes[i] = (struct lane){.picture = l->upscale.input, .enlarged = l->upscale.enlarged};
}

/* A lane reads the final latent of the first pass and writes the second pass's latent. */
static void connect_upsample(const struct job *job, const struct layout *l, int s, struct lane *lanes) {
    (void)s;
    for (int i = 0; i < job->latents.batch; i++)
        lanes[i] = (struct lane){.latent = l->first_latent[i], .enlarged = l->latent[i]};
}

const struct stage_kind stage_text = {.name = "text", .encodes_prompts = true, .connect = connect_text};
const struct stage_kind stage_vision = {.name = "vision", .encodes_prompts = true, .connect = connect_encode};
const struct stage_kind stage_encode = {.name = "encode", .full_frames = true, .connect = connect_encode};
const struct stage_kind stage_hoist = {.name = "hoist", .denoises = true, .connect = connect_denoise};
const struct stage_kind stage_denoise = {.name = "denoise", .denoises = true, .connect = connect_denoise};
const struct stage_kind stage_decode = {.name = "decode", .full_frames = true, .connect = connect_decode};
const struct stage_kind stage_sound = {.name = "sound", .connect = connect_sound};
const struct stage_kind stage_vocoder = {.name = "vocoder", .connect = connect_sound};
const struct stage_kind stage_upsample = {.name = "upsample", .connect = connect_upsample};
const struct stage_kind stage_upscale = {.name = "upscale", .connect = connect_upscale};

/* Makes prompt_embeds and pooled_projections. A text encoder writes directly into prompt_embeds or
 * pooled_projections if its output fills the whole tensor, else into a separate tensor. */
static void make_texts(const struct job *job, struct layout *l, struct arena *arena, bool *ok) {
    const struct recipe *recipe = job->model->recipe;
    for (int prompt = 0; prompt < job->settings.n_prompts; prompt++) {
        struct text_places p = prompts_place_texts(job, prompt);
        int32_t pooled = p.pooled_columns;
        if (p.rows) l->text[prompt] = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){p.rows, p.columns}, ok);
        if (pooled) l->pooled[prompt] = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){1, pooled}, ok);
        for (int i = 0; i < recipe->text.n_conditions; i++) {
            int slot = recipe->text.condition[i].slot;
            const struct component *c = &job->model->component[slot];
            if (prompt >= job->settings.n_encoded_prompts || !c->family) continue;
            bool is_text = c->family->kind == FAMILY_TEXT;
            if (recipe->text.condition[i].what == CONDITION_POOLED) {
                bool whole = c->pooled_columns == pooled;
                l->encoder_pooled[slot][prompt] =
                    whole ? l->pooled[prompt]
                          : arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){1, c->pooled_columns}, ok);
            } else if (is_text) {
                int32_t own[2] = {job->prompts.tokens[slot][prompt].n_ids, c->text_columns};
                bool dropped = job->prompts.tokens[slot][prompt].drop_idx > 0;
                bool whole = own[0] == p.rows && own[1] == p.columns && !dropped;
                l->encoder_text[slot][prompt] =
                    whole ? l->text[prompt] : arena_tensor(arena, DTYPE_F32, 2, own, ok);
            }
        }
    }
}

/* Makes the outputs of text encoders that feed other text encoders (slot.reads): one for each prompt that is
 * encoded. */
static void make_sources(const struct job *job, struct layout *l, struct arena *arena, bool *ok) {
    const struct prompt_cache_hits *hits = &job->prompts.hits;
    for (int k = 0; k < job->prompts.n_texts; k++) {
        int slot = job->prompts.text_slot[k];
        if (recipe_reader_slot(job->model->recipe, slot) == SLOTS_MAX) continue;
        for (int i = 0; i < hits->n_misses[slot]; i++) {
            int prompt = hits->misses[slot][i];
            int32_t rows[] = {job->prompts.tokens[slot][prompt].n_ids,
                              job->model->component[slot].text_columns};
            l->encoder_text[slot][prompt] = arena_tensor(arena, DTYPE_F32, 2, rows, ok);
        }
    }
}

static int32_t chunk_frames(const struct frame_chunk *chunks, int n_chunks) {
    int32_t most = 1;
    for (int i = 0; i < n_chunks; i++)
        if (chunks[i].n_frames > most) most = chunks[i].n_frames;
    return most;
}

static int32_t encoded_frames(const struct job *job, const struct encoded *encoded) {
    bool video = encoded->kind == ENCODED_FRAMES || encoded->kind == ENCODED_CONTROL;
    return video ? chunk_frames(job->pictures.encoded_chunks, job->pictures.n_encoded_chunks) : 1;
}

/* Inter-stage tensors of one encoded picture. All pictures share the memory of `pictures` and `moments`. */
static void make_encoded(const struct job *job, struct layout *l, int i, struct tensor pictures,
                         struct tensor moments, struct arena *arena, bool *ok) {
    const struct encoded *encoded = &job->pictures.encoded[i];
    const struct component *c = model_decoder(job->model), *reader = &job->model->component[encoded->slot];
    struct encoded_tensors *t = &l->encoded[i];
    int32_t Y = encoded->size.height, X = encoded->size.width, factor = c->pixel_factor;
    int32_t latent[4] = {c->latent_channels, 1, Y / factor, X / factor};
    t->picture =
        tensor_make(pictures.data, DTYPE_F32, 4,
                    (int32_t[]){encoded_frames(job, encoded), Y, X, component_picture_channels(reader)});
    if (encoded_is_tokens(encoded)) {
        /* If the denoiser reads the vision encoder's output, the token rows of all pictures are stacked in
         * one tensor. */
        int frames = request_vision_frames(job->model);
        int32_t rows = encoded->columns * encoded->rows;
        int32_t tokens[2] = {frames ? frames * rows : rows,
                             job->model->component[encoded->slot].text_columns};
        if (frames && !l->image.rank) l->image = arena_tensor(arena, DTYPE_F32, 2, tokens, ok);
        t->tokens = frames ? tensor_slice(l->image, encoded->reference * rows, rows)
                           : arena_tensor(arena, DTYPE_F32, 2, tokens, ok);
    } else {
        t->moments =
            tensor_make(moments.data, DTYPE_F32, 3, (int32_t[]){latent[2], latent[3], 2 * latent[0]});
    }
    if (encoded->kind == ENCODED_REFERENCE)
        l->reference[encoded->reference + job_init_is_reference(job)] =
            arena_tensor(arena, DTYPE_F32, 4, latent, ok);
    if (encoded->kind == ENCODED_FIRST) l->clean_frame = arena_tensor(arena, DTYPE_F32, 4, latent, ok);
    if (pictures_resizes(job, encoded))
        t->resized = arena_tensor(arena, DTYPE_U8, 3, (int32_t[]){Y, X, 3}, ok);
}

/* Memory for pictures and moments. Pictures are encoded one chunk at a time, and the host reads the moments
 * after each chunk; all chunks therefore share memory of the largest chunk's size. The decoder's frames reuse
 * this memory later. */
static void make_pictures(const struct job *job, struct layout *l, struct arena *arena, bool *ok) {
    const struct component *c = model_decoder(job->model);
    int32_t factor = c->pixel_factor;
    int32_t picture[4] = {chunk_frames(job->latents.chunks, job->latents.n_chunks), job->latents.Y * factor,
                          job->latents.X * factor,
                          component_picture_channels(&job->model->component[job->settings.decoder_slot])};
    int32_t most_channels = component_picture_channels(c);
    int64_t pixels = job_decodes(job) ? (int64_t)picture[0] * picture[1] * picture[2] : 0;
    int64_t most = 0, latents = 0;
    for (int i = 0; i < job->pictures.n_encoded; i++) {
        struct picture_size size = job->pictures.encoded[i].size;
        int64_t n = (int64_t)size.height * size.width,
                frames = encoded_frames(job, &job->pictures.encoded[i]);
        if (frames * n > most) most = frames * n;
        if (!encoded_is_tokens(&job->pictures.encoded[i]) && n / factor / factor > latents)
            latents = n / factor / factor;
    }
    if (pixels > most) most = pixels;
    struct tensor all = {0}, moments = {0};
    if (most) all = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){(int32_t)most, most_channels}, ok);
    if (latents)
        moments =
            arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){(int32_t)latents, 2 * c->latent_channels}, ok);
    if (pixels) {
        l->picture = tensor_make(all.data, DTYPE_F32, 4, picture);
        l->rgb = arena_tensor(arena, DTYPE_U8, 3, picture + 1, ok);
        if (picture[3] == RGBA) l->alpha = arena_tensor(arena, DTYPE_U8, 2, picture + 1, ok);
    }
    if (job->request.n_control) l->control_rgb = arena_tensor(arena, DTYPE_U8, 3, picture + 1, ok);
    for (int i = 0; i < job->pictures.n_encoded; i++) {
        make_encoded(job, l, i, all, moments, arena, ok);
        if (job->pictures.encoded[i].kind == ENCODED_ENLARGED)
            l->enlarged[job->pictures.encoded[i].reference] =
                arena_tensor(arena, DTYPE_U8, 3, (int32_t[]){picture[1], picture[2], 3}, ok);
    }
    if (l->enlarged->rank)
        l->resampling =
            arena_tensor(arena, DTYPE_U8, 2, (int32_t[]){1, (int32_t)second_pass_resampling_bytes(job)}, ok);
}

/* Tensors of the upscaler's stage. Its input takes the memory of the decoder's frames. */
static void make_upscale(const struct job *job, struct layout *l, struct arena *arena, bool *ok) {
    struct picture_size from = job->upscale.from, to = job->upscale.to;
    int32_t input[4] = {1, from.height, from.width, 3}, output[4] = {1, to.height, to.width, 3};
    if (!to.width) return;
    if (l->picture.rank) {
        int32_t frames = job->latents.batch * job->request.frames;
        int32_t rgb[4] = {frames, from.height, from.width, 3};
        l->upscale.decoded = arena_tensor(arena, DTYPE_U8, 4, rgb, ok);
        if (upscale_has_alpha(job)) l->upscale.decoded_alpha = arena_tensor(arena, DTYPE_U8, 3, rgb, ok);
        l->upscale.input = tensor_make(l->picture.data, DTYPE_F32, 4, input);
    } else {
        l->upscale.input = arena_tensor(arena, DTYPE_F32, 4, input, ok);
    }
    l->upscale.enlarged = arena_tensor(arena, DTYPE_F32, 4, output, ok);
    l->upscale.rgb = arena_tensor(arena, DTYPE_U8, 3, output + 1, ok);
    if (upscale_has_alpha(job)) l->upscale.alpha = arena_tensor(arena, DTYPE_U8, 2, output + 1, ok);
}

/* Makes a latent [C, F, Y, X] and, after it in memory, the latent of its sound (job_sound). */
static struct tensor make_sample(const struct job *job, struct arena *arena, bool *ok) {
    const struct job_latents *size = &job->latents;
    int64_t n = job_sample_values(job);
    bool fits = n <= INT32_MAX;
    struct tensor all = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){1, fits ? (int32_t)n : 1}, ok);
    *ok = *ok && fits;
    return tensor_make(all.data, DTYPE_F32, 4, (int32_t[]){size->C, size->F, size->Y, size->X});
}

/* Makes the spectrograms of all sounds, because the sound decoder's stage decodes the whole batch, and the
 * samples of one sound, which the caller gets before the next. */
static void make_sound(const struct job *job, struct layout *l, struct arena *arena, bool *ok) {
    const struct component *decoder = model_component(job->model, FAMILY_SOUND_DECODER),
                           *vocoder = model_component(job->model, FAMILY_VOCODER);
    int32_t frames = (job->latents.sound[2] - 1) * component_frame_factor(decoder) + 1;
    if (!job_decodes_sound(job)) return;
    for (int i = 0; i < job->latents.batch; i++)
        l->mel[i] = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){frames, decoder->mel_columns}, ok);
    l->wave = arena_tensor(arena, DTYPE_F32, 2,
                           (int32_t[]){frames * vocoder->samples_a_frame, vocoder->sound_channels}, ok);
}

static void make_tensors(const struct job *job, struct layout *l, struct arena *arena, bool *ok) {
    const struct job_latents *size = &job->latents;
    int32_t latent[4] = {size->C, size->F, size->Y, size->X}, concat[4];
    memcpy(concat, latent, sizeof concat);
    concat[0] = job->settings.decode_only ? 0 : model_component(job->model, FAMILY_DENOISER)->concat_channels;
    if (!job->settings.decode_only && !job->context.first_pass) {
        make_texts(job, l, arena, ok);
        make_sources(job, l, arena, ok);
    }
    int32_t video[4] = {size->C, size->F - size->n_reference_frames, size->Y, size->X};
    for (int i = 0; i < size->batch; i++) {
        l->latent[i] = make_sample(job, arena, ok);
        l->video[i] = tensor_make(l->latent[i].data, DTYPE_F32, 4, video);
    }
    const struct sampler *sampler = job->settings.decode_only ? NULL : job->settings.sampling.sampler;
    for (int i = 0; i < size->batch; i++) {
        l->input[i] =
            job->schedule.scales_input || size->n_clean_frames ? make_sample(job, arena, ok) : l->latent[i];
        for (int k = 0; sampler && k < sampler->history; k++) l->history[i][k] = make_sample(job, arena, ok);
    }
    if (sampler && sampler->draws_noise != NOISE_NEVER) l->noise = make_sample(job, arena, ok);
    /* All images of the batch share concat channels that contain no sampled latents. */
    enum concat_rule rule = job->model->recipe->images.concat;
    bool shared = rule == CONCAT_I2V || rule == CONCAT_CONTROL || rule == CONCAT_CONTROL_IMAGE;
    for (int i = 0; i < size->batch && concat[0]; i++)
        l->concat[i] = i && shared ? *l->concat : arena_tensor(arena, DTYPE_F32, 4, concat, ok);
    if (job_blends_mask(job)) l->mask = arena_tensor(arena, DTYPE_F32, 2, latent + 2, ok);
    for (int i = 0; i < size->batch && job_blends_mask(job); i++) {
        l->inpaint_latent[i] = arena_tensor(arena, DTYPE_F32, 4, latent, ok);
        l->inpaint_noise[i] = arena_tensor(arena, DTYPE_F32, 4, latent, ok);
    }
    if (job_init_is_reference(job)) l->reference[0] = l->inpaint_latent[0];
    for (int i = 0; i < l->images_per_group * job_branches(job); i++)
        l->prediction[i] = make_sample(job, arena, ok);
    if (job->settings.preview != PREVIEW_NONE) l->denoised = arena_tensor(arena, DTYPE_F32, 4, latent, ok);
    if (job->settings.preview == PREVIEW_LATENT) {
        /* The preview of a video is a contact sheet of all latent frames, with about as many columns as rows.
         */
        int32_t columns = 1;
        while (columns * columns < video[1]) columns++;
        int32_t rows = (video[1] + columns - 1) / columns;
        l->preview = arena_tensor(arena, DTYPE_U8, 3, (int32_t[]){rows * size->Y, columns * size->X, 3}, ok);
    }
    for (int i = 0, rank; i < job->n_controls; i++) {
        int32_t dim[4];
        if ((rank = job_control_shape(job, i, dim)))
            l->control_input[i] = arena_tensor(arena, DTYPE_F32, rank, dim, ok);
    }
    make_sound(job, l, arena, ok);
    make_pictures(job, l, arena, ok);
    make_upscale(job, l, arena, ok);
}

void layout_split_alpha(const struct layout *layout) {
    uint8_t *rgb = layout->rgb.data, *alpha = layout->alpha.data;
    int64_t pixels = alpha ? tensor_elements(&layout->alpha) : 0;
    const uint8_t *from = rgb;
    for (int64_t i = 0; i < pixels; i++, from += RGBA, rgb += 3) {
        alpha[i] = from[3];
        memmove(rgb, from, 3);
    }
}

/* Adds the control networks to a denoiser's stage: one for each control, or for controls that join. Their
 * blocks follow the denoiser's; networks of one component share its blocks. */
static void add_controls(const struct job *job, struct stage *stage) {
    for (int i = 0; i < job->n_controls; i++) {
        if (job->controls[i].component < 0 || first_joined(job, i) < i) continue;
        int k = stage->n_controls++;
        struct stage_control *control = &stage->control[k];
        control->component = job_component(job, job->controls[i].component);
        int same = stage_first_network(stage, k);
        control->first_block = same < k ? stage->control[same].first_block : stage->n_model_blocks;
        if (same == k) stage->n_model_blocks += control->component->n_blocks;
    }
}

static struct stage *add_stage(const struct job *job, struct layout *l, const struct stage_kind *kind,
                               int slot, int span, int n_lanes, int evaluations) {
    int s = l->n_stages++, before = 0;
    for (int i = 0; i < s; i++) before += l->kind[i] == kind;
    const struct component *c = job_component(job, slot);
    struct stage *stage = &l->stages[s];
    l->kind[s] = kind;
    l->slot[s] = slot;
    l->span[s] = span;
    job_numbered(kind->name, before, stage->name);
    stage->component = c;
    stage->n_lanes = n_lanes;
    stage->n_groups = kind->denoises ? l->choice.groups : 1;
    stage->precision = kind->denoises          ? job->settings.precision
                       : kind->encodes_prompts ? job->settings.text_precision
                                               : device_default_precision(job->device);
    stage->evaluations = evaluations;
    stage->n_model_blocks = c->n_blocks;
    if (kind->denoises) add_controls(job, stage);
    stage->n_blocks = stage->n_model_blocks + component_gathered_blocks(c, n_lanes);
    for (int k = 0; k < stage->n_controls; k++) {
        struct stage_control *control = &stage->control[k];
        int same = stage_first_network(stage, k);
        control->first_rows = same < k ? stage->control[same].first_rows : stage->n_blocks;
        if (same == k) stage->n_blocks += control->component->n_tables;
    }
    stage->hoists = kind == &stage_hoist;
    if (kind->denoises)
        stage->timesteps = job->schedule.timestep_inputs + job->schedule.spans[span].first_call;
    return stage;
}

static void add_encode_stage(const struct job *job, struct layout *l, const struct stage_kind *kind, int slot,
                             int n_chunks) {
    int n = 0;
    while (job_find_encoded(job, slot, n_chunks, n) >= 0) n++;
    if (n) add_stage(job, l, kind, slot, 0, n, n * n_chunks)->n_chunks = n_chunks;
}

static void list_stages(const struct job *job, struct layout *l) {
    const struct recipe *recipe = job->model->recipe;
    for (int slot = 0; slot < SLOTS_MAX && recipe->slot[slot].family && !job->settings.decode_only; slot++) {
        enum family_kind kind = recipe->slot[slot].family->kind;
        if (kind == FAMILY_TEXT && job->prompts.hits.n_misses[slot])
            add_stage(job, l, &stage_text, slot, 0, job->prompts.hits.n_misses[slot], 1);
        if (kind == FAMILY_VISION) add_encode_stage(job, l, &stage_vision, slot, 1);
    }
    int encoder = recipe_slot(recipe, FAMILY_ENCODER), batch = job->latents.batch;
    if (second_pass_upsamples(job))
        add_stage(job, l, &stage_upsample, MODEL_LATENT_UPSCALER, 0, batch, batch);
    add_encode_stage(job, l, &stage_encode, encoder, 1);
    if (job->pictures.n_encoded_chunks > 1)
        add_encode_stage(job, l, &stage_encode, encoder, job->pictures.n_encoded_chunks);
    for (int i = 0; i < job->schedule.n_spans; i++) {
        int lanes = l->images_per_group * job_span_branches(&job->schedule.spans[i]),
            calls = job->schedule.spans[i].n_calls;
        add_stage(job, l, &stage_hoist, job->schedule.spans[i].slot, i, lanes, 1);
        add_stage(job, l, &stage_denoise, job->schedule.spans[i].slot, i, lanes, calls * l->choice.groups);
    }
    if (job_decodes_sound(job)) {
        add_stage(job, l, &stage_sound, recipe_slot(recipe, FAMILY_SOUND_DECODER), 0, batch, batch);
        add_stage(job, l, &stage_vocoder, recipe_slot(recipe, FAMILY_VOCODER), 0, batch, batch);
    }
    if (job_decodes(job))
        add_stage(job, l, &stage_decode, job->settings.decoder_slot, 0, batch, batch * job->latents.n_chunks)
            ->n_chunks = job->latents.n_chunks;
    if (job->upscale.to.width)
        add_stage(job, l, &stage_upscale, job->upscale.component, 0, batch, batch * job->request.frames);
}

/* Lists the blocks of stage s: those of the component, of control networks, and of gathered rows. */
static void list_blocks(const struct job *job, const struct layout *l, int s, const struct block **list) {
    const struct stage *stage = &l->stages[s];
    const struct component *c = stage->component;
    for (int i = 0; i < c->n_blocks; i++) list[i] = &c->blocks[i];
    int n_rows = component_gathered_blocks(c, stage->n_lanes);
    for (int i = 0; i < n_rows; i++) list[stage->n_model_blocks + i] = &job->prompts.gathered[l->slot[s]][i];
    for (int i = 0, k = 0; k < stage->n_controls; i++) {
        int slot = job->controls[i].component;
        if (slot < 0 || first_joined(job, i) < i) continue;
        const struct stage_control *control = &stage->control[k++];
        const struct component *network = control->component;
        for (int b = 0; b < network->n_blocks; b++) list[control->first_block + b] = &network->blocks[b];
        for (int t = 0; t < network->n_tables; t++)
            list[control->first_rows + t] = &job->prompts.gathered[slot][t];
    }
}

/* Fills in each stage's blocks and connects its lanes. A hoist stage shares the lanes and blocks of the
 * denoise stage after it until split_hoisted. */
static enum status fill_stages(const struct job *job, struct layout *l, struct error *e) {
    size_t n_blocks = 0, n_lanes = 0, a_lane;
    for (int s = 0; s < l->n_stages; s++) {
        n_blocks += (size_t)l->stages[s].n_blocks;
        a_lane = 1 + (size_t)l->stages[s].n_controls;
        n_lanes += a_lane * (size_t)(l->stages[s].n_lanes * l->stages[s].n_groups);
        if (l->stages[s].n_blocks > PLAN_BLOCKS_MAX)
            return error_set(e, UNSUPPORTED, "the model has too many blocks: %d", l->stages[s].n_blocks);
    }
    l->block_lists = job->sys->alloc(job->sys, LINE_HOST, n_blocks * sizeof *l->block_lists);
    l->lanes = job->sys->alloc(job->sys, LINE_HOST, n_lanes * sizeof *l->lanes);
    if (!l->block_lists || !l->lanes) return error_set(e, MEMORY, "no memory for %zu blocks", n_blocks);
    const struct block **list = l->block_lists;
    struct lane *lanes = l->lanes;
    for (int s = 0; s < l->n_stages; s++) {
        struct stage *stage = &l->stages[s];
        stage->blocks = list;
        stage->lanes = lanes;
        list_blocks(job, l, s, list);
        struct lane *networks = lanes + stage->n_lanes * stage->n_groups;
        for (int k = 0; k < stage->n_controls; k++, networks += stage->n_lanes * stage->n_groups)
            stage->control[k].lanes = networks;
        if (stage->hoists) continue;
        list += stage->n_blocks;
        lanes = networks;
        l->kind[s]->connect(job, l, s, stage->lanes);
        for (int i = 0, k = 0; k < stage->n_controls; i++)
            if (job->controls[i].component >= 0 && first_joined(job, i) == i)
                connect_control(job, l, s, i, stage->lanes, stage->control[k++].lanes);
    }
    return OK;
}

/* Splits the visits that the family listed for a denoise stage, moving visits before the first evaluation to
 * the hoist stage. Each stage keeps the blocks that it visits, in visit order, blocks with weights before
 * gathered rows. */
static void split_hoisted(struct layout *l, struct stage *hoist, int first_visit) {
    struct stage *denoise = hoist + 1;
    const struct block *all[PLAN_BLOCKS_MAX], **list = hoist->blocks;
    int place[PLAN_BLOCKS_MAX], n_model_blocks = hoist->n_model_blocks;
    memcpy(all, hoist->blocks, (size_t)hoist->n_blocks * sizeof *all);
    memset(place, -1, sizeof place);
    for (struct stage *stage = hoist; stage <= denoise; list += stage++->n_blocks) {
        stage->blocks = list;
        stage->n_blocks = 0;
        for (int lasting = 1; lasting >= 0; lasting--) {
            for (int i = first_visit; i < l->visits.n_visits; i++) {
                const struct visit *visit = &l->visits.visits[i];
                bool here = (visit->evaluation < 0) == (stage == hoist);
                if (!here || (visit->block < n_model_blocks) != lasting || place[visit->block] >= 0) continue;
                place[visit->block] = stage->n_blocks;
                list[stage->n_blocks++] = all[visit->block];
            }
            if (lasting) stage->n_model_blocks = stage->n_blocks;
        }
    }
    for (int i = first_visit; i < l->visits.n_visits; i++) {
        struct visit *visit = &l->visits.visits[i];
        visit->block = place[visit->block];
        visit->stage = (int)((visit->evaluation < 0 ? hoist : denoise) - l->stages);
    }
}

static void drop_unvisited(struct layout *l, struct stage *stage, int first_visit) {
    int place[PLAN_BLOCKS_MAX], n_blocks = 0, n_model_blocks = 0;
    memset(place, -1, sizeof place);
    for (int i = first_visit; i < l->visits.n_visits; i++) place[l->visits.visits[i].block] = 0;
    for (int i = 0; i < stage->n_blocks; i++) {
        if (place[i] < 0) continue;
        n_model_blocks += i < stage->n_model_blocks;
        place[i] = n_blocks;
        stage->blocks[n_blocks++] = stage->blocks[i];
    }
    stage->n_blocks = n_blocks;
    stage->n_model_blocks = n_model_blocks;
    for (int i = first_visit; i < l->visits.n_visits; i++)
        l->visits.visits[i].block = place[l->visits.visits[i].block];
}

static enum status list_visits(struct layout *l, struct error *e) {
    for (int s = 0; s < l->n_stages && e->code == OK; s++) {
        struct stage *stage = &l->stages[s];
        int first = l->visits.n_visits;
        if (stage->hoists) continue;
        stage_visits(stage, s, &l->visits, e);
        if (e->code != OK) return e->code;
        s && l->stages[s - 1].hoists ? split_hoisted(l, &l->stages[s - 1], first)
                                     : drop_unvisited(l, stage, first);
    }
    return e->code;
}

/* True if the block belongs to the control network in this slot: its weights, or rows of its tables. */
static bool is_of_network(const struct job *job, const struct block *block, int slot) {
    const struct component *c = job_component(job, slot);
    const struct block *rows = job->prompts.gathered[slot];
    return (block >= c->blocks && block < c->blocks + c->n_blocks) ||
           (rows && block >= rows && block < rows + GATHERED_MAX);
}

char *layout_block_name(const struct job *job, const struct layout *l, int s, int i, char *out) {
    const struct block *block = l->stages[s].blocks[i];
    const struct job *pass = s < l->second_stage ? job : job->second_pass;
    char prefix[16] = "";
    for (int k = 0; k < job->n_controls && l->kind[s]->denoises && !*prefix; k++) {
        int slot = job->controls[k].component;
        if (slot >= 0 && is_of_network(pass, block, slot))
            job_numbered("control", slot - MODEL_CONTROL, prefix);
    }
    snprintf(out, LAYOUT_NAME_BYTES, "%s%s%s", prefix, *prefix ? "." : "", block->name);
    return out;
}

/* Makes the tensors, stages, lanes and visits of one pass. */
static enum status open_pass(const struct job *job, struct layout_choice choice, struct arena *interstage,
                             struct layout *l, struct error *e) {
    bool ok = true;
    l->choice = choice;
    l->images_per_group = (job->latents.batch + choice.groups - 1) / choice.groups;
    l->visits.sys = job->sys;
    job->context.upscales ? make_upscale(job, l, interstage, &ok) : make_tensors(job, l, interstage, &ok);
    list_stages(job, l);
    return fill_stages(job, l, e) == OK ? list_visits(l, e) : e->code;
}

/* Opens the second pass's layout, with the first pass's prompts and references, and appends its stages and
 * visits to the first pass's layout. */
static enum status append_second_pass(const struct job *job, struct layout *l, struct error *e) {
    struct layout *second = sys_new(job->sys, 1, sizeof *second, "the second pass", e);
    l->second_pass = second;
    if (!second) return e->code;
    memcpy(second->text, l->text, sizeof l->text);
    memcpy(second->pooled, l->pooled, sizeof l->pooled);
    memcpy(second->reference, l->reference, sizeof l->reference);
    memcpy(second->first_latent, l->latent, sizeof l->latent);
    struct layout_choice choice = l->choice;
    choice.hoisted >>= DENOISER_SPANS_MAX; /* the bits of the second pass: see choose_hoisted */
    if (open_pass(job->second_pass, choice, &l->interstage, second, e) != OK) return e->code;
    if (l->n_stages + second->n_stages > PLAN_STAGES_MAX)
        return error_set(e, UNSUPPORTED,
                         "the two passes have too many stages" FOUND "%d" EXPECTED "at most %d",
                         l->n_stages + second->n_stages, PLAN_STAGES_MAX);
    for (int s = 0; s < second->n_stages; s++) {
        int to = l->n_stages++, before = 0;
        for (int i = 0; i < to; i++) before += l->kind[i] == second->kind[s];
        l->stages[to] = second->stages[s];
        l->kind[to] = second->kind[s];
        l->slot[to] = second->slot[s];
        l->span[to] = second->span[s];
        job_numbered(second->kind[s]->name, before, l->stages[to].name);
    }
    for (int i = 0; i < second->visits.n_visits; i++) {
        struct visit visit = second->visits.visits[i];
        visit.stage += l->second_stage;
        visit_add(&l->visits, visit, e);
    }
    return e->code;
}

enum status layout_open(const struct job *job, struct layout_choice choice, void *memory, struct layout *l,
                        struct error *e) {
    *l = (struct layout){.interstage =
                             memory ? (struct arena){.base = memory, .bytes = job->need->interstage_bytes}
                                    : arena_counting()};
    open_pass(job, choice, &l->interstage, l, e);
    l->second_stage = l->n_stages;
    return e->code == OK && job->second_pass ? append_second_pass(job, l, e) : e->code;
}

enum status layout_choose(struct job *job, struct layout_choice choice, void *memory, struct error *e) {
    layout_close(job->sys, &job->layout);
    if (layout_open(job, choice, memory, &job->layout, e) == OK && job->second_pass)
        job->second_pass->layout = *job->layout.second_pass;
    return e->code;
}

void layout_close(struct sys *sys, struct layout *l) {
    if (l->second_pass) layout_close(sys, l->second_pass);
    sys->release(sys, l->second_pass);
    if (l->visits.sys) visit_list_destroy(&l->visits);
    sys->release(sys, l->block_lists);
    sys->release(sys, l->lanes);
    *l = (struct layout){0};
}

/* Prompt embeddings are cleared, because parts that no encoder writes must
 * be zero. */
enum status layout_allocate(struct job *job, struct error *e) {
    uint64_t bytes = job->need->interstage_bytes;
    struct layout_choice choice = job->layout.choice;
    void *memory = shared_map(job->sys, job->device, LINE_STATE, bytes);
    if (!memory) {
        error_set(e, MEMORY, "no memory for latents and images");
        return executor_explain(job->device, e);
    }
    layout_choose(job, choice, memory, e);
    for (int i = 0; i < job->settings.n_prompts && e->code == OK; i++) {
        struct tensor text = job->layout.text[i], pooled = job->layout.pooled[i];
        if (text.rank) memset(text.data, 0, (size_t)tensor_bytes(&text));
        if (pooled.rank) memset(pooled.data, 0, (size_t)tensor_bytes(&pooled));
    }
    return e->code;
}

void layout_release(struct job *job) {
    struct arena *interstage = &job->layout.interstage;
    shared_unmap(job->sys, job->device, LINE_STATE, interstage->base, interstage->bytes);
    *interstage = (struct arena){0};
}

struct run layout_run(const struct job *job, struct layout *layout, const struct run_hooks *hooks) {
    return (struct run){
        .readers = plan_readers(job->device->memory, job->plan.bounce_bytes),
        .converter = job->settings.weights.type == N_DTYPES && !job->settings.weights.int8
                         ? NULL
                         : requantised_convert,
        .sys = job->sys,
        .device = job->device,
        .stages = layout->stages,
        .n_stages = layout->n_stages,
        .visits = &layout->visits,
        .hooks = hooks,
    };
}
