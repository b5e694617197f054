/* Jobs: see job.h. */
#include "engine/api/job.h"

#include "engine/api/devices.h"
#include "engine/api/machine.h"
#include "engine/api/plan_json.h"
#include "engine/api/rate.h"
#include "engine/api/rates_file.h"
#include "engine/sample/flow.h"

#include <stdio.h>
#include <string.h>

/* ---- the request ---- */

static enum status usage(struct error *e, const char *flag, double found, const char *expected) {
    error_set(e, USAGE, "%s cannot be used", flag);
    error_found(e, "%g", found);
    return error_expected(e, "%s", expected);
}

static enum status check_size(const struct job *job, struct error *e) {
    const struct sluice_request *r = &job->request;
    char multiple[64];
    snprintf(multiple, sizeof multiple, "a multiple of %d from %d to 16384", job->model->size_step,
             job->model->size_step);
    int step = job->model->size_step;
    if (r->width < step || r->width > 16384 || r->width % step)
        return usage(e, "the width (-W)", r->width, multiple);
    if (r->height < step || r->height > 16384 || r->height % step)
        return usage(e, "the height (-H)", r->height, multiple);
    return OK;
}

static bool asked_for(const char *choice, const char *how) {
    return choice && !strcmp(choice, how);
}

static enum status check_choice(const char *flag, const char *how, struct error *e) {
    if (!how || asked_for(how, "on") || asked_for(how, "off") || asked_for(how, "auto")) return OK;
    error_set(e, USAGE, "%s cannot be used like this", flag);
    error_found(e, "%s", how);
    return error_expected(e, "auto, on or off");
}

/* A percentage becomes bytes. */
static enum status find_device_budget(struct job *job, struct error *e) {
    struct sluice_request *r = &job->request;
    uint64_t all = job->device->memory_bytes;
    if (!job->device->memory || r->max_vram_percent == 0 || r->max_vram_bytes) return OK;
    if (!all) {
        error_set(e, USAGE, "--max-vram as a percentage needs a GPU that it is a part of");
        error_found(e, "%g%%", r->max_vram_percent);
        return error_expected(e, "a size, as 8G");
    }
    if (!(r->max_vram_percent > 0 && r->max_vram_percent <= 100))
        return usage(e, "the percentage of device memory", r->max_vram_percent, "more than 0, up to 100");
    r->max_vram_bytes = (int64_t)((double)all * r->max_vram_percent / 100);
    return OK;
}

static enum status check_device_budget(const struct job *job, struct error *e) {
    int64_t budget = job->request.max_vram_bytes;
    uint64_t all = job->device->memory_bytes;
    if (budget >= 0 && (!all || (uint64_t)budget <= all)) return OK;
    error_set(e, USAGE, "the budget of device memory (--max-vram) cannot be used");
    error_where(e, "%s", job->device->name);
    error_found(e, "%lld bytes", (long long)budget);
    return all ? error_expected(e, "a positive size up to the device's %llu bytes", (unsigned long long)all)
               : error_expected(e, "a positive size");
}

static enum status check_request(struct job *job, struct error *e) {
    const struct sluice_request *r = &job->request;
    if (!job->decode_only && check_size(job, e) != OK) return e->code;
    if (r->steps < 1 || r->steps > 10000) return usage(e, "the number of steps", r->steps, "1 to 10000");
    if (r->batch < 1 || r->batch > BATCH_MAX) return usage(e, "the batch", r->batch, "1 to 64 images");
    if (!(r->cfg_scale >= 0 && r->cfg_scale <= 1000))
        return usage(e, "--cfg-scale", r->cfg_scale, "0 to 1000");
    if (!(r->flow_shift >= 1e-3 && r->flow_shift <= 1e3))
        return usage(e, "--flow-shift", r->flow_shift, "0.001 to 1000");
    if (r->guidance != 0)
        return usage(e, "--guidance", r->guidance, "nothing: this model is not guidance-distilled");
    if (r->max_ram_bytes < 0)
        return usage(e, "the memory budget", (double)r->max_ram_bytes, "a positive size");
    if (find_device_budget(job, e) != OK || check_device_budget(job, e) != OK) return e->code;
    if (check_choice("--direct-io", r->direct_io, e) != OK) return e->code;
    return check_choice("--vae-tiling", r->vae_tiling, e);
}

