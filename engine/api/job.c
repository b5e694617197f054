#include "engine/api/job.h"

#include "engine/api/devices.h"
#include "engine/api/machine.h"
#include "engine/api/preview_run.h"
#include "engine/api/request.h"

#include <stdio.h>
#include <string.h>

char *job_numbered(const char *name, int i, char out[16]) {
    i ? snprintf(out, 16, "%s_%d", name, i + 1) : snprintf(out, 16, "%s", name);
    return out;
}

/* Counts the vision tokens of each picture in this text encoder's prompt; returns the number of pictures. */
static int job_count_vision_tokens(const struct job *job, int slot, int32_t tokens[LANE_REFERENCES_MAX]) {
    int n = 0;
    if (!job->model->recipe->slot[slot].text.image_prompt.pad) return 0;
    for (int i = 0; i < job->n_encoded; i++)
        if (job->encoded[i].kind == ENCODED_VISION)
            tokens[n++] = job->encoded[i].columns * job->encoded[i].rows;
    return n;
}

void job_list_vision_spans(const struct job *job, int slot, int prompt,
                           struct vision_span vision_spans[LANE_REFERENCES_MAX]) {
    if (!job->model->recipe->slot[slot].text.image_prompt.pad) return;
    for (int i = 0, n = 0; i < job->n_encoded; i++) {
        const struct encoded *encoded = &job->encoded[i];
        if (encoded->kind != ENCODED_VISION) continue;
        vision_spans[n] = (struct vision_span){.first = job->tokens[slot][prompt].picture[n],
                                               .height = encoded->rows,
                                               .width = encoded->columns};
        n++;
    }
}

/* Fills in a prompt of the maximum length, for plans without a prompt or tokenizer: only the number of tokens
 * matters. PICTURE_TEMPLATE_TOKENS placeholder tokens before each picture replace the template text. */
static enum status job_encode_longest(const struct job *job, const struct text_recipe *recipe,
                                      const int32_t *vision_tokens, int n_pictures,
                                      struct prompt_tokens *tokens, struct error *e) {
    enum { PICTURE_TEMPLATE_TOKENS = 8 };
    tokens->drop_idx = n_pictures ? recipe->image_prompt.drop_idx : recipe->drop_idx;
    tokens->n_ids = tokens->drop_idx;
    for (int i = 0; i < n_pictures; i++) {
        tokens->picture[i] = tokens->n_ids + PICTURE_TEMPLATE_TOKENS;
        tokens->n_ids = tokens->picture[i] + vision_tokens[i];
    }
    tokens->n_ids += recipe->tokens_max - recipe->drop_idx;
    tokens->ids = job->sys->alloc(job->sys, LINE_HOST, (size_t)tokens->n_ids * sizeof *tokens->ids);
    return tokens->ids ? OK : error_set(e, MEMORY, "no memory for tokens");
}

static enum status job_encode(const struct job *job, int slot, const char *prompt,
                              struct prompt_tokens *tokens, struct error *e) {
    const struct text_recipe *recipe = &job->model->recipe->slot[slot].text;
    const struct tokenizer *tokenizer = job->model->tokenizer[slot];
    bool weighs = !choice_is(job->request.prompt_weights, "off");
    int32_t vision_tokens[LANE_REFERENCES_MAX];
    int n_pictures = job_count_vision_tokens(job, slot, vision_tokens);
    bool unknown = !prompt || job->model->published;
    if (unknown) return job_encode_longest(job, recipe, vision_tokens, n_pictures, tokens, e);
    if (!n_pictures)
        return prompt_encode(job->sys, recipe, tokenizer, prompt, strlen(prompt), weighs, tokens, e);
    return prompt_encode_pictured(job->sys, recipe, tokenizer, prompt, strlen(prompt), vision_tokens,
                                  n_pictures, tokens, e);
}

static enum status job_encode_all(struct job *job, int slot, struct error *e) {
    const struct sluice_request *r = &job->request;
    const char *negative = r->negative_prompt ? r->negative_prompt : "";
    for (int i = 0; i < job->n_encoded_prompts && e->code == OK; i++)
        job_encode(job, slot, i ? negative : r->prompt, &job->tokens[slot][i], e);
    const struct text_recipe *recipe = &job->model->recipe->slot[slot].text;
    for (int i = job->n_encoded_prompts; i < job->n_prompts; i++)
        job->tokens[slot][i] =
            (struct prompt_tokens){.n_ids = recipe->tokens_max, .drop_idx = recipe->drop_idx};
    return e->code;
}

/* Gives an absent text encoder the token count of the longest prompt; its output is that many rows of zeros.
 */
