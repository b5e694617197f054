#include "engine/api/plan_json.h"

#include "engine/api/devices.h"
#include "engine/api/machine.h"
#include "engine/api/preview.h"
#include "engine/api/preview_run.h"
#include "engine/api/stages.h"
#include "kernels/cuda/cards.h"
#include "loaders/json.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

static json_int_t integer(uint64_t bytes) {
    return (json_int_t)bytes;
}

/* Token counts of the prompts for the text encoder in this slot: [positive] or [positive, negative]. */
static json_t *tokens_json(const struct job *job, int slot) {
    json_t *tokens = json_array();
    for (int i = 0; i < job->n_prompts; i++) json_push(tokens, json_integer(job->tokens[slot][i].n_ids));
    return tokens;
}

static void put_skipped(const struct sluice_request *r, json_t *json) {
    json_t *layers = json_array();
    for (int i = 0; i < r->n_slg_layers; i++) json_push(layers, json_integer(r->slg_layers[i]));
    json_put(json, "slg_layers", layers);
    json_put(json, "slg_scale", json_real(r->slg_scale));
    json_put(json, "slg_start", json_real(r->slg_start));
    json_put(json, "slg_end", json_real(r->slg_end));
}

static void put_pictures(const struct job *job, json_t *json) {
    const struct sluice_request *r = &job->request;
    json_t *references = json_array();
    if (r->init_image && job->model->init == INIT_IMG2IMG) json_put(json, "strength", json_real(r->strength));
    json_put(json, "init_image", json_boolean(r->init_image));
    if (r->n_control) json_put(json, "control", json_integer(r->n_control));
    if (r->end_image) json_put(json, "end_image", json_true());
    if (job->frames_assumed) json_put(json, "frames_assumed", json_true());
    json_put(json, "mask", json_boolean(r->mask));
    if (r->init_image) json_put(json, "fit", json_string(r->fit ? r->fit : fit_name(FIT_CROP)));
    for (int i = 0; i < r->n_references; i++)
        json_push(references, json_pack("{s:i, s:i}", "width", job->reference_size[i].width, "height",
                                        job->reference_size[i].height));
    json_put(json, "references", references);
    if (job->reference_assumed) json_put(json, "reference_assumed", json_true());
    if (job->mask_assumed) json_put(json, "mask_assumed", json_true());
}

/* Lists text encoders that the model lacks, whose embeddings are replaced by zeros. */
static json_t *absent_json(const struct sluice_model *m) {
    json_t *json = json_array();
    for (int i = 0; m->recipe->slot[i].family; i++)
        if (m->recipe->slot[i].family->kind == FAMILY_TEXT && !m->component[i].family)
            json_push(json, json_string(m->recipe->slot[i].folder));
    return json;
}

static json_t *preview_json(const struct job *job) {
    struct stage_need takes = {0};
    preview_run_add_need(job, true, &takes);
    return json_pack("{s:s, s:i, s:i, s:I, s:I}", "how", job->request.preview, "every",
                     job->request.preview_every, "pictures", preview_count(job), "ram_bytes",
                     integer(takes.callback_ram_bytes), "vram_bytes", integer(takes.callback_vram_bytes));
}

/* The request's adapters. File names need not be UTF-8: json_string_of replaces invalid bytes. */
static json_t *loras_json(const struct job *job) {
    const struct session_adapters *a = job->decode_only ? NULL : job->context.adapters;
    json_t *json = json_array();
    for (int i = 0; a && i < a->n_files; i++) {
        const struct loaded_adapter *file = a->file[i];
        json_push(json, json_pack("{s:o, s:f, s:I, s:i, s:i}", "name", json_string_of(file->name), "strength",
                                  file->lora.strength, "bytes", (json_int_t)file->lora.identity.bytes,
                                  "modules", file->match.n_modules, "unmatched", file->match.n_unmatched));
    }
    return json;
}

