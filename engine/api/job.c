/* Jobs: see job.h. */
#include "engine/api/job.h"

#include "engine/api/devices.h"
#include "engine/api/machine.h"
#include "engine/api/plan_json.h"
#include "engine/api/rate.h"
#include "engine/api/rates_file.h"
#include "engine/api/request.h"
#include "engine/sample/flow.h"

#include <stdio.h>
#include <string.h>

/* ---- tokens ---- */

static const struct text_recipe *text_recipe(const struct job *job, int slot) {
    return &job->model->recipe->slot[slot].text;
}

/* Without a prompt (planning only): the longest there is. Ids do not matter, their number does. */
static enum status longest_prompt(struct job *job, int slot, struct prompt_tokens *tokens, struct error *e) {
    tokens->n_ids = text_recipe(job, slot)->tokens_max;
    tokens->ids = job->sys->alloc(job->sys, LINE_HOST, (size_t)tokens->n_ids * sizeof *tokens->ids);
    return tokens->ids ? OK : error_set(e, MEMORY, "no memory for tokens");
}

static enum status encode_prompt(struct job *job, int slot, const char *prompt, struct prompt_tokens *tokens,
                                 struct error *e) {
    return prompt_encode(job->sys, text_recipe(job, slot), job->model->tokenizer[slot], prompt,
                         strlen(prompt), tokens, e);
}

/* All prompts for one encoder. */
static enum status encode_prompts_for(struct job *job, int slot, struct error *e) {
    const struct sluice_request *r = &job->request;
    struct prompt_tokens *tokens = job->tokens[slot];
    if (!r->prompt)
        longest_prompt(job, slot, &tokens[0], e);
    else
        encode_prompt(job, slot, r->prompt, &tokens[0], e);
    if (e->code == OK && job->n_prompts > 1)
        encode_prompt(job, slot, r->negative_prompt ? r->negative_prompt : "", &tokens[1], e);
    for (int i = 0; i < job->n_prompts && e->code == OK; i++)
        block_gather_rows(job->sys, &job->model->component[slot].tables[0], tokens[i].ids, tokens[i].n_ids,
                          &job->rows[slot][i], e);
    return e->code;
}

static enum status encode_prompts(struct job *job, struct error *e) {
    job->n_prompts = job->request.cfg_scale == 1 ? 1 : 2;
    for (int i = 0; i < job->n_texts && e->code == OK; i++) encode_prompts_for(job, job->text_slot[i], e);
    return e->code;
}

/* ---- schedule ---- */

/* The whole schedule, of which a picture to start from leaves the end. */
static void fill_schedule(struct job *job) {
    const struct recipe *recipe = job->model->recipe;
    const struct sluice_request *r = &job->request;
    struct flow_options options = {.n = r->steps,
                                   .grid_f64 = recipe->grid == FLOW_GRID_F64,
                                   .exponential = job->model->shift_rule == FLOW_SHIFT_BY_TOKENS,
                                   .shift = r->flow_shift};
    flow_schedule(&options, job->sigmas, job->timesteps);
    int first = r->init_image ? flow_first_step(r->steps, r->strength) : 0;
    job->steps = r->steps - first;
    memmove(job->sigmas, job->sigmas + first, (size_t)(job->steps + 1) * sizeof *job->sigmas);
    memmove(job->timesteps, job->timesteps + first, (size_t)job->steps * sizeof *job->timesteps);
    for (int i = 0; i < job->steps; i++)
        job->inputs[i] = recipe->timestep == TIMESTEP_OF_NOISE ? job->timesteps[i] / 1000
                                                               : (1000 - job->timesteps[i]) / 1000;
}

static enum status make_schedule(struct job *job, struct error *e) {
    int n = job->request.steps;
    struct sys *sys = job->sys;
    job->sigmas = sys->alloc(sys, LINE_HOST, (size_t)(n + 1) * sizeof *job->sigmas);
    job->timesteps = sys->alloc(sys, LINE_HOST, (size_t)n * sizeof *job->timesteps);
    job->inputs = sys->alloc(sys, LINE_HOST, (size_t)n * sizeof *job->inputs);
    if (!job->sigmas || !job->timesteps || !job->inputs)
        return error_set(e, MEMORY, "no memory for %d steps", n);
    fill_schedule(job);
    return OK;
}