static void job_set_absent_tokens(struct job *job, int slot) {
    const struct text_recipe *recipe = &job->model->recipe->slot[slot].text;
    for (int i = 0; i < job->n_prompts; i++)
        job->tokens[slot][i] =
            (struct prompt_tokens){.n_ids = recipe->tokens_max, .drop_idx = recipe->drop_idx};
}

/* Collects the embedding rows that this request reads: for text encoders one block per table and prompt, for
 * other components one block per table. */
static enum status job_gather(struct job *job, int slot, struct error *e) {
    const struct component *c = &job->model->component[slot];
    int n_lanes = c->family->kind == FAMILY_TEXT ? job->prompt_cache_hits.n_misses[slot] : 1;
    struct lane lane = {.latent =
                            tensor_make(NULL, DTYPE_F32, 4, (int32_t[]){job->C, job->F, job->Y, job->X})};
    job->gathered[slot] = job->sys->alloc(job->sys, LINE_HOST, GATHERED_MAX * sizeof *job->gathered[slot]);
    if (!job->gathered[slot]) return error_set(e, MEMORY, "no memory for embedding rows");
    for (int table = 0; table < c->n_tables; table++)
        for (int i = 0; i < n_lanes && e->code == OK; i++) {
            int prompt = job->prompt_cache_hits.misses[slot][i];
            lane.tokens = job->tokens[slot][prompt].ids;
            lane.n_tokens = job->tokens[slot][prompt].n_ids;
            job_list_vision_spans(job, slot, prompt, lane.vision_spans);
            component_gather_rows(c, table, &lane, &job->gathered[slot][table * n_lanes + i], e);
        }
    return e->code;
}

int32_t job_text_rows(const struct job *job, int slot, int prompt) {
    int32_t n = 0;
    const struct prompt_tokens *tokens = &job->tokens[slot][prompt];
    if (job->model->recipe->slot[slot].family->kind == FAMILY_TEXT) return tokens->n_ids - tokens->drop_idx;
    for (int i = 0; i < job->n_encoded; i++)
        if (job->encoded[i].slot == slot) n += job->encoded[i].columns * job->encoded[i].rows;
    return n;
}

/* Fills the step grid; image-to-image skips the first steps, by strength. */
static void job_fill_grid(struct job *job) {
    const struct sluice_request *r = &job->request;
    struct schedule_options options = job->sampling.grid;
    options.n = r->steps;
    options.shift = r->flow_shift;
    options.terminal = job->terminal;
    options.is_flow = job->sampling.prediction->is_flow;
    options.exponential_shift = job->model->shift_rule == FLOW_SHIFT_BY_TOKENS;
    options.table = job->noise;
    sampling_fill(&job->sampling, &options, &job->grid);
    job->n_steps = r->steps;
    if (!r->init_image || job->model->init != INIT_IMG2IMG) return;
    int first = sampling_first_step(&job->sampling, r->steps, r->strength), last = job->grid.n - 1;
    if (first > last) first = last;
    grid_skip(&job->grid, first);
    job->n_steps -= first;
}

/* Index of the denoiser that computes a step: in models with two denoisers (Wan 2.2) 1 for timesteps below
 * the boundary timestep; else 0. */
static int job_span_of(const struct sluice_model *m, float timestep) {
    return m->boundary > 0 && (double)timestep < m->boundary * TRAINED_TIMESTEPS;
}

static double job_scale_of(const struct job *job, int span) {
    return span ? job->request.cfg_scale_low : job->request.cfg_scale;
}

/* Skip-layer guidance scale of a guided step. As in diffusers 0.42 (pipelines/stable_diffusion_3), steps that
 * run are counted from 0 and the interval is open at both ends; img2img also counts from its first step that
 * runs. */
static double job_slg_scale(const struct job *job, int step) {
    const struct sluice_request *r = &job->request;
    bool in_interval = step > job->n_steps * r->slg_start && step < job->n_steps * r->slg_end;
    return r->n_slg_layers && in_interval ? r->slg_scale : 0;
}