static json_t *request_json(const struct job *job) {
    const struct sluice_request *r = &job->request;
    const struct recipe *recipe = job->model->recipe;
    json_t *json = json_pack("{s:o, s:s, s:i, s:i, s:i, s:f, s:f, s:i, s:s, s:o, s:b, s:b, s:s}", "model",
                             json_string_of(job->model->name), "family", recipe->name, "width", r->width,
                             "height", r->height, "steps", r->steps, "cfg_scale", r->cfg_scale, "flow_shift",
                             r->flow_shift, "batch", job->batch, "precision", precision_name(job->precision),
                             "tokens", tokens_json(job, job->text_slot[0]), "longest_prompt_assumed",
                             !job->decode_only && (!r->prompt || job->model->published), "decode",
                             !r->no_decode, "vae_tiling", r->vae_tiling ? r->vae_tiling : "auto");
    if (json && job->weights != N_DTYPES) json_put(json, "type", json_string(dtype_name(job->weights)));
    if (r->converted) json_put(json, "converted", json_true());
    const struct component *tiny = job_tiny_decoder(job);
    if (tiny) json_put(json, "decoder", json_string(tiny->family->name));
    if (json && r->frames > 1) json_put(json, "frames", json_integer(r->frames));
    if (!json || job->decode_only) return json;
    for (int i = 1; i < job->n_texts; i++) {
        char key[16];
        json_put(json, job_numbered("tokens", i, key), tokens_json(job, job->text_slot[i]));
    }
    json_t *absent = absent_json(job->model);
    json_array_size(absent) ? json_put(json, "absent", absent) : json_decref(absent);
    json_put(json, "sampler", json_string(job->sampling.sampler->name));
    json_put(json, "scheduler", json_string(sampling_schedule_name(&job->sampling)));
    json_put(json, "prediction", json_string(job->sampling.prediction->name));
    if (r->cfg_scale_low != 0) json_put(json, "cfg_scale_low", json_real(r->cfg_scale_low));
    if (job->model->boundary > 0) json_put(json, "boundary", json_real(job->model->boundary));
    if (job->n_prompts > 1 && recipe->default_negative && r->negative_prompt == recipe->default_negative)
        json_put(json, "negative_prompt", json_string(recipe->default_negative));
    if (recipe->takes_guidance) json_put(json, "guidance", json_real(r->guidance));
    if (job->n_encoded_prompts < job->n_prompts) json_put(json, "zero_negative", json_true());
    if (prompt_cache_count_hits(job)) json_put(json, "recalled", json_integer(prompt_cache_count_hits(job)));
    json_t *loras = loras_json(job);
    json_array_size(loras) ? json_put(json, "loras", loras) : json_decref(loras);
    if (r->clip_skip) json_put(json, "clip_skip", json_integer(r->clip_skip));
    if (r->prompt_weights) json_put(json, "prompt_weights", json_string(r->prompt_weights));
    if (job_branches(job) > job->n_prompts) put_skipped(r, json);
    put_pictures(job, json);
    if (job->preview != PREVIEW_NONE) json_put(json, "preview", preview_json(job));
    return json;
}

static const char *tier(const struct plan_stage *stage, int block) {
    return plan_is_resident(stage, block) || plan_is_pooled(stage, block) ? "ram" : "disk";
}

static json_t *blocks_json(const struct job *job, int s) {
    const struct plan_stage *p = &job->plan.stage[s];
    json_t *blocks = json_array();
    for (int i = 0; i < job->layout.stages[s].n_blocks; i++)
        json_push(blocks,
                  json_pack("{s:s, s:I, s:b, s:b, s:s}", "name", job->layout.stages[s].blocks[i]->name,
                            "bytes", integer(job->need->stage[s].block_bytes[i]), "resident",
                            (int)plan_is_resident(p, i), "hoisted", (int)job->need->stage[s].hoists, "tier",
                            tier(p, i)));
    return blocks;
}

/* Adds the adapters' share of a stage: bytes in the stage's blocks (resident blocks included) and FLOPs. */
static void put_adapters(const struct job *job, int s, json_t *json) {
    const struct stage *stage = &job->layout.stages[s];
    uint64_t bytes = 0;
    for (int i = 0; i < stage->n_blocks; i++) bytes += stage->blocks[i]->adapter_bytes;
    if (!bytes) return;
    json_put(json, "adapter_bytes", json_integer(integer(bytes)));
    json_put(json, "adapter_flops", json_real(job->need->stage[s].adapter_flops));
}