/* ---- layout ---- */

/* What the text encoders leave. */
static void lay_out_texts(struct job *job, struct arena *arena, bool *ok) {
    for (int text = 0; text < job->n_texts; text++) {
        int slot = job->text_slot[text];
        const struct component *c = &job->model->component[slot];
        for (int i = 0; i < job->n_prompts; i++) {
            if (c->text_columns)
                job->text[i] = arena_tensor(arena, DTYPE_F32, 2,
                                            (int32_t[]){job->tokens[slot][i].n_ids, c->text_columns}, ok);
            if (c->pooled_columns)
                job->pooled[i] = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){1, c->pooled_columns}, ok);
        }
    }
}

const struct sluice_picture *job_source(const struct job *job, const struct encoded *encoded) {
    const struct sluice_request *r = &job->request;
    switch (encoded->kind) {
    case ENCODED_INIT:
        return r->init_image;
    case ENCODED_MASKED:
        return r->mask;
    case ENCODED_REFERENCE:
        return r->references[encoded->reference];
    }
    return NULL;
}

static struct picture_size encoded_size(const struct job *job, const struct encoded *encoded) {
    if (encoded->kind == ENCODED_REFERENCE) return job->reference_size[encoded->reference];
    return (struct picture_size){job->request.width, job->request.height};
}

/* One picture is encoded after another, and the host takes the moments in between: they share the memory of
 * the largest, which the decoder's picture takes later. */
static void lay_out_pictures(struct job *job, struct arena *arena, bool *ok) {
    const struct component *c = model_component(job->model, FAMILY_DECODER);
    int32_t factor = c->pixel_factor, picture[3] = {job->Y * factor, job->X * factor, 3};
    int64_t pixels = job->request.no_decode ? 0 : (int64_t)picture[0] * picture[1], most = 0;
    for (int i = 0; i < job->n_encoded; i++) {
        struct picture_size size = encoded_size(job, &job->encoded[i]);
        if ((int64_t)size.height * size.width > most) most = (int64_t)size.height * size.width;
    }
    int64_t latents = most / factor / factor;
    if (pixels > most) most = pixels;
    struct tensor all = {0}, moments = {0};
    if (most) all = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){(int32_t)most, 3}, ok);
    if (latents)
        moments =
            arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){(int32_t)latents, 2 * c->latent_channels}, ok);
    if (pixels) {
        job->picture = tensor_make(all.data, DTYPE_F32, 3, picture);
        job->rgb = arena_tensor(arena, DTYPE_U8, 3, picture, ok);
    }
    for (int i = 0; i < job->n_encoded; i++) {
        struct encoded *encoded = &job->encoded[i];
        struct picture_size size = encoded_size(job, encoded);
        int32_t Y = size.height, X = size.width;
        encoded->picture = tensor_make(all.data, DTYPE_F32, 3, (int32_t[]){Y, X, 3});
        encoded->moments = tensor_make(moments.data, DTYPE_F32, 3,
                                       (int32_t[]){Y / factor, X / factor, 2 * c->latent_channels});
        if (encoded->kind != ENCODED_REFERENCE) continue;
        job->reference[encoded->reference] =
            arena_tensor(arena, DTYPE_F32, 3, (int32_t[]){c->latent_channels, Y / factor, X / factor}, ok);
        const struct sluice_picture *given = job->request.references[encoded->reference];
        if (given->width != X || given->height != Y)
            encoded->resized = arena_tensor(arena, DTYPE_U8, 3, (int32_t[]){Y, X, 3}, ok);
    }
}

/* Tensors that cross stages: run twice, counting and for real. */
static void lay_out_cross(struct job *job, struct arena *arena) {
    bool ok = true;
    int32_t C = model_component(job->model, FAMILY_DECODER)
                    ->latent_channels; /* and the transformer's, if it is there */
    int32_t latent[3] = {C, job->Y, job->X},
            control[3] = {model_component(job->model, FAMILY_DENOISER)->control_channels, job->Y, job->X};
    lay_out_texts(job, arena, &ok);
    for (int i = 0; i < job->batch; i++) job->latent[i] = arena_tensor(arena, DTYPE_F32, 3, latent, &ok);
    for (int i = 0; i < job->batch && control[0]; i++)
        job->control[i] = arena_tensor(arena, DTYPE_F32, 3, control, &ok);
    for (int i = 0; i < job->together * job->n_prompts; i++)
        job->prediction[i] = arena_tensor(arena, DTYPE_F32, 3, latent, &ok);
    lay_out_pictures(job, arena, &ok);
}

