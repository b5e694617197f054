#include "engine/job/planner.h"

#include "engine/job/candidates.h"
#include "engine/job/prompts.h"
#include "engine/job/stages.h"
#include "engine/machine/device_open.h"
#include "engine/machine/machine.h"
#include "loaders/json.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

const struct plan_copier_limit plan_copier_limits[PLAN_COPIER_LIMITS] = {
    {"depth", offsetof(struct plan_stage, depth), 1 << 20},
    {"no_wrap", offsetof(struct plan_stage, no_wrap), 1},
    {"waits", offsetof(struct plan_stage, waits), 1}};

json_t *planner_list_loras(const struct job *job) {
    const struct session_adapters *a = job->settings.decode_only ? NULL : job->context.adapters;
    json_t *json = json_array();
    for (int i = 0; a && i < a->n_files; i++) {
        const struct loaded_adapter *file = a->file[i];
        json_push(json, json_pack("{s:o, s:f, s:I, s:i, s:i}", "name", json_string_of(file->name), "strength",
                                  file->lora.strength, "bytes", (json_int_t)file->lora.identity.bytes,
                                  "modules", file->match.n_modules, "unmatched", file->match.n_unmatched));
    }
    return json;
}

/* ---- plan files ---- */

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

/* Fails with BUDGET if the plan file's request differs from the job's in a field that changes visits or
 * tensor sizes. A field that the plan file lacks is not compared. Prompts and seeds may differ. */