/* Adds predicted times to a plan's JSON (null if no rates are available). */
static void put_times(json_t *json, double seconds, double floor_seconds, int bound) {
    static const char *const names[N_BOUNDS] = {"compute", "bus", "disk"};
    bool known = seconds > 0;
    json_put(json, "seconds", known ? json_real(seconds) : json_null());
    json_put(json, "floor_seconds", known ? json_real(floor_seconds) : json_null());
    json_put(json, "bound", known ? json_string(names[bound]) : json_null());
}

/* Limits on the threads that read a stage's weights, which a user may add to a plan file: how far to read
 * ahead, whether blocks may wrap around the ring's end, when to wait. */
static const struct {
    const char *key;
    size_t offset;
    int most;
} copier_limits[] = {{"depth", offsetof(struct plan_stage, depth), 1 << 20},
                     {"no_wrap", offsetof(struct plan_stage, no_wrap), 1},
                     {"waits", offsetof(struct plan_stage, waits), 1}};
enum { N_COPIER_LIMITS = sizeof copier_limits / sizeof *copier_limits };

static int32_t *copier_limit(struct plan_stage *stage, int i) {
    return (int32_t *)((char *)stage + copier_limits[i].offset);
}

static json_t *stage_json(const struct job *job, int s) {
    struct plan_stage p = job->plan.stage[s];
    json_t *json = json_pack(
        "{s:s, s:s, s:i, s:i, s:i, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f}", "name", p.name,
        "family", p.family, "evaluations", p.evaluations, "lanes", p.lanes, "groups", (int)p.groups, "blocks",
        blocks_json(job, s), "resident_bytes", integer(p.resident_bytes), "streamed_bytes_per_evaluation",
        integer(p.streamed_bytes_per_evaluation), "ring_bytes", integer(p.ring_bytes), "state_bytes",
        integer(p.state_bytes), "activation_bytes", integer(p.activation_bytes), "workspace_bytes",
        integer(p.workspace_bytes), "library_bytes", integer(p.library_bytes), "peak_vram_bytes",
        integer(p.peak_vram_bytes), "peak_ram_bytes", integer(p.peak_ram_bytes), "flops", p.flops);
    if (!json) return NULL;
    put_times(json, p.seconds, p.floor_seconds, p.bound);
    put_adapters(job, s, json);
    for (int i = 0; i < N_COPIER_LIMITS; i++)
        if (*copier_limit(&p, i)) json_put(json, copier_limits[i].key, json_integer(*copier_limit(&p, i)));
    if (job->layout.kind[s]->full_frames) json_put(json, "vae_tiling", json_string(p.tiled ? "on" : "off"));
    if (job->need->separate) {
        json_put(json, "pool_bytes", json_integer(integer(p.pool_bytes)));
        json_put(json, "staging_bytes", json_integer(integer(p.staging_bytes)));
        json_put(json, "pinned_bytes", json_integer(integer(p.pinned_bytes)));
    }
    if (p.pictures_on_host) json_put(json, "pictures_on_host", json_true());
    return json;
}

static json_t *two_budgets(uint64_t vram, uint64_t ram) {
    return json_pack("{s:I, s:I}", "vram_bytes", integer(vram), "ram_bytes", integer(ram));
}

/* Name of the rates file, or the kind of rates if there is no file. A file name need not be UTF-8. */
static json_t *rates_name(const struct job *job) {
    const struct sluice_request *r = &job->request;
    if (!r->rates) return json_string(job->device->card ? "card" : "default");
    return json_string_of(r->rates_name ? r->rates_name : "given");
}

/* Keys of a plan's JSON whose numbers are assumed, not measured, if this machine lacks the planned device. */
static json_t *assumed(const struct job *job) {
    json_t *keys = json_pack("[s, s]", "device_bytes", "base_bytes");
    if (!job->request.rates) json_push(keys, json_string("rates"));
    if (!job->request.max_vram_bytes) json_push(keys, json_string("budget.vram_bytes"));
    return keys;
}