/* Appends the denoiser calls of a step, one per evaluation of the sampler. */
static void job_list_step(struct job *job, int step) {
    const struct sampling *s = &job->sampling;
    struct job_span *span = &job->spans[job->n_spans - 1];
    struct denoiser_call call = {.step = step, .scale = span->scale};
    if (span->scale != 1) call.slg_scale = job_slg_scale(job, step);
    for (call.evaluation = 0; call.evaluation < s->sampler->evaluations; call.evaluation++) {
        call.at = job->grid.step[step].at;
        if (call.evaluation && !s->sampler->evaluation_point(&job->grid, step, call.evaluation, &call.at))
            break;
        call.input_scale = prediction_input_scale(s->prediction, &call.at);
        if (call.input_scale != 1) job->scales_input = true;
        if (call.slg_scale != 0 && !span->n_slg_calls++) span->first_slg_call = span->n_calls;
        job->calls[job->n_calls] = call;
        job->timestep_inputs[job->n_calls++] = s->prediction->timestep_input(call.at.timestep);
        span->n_calls++;
    }
    job->calls[job->n_calls - 1].ends_step = true;
}

int job_branches(const struct job *job) {
    int n = 1;
    for (int i = 0; i < job->n_spans; i++)
        if (job_span_branches(&job->spans[i]) > n) n = job_span_branches(&job->spans[i]);
    return n;
}

/* Lists every denoiser call of the run, and spans of calls with the same denoiser. */
static void job_list_calls(struct job *job) {
    const struct recipe *recipe = job->model->recipe;
    for (int step = 0; step < job->grid.n; step++) {
        int span = job_span_of(job->model, job->grid.step[step].at.timestep);
        double scale = job_scale_of(job, span);
        if (!job->n_spans || job->spans[job->n_spans - 1].slot != recipe->span[span].slot)
            job->spans[job->n_spans++] = (struct job_span){.slot = recipe->span[span].slot,
                                                           .first_call = job->n_calls,
                                                           .scale = scale,
                                                           .n_prompts = scale == 1 ? 1 : 2};
        job_list_step(job, step);
    }
}

static enum status job_make_calls(struct job *job, struct error *e) {
    size_t n = (size_t)job->request.steps + GRID_EXTRA_STEPS;
    size_t calls = n * (size_t)job->sampling.sampler->evaluations;
    struct sys *sys = job->sys;
    bool adds = !job->sampling.prediction->is_flow;
    if (adds) job->noise = sys->alloc(sys, LINE_HOST, sizeof *job->noise);
    job->grid.step = sys->alloc(sys, LINE_HOST, n * sizeof *job->grid.step);
    job->calls = sys->alloc(sys, LINE_HOST, calls * sizeof *job->calls);
    job->timestep_inputs = sys->alloc(sys, LINE_HOST, calls * sizeof *job->timestep_inputs);
    if ((adds && !job->noise) || !job->grid.step || !job->calls || !job->timestep_inputs)
        return error_set(e, MEMORY, "no memory for %zu steps", n);
    if (adds) noise_table_fill(job->noise, &job->sampling.noise);
    job_fill_grid(job);
    job_list_calls(job);
    return OK;
}

/* Sets up the request for decoding a latent file of shape [N, C, F, Y, X]. */
static void job_set_decode_only(struct job *job, const int32_t *latent_dim) {
    const struct component *decoder = model_decoder(job->model);
    struct sluice_request *r = &job->request;
    job->decode_only = true;
    r->no_decode = false;
    r->n_control = 0;
    r->batch = latent_dim[0];
    r->frames = (latent_dim[2] - 1) * component_frame_factor(decoder) + 1;
    r->height = latent_dim[3] * decoder->pixel_factor;
    r->width = latent_dim[4] * decoder->pixel_factor;
    r->cfg_scale = 1;
    r->cfg_scale_low = 0;
    r->steps = 1;
}

/* True if the sizes of the latent and of a chunk's frames fit 32 bits, and the chunks fit the arrays n_chunks
 * and n_encoded_chunks. */
static bool job_within_limits(const struct job *job, const struct component *decoder) {
    int64_t latent = (int64_t)job->F * job->Y * job->X;
    int64_t chunk = (int64_t)job->request.width * job->request.height * component_frame_factor(decoder);
    return latent <= INT32_MAX && (job->F == 1 || chunk <= INT32_MAX) && job->n_chunks <= FRAME_CHUNKS_MAX &&
           job->n_encoded_chunks <= FRAME_CHUNKS_MAX;
}

/* The slot of the decoder: the tiny autoencoder if the model has one. With --preview taesd the tiny
 * autoencoder decodes previews only, and the VAE the images. */
static int job_find_decoder(const struct job *job) {
    const struct job *parent = job->context.parent;
    bool tiny_previews = (parent ? parent : job)->preview == PREVIEW_TAESD;
    return model_decoder_slot(job->model, parent ? tiny_previews : !tiny_previews);
}

const struct component *job_tiny_decoder(const struct job *job) {
    const struct component *c = &job->model->component[job->decoder_slot];
    return c->family->kind == FAMILY_TINY_DECODER && !job->request.no_decode ? c : NULL;
}