/* As even as can be, the larger ones first. */
void job_images(const struct job *job, int group, int *first, int *n) {
    *first = (group * job->batch + job->groups - 1) / job->groups;
    *n = ((group + 1) * job->batch + job->groups - 1) / job->groups - *first;
}

static bool denoises(enum stage_kind kind) {
    return kind == STAGE_HOIST || kind == STAGE_DENOISE;
}

/* Lane i of a stage that goes through prompts or pictures, not through groups. */
static void connect_lane(struct job *job, int s, int i, struct lane *lane) {
    *lane = (struct lane){.tiled = job->tiled};
    switch (job->kind[s]) {
    case STAGE_TEXT:
        lane->prompt = i;
        lane->tokens = job->tokens[job->slot[s]][i].ids;
        lane->n_tokens = job->tokens[job->slot[s]][i].n_ids;
        lane->pooled_row = job->tokens[job->slot[s]][i].pooled_row;
        lane->text = job->text[i];
        lane->pooled = job->pooled[i];
        break;
    case STAGE_ENCODE:
        lane->picture = job->encoded[i].picture;
        lane->moments = job->encoded[i].moments;
        break;
    case STAGE_DECODE:
        lane->latent = job->latent[i];
        lane->picture = job->picture;
        break;
    case STAGE_HOIST:
    case STAGE_DENOISE:
        break;
    }
}

/* Lanes of a prompt are neighbours in their group: lane = prompt * together + place. */
static void connect_group(struct job *job, int group, struct lane *lanes) {
    int first, n;
    job_images(job, group, &first, &n);
    for (int i = 0; i < job->together * job->n_prompts; i++) {
        int prompt = i / job->together, place = i % job->together;
        lanes[i] = (struct lane){.prompt = prompt,
                                 .text = job->text[prompt],
                                 .pooled = job->pooled[prompt],
                                 .latent = job->latent[place < n ? first + place : first],
                                 .control = job->control[place < n ? first + place : first],
                                 .prediction = job->prediction[i],
                                 .guidance = (float)job->request.guidance,
                                 .hoisted = job->hoisted,
                                 .idle = place >= n};
        memcpy(lanes[i].reference, job->reference, sizeof job->reference);
    }
}

static void connect_lanes(struct job *job) {
    for (int s = 0; s < job->n_stages; s++) {
        struct stage *stage = &job->stages[s];
        for (int k = 0; k < stage->n_groups && denoises(job->kind[s]); k++)
            connect_group(job, k, stage->lanes + k * stage->n_lanes);
        for (int i = 0; i < stage->n_lanes && !denoises(job->kind[s]); i++)
            connect_lane(job, s, i, &stage->lanes[i]);
    }
}

static void add_stage(struct job *job, enum stage_kind kind, int slot, const char *name, int n_lanes,
                      int evaluations) {
    int s = job->n_stages++;
    const struct component *c = retyped_component(job->place.retyped, job->model, slot);
    struct stage *stage = &job->stages[s];
    job->kind[s] = kind;
    job->slot[s] = slot;
    snprintf(stage->name, sizeof stage->name, "%s", name);
    stage->component = c;
    stage->n_lanes = n_lanes;
    stage->n_groups = 1;
    bool pictures = kind == STAGE_DECODE || kind == STAGE_ENCODE;
    stage->precision = pictures ? request_first_precision(job->device) : job->precision;
    stage->evaluations = evaluations;
    stage->n_lasting = c->n_blocks;
    stage->n_blocks = c->n_blocks + (kind == STAGE_TEXT ? job->n_prompts : 0);
    if (kind == STAGE_HOIST) stage->hoists = true;
    if (denoises(kind)) stage->timesteps = job->inputs;
}