/* The most exact one that the device has: its default, and the decoder's. */
static enum precision first_precision(const struct device *device) {
    return device->lacks[PRECISION_F32] ? PRECISION_BF16 : PRECISION_F32;
}

static enum status find_precision(struct job *job, struct error *e) {
    const char *name = job->request.precision;
    int precision = 0;
    if (!name) name = precision_name(first_precision(job->device));
    while (name && precision < N_PRECISIONS && strcmp(name, precision_name((enum precision)precision)))
        precision++;
    const char *lacks =
        precision < N_PRECISIONS ? job->device->lacks[precision] : "there is no such precision";
    job->precision = (enum precision)precision;
    if (!lacks) return OK;
    error_set(e, USAGE, "--precision cannot be used: %s", lacks);
    error_found(e, "%s", name);
    if (job->device->lacks[PRECISION_F32]) return error_expected(e, "bf16, or --device cpu");
    return error_expected(e, job->device->lacks[PRECISION_BF16] ? "f32" : "f32 or bf16");
}

static void fill_defaults(struct job *job) {
    struct sluice_request *r = &job->request;
    const struct sluice_model *m = job->model;
    if (!r->width) r->width = m->width;
    if (!r->height) r->height = m->height;
    if (!r->batch) r->batch = 1;
    if (r->flow_shift == 0) r->flow_shift = m->flow_shift;
}

/* ---- tokens ---- */

/* Without a prompt (planning only): the longest there is. Ids do not matter, their number does. */
static enum status longest_prompt(struct job *job, struct prompt_tokens *tokens, struct error *e) {
    tokens->n_ids = job->model->recipe->text[0].tokens_max;
    tokens->ids = job->sys->alloc(job->sys, LINE_HOST, (size_t)tokens->n_ids * sizeof *tokens->ids);
    return tokens->ids ? OK : error_set(e, MEMORY, "no memory for tokens");
}

static enum status encode_prompt(struct job *job, const char *prompt, struct prompt_tokens *tokens,
                                 struct error *e) {
    return prompt_encode(job->sys, &job->model->recipe->text[0], job->model->tokenizer[0], prompt,
                         strlen(prompt), tokens, e);
}

static enum status encode_prompts(struct job *job, struct error *e) {
    const struct sluice_request *r = &job->request;
    job->n_prompts = r->cfg_scale == 1 ? 1 : 2;
    if (!r->prompt)
        longest_prompt(job, &job->tokens[0], e);
    else
        encode_prompt(job, r->prompt, &job->tokens[0], e);
    if (e->code == OK && job->n_prompts > 1)
        encode_prompt(job, r->negative_prompt ? r->negative_prompt : "", &job->tokens[1], e);
    for (int i = 0; i < job->n_prompts && e->code == OK; i++)
        block_gather_rows(job->sys, &job->model->component[ROLE_TEXT].table, job->tokens[i].ids,
                          job->tokens[i].n_ids, &job->rows[i], e);
    return e->code;
}

/* ---- schedule ---- */

static enum status make_schedule(struct job *job, struct error *e) {
    int n = job->request.steps;
    struct sys *sys = job->sys;
    job->sigmas = sys->alloc(sys, LINE_HOST, (size_t)(n + 1) * sizeof *job->sigmas);
    job->timesteps = sys->alloc(sys, LINE_HOST, (size_t)n * sizeof *job->timesteps);
    job->inputs = sys->alloc(sys, LINE_HOST, (size_t)n * sizeof *job->inputs);
    if (!job->sigmas || !job->timesteps || !job->inputs)
        return error_set(e, MEMORY, "no memory for %d steps", n);
    flow_schedule(&(struct flow_options){.n = n, .shift = job->request.flow_shift}, job->sigmas,
                  job->timesteps);
    for (int i = 0; i < n; i++) job->inputs[i] = (1000 - job->timesteps[i]) / 1000;
    return OK;
}

/* ---- layout ---- */