json_t *plan_json(const struct job *job) {
    const struct plan *p = &job->plan;
    char hash[17];
    json_t *stages = json_array();
    for (int s = 0; s < p->n_stages; s++) json_push(stages, stage_json(job, s));
    json_t *json =
        json_pack("{s:i, s:o, s:s, s:s, s:s, s:o, s:o, s:o, s:o, s:b, s:I, s:I, s:I, s:I}", "version", 1,
                  "request", request_json(job), "device", job->device->name, "precision",
                  precision_name(job->precision), "hash", plan_hash(p, hash), "rates", rates_name(job),
                  "budget", two_budgets(p->vram_budget_bytes, p->ram_budget_bytes), "peak",
                  two_budgets(p->vram_peak_bytes, p->ram_peak_bytes), "least",
                  two_budgets(p->vram_least_bytes, p->ram_least_bytes), "keep", (int)p->keep, "base_bytes",
                  integer(p->base_bytes), "host_bytes", integer(p->host_bytes), "cross_bytes",
                  integer(p->interstage_bytes), "bounce_bytes", integer(p->bounce_bytes));
    if (!json) {
        json_decref(stages);
        return NULL;
    }
    put_times(json, p->seconds, p->floor_seconds, p->bound);
    if (job->need->separate) json_put(json, "device_bytes", json_integer(integer(job->need->device_bytes)));
    if (job->need->pin_limit_bytes)
        json_put(json, "pin_limit_bytes", json_integer(integer(job->need->pin_limit_bytes)));
    if (job->device->plan_only) json_put(json, "assumed", assumed(job));
    if (job->device->card) json_put(json, "card", json_string(job->device->card->words));
    json_put(json, "stages", stages);
    return json;
}

static const char *plan_name(const struct job *job) {
    return job->request.plan_name ? job->request.plan_name : "plan";
}

/* Sets the place of an error: the plan file and, unless `where` is NULL, a stage of the plan. */
static enum status set_plan_place(const struct job *job, const char *where, struct error *e) {
    return where ? error_where(e, "%s, %s", plan_name(job), where) : error_where(e, "%s", plan_name(job));
}

static enum status plan_invalid(const struct job *job, struct error *e, const char *what, const char *where) {
    error_set(e, META, "invalid plan file: %s", what);
    set_plan_place(job, where, e);
    return error_expected(e, "the output of `sluice plan --json`");
}

static enum status plan_mismatch(const struct job *job, struct error *e, const char *what,
                                 const char *where) {
    error_set(e, BUDGET, "this plan was made for another request or model: %s", what);
    return set_plan_place(job, where, e);
}

/* A number, boolean or string as text for messages; out has 48 bytes. Returns out. */
static const char *value_text(const json_t *value, char out[48]) {
    if (json_is_number(value))
        snprintf(out, 48, "%.10g", json_number_value(value));
    else
        snprintf(out, 48, "%.40s",
                 json_is_string(value)    ? json_string_value(value)
                 : json_is_true(value)    ? "true"
                 : json_is_boolean(value) ? "false"
                                          : "another kind of value");
    return out;
}

/* Fails with BUDGET if the plan was made for a request that differs from the job's in a field that changes
 * the visits or the sizes of tensors. A field that the plan lacks is not compared. Prompts and seeds may
 * differ. */
static enum status check_same_request(const struct job *job, const json_t *theirs, struct error *e) {
    static const char *const keys[] = {"family", "width",   "height", "frames",  "steps",
                                       "batch",  "sampler", "decode", "strength"};
    char found[48], expected[48];
    json_t *ours = request_json(job);
    if (!ours) return error_set(e, MEMORY, "no memory to compare the plan with the request");
    for (size_t i = 0; i < sizeof keys / sizeof *keys && e->code == OK; i++) {
        const json_t *a = json_object_get(theirs, keys[i]), *b = json_object_get(ours, keys[i]);
        if (!a || !b || json_equal(a, b)) continue;
        plan_mismatch(job, e, "its request differs", NULL);
        error_found(e, "%s %s in the plan", keys[i], value_text(a, found));
        error_expected(e, "%s %s as requested, or a new plan (`sluice plan ... --json`)", keys[i],
                       value_text(b, expected));
    }
    json_decref(ours);
    if (e->code != OK || !json_is_object(theirs)) return e->code;
    json_int_t frames = json_integer_value(json_object_get(theirs, "frames"));
    if ((frames ? frames : 1) != job->request.frames) {
        plan_mismatch(job, e, "its request differs", NULL);
        error_found(e, "frames %lld in the plan", (long long)(frames ? frames : 1));
        error_expected(e, "frames %d as requested, or a new plan (`sluice plan ... --json`)",
                       job->request.frames);
    }
    size_t prompts = json_array_size(json_object_get(theirs, "tokens"));
    if (prompts && (int)prompts != job->n_prompts) {
        plan_mismatch(job, e, "guidance (--cfg-scale) differs", NULL);
        error_found(e, "a plan with %s", prompts > 1 ? "guidance" : "no guidance (--cfg-scale 1)");
        error_expected(e, "a plan with %s", job->n_prompts > 1 ? "guidance" : "no guidance (--cfg-scale 1)");
    }
    return e->code;
}