static enum status job_set_sizes(struct job *job, struct error *e) {
    const struct sluice_request *r = &job->request;
    job->decoder_slot = job_find_decoder(job);
    const struct component *decoder = &job->model->component[job->decoder_slot];
    job->batch = r->batch;
    job->n_prompts = r->cfg_scale == 1 && (!job->model->boundary || r->cfg_scale_low == 1) ? 1 : 2;
    job->n_encoded_prompts =
        r->negative_prompt || !job->model->force_zeros_for_empty_prompt ? job->n_prompts : 1;
    job->C = decoder->latent_channels; /* equals the transformer's latent channels */
    int32_t frames = (r->frames - 1) / component_frame_factor(decoder) + 1;
    bool is_vace = job->model->recipe->concat == CONCAT_CONTROL && !job->decode_only;
    job->n_reference_frames = is_vace ? r->n_references : 0;
    job->F = job->n_reference_frames + frames;
    job->Y = r->height / decoder->pixel_factor;
    job->X = r->width / decoder->pixel_factor;
    const struct component *encoder = model_component(job->model, FAMILY_ENCODER);
    bool gives = r->init_image && job->model->init == INIT_FIRST_FRAME && !job->decode_only;
    job->n_chunks = component_frame_chunks(decoder, frames, job->chunks);
    if (gives || is_vace)
        job->n_encoded_chunks = component_frame_chunks(encoder, frames, job->encoded_chunks);
    if (gives && job->model->recipe->concat == CONCAT_NONE) job->n_clean_frames = 1;
    if (job_within_limits(job, decoder)) return OK;
    return error_set(e, USAGE,
                     "the video is too large to encode or decode" FOUND "%d frames of %dx%d" EXPECTED
                     "fewer frames (--frames) or a smaller size (-W, -H)",
                     r->frames, r->width, r->height);
}

enum status job_open(struct job *job, const struct job_context *place, const struct sluice_request *request,
                     const int32_t *latent_dim, struct error *e) {
    const struct sluice_model *model = place->model;
    *job = (struct job){.sys = model->sys, .context = *place, .model = model, .device = place->device};
    if (model->decodes_only && !latent_dim) {
        return error_set(
            e, USAGE,
            "only the VAE of this model was opened: it can decode latents, not generate images" WHERE
            "%s" EXPECTED "sluice_decode, or the model opened without decodes_only",
            model->name);
    }
    for (int i = 0; i < SLOTS_MAX; i++)
        if (model->component[i].family && model->component[i].family->kind == FAMILY_TEXT)
            job->text_slot[job->n_texts++] = i;
    copy_sized(&job->request, sizeof job->request, request);
    job_copy_pictures(job);
    if (latent_dim) job_set_decode_only(job, latent_dim);
    if (job_extract_lora_tags(job, e) != OK) return e->code;
    job_assume_pictures(job);
    struct request_resolver request_resolver = {.model = model,
                                                .device = job->device,
                                                .decode_only = job->decode_only,
                                                .request = &job->request,
                                                .sampling = &job->sampling,
                                                .reference_size = job->reference_size};
    if (request_resolve(&request_resolver, e) != OK) return e->code;
    if (requantised_type(job->request.type, job->request.converted, &job->weights, e) != OK) return e->code;
    job->precision = request_resolver.precision;
    job->terminal = request_resolver.terminal;
    job->preview = request_resolver.preview;
    if (!job->decode_only) job_fit_pictures(job, request_resolver.fit);
    if (job_make_components(job, e) != OK || job_set_sizes(job, e) != OK) return e->code;
    if (!job->decode_only) {
        job_list_encoded(job);
        for (int i = 0; i < job->n_texts && e->code == OK; i++) job_encode_all(job, job->text_slot[i], e);
        for (int i = 0; i < SLOTS_MAX; i++)
            if (model->recipe->slot[i].text.tokenizer && !model->component[i].family)
                job_set_absent_tokens(job, i);
        if (e->code == OK) prompt_cache_find_hits(job);
        for (int i = 0; i < SLOTS_MAX && e->code == OK; i++)
            if (model->component[i].n_tables) job_gather(job, i, e);
        if (e->code != OK || job_make_calls(job, e) != OK) return e->code;
    }
    if (job->preview > PREVIEW_LATENT && preview_run_open(job, e) != OK) return e->code;
    return job_measure(job, e);
}

uint64_t job_vram_budget(const struct job *job) {
    int64_t asked = job->request.max_vram_bytes;
    return asked ? (uint64_t)asked : device_default_budget(job->device);
}