/* Tensors that cross stages: run twice, counting and for real. */
static void lay_out_cross(struct job *job, struct arena *arena) {
    bool ok = true;
    int32_t C =
        job->model->component[ROLE_DECODER].latent_channels; /* and the transformer's, if it is there */
    int32_t latent[3] = {C, job->Y, job->X}, factor = job->model->component[ROLE_DECODER].pixel_factor;
    for (int i = 0; i < job->n_prompts; i++)
        job->text[i] = arena_tensor(
            arena, DTYPE_F32, 2,
            (int32_t[]){job->tokens[i].n_ids, job->model->component[ROLE_TEXT].text_columns}, &ok);
    for (int i = 0; i < job->batch; i++) job->latent[i] = arena_tensor(arena, DTYPE_F32, 3, latent, &ok);
    for (int i = 0; i < job->together * job->n_prompts; i++)
        job->prediction[i] = arena_tensor(arena, DTYPE_F32, 3, latent, &ok);
    if (job->request.no_decode) return;
    int32_t picture[3] = {job->Y * factor, job->X * factor, 3};
    job->picture = arena_tensor(arena, DTYPE_F32, 3, picture, &ok);
    job->rgb = arena_tensor(arena, DTYPE_U8, 3, picture, &ok);
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
static void connect_lane(struct job *job, enum stage_kind kind, int i, struct lane *lane) {
    *lane = (struct lane){.picture = job->picture, .tiled = job->tiled};
    if (kind == STAGE_TEXT) lane->prompt = i;
    lane->text = job->text[lane->prompt];
    lane->latent = job->latent[kind == STAGE_TEXT ? 0 : i];
}

/* Lanes of a prompt are neighbours in their group: lane = prompt * together + place. */
static void connect_group(struct job *job, int group, struct lane *lanes) {
    int first, n;
    job_images(job, group, &first, &n);
    for (int i = 0; i < job->together * job->n_prompts; i++) {
        int prompt = i / job->together, place = i % job->together;
        lanes[i] = (struct lane){.prompt = prompt,
                                 .text = job->text[prompt],
                                 .latent = job->latent[place < n ? first + place : first],
                                 .prediction = job->prediction[i],
                                 .hoisted = job->hoisted,
                                 .idle = place >= n};
    }
}

static void connect_lanes(struct job *job) {
    for (int s = 0; s < job->n_stages; s++) {
        struct stage *stage = &job->stages[s];
        for (int k = 0; k < stage->n_groups && denoises(job->kind[s]); k++)
            connect_group(job, k, stage->lanes + k * stage->n_lanes);
        for (int i = 0; i < stage->n_lanes && !denoises(job->kind[s]); i++)
            connect_lane(job, job->kind[s], i, &stage->lanes[i]);
    }
}

static void add_stage(struct job *job, enum stage_kind kind, enum role role, const char *name, int n_lanes,
                      int evaluations) {
    int s = job->n_stages++;
    const struct component *c = &job->model->component[role];
    struct stage *stage = &job->stages[s];
    job->kind[s] = kind;
    snprintf(stage->name, sizeof stage->name, "%s", name);
    stage->component = c;
    stage->n_lanes = n_lanes;
    stage->n_groups = 1;
    stage->precision = kind == STAGE_DECODE ? first_precision(job->device) : job->precision;
    stage->evaluations = evaluations;
    stage->n_lasting = c->n_blocks;
    stage->n_blocks = c->n_blocks + (kind == STAGE_TEXT ? job->n_prompts : 0);
    if (kind == STAGE_HOIST) stage->hoists = true;
    if (denoises(kind)) stage->timesteps = job->inputs;
}

static enum status lay_out_stages(struct job *job, struct error *e) {
    struct sys *sys = job->sys;
    int lanes = job->n_prompts * job->batch;
    if (!job->decode_only) {
        add_stage(job, STAGE_TEXT, ROLE_TEXT, "text", job->n_prompts, 1);
        add_stage(job, STAGE_HOIST, ROLE_DENOISER, "hoist", lanes, 1);
        add_stage(job, STAGE_DENOISE, ROLE_DENOISER, "denoise", lanes, job->request.steps);
    }
    if (!job->request.no_decode) add_stage(job, STAGE_DECODE, ROLE_DECODER, "decode", job->batch, job->batch);
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
        for (int i = stage->n_lasting; i < stage->n_blocks; i++) list[i] = &job->rows[i - stage->n_lasting];
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
        stage->component->family->visits(stage->component, s, stage->lanes, stage->n_lanes,
                                         stage->evaluations, &job->visits, e);
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
            if (stage->blocks[i]->kind->hoists) weights += stage->blocks[i]->bytes;
        state_bytes(job, stage, 0, &plain, e);
        state_bytes(job, stage, stage->evaluations, &hoisted, e);
        if (hoisted - plain >= weights) job->hoisted = 0;
    }
    connect_lanes(job);
    return e->code;
}