static void add_text_stages(struct job *job) {
    char name[16];
    for (int i = 0; i < job->n_texts; i++)
        add_stage(job, STAGE_TEXT, job->text_slot[i], job_numbered("text", i, name), job->n_prompts, 1);
}

static void add_encoded(struct job *job, enum encoded_kind kind, int reference) {
    job->encoded[job->n_encoded++] = (struct encoded){.kind = kind, .reference = reference};
}

static void list_encoded(struct job *job) {
    const struct sluice_request *r = &job->request;
    if (job->decode_only) return;
    if (r->init_image) add_encoded(job, ENCODED_INIT, 0);
    if (r->mask) add_encoded(job, ENCODED_MASKED, 0);
    for (int i = 0; i < r->n_references; i++) add_encoded(job, ENCODED_REFERENCE, i);
}

static enum status lay_out_stages(struct job *job, struct error *e) {
    struct sys *sys = job->sys;
    int lanes = job->n_prompts * job->batch;
    int denoiser = recipe_slot(job->model->recipe, FAMILY_DENOISER);
    int decoder = recipe_slot(job->model->recipe, FAMILY_DECODER);
    int encoder = recipe_slot(job->model->recipe, FAMILY_ENCODER);
    list_encoded(job);
    if (!job->decode_only) {
        add_text_stages(job);
        if (job->n_encoded) add_stage(job, STAGE_ENCODE, encoder, "encode", job->n_encoded, job->n_encoded);
        add_stage(job, STAGE_HOIST, denoiser, "hoist", lanes, 1);
        add_stage(job, STAGE_DENOISE, denoiser, "denoise", lanes, job->steps);
    }
    if (!job->request.no_decode) add_stage(job, STAGE_DECODE, decoder, "decode", job->batch, job->batch);
    size_t n_blocks = 0, n_lanes = 0;
    for (int s = 0; s < job->n_stages; s++) {
        n_blocks += (size_t)job->stages[s].n_blocks;
        n_lanes +=
            2 * (size_t)job->stages[s].n_lanes; /* uneven groups have idle ones, but fewer than others */
        if (job->stages[s].n_blocks > PLAN_BLOCKS_MAX)
            return error_set(e, UNSUPPORTED, "a model of %d blocks", job->stages[s].n_blocks);
    }
    job->block_lists = sys->alloc(sys, LINE_HOST, n_blocks * sizeof *job->block_lists);
    job->lanes = sys->alloc(sys, LINE_HOST, n_lanes * sizeof *job->lanes);
    if (!job->block_lists || !job->lanes) return error_set(e, MEMORY, "no memory for %zu blocks", n_blocks);
    const struct block **list = job->block_lists;
    struct lane *lane = job->lanes;
    for (int s = 0; s < job->n_stages; s++) {
        struct stage *stage = &job->stages[s];
        stage->blocks = list;
        stage->lanes = lane;
        for (int i = 0; i < stage->n_lasting; i++) list[i] = &stage->component->blocks[i];
        for (int i = stage->n_lasting; i < stage->n_blocks; i++)
            list[i] = &job->rows[job->slot[s]][i - stage->n_lasting];
        if (stage->hoists) continue; /* the next has the same lanes, and the blocks until they are split */
        list += stage->n_blocks;
        lane += 2 * stage->n_lanes;
    }
    return OK;
}

/* The family lists the visits of one stage. Those before its first evaluation are the hoist stage, and each
 * of the two has the blocks that it visits, in that order. */
static void split_hoisted(struct job *job, struct stage *hoist, int first_visit) {
    struct stage *denoise = hoist + 1;
    const struct block *all = denoise->component->blocks;
    int place[FAMILY_BLOCKS_MAX];
    memset(place, -1, sizeof place);
    hoist->n_blocks = denoise->n_blocks = 0;
    for (int i = first_visit; i < job->visits.n_visits; i++) {
        struct visit *visit = &job->visits.visits[i];
        struct stage *stage = visit->evaluation < 0 ? hoist : denoise;
        if (stage == denoise && !denoise->n_blocks) denoise->blocks = hoist->blocks + hoist->n_blocks;
        if (place[visit->block] < 0) {
            place[visit->block] = stage->n_blocks;
            stage->blocks[stage->n_blocks++] = &all[visit->block];
        }
        visit->block = place[visit->block];
        visit->stage = (int)(stage - job->stages);
    }
    hoist->n_lasting = hoist->n_blocks;
    denoise->n_lasting = denoise->n_blocks;
}