static enum status read_blocks(const struct job *job, int s, json_t *blocks, struct plan_stage *p,
                               struct error *e) {
    const struct stage *stage = &job->layout.stages[s];
    if ((int)json_array_size(blocks) != stage->n_blocks) {
        plan_mismatch(job, e, "the number of blocks differs", stage->name);
        error_found(e, "%d blocks", (int)json_array_size(blocks));
        return error_expected(e, "%d blocks", stage->n_blocks);
    }
    for (int i = 0; i < stage->n_blocks; i++) {
        json_t *block = json_array_get(blocks, (size_t)i);
        const char *name = json_string_value(json_object_get(block, "name"));
        json_t *resident = json_object_get(block, "resident");
        if (!name || !json_is_boolean(resident))
            return plan_invalid(job, e, "a block lacks \"name\" or \"resident\"", stage->name);
        if (strcmp(name, stage->blocks[i]->name)) {
            plan_mismatch(job, e, "the names of blocks differ", stage->name);
            error_found(e, "block \"%.100s\"", name);
            return error_expected(e, "block \"%s\"", stage->blocks[i]->name);
        }
        plan_set_resident(p, i, json_is_true(resident));
        const char *rests = json_string_value(json_object_get(block, "tier"));
        plan_set_pooled(p, i,
                        job->need->separate && rests && !strcmp(rests, "ram") && !json_is_true(resident));
    }
    return OK;
}

/* Reads the limits on the reader threads; an absent limit is 0. */
static enum status read_copier_limits(const struct job *job, json_t *from, struct plan_stage *p,
                                      struct error *e) {
    for (int i = 0; i < N_COPIER_LIMITS; i++) {
        json_t *value = json_object_get(from, copier_limits[i].key);
        *copier_limit(p, i) = 0;
        if (!value) continue;
        json_int_t number = json_integer_value(value);
        if (!json_is_integer(value) || number < 0 || number > copier_limits[i].most) {
            error_set(e, META, "invalid plan file: \"%s\" is out of range", copier_limits[i].key);
            set_plan_place(job, p->name, e);
            return error_expected(e, "a whole number from 0 to %d", copier_limits[i].most);
        }
        *copier_limit(p, i) = (int32_t)number;
    }
    return OK;
}

/* Reads the staging buffer's size; if absent, the planner's size stays. */
static enum status read_staging(const struct job *job, const json_t *bytes, struct plan_stage *p,
                                struct error *e) {
    json_int_t n = json_integer_value(bytes), most = 1 << 30;
    if (!bytes) return OK;
    if (!json_is_integer(bytes) || n < 0 || n > most)
        return plan_invalid(job, e, "\"staging_bytes\" is not a size from 0 to 1 GiB", p->name);
    p->staging_bytes = align_up((uint64_t)n, PLAN_PAGE);
    return OK;
}

static enum status read_stage(const struct job *job, int s, json_t *from, struct plan_stage *p,
                              struct error *e) {
    const char *name = json_string_value(json_object_get(from, "name"));
    json_t *ring = json_object_get(from, "ring_bytes"), *blocks = json_object_get(from, "blocks");
    if (!name || !json_is_integer(ring) || json_integer_value(ring) < 0 || !json_is_array(blocks))
        return plan_invalid(job, e, "a stage lacks \"name\", \"ring_bytes\" or \"blocks\"", name);
    if (strcmp(name, p->name)) {
        plan_mismatch(job, e, "the names of stages differ", NULL);
        error_found(e, "stage \"%.100s\"", name);
        return error_expected(e, "stage \"%s\"", p->name);
    }
    uint64_t bytes = (uint64_t)json_integer_value(ring);
    if (bytes > (uint64_t)1 << 50) return plan_mismatch(job, e, "\"ring_bytes\" is above 1 PiB", name);
    p->ring_bytes = align_up(bytes, PLAN_PAGE);
    if (read_staging(job, json_object_get(from, "staging_bytes"), p, e) != OK) return e->code;
    json_t *pictures = json_object_get(from, "pictures_on_host");
    if (pictures && !json_is_boolean(pictures))
        return plan_invalid(job, e, "\"pictures_on_host\" is neither true nor false", name);
    p->pictures_on_host = json_is_true(pictures);
    if (read_copier_limits(job, from, p, e) != OK) return e->code;
    return read_blocks(job, s, blocks, p, e);
}