enum status job_plan(struct job *job, struct error *e) {
    int64_t budget = job->request.max_ram_bytes;
    int chosen =
        plan_choose((const struct run_need *const *)job->needs, job->n_needs,
                    budget ? (uint64_t)budget : machine_default_budget(), job_vram_budget(job), &job->plan);
    return job_lay_out(job, job->choices[chosen].groups, job->choices[chosen].tiled, e);
}

enum status job_lay_out(struct job *job, int groups, bool tiled, struct error *e) {
    int i = 0;
    while (i < job->n_needs && (job->choices[i].groups != groups || job->choices[i].tiled != tiled)) i++;
    if (i < job->n_needs) {
        struct run_need *need = job->needs[i];
        if (job->need == need) return OK;
        job->need = need;
        job->chosen = i;
        layout_close(job->sys, &job->layout);
        return layout_open(job, job->choices[i], NULL, &job->layout, e);
    }
    return error_set(e, BUDGET,
                     "this request cannot run with the image groups and VAE tiling of the plan file" FOUND
                     "%d groups of %d images, vae_tiling %s" EXPECTED
                     "\"groups\" as `sluice plan` chooses, \"vae_tiling\" as in the request",
                     groups, job->batch, tiled ? "on" : "off");
}

/* Clears a prompt embedding: parts that no encoder writes must be zero. */
static void zero_tensor(struct tensor t) {
    if (t.rank) memset(t.data, 0, (size_t)tensor_bytes(&t));
}

enum status job_allocate(struct job *job, struct error *e) {
    uint64_t bytes = job->need->interstage_bytes;
    struct layout_choice choice = job->layout.choice;
    void *memory = shared_map(job->sys, job->device, LINE_STATE, bytes);
    if (!memory) {
        error_set(e, MEMORY, "no memory for latents and images");
        return executor_explain(job->device, e);
    }
    layout_close(job->sys, &job->layout);
    layout_open(job, choice, memory, &job->layout, e);
    for (int i = 0; i < job->n_prompts && e->code == OK; i++) {
        zero_tensor(job->layout.text[i]);
        zero_tensor(job->layout.pooled[i]);
    }
    return e->code;
}

void job_release(struct job *job) {
    struct arena *interstage = &job->layout.interstage;
    shared_unmap(job->sys, job->device, LINE_STATE, interstage->base, interstage->bytes);
    *interstage = (struct arena){0};
}

void job_close(struct job *job) {
    struct sys *sys = job->sys;
    if (!sys) return;
    prompt_cache_close_hits(job);
    for (int i = 0; i < PROMPTS_MAX; i++) lora_tags_destroy(sys, &job->tags[i]);
    job_release(job);
    if (job->preview_job) job_close(job->preview_job);
    sys->release(sys, job->preview_job);
    layout_close(sys, &job->layout);
    for (int i = 0; i < SLOTS_MAX * GATHERED_MAX; i++)
        if (job->gathered[i / GATHERED_MAX])
            block_destroy(sys, &job->gathered[i / GATHERED_MAX][i % GATHERED_MAX]);
    for (int i = 0; i < SLOTS_MAX; i++) sys->release(sys, job->gathered[i]);
    for (int i = 0; i < SLOTS_MAX * PROMPTS_MAX; i++)
        prompt_destroy(sys, &job->tokens[i / PROMPTS_MAX][i % PROMPTS_MAX]);
    for (int i = 0; i < PICTURES_MAX; i++) sys->release(sys, job->pixels[i]);
    sys->release(sys, job->noise);
    sys->release(sys, job->grid.step);
    sys->release(sys, job->calls);
    sys->release(sys, job->timestep_inputs);
    for (int i = 0; i < job->n_needs && job->needs; i++) sys->release(sys, job->needs[i]);
    sys->release(sys, job->needs);
    sys->release(sys, job->choices);
    *job = (struct job){0};
}

struct run job_run(const struct job *job, struct layout *layout, const struct run_hooks *hooks) {
    return (struct run){
        .readers = plan_readers(job->device->memory, job->plan.bounce_bytes),
        .converter = job->weights == N_DTYPES ? NULL : requantised_convert,
        .sys = job->sys,
        .device = job->device,
        .stages = layout->stages,
        .n_stages = layout->n_stages,
        .visits = &layout->visits,
        .hooks = hooks,
    };
}

double job_flops(const struct job *job) {
    double flops = 0;
    for (int s = 0; s < job->layout.n_stages; s++) flops += job->need->stage[s].flops;
    return flops;
}