static enum status list_visits(struct job *job, struct error *e) {
    job->visits.sys = job->sys;
    job->visits.n_visits = 0;
    for (int s = 0; s < job->n_stages && e->code == OK; s++) {
        const struct stage *stage = &job->stages[s];
        int first = job->visits.n_visits;
        if (stage->hoists) continue;
        component_visits(stage->component, s, stage->lanes, stage->n_lanes, stage->evaluations, &job->visits,
                         e);
        if (job->kind[s] == STAGE_DENOISE && e->code == OK) split_hoisted(job, &job->stages[s - 1], first);
    }
    return e->code;
}

static enum status state_bytes(struct job *job, struct stage *stage, int hoisted, uint64_t *bytes,
                               struct error *e) {
    uint64_t pictures;
    job->hoisted = hoisted;
    connect_lanes(job);
    return executor_state_bytes(job->sys, stage, bytes, &pictures, e);
}

/* Rows are hoisted where those of all evaluations take less memory than the weights that they replace: many
 * steps of a small model would cost more than they save. The request alone decides, never a budget. */
static enum status decide_hoisting(struct job *job, struct error *e) {
    uint64_t plain = 0, hoisted = 0, weights = 0;
    for (int s = 0; s < job->n_stages; s++) {
        struct stage *stage = &job->stages[s];
        if (job->kind[s] != STAGE_DENOISE || job->model->plain) continue;
        for (int i = 0; i < stage->n_blocks; i++)
            if (block_hoists(stage->blocks[i]->kind)) weights += stage->blocks[i]->bytes;
        state_bytes(job, stage, 0, &plain, e);
        state_bytes(job, stage, stage->evaluations, &hoisted, e);
        if (hoisted - plain >= weights) job->hoisted = 0;
    }
    connect_lanes(job);
    return e->code;
}

/* Of a picture that is read, the caller's pixels, which last through the run. */
static uint64_t source_bytes(const struct job *job, const struct encoded *encoded) {
    const struct sluice_picture *given = job_source(job, encoded);
    return (uint64_t)given->width * (uint64_t)given->height * 3;
}

/* Descriptors of ours that a run takes from the heap, counted generously: visits, fills, lists; and pictures
 * that it reads. */
static uint64_t host_bytes(const struct job *job) {
    uint64_t a_visit = 384, a_token = 128;
    uint64_t tokens = 0;
    for (int i = 0; i < SLOTS_MAX * PROMPTS_MAX; i++)
        tokens += (uint64_t)job->tokens[i / PROMPTS_MAX][i % PROMPTS_MAX].n_ids;
    uint64_t needs = (uint64_t)job->n_needs * sizeof *job->needs;
    uint64_t pictures = 0;
    for (int i = 0; i < job->n_encoded; i++) pictures += source_bytes(job, &job->encoded[i]);
    return align_up(job->model->host_bytes + (uint64_t)job->visits.n_visits * a_visit + tokens * a_token +
                        needs + pictures + retyped_bytes(job->place.retyped) + (1 << 19),
                    1 << 16);
}

bool job_reads_direct(const char *direct_io, uint64_t model_bytes, uint64_t memory_bytes) {
    if (asked_for(direct_io, "on")) return true;
    if (asked_for(direct_io, "off")) return false;
    /* A quarter is for processes: what is read in turn and does not fit the rest is gone from the cache
     * before it is read again. */
    return memory_bytes && model_bytes > memory_bytes / 4 * 3;
}

/* What of the files is read: an embedding table's few rows are not worth counting. */
static uint64_t model_bytes(const struct job *job) {
    uint64_t bytes = 0;
    for (int s = 0; s < job->n_stages; s++)
        for (int i = 0; i < job->stages[s].n_lasting; i++) bytes += job->stages[s].blocks[i]->bytes;
    return bytes;
}