/* Reads a plan's "bounce_bytes" (buffer for direct reads past the page cache), unless the request sets
 * direct_io. */
static enum status read_bounce(struct job *job, json_t *bounce, struct error *e) {
    const char *asked = job->request.direct_io;
    json_int_t bytes = json_integer_value(bounce), most = 1 << 30;
    if (asked && strcmp(asked, "auto")) return OK;
    if ((bounce && !json_is_integer(bounce)) || bytes < 0 || bytes > most)
        return plan_invalid(job, e, "\"bounce_bytes\" is not a size from 0 to 1 GiB", NULL);
    job->need->bounce_bytes = align_up((uint64_t)bytes, PLAN_DIRECT_READERS * PLAN_PAGE);
    return OK;
}

/* The value of a key in a plan's last stage of the given kind; NULL if the stage or the key is missing. */
static json_t *stage_value(const struct job *job, json_t *stages, const struct stage_kind *kind,
                           const char *key) {
    json_t *value = NULL;
    for (int s = 0; s < job->layout.n_stages; s++)
        if (job->layout.kind[s] == kind) value = json_object_get(json_array_get(stages, (size_t)s), key);
    return value;
}

/* Lays the job out with the plan's number of image groups (absent: 1) and VAE tiling (absent: unchanged). */
static enum status read_layout(struct job *job, json_t *stages, struct error *e) {
    json_t *groups = stage_value(job, stages, &stage_denoise, "groups");
    json_t *tiling = stage_value(job, stages, &stage_decode, "vae_tiling");
    const char *how = json_string_value(tiling);
    json_int_t n = groups ? json_integer_value(groups) : 1;
    bool tiled = tiling ? how && !strcmp(how, "on") : job->layout.choice.tiled;
    if ((groups && !json_is_integer(groups)) || n < 1 || n > BATCH_MAX)
        return plan_invalid(job, e, "\"groups\" is not a whole number from 1 to the batch limit", "denoise");
    if (tiling && (!how || (!tiled && strcmp(how, "off"))))
        return plan_invalid(job, e, "\"vae_tiling\" is neither \"on\" nor \"off\"", "decode");
    return job_lay_out(job, (int)n, tiled, e);
}

/* If a plan file exceeds its budget, reports the plan's own peak as the smallest possible budget, since no
 * other plan is considered. */
static void set_least_to_peak(struct plan *plan) {
    if (plan->ram_peak_bytes > plan->ram_budget_bytes) plan->ram_least_bytes = plan->ram_peak_bytes;
    if (plan->vram_peak_bytes > plan->vram_budget_bytes) plan->vram_least_bytes = plan->vram_peak_bytes;
}

/* Removes the text stages of a plan if all prompts now come from the prompt cache: the plan was made before
 * the prompts were cached. */
static void drop_cached_texts(const struct job *job, json_t *stages) {
    for (int s = 0; s < job->layout.n_stages; s++)
        if (job->layout.kind[s] == &stage_text) return;
    for (size_t i = json_array_size(stages); i > 0 && prompt_cache_count_hits(job); i--) {
        const char *name = json_string_value(json_object_get(json_array_get(stages, i - 1), "name"));
        if (name && (!strcmp(name, "text") || !strncmp(name, "text_", 5))) json_array_remove(stages, i - 1);
    }
}