static enum status check_same_request(const struct job *job, const json_t *theirs, struct error *e) {
    static const char *const keys[] = {"family", "width",   "height", "frames",  "steps",
                                       "batch",  "sampler", "decode", "strength"};
    char found[48], expected[48];
    const struct sluice_request *r = &job->request;
    json_t *ours = json_pack("{s:s, s:i, s:i, s:i, s:i, s:b}", "family", job->model->recipe->name, "width",
                             r->width, "height", r->height, "steps", r->steps, "batch", job->latents.batch,
                             "decode", !r->no_decode);
    if (ours && r->frames > 1) json_put(ours, "frames", json_integer(r->frames));
    if (ours && !job->settings.decode_only)
        json_put(ours, "sampler", json_string(job->settings.sampling.sampler->name));
    if (ours && !job->settings.decode_only && r->init_image && job->model->init == INIT_IMG2IMG)
        json_put(ours, "strength", json_real(r->strength));
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
    if (prompts && (int)prompts != job->settings.n_prompts) {
        plan_mismatch(job, e, "guidance (--cfg-scale) differs", NULL);
        error_found(e, "a plan with %s", prompts > 1 ? "guidance" : "no guidance (--cfg-scale 1)");
        error_expected(e, "a plan with %s",
                       job->settings.n_prompts > 1 ? "guidance" : "no guidance (--cfg-scale 1)");
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
    for (int i = 0; i < PLAN_COPIER_LIMITS; i++) {
        json_t *value = json_object_get(from, plan_copier_limits[i].key);
        *(int32_t *)((char *)p + plan_copier_limits[i].offset) = 0;
        if (!value) continue;
        json_int_t number = json_integer_value(value);
        if (!json_is_integer(value) || number < 0 || number > plan_copier_limits[i].most) {
            error_set(e, META, "invalid plan file: \"%s\" is out of range", plan_copier_limits[i].key);
            set_plan_place(job, p->name, e);
            return error_expected(e, "a whole number from 0 to %d", plan_copier_limits[i].most);
        }
        *(int32_t *)((char *)p + plan_copier_limits[i].offset) = (int32_t)number;
    }
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
    /* Without "staging_bytes" in the plan file, the planner's staging size stays. */
    json_t *staging = json_object_get(from, "staging_bytes");
    json_int_t n = json_integer_value(staging), most = 1 << 30;
    if (staging && (!json_is_integer(staging) || n < 0 || n > most))
        return plan_invalid(job, e, "\"staging_bytes\" is not a size from 0 to 1 GiB", p->name);
    if (staging) p->staging_bytes = align_up((uint64_t)n, PLAN_PAGE);
    json_t *pictures = json_object_get(from, "pictures_on_host");
    if (pictures && !json_is_boolean(pictures))
        return plan_invalid(job, e, "\"pictures_on_host\" is neither true nor false", name);
    p->pictures_on_host = json_is_true(pictures);
    if (read_copier_limits(job, from, p, e) != OK) return e->code;
    return read_blocks(job, s, blocks, p, e);
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
    return candidates_lay_out(job, (int)n, tiled, e);
}

/* Fails with BUDGET if the plan was made for another device, precision, weight type or other adapters. */
static enum status check_same_device(const struct job *job, const json_t *root, struct error *e) {
    const char *device = json_string_value(json_object_get(root, "device"));
    if (device && strcmp(device, job->device->name)) {
        plan_mismatch(job, e, "another device", NULL);
        error_found(e, "%.100s", device);
        return error_expected(e, "a plan for --device %s", job->device->name);
    }
    const char *precision = json_string_value(json_object_get(root, "precision"));
    if (precision && strcmp(precision, precision_name(job->settings.precision))) {
        plan_mismatch(job, e, "another precision", NULL);
        error_found(e, "%.100s", precision);
        return error_expected(e, "a plan for --precision %s", precision_name(job->settings.precision));
    }
    const char *type = json_string_value(json_object_get(json_object_get(root, "request"), "type"));
    if (strcmp(type ? type : "",
               job->settings.weights == N_DTYPES ? "" : dtype_name(job->settings.weights))) {
        plan_mismatch(job, e, "another weight type (--type)", NULL);
        error_found(e, "%.100s", type ? type : "the files' own types");
        return error_expected(e, "%s",
                              job->settings.weights == N_DTYPES ? "the files' own types"
                                                                : dtype_name(job->settings.weights));
    }
    json_t *loras = planner_list_loras(job),
           *theirs = json_object_get(json_object_get(root, "request"), "loras");
    bool alike = json_equal(loras, theirs) || (!theirs && !json_array_size(loras));
    json_decref(loras);
    if (!alike) {
        plan_mismatch(job, e, "other LoRAs (--lora) or strengths", NULL);
        return error_expected(e, "a new plan with these LoRAs (`sluice plan ... --json`)");
    }
    return OK;
}

static enum status read_plan(struct job *job, json_t *root, struct error *e) {
    json_t *stages = json_object_get(root, "stages"), *budget = json_object_get(root, "budget");
    json_t *ram = json_object_get(budget, "ram_bytes"), *vram = json_object_get(budget, "vram_bytes");
    if (json_integer_value(json_object_get(root, "version")) != 1 || !json_is_array(stages))
        return plan_invalid(job, e, "\"version\" is not 1, or \"stages\" is missing", NULL);
    if (check_same_request(job, json_object_get(root, "request"), e) != OK) return e->code;
    /* If all prompts are cache hits, drops the text stages of a plan file that was made before these prompts
     * were cached. */
    bool cached = prompts_count_hits(job) > 0;
    for (int s = 0; s < job->layout.n_stages; s++) cached = cached && job->layout.kind[s] != &stage_text;
    for (size_t i = json_array_size(stages); i > 0 && cached; i--) {
        const char *name = json_string_value(json_object_get(json_array_get(stages, i - 1), "name"));
        if (name && (!strcmp(name, "text") || !strncmp(name, "text_", 5))) json_array_remove(stages, i - 1);
    }
    uint64_t bytes = (uint64_t)job->request.max_ram_bytes;
    if (!bytes && json_is_integer(ram) && json_integer_value(ram) > 0)
        bytes = (uint64_t)json_integer_value(ram);
    if (read_layout(job, stages, e) != OK) return e->code;
    /* Takes the size of the bounce buffer for direct reads from the plan file, unless the request sets
     * direct_io. */
    json_t *bounce = json_object_get(root, "bounce_bytes");
    json_int_t bounce_bytes = json_integer_value(bounce), most = 1 << 30;
    if (!job->request.direct_io || !strcmp(job->request.direct_io, "auto")) {
        if ((bounce && !json_is_integer(bounce)) || bounce_bytes < 0 || bounce_bytes > most)
            return plan_invalid(job, e, "\"bounce_bytes\" is not a size from 0 to 1 GiB", NULL);
        job->need->bounce_bytes = align_up((uint64_t)bounce_bytes, PLAN_DIRECT_READERS * PLAN_PAGE);
    }
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
    if (check_same_device(job, root, e) != OK) return e->code;
    json_t *keep = json_object_get(root, "keep");
    if (keep && !json_is_boolean(keep))
        return plan_invalid(job, e, "\"keep\" is neither true nor false", NULL);
    job->plan.keep = json_is_true(keep);
    for (int s = 0; s < job->layout.n_stages && e->code == OK; s++)
        read_stage(job, s, json_array_get(stages, (size_t)s), &job->plan.stage[s], e);
    plan_evaluate(job->need, &job->plan);
    /* If a plan file exceeds its budget, the least budget is the plan's own peak, since no other plan is
     * considered. */
    struct plan *plan = &job->plan;
    if (plan->ram_peak_bytes > plan->ram_budget_bytes) plan->ram_least_bytes = plan->ram_peak_bytes;
    if (plan->vram_peak_bytes > plan->vram_budget_bytes) plan->vram_least_bytes = plan->vram_peak_bytes;
    return e->code;
}

static enum status read_text(struct job *job, const char *text, struct error *e) {
    enum { VALUES_MAX = PLAN_STAGES_MAX * PLAN_BLOCKS_MAX * 8 };
    json_t *root = NULL;
    size_t n = 0;
    /* Limits the number of JSON values before parsing, because each parsed value takes tens of bytes. */
    for (const char *at = text; (at = strpbrk(at, ",[{")); at++) n++;
    if (n > VALUES_MAX) return plan_invalid(job, e, "more values than any plan has", NULL);
    if (json_parse(plan_name(job), text, strlen(text), 8, &root, e) == OK) read_plan(job, root, e);
    json_decref(root);
    return e->code;
}

/* ---- the decision ---- */

enum status planner_choose(struct job *job, struct error *e) {
    uint64_t ram = (uint64_t)job->request.max_ram_bytes, vram = (uint64_t)job->request.max_vram_bytes;
    int chosen = plan_choose((const struct run_need *const *)job->candidates.needs, job->candidates.n,
                             ram ? ram : machine_default_budget(),
                             vram ? vram : device_default_budget(job->device), &job->plan);
    return candidates_lay_out(job, job->candidates.choices[chosen].groups,
                              job->candidates.choices[chosen].tiled, e);
}

enum status planner_decide(struct job *job, struct error *e) {
    return job->request.plan ? read_text(job, job->request.plan, e) : planner_choose(job, e);
}