static enum status find_rates(struct job *job, struct rates *rates, struct error *e) {
    rates_default(job->device->name, job->device->threads, rates);
    return job->request.rates ? rates_read(job->device->name, job->request.rates_name, job->request.rates,
                                           job->device->threads, rates, e)
                              : OK;
}

/* ---- groups ---- */

/* What depends on how many images are denoised at once: lanes, and what crosses stages, by size. */
static void lay_out_lanes(struct job *job, int groups) {
    job->groups = groups;
    job->together = (job->batch + groups - 1) / groups;
    for (int s = 0; s < job->n_stages; s++) {
        struct stage *stage = &job->stages[s];
        if (!denoises(job->kind[s])) continue;
        stage->n_lanes = job->together * job->n_prompts;
        stage->n_groups = groups;
        if (job->kind[s] == STAGE_DENOISE) stage->evaluations = job->steps * groups;
    }
    job->cross = arena_counting();
    lay_out_cross(job, &job->cross);
    connect_lanes(job);
}

static enum status lay_out_groups(struct job *job, int groups, struct error *e) {
    lay_out_lanes(job, groups);
    return list_visits(job, e);
}

static enum pictures_place pictures_place(const struct sluice_request *r) {
    if (asked_for(r->vae_tiling, "on")) return PICTURES_ON_HOST;
    return asked_for(r->vae_tiling, "off") ? PICTURES_ON_DEVICE : PICTURES_ANYWHERE;
}

/* What filling takes beyond reading the image: a file that has more bytes, and converting them. */
static void measure_fills(const struct job *job, int s, const struct rates *rates, struct stage_need *need) {
    for (int i = 0; i < need->n_blocks; i++) {
        const struct block *block = job->stages[s].blocks[i];
        int64_t values = block_converted_values(block);
        if (!values || rates->disk <= 0) continue;
        double more = (double)block_file_bytes(block) - (double)block->bytes;
        need->block_fill_seconds[i] = more / rates->disk + retyped_seconds(job->weights, values);
    }
}

/* As laid out now. */
static enum status measure(struct job *job, const struct rates *rates, struct run_need *need,
                           struct error *e) {
    struct run run = job_run(job, NULL);
    need->rates = *rates;
    need->precision = job->precision;
    need->weights = job->weights;
    if (executor_measure(&run, false, need, e) != OK) return e->code;
    for (int s = 0; s < need->n_stages; s++) {
        need->stage[s].pictures_place = pictures_place(&job->request);
        measure_fills(job, s, rates, &need->stage[s]);
    }
    need->base_bytes = machine_base_bytes() + job->device->host_bytes;
    need->host_bytes = host_bytes(job);
    need->cross_bytes = align_up(job->cross.peak, PLAN_PAGE);
    if (job_reads_direct(job->request.direct_io, model_bytes(job), machine_memory_bytes()))
        need->bounce_bytes = PLAN_BOUNCE;
    /* Neither lasts into the run, nor do they meet. */
    need->open_bytes = job->model->open_bytes > RATE_BYTES ? job->model->open_bytes : RATE_BYTES;
    return OK;
}

/* More groups of the same size would gain nothing: the next number of groups whose images are fewer, or 0. */
static int next_groups(int batch, int groups) {
    int together = (batch + groups - 1) / groups;
    return together > 1 ? (batch + together - 2) / (together - 1) : 0;
}

/* Whole pictures lie in the stages of the autoencoder. */
static bool has_pictures(enum stage_kind kind) {
    return kind == STAGE_ENCODE || kind == STAGE_DECODE;
}

/* Whether tiling makes a difference to these pictures. */
static bool tiling_matters(struct job *job, struct error *e) {
    uint64_t state, each, pictures[2] = {0};
    for (int tiled = 0; tiled < 2; tiled++)
        for (int s = 0; s < job->n_stages; s++) {
            if (!has_pictures(job->kind[s])) continue;
            job->tiled = tiled;
            connect_lanes(job);
            executor_state_bytes(job->sys, &job->stages[s], &state, &each, e);
            pictures[tiled] += each;
        }
    return pictures[0] != pictures[1];
}

/* Whether the autoencoder takes less memory tiled: low, flat and narrow pictures are less than their bands.
 */