static enum status read_plan(struct job *job, json_t *root, struct error *e) {
    json_t *stages = json_object_get(root, "stages"), *budget = json_object_get(root, "budget");
    json_t *ram = json_object_get(budget, "ram_bytes"), *vram = json_object_get(budget, "vram_bytes");
    if (json_integer_value(json_object_get(root, "version")) != 1 || !json_is_array(stages))
        return plan_invalid(job, e, "\"version\" is not 1, or \"stages\" is missing", NULL);
    if (check_same_request(job, json_object_get(root, "request"), e) != OK) return e->code;
    drop_cached_texts(job, stages);
    uint64_t bytes = (uint64_t)job->request.max_ram_bytes;
    if (!bytes && json_is_integer(ram) && json_integer_value(ram) > 0)
        bytes = (uint64_t)json_integer_value(ram);
    if (read_layout(job, stages, e) != OK || read_bounce(job, json_object_get(root, "bounce_bytes"), e) != OK)
        return e->code;
    uint64_t device_bytes = (uint64_t)job->request.max_vram_bytes;
    if (!device_bytes && json_is_integer(vram) && json_integer_value(vram) > 0)
        device_bytes = (uint64_t)json_integer_value(vram);
    plan_solve(job->need, bytes ? bytes : machine_default_budget(),
               device_bytes ? device_bytes : device_default_budget(job->device), &job->plan);
    if ((int)json_array_size(stages) != job->layout.n_stages) {
        plan_mismatch(job, e, "the number of stages differs", NULL);
        error_found(e, "%d stages", (int)json_array_size(stages));
        return error_expected(e, "%d stages", job->layout.n_stages);
    }
    const char *device = json_string_value(json_object_get(root, "device"));
    if (device && strcmp(device, job->device->name)) {
        plan_mismatch(job, e, "another device", NULL);
        error_found(e, "%.100s", device);
        return error_expected(e, "a plan for --device %s", job->device->name);
    }
    const char *precision = json_string_value(json_object_get(root, "precision"));
    if (precision && strcmp(precision, precision_name(job->precision))) {
        plan_mismatch(job, e, "another precision", NULL);
        error_found(e, "%.100s", precision);
        return error_expected(e, "a plan for --precision %s", precision_name(job->precision));
    }
    const char *type = json_string_value(json_object_get(json_object_get(root, "request"), "type"));
    if (strcmp(type ? type : "", job->weights == N_DTYPES ? "" : dtype_name(job->weights))) {
        plan_mismatch(job, e, "another weight type (--type)", NULL);
        error_found(e, "%.100s", type ? type : "the files' own types");
        return error_expected(e, "%s",
                              job->weights == N_DTYPES ? "the files' own types" : dtype_name(job->weights));
    }
    json_t *loras = loras_json(job), *theirs = json_object_get(json_object_get(root, "request"), "loras");
    bool alike = json_equal(loras, theirs) || (!theirs && !json_array_size(loras));
    json_decref(loras);
    if (!alike) {
        plan_mismatch(job, e, "other LoRAs (--lora) or strengths", NULL);
        return error_expected(e, "a new plan with these LoRAs (`sluice plan ... --json`)");
    }
    json_t *keep = json_object_get(root, "keep");
    if (keep && !json_is_boolean(keep))
        return plan_invalid(job, e, "\"keep\" is neither true nor false", NULL);
    job->plan.keep = json_is_true(keep);
    for (int s = 0; s < job->layout.n_stages && e->code == OK; s++)
        read_stage(job, s, json_array_get(stages, (size_t)s), &job->plan.stage[s], e);
    plan_evaluate(job->need, &job->plan);
    set_least_to_peak(&job->plan);
    return e->code;
}

/* Fails with META for text with more JSON values than any plan has, because each parsed value takes tens of
 * bytes of memory. */
static enum status check_values(const struct job *job, const char *text, struct error *e) {
    enum { VALUES_MAX = PLAN_STAGES_MAX * PLAN_BLOCKS_MAX * 8 };
    size_t n = 0;
    for (const char *at = text; (at = strpbrk(at, ",[{")); at++) n++;
    return n <= VALUES_MAX ? OK : plan_invalid(job, e, "more values than any plan has", NULL);
}

enum status plan_read(struct job *job, const char *text, struct error *e) {
    json_t *root = NULL;
    if (check_values(job, text, e) == OK && json_parse(plan_name(job), text, strlen(text), 8, &root, e) == OK)
        read_plan(job, root, e);
    json_decref(root);
    return e->code;
}

enum status plan_take(struct job *job, struct error *e) {
    return job->request.plan ? plan_read(job, job->request.plan, e) : job_plan(job, e);
}