/* Descriptors of ours that a run takes from the heap, counted generously: visits, fills, lists. */
static uint64_t host_bytes(const struct job *job) {
    uint64_t a_visit = 384, a_token = 128;
    uint64_t tokens = (uint64_t)(job->tokens[0].n_ids + job->tokens[1].n_ids);
    uint64_t needs = (uint64_t)job->n_needs * sizeof *job->needs;
    return align_up(job->model->host_bytes + (uint64_t)job->visits.n_visits * a_visit + tokens * a_token +
                        needs + (1 << 19),
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
        if (job->kind[s] == STAGE_DENOISE) stage->evaluations = job->request.steps * groups;
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

/* As laid out now. */
static enum status measure(struct job *job, const struct rates *rates, struct run_need *need,
                           struct error *e) {
    struct run run = job_run(job, NULL);
    need->rates = *rates;
    need->precision = job->precision;
    if (executor_measure(&run, false, need, e) != OK) return e->code;
    for (int s = 0; s < need->n_stages; s++) need->stage[s].pictures_place = pictures_place(&job->request);
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

/* Whether tiling makes a difference to these pictures. */
static bool tiling_matters(struct job *job, struct error *e) {
    uint64_t state, pictures[2] = {0};
    for (int tiled = 0; tiled < 2; tiled++)
        for (int s = 0; s < job->n_stages; s++) {
            if (job->kind[s] != STAGE_DECODE) continue;
            job->tiled = tiled;
            connect_lanes(job);
            executor_state_bytes(job->sys, &job->stages[s], &state, &pictures[tiled], e);
        }
    return pictures[0] != pictures[1];
}

/* Whether the decode takes less memory tiled: low, flat and narrow pictures are less than their bands. */
static bool tiling_saves(struct job *job, const struct rates *rates, struct error *e) {
    uint64_t taken[2] = {0};
    struct run_need *need = job->sys->alloc(job->sys, LINE_HOST, sizeof *need);
    if (!need) error_set(e, MEMORY, "no memory for what a run needs");
    for (int tiled = 0; tiled < 2 && e->code == OK; tiled++) {
        job->tiled = tiled;
        if (lay_out_groups(job, 1, e) != OK || measure(job, rates, need, e) != OK) break;
        for (int s = 0; s < job->n_stages; s++)
            if (job->kind[s] == STAGE_DECODE)
                taken[tiled] =
                    need->separate ? plan_fixed_vram(need, s, true) : plan_fixed_ram(need, s, false);
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
        if (job->kind[s] == STAGE_DECODE) tiled = need->stage[s].tiled;
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

enum status job_open(struct job *job, const struct sluice_model *model, struct device *device,
                     const struct sluice_request *request, const int32_t *latent_dim, struct error *e) {
    *job = (struct job){.sys = model->sys, .model = model, .device = device};
    if (model->decodes_only && !latent_dim) return no_latent(model, e);
    copy_sized(&job->request, sizeof job->request, request);
    struct sluice_request *r = &job->request;
    int factor = model->component[ROLE_DECODER].pixel_factor;
    if (latent_dim) {
        job->decode_only = true;
        r->no_decode = false;
        r->batch = latent_dim[0];
        r->height = latent_dim[2] * factor;
        r->width = latent_dim[3] * factor;
        r->cfg_scale = 1;
        r->steps = 1;
    }
    fill_defaults(job);
    if (check_request(job, e) != OK || find_precision(job, e) != OK) return e->code;
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
    for (int i = 0; i < PROMPTS_MAX; i++) {
        block_destroy(sys, &job->rows[i]);
        sys->release(sys, job->tokens[i].ids);
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
        .sys = job->sys,
        .device = job->device,
        .stages = job->stages,
        .n_stages = job->n_stages,
        .visits = &job->visits,
        .hooks = hooks,
    };
}

double job_flops(const struct job *job) {
    double flops = 0;
    for (int s = 0; s < job->n_stages; s++) flops += job->need->stage[s].flops;
    return flops;
}