static bool tiling_saves(struct job *job, const struct rates *rates, struct error *e) {
    uint64_t taken[2] = {0};
    struct run_need *need = job->sys->alloc(job->sys, LINE_HOST, sizeof *need);
    if (!need) error_set(e, MEMORY, "no memory for what a run needs");
    for (int tiled = 0; tiled < 2 && e->code == OK; tiled++) {
        job->tiled = tiled;
        if (lay_out_groups(job, 1, e) != OK || measure(job, rates, need, e) != OK) break;
        for (int s = 0; s < job->n_stages; s++)
            if (has_pictures(job->kind[s])) {
                uint64_t bytes =
                    need->separate ? plan_fixed_vram(need, s, true) : plan_fixed_ram(need, s, false);
                if (bytes > taken[tiled]) taken[tiled] = bytes;
            }
    }
    job->sys->release(job->sys, need);
    return taken[1] < taken[0];
}

/* What the request asks for, or both ways if they differ: *least_tiled to *most_tiled. */
static enum status decide_tiling(struct job *job, const struct rates *rates, int *least_tiled,
                                 int *most_tiled, struct error *e) {
    const char *how = job->request.vae_tiling;
    bool matters = tiling_matters(job, e);
    *least_tiled = asked_for(how, "on") && matters && tiling_saves(job, rates, e);
    *most_tiled = *least_tiled || (matters && !asked_for(how, "on") && !asked_for(how, "off"));
    return e->code;
}

static enum status measure_ways(struct job *job, struct error *e) {
    struct rates rates;
    int most = job->decode_only ? 1 : job->batch, tiled, most_tiled;
    lay_out_lanes(job, 1);
    if (find_rates(job, &rates, e) != OK || decide_hoisting(job, e) != OK) return e->code;
    if (decide_tiling(job, &rates, &tiled, &most_tiled, e) != OK) return e->code;
    for (int groups = 1; groups; groups = next_groups(most, groups)) job->n_needs += 1 + most_tiled - tiled;
    job->needs = job->sys->alloc(job->sys, LINE_HOST, (size_t)job->n_needs * sizeof *job->needs);
    if (!job->needs) return error_set(e, MEMORY, "no memory for what a run needs");
    struct run_need *need = job->needs;
    int first = tiled;
    for (; tiled <= most_tiled; tiled++)
        for (int groups = 1; groups && e->code == OK; groups = next_groups(most, groups)) {
            job->tiled = tiled;
            if (lay_out_groups(job, groups, e) == OK) measure(job, &rates, need++, e);
        }
    return e->code == OK ? job_lay_out(job, 1, first, e) : e->code;
}

static int need_groups(const struct job *job, const struct run_need *need) {
    int groups = 1;
    for (int s = 0; s < job->n_stages; s++)
        if (job->kind[s] == STAGE_DENOISE) groups = need->stage[s].groups;
    return groups;
}

static bool need_tiled(const struct job *job, const struct run_need *need) {
    bool tiled = false;
    for (int s = 0; s < job->n_stages; s++)
        if (has_pictures(job->kind[s])) tiled = need->stage[s].tiled;
    return tiled;
}

enum status job_lay_out(struct job *job, int groups, bool tiled, struct error *e) {
    bool same = job->groups == groups && job->tiled == tiled;
    job->need = NULL;
    for (int i = 0; i < job->n_needs; i++)
        if (need_groups(job, &job->needs[i]) == groups && need_tiled(job, &job->needs[i]) == tiled)
            job->need = &job->needs[i];
    job->tiled = tiled;
    if (job->need) return same ? OK : lay_out_groups(job, groups, e);
    error_set(e, BUDGET, "the plan lays the request out in a way that it cannot be");
    error_found(e, "%d groups of %d images, vae_tiling %s", groups, job->batch, tiled ? "on" : "off");
    return error_expected(e, "a number of groups that `plan` chooses, vae_tiling as asked for");
}

static enum status no_latent(const struct sluice_model *model, struct error *e) {
    error_set(e, USAGE, "only the autoencoder of this model was opened: it decodes latents and cannot draw");
    error_where(e, "%s", model->name);
    return error_expected(e, "a latent to decode, or the model opened without decodes_only");
}

enum status job_open(struct job *job, const struct job_place *place, const struct sluice_request *request,
                     const int32_t *latent_dim, struct error *e) {
    const struct sluice_model *model = place->model;
    *job = (struct job){.sys = model->sys, .place = *place, .model = model, .device = place->device};
    if (model->decodes_only && !latent_dim) return no_latent(model, e);
    copy_sized(&job->request, sizeof job->request, request);
    struct sluice_request *r = &job->request;
    int factor = model_component(model, FAMILY_DECODER)->pixel_factor;
    for (int i = 0; i < SLOTS_MAX; i++)
        if (model->tokenizer[i]) job->text_slot[job->n_texts++] = i;
    if (latent_dim) {
        job->decode_only = true;
        r->no_decode = false;
        r->batch = latent_dim[0];
        r->height = latent_dim[2] * factor;
        r->width = latent_dim[3] * factor;
        r->cfg_scale = 1;
        r->steps = 1;
    }
    if (request_settle(job, e) != OK || retyped_type(r->type, &job->weights, e) != OK) return e->code;
    if (place->retyped && retyped_make(place->retyped, model, job->weights, e) != OK) return e->code;
    job->batch = r->batch;
    job->Y = r->height / factor;
    job->X = r->width / factor;
    if (!job->decode_only && (encode_prompts(job, e) != OK || make_schedule(job, e) != OK)) return e->code;
    return lay_out_stages(job, e) == OK ? measure_ways(job, e) : e->code;
}

uint64_t job_vram_budget(const struct job *job) {
    int64_t asked = job->request.max_vram_bytes;
    return asked ? (uint64_t)asked : device_default_budget(job->device);
}

enum status job_plan(struct job *job, struct error *e) {
    int64_t budget = job->request.max_ram_bytes;
    if (job->request.plan) return plan_read(job, job->request.plan, e);
    int chosen = plan_choose(job->needs, job->n_needs, budget ? (uint64_t)budget : machine_default_budget(),
                             job_vram_budget(job), &job->plan);
    const struct run_need *need = &job->needs[chosen];
    return job_lay_out(job, need_groups(job, need), need_tiled(job, need), e);
}

enum status job_allocate(struct job *job, struct error *e) {
    struct arena cross = {.bytes = job->need->cross_bytes};
    cross.base = shared_map(job->sys, job->device, LINE_STATE, cross.bytes);
    if (!cross.base) {
        error_set(e, MEMORY, "no memory for latents and pictures");
        return executor_explain(job->device, e);
    }
    lay_out_cross(job, &cross);
    job->cross = cross;
    connect_lanes(job);
    return OK;
}

void job_close(struct job *job) {
    struct sys *sys = job->sys;
    if (!sys) return;
    shared_unmap(sys, job->device, LINE_STATE, job->cross.base, job->cross.bytes);
    visit_list_destroy(&job->visits);
    for (int i = 0; i < SLOTS_MAX * PROMPTS_MAX; i++) {
        block_destroy(sys, &job->rows[i / PROMPTS_MAX][i % PROMPTS_MAX]);
        sys->release(sys, job->tokens[i / PROMPTS_MAX][i % PROMPTS_MAX].ids);
    }
    sys->release(sys, job->sigmas);
    sys->release(sys, job->timesteps);
    sys->release(sys, job->inputs);
    sys->release(sys, job->block_lists);
    sys->release(sys, job->lanes);
    sys->release(sys, job->needs);
    *job = (struct job){0};
}

struct run job_run(struct job *job, const struct run_hooks *hooks) {
    return (struct run){
        .readers = plan_readers(&job->plan),
        .converter = job->weights == N_DTYPES ? NULL : retyped_convert,
        .sys = job->sys,
        .device = job->device,
        .stages = job->stages,
        .n_stages = job->n_stages,
        .visits = &job->visits,
        .hooks = hooks,
    };
}

char *job_numbered(const char *name, int i, char out[16]) {
    i ? snprintf(out, 16, "%s_%d", name, i + 1) : snprintf(out, 16, "%s", name);
    return out;
}

double job_flops(const struct job *job) {
    double flops = 0;
    for (int s = 0; s < job->n_stages; s++) flops += job->need->stage[s].flops;
    return flops;
}
