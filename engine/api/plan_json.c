#include "engine/api/plan_json.h"

#include "engine/job/controls.h"
#include "engine/job/job.h"
#include "engine/job/layout.h"
#include "engine/job/open.h"
#include "engine/job/planner.h"
#include "engine/job/prompts.h"
#include "engine/job/second_pass.h"
#include "engine/job/upscale.h"
#include "engine/run/advice.h"
#include "kernels/cuda/cards.h"
#include "loaders/json.h"

#include <string.h>

static const char *const bound_names[N_BOUNDS] = {"compute", "bus", "disk"};

struct sluice_plan plan_summary(const struct job *job) {
    const struct plan *p = &job->plan;
    struct picture_size size = job_output_size(job->second_pass ? job->second_pass : job);
    struct error does_not_fit = {0};
    struct sluice_plan summary = {
        .struct_size = sizeof summary,
        .fits = plan_check(job->need, p, &does_not_fit) == OK,
        .batch = job->latents.batch,
        .width = size.width,
        .height = size.height,
        .frames = job->request.frames > 1 ? job->request.frames : 1,
        .ram_budget_bytes = (int64_t)p->ram_budget_bytes,
        .vram_budget_bytes = (int64_t)p->vram_budget_bytes,
        .ram_peak_bytes = (int64_t)p->ram_peak_bytes,
        .vram_peak_bytes = (int64_t)p->vram_peak_bytes,
        .ram_least_bytes = (int64_t)p->ram_least_bytes,
        .vram_least_bytes = (int64_t)p->vram_least_bytes,
        .seconds = p->seconds,
        .floor_seconds = p->floor_seconds,
        .bound = p->seconds > 0 ? bound_names[p->bound] : NULL,
    };
    plan_hash(p, summary.hash);
    return summary;
}

/* ---- the request ---- */

static json_int_t integer(uint64_t bytes) {
    return (json_int_t)bytes;
}

/* Token counts of the prompts for the text encoder in this slot: [positive] or [positive, negative]. Masked
 * padding does not count. */
static json_t *tokens_json(const struct job *job, int slot) {
    json_t *counts = json_array();
    for (int i = 0; i < job->settings.n_prompts; i++) {
        const struct prompt_tokens *tokens = &job->prompts.tokens[slot][i];
        json_push(counts, json_integer(tokens->n_keys ? tokens->n_keys : tokens->n_ids));
    }
    return counts;
}

/* Adds the control images. "network": index of the control network; -1: the denoiser reads the image. */
static void put_controls(const struct job *job, json_t *json) {
    json_t *list = json_array();
    for (int i = 0; i < job->n_controls; i++) {
        const struct job_control *from = &job->controls[i];
        const char *mode = controls_mode_name(job, i);
        char name[CONTROL_NAME_BYTES];
        json_t *control = json_pack("{s:i, s:o, s:f, s:f, s:f, s:b}", "network",
                                    from->component < 0 ? -1 : from->component - MODEL_CONTROL, "name",
                                    json_string_of(controls_name(job, i, name)), "strength", from->strength,
                                    "start", from->start, "end", from->end, "canny", from->canny);
        if (mode) json_put(control, "mode", json_string(mode));
        if (job->pictures.input[control_picture(i, CONTROL_MASK)].width)
            json_put(control, "inpaint", json_true());
        json_push(list, control);
    }
    json_array_size(list) ? json_put(json, "controls", list) : json_decref(list);
    if (job->pictures.controls_assumed) json_put(json, "controls_assumed", json_true());
    if (job->request.guess_mode) json_put(json, "guess_mode", json_true());
}

static void put_pictures(const struct job *job, json_t *json) {
    const struct sluice_request *r = &job->request;
    json_t *references = json_array();
    if (r->init_image && job->model->init == INIT_IMG2IMG) json_put(json, "strength", json_real(r->strength));
    json_put(json, "init_image", json_boolean(r->init_image));
    if (r->n_control) json_put(json, "control", json_integer(r->n_control));
    if (r->end_image) json_put(json, "end_image", json_true());
    if (job->pictures.frames_assumed) json_put(json, "frames_assumed", json_true());
    json_put(json, "mask", json_boolean(r->mask));
    if (r->init_image) json_put(json, "fit", json_string(r->fit ? r->fit : fit_name(FIT_CROP)));
    for (int i = 0; i < r->n_references; i++)
        json_push(references, json_pack("{s:i, s:i}", "width", job->pictures.reference_size[i].width,
                                        "height", job->pictures.reference_size[i].height));
    json_put(json, "references", references);
    if (r->n_redux_images) {
        json_put(json, "redux_images", json_integer(r->n_redux_images));
        json_put(json, "redux_strength", json_real(r->redux_strength));
        if (job->settings.zero_prompt) json_put(json, "zero_prompt", json_true());
        if (job->pictures.redux_assumed) json_put(json, "redux_assumed", json_true());
    }
    if (job->pictures.reference_assumed) json_put(json, "reference_assumed", json_true());
    if (job->pictures.mask_assumed) json_put(json, "mask_assumed", json_true());
}

/* Adds the skip-layer guidance of the request. */
static void put_slg(json_t *json, const struct sluice_request *r) {
    json_t *layers = json_array();
    for (int i = 0; i < r->n_slg_layers; i++) json_push(layers, json_integer(r->slg_layers[i]));
    json_put(json, "slg_layers", layers);
    json_put(json, "slg_scale", json_real(r->slg_scale));
    json_put(json, "slg_start", json_real(r->slg_start));
    json_put(json, "slg_end", json_real(r->slg_end));
}

/* Adds LTX-2's guidance as [video, sound], and the length of the sound's latent. "audio": the sound is
 * decoded. */
static void put_sound(const struct job *job, json_t *json) {
    const struct sluice_request *r = &job->request;
    json_put(json, "fps", json_integer(r->fps));
    json_put(json, "audio_latents", json_integer(job->latents.sound[2]));
    json_put(json, "audio", json_boolean(job_decodes_sound(job)));
    json_put(json, "audio_cfg_scale", json_real(r->audio_cfg_scale));
    json_put(json, "stg_scale", json_pack("[f, f]", r->stg_scale, r->audio_stg_scale));
    json_put(json, "modality_scale", json_pack("[f, f]", r->modality_scale, r->audio_modality_scale));
    json_put(json, "cfg_rescale", json_pack("[f, f]", r->cfg_rescale, r->audio_cfg_rescale));
    json_t *blocks = json_array();
    for (int i = 0; i < r->n_stg_blocks; i++) json_push(blocks, json_integer(r->stg_blocks[i]));
    json_put(json, "stg_blocks", blocks);
}

static void put_preview(const struct job *job, json_t *json) {
    const struct sluice_request *r = &job->request;
    struct stage_need takes = {0};
    candidates_add_preview(job, true, &takes);
    json_put(json, "preview",
             json_pack("{s:s, s:i, s:i, s:I, s:I}", "how", r->preview, "every", r->preview_every, "pictures",
                       schedule_count_previews(job), "ram_bytes", integer(takes.callback_ram_bytes),
                       "vram_bytes", integer(takes.callback_vram_bytes)));
}

static json_t *request_json(const struct job *job) {
    const struct sluice_request *r = &job->request;
    const struct recipe *recipe = job->model->recipe;
    json_t *json = json_pack(
        "{s:o, s:s, s:i, s:i, s:i, s:f, s:f, s:i, s:s, s:o, s:b, s:b, s:s}", "model",
        json_string_of(job->model->name), "family", recipe->name, "width", r->width, "height", r->height,
        "steps", r->steps, "cfg_scale", r->cfg_scale, "flow_shift", r->flow_shift, "batch",
        job->latents.batch, "precision", precision_name(job->settings.precision), "tokens",
        tokens_json(job, job->prompts.text_slot[0]), "longest_prompt_assumed",
        !job->settings.decode_only && !job->settings.zero_prompt && (!r->prompt || job->model->published),
        "decode", !r->no_decode, "vae_tiling", r->vae_tiling ? r->vae_tiling : "auto");
    if (json && job->settings.weights.type != N_DTYPES)
        json_put(json, "type", json_string(dtype_name(job->settings.weights.type)));
    if (r->converted) json_put(json, "converted", json_true());
    json_t *upscaled = planner_describe_upscaled(job), *hires = second_pass_json(job);
    if (upscaled) json_put(json, "upscaled", upscaled);
    if (hires) json_put(json, "hires", hires);
    const struct component *tiny = job_tiny_decoder(job);
    if (tiny) json_put(json, "decoder", json_string(tiny->family->name));
    if (json && r->frames > 1) json_put(json, "frames", json_integer(r->frames));
    if (!json || job->settings.decode_only) return json;
    for (int i = 1; i < job->prompts.n_texts; i++) {
        char key[16];
        if (!recipe->slot[job->prompts.text_slot[i]].text.tokenizer) continue;
        json_put(json, job_numbered("tokens", i, key), tokens_json(job, job->prompts.text_slot[i]));
    }
    /* Lists optional text encoders that the model's files do not include; their embeddings are zeros. */
    json_t *absent = json_array();
    for (int i = 0; recipe->slot[i].family; i++)
        if (recipe->slot[i].family->kind == FAMILY_TEXT && !job->model->component[i].family)
            json_push(absent, json_string(recipe->slot[i].folder));
    json_array_size(absent) ? json_put(json, "absent", absent) : json_decref(absent);
    json_put(json, "sampler", json_string(job->settings.sampling.sampler->name));
    json_put(json, "scheduler", json_string(sampling_schedule_name(&job->settings.sampling)));
    json_put(json, "prediction", json_string(job->settings.sampling.prediction->name));
    if (r->cfg_scale_low != 0) json_put(json, "cfg_scale_low", json_real(r->cfg_scale_low));
    if (r->cfg_norm > 0) json_put(json, "cfg_norm", json_real(r->cfg_norm));
    if (r->cfg_until < 1) json_put(json, "cfg_until", json_real(r->cfg_until));
    if (job->model->boundary > 0) json_put(json, "boundary", json_real(job->model->boundary));
    if (job->settings.n_prompts > 1 && recipe->text.default_negative &&
        r->negative_prompt == recipe->text.default_negative)
        json_put(json, "negative_prompt", json_string(recipe->text.default_negative));
    if (recipe->denoising.takes_guidance) json_put(json, "guidance", json_real(r->guidance));
    if (job->settings.n_encoded_prompts < job->settings.n_prompts)
        json_put(json, "zero_negative", json_true());
    if (prompts_count_hits(job)) json_put(json, "prompt_cache_hits", json_integer(prompts_count_hits(job)));
    json_t *loras = planner_list_loras(job);
    json_array_size(loras) ? json_put(json, "loras", loras) : json_decref(loras);
    if (r->clip_skip) json_put(json, "clip_skip", json_integer(r->clip_skip));
    if (r->prompt_weights) json_put(json, "prompt_weights", json_string(r->prompt_weights));
    if (job_skips_layers(job)) put_slg(json, r);
    if (job->latents.sound[0]) put_sound(job, json);
    put_pictures(job, json);
    put_controls(job, json);
    if (job->settings.preview != PREVIEW_NONE) put_preview(job, json);
    return json;
}

/* ---- the plan ---- */

static const char *tier(const struct plan_stage *stage, int block) {
    return plan_is_resident(stage, block) || plan_is_pooled(stage, block) ? "ram" : "disk";
}

static json_t *blocks_json(const struct job *job, int s) {
    const struct plan_stage *p = &job->plan.stage[s];
    json_t *blocks = json_array();
    char name[LAYOUT_NAME_BYTES];
    for (int i = 0; i < job->layout.stages[s].n_blocks; i++) {
        const struct stage_need *need = &job->need->stage[s];
        json_t *block =
            json_pack("{s:s, s:I, s:b, s:b, s:s}", "name", layout_block_name(job, &job->layout, s, i, name),
                      "bytes", integer(need->block_bytes[i]), "resident", (int)plan_is_resident(p, i),
                      "hoisted", (int)need->hoists, "tier", tier(p, i));
        double loads = 1 + (double)need->block_extra_loads[i];
        if (loads != 1) json_put(block, "loads_per_evaluation", json_real(loads));
        json_push(blocks, block);
    }
    return blocks;
}

/* Adds predicted times to a plan's JSON (null if no rates are available). */
static void put_times(json_t *json, double seconds, double floor_seconds, const char *bound) {
    bool known = seconds > 0;
    json_put(json, "seconds", known ? json_real(seconds) : json_null());
    json_put(json, "floor_seconds", known ? json_real(floor_seconds) : json_null());
    json_put(json, "bound", known ? json_string(bound) : json_null());
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
    put_times(json, p.seconds, p.floor_seconds, bound_names[p.bound]);
    /* bytes of adapters in this stage, resident blocks included */
    const struct stage *stage = &job->layout.stages[s];
    uint64_t adapter_bytes = 0;
    for (int i = 0; i < stage->n_blocks; i++) adapter_bytes += stage->blocks[i]->adapter_bytes;
    if (adapter_bytes) json_put(json, "adapter_bytes", json_integer(integer(adapter_bytes)));
    if (adapter_bytes) json_put(json, "adapter_flops", json_real(job->need->stage[s].adapter_flops));
    for (int i = 0; i < PLAN_COPIER_LIMITS; i++) {
        const struct plan_copier_limit *limit = &plan_copier_limits[i];
        int32_t n = *(const int32_t *)(const void *)((const char *)&p + limit->offset);
        if (n) json_put(json, limit->key, json_integer(n));
    }
    if (job->layout.kind[s]->full_frames) json_put(json, "vae_tiling", json_string(p.tiled ? "on" : "off"));
    if (stage->component->family->lanes.prefix && !job->need->stage[s].hoists)
        json_put(json, "prefix", json_string(stage->lanes->keeps_prefix ? "kept" : "recomputed"));
    if (job->need->separate) {
        json_put(json, "pool_bytes", json_integer(integer(p.pool_bytes)));
        json_put(json, "staging_bytes", json_integer(integer(p.staging_bytes)));
        json_put(json, "pinned_bytes", json_integer(integer(p.pinned_bytes)));
    }
    if (p.pictures_on_host) json_put(json, "pictures_on_host", json_true());
    return json;
}

/* Name of the rates file, or without a file the kind of rates ("card", "default"). A file name may be invalid
 * UTF-8. */
static json_t *rates_name(const struct job *job) {
    const struct sluice_request *r = &job->request;
    if (!r->rates) return json_string(job->device->card ? "card" : "default");
    return json_string_of(r->rates_name ? r->rates_name : "given");
}

/* Keys of a plan's JSON whose numbers are assumptions if this machine lacks the planned device. */
static json_t *assumed(const struct job *job) {
    json_t *keys = json_pack("[s, s]", "device_bytes", "base_bytes");
    if (!job->request.rates) json_push(keys, json_string("rates"));
    if (!job->request.max_vram_bytes) json_push(keys, json_string("budget.vram_bytes"));
    return keys;
}

json_t *plan_json(const struct job *job) {
    const struct plan *p = &job->plan;
    const struct sluice_plan summary = plan_summary(job);
    json_t *stages = json_array();
    for (int s = 0; s < p->n_stages; s++) json_push(stages, stage_json(job, s));
    json_t *json = json_pack(
        "{s:i, s:o, s:s, s:s, s:s, s:o, s:{s:I, s:I}, s:{s:I, s:I}, s:{s:I, s:I}, s:b, s:I, s:I, s:I, s:I}",
        "version", 1, "request", request_json(job), "device", job->device->name, "precision",
        precision_name(job->settings.precision), "hash", summary.hash, "rates", rates_name(job), "budget",
        "vram_bytes", (json_int_t)summary.vram_budget_bytes, "ram_bytes",
        (json_int_t)summary.ram_budget_bytes, "peak", "vram_bytes", (json_int_t)summary.vram_peak_bytes,
        "ram_bytes", (json_int_t)summary.ram_peak_bytes, "least", "vram_bytes",
        (json_int_t)summary.vram_least_bytes, "ram_bytes", (json_int_t)summary.ram_least_bytes, "keep",
        (int)p->keep, "base_bytes", integer(p->base_bytes), "host_bytes", integer(p->host_bytes),
        "cross_bytes", integer(p->interstage_bytes), "bounce_bytes", integer(p->bounce_bytes));
    if (!json) {
        json_decref(stages);
        return NULL;
    }
    put_times(json, summary.seconds, summary.floor_seconds, summary.bound);
    if (job->need->separate) json_put(json, "device_bytes", json_integer(integer(job->need->device_bytes)));
    if (job->need->pin_limit_bytes)
        json_put(json, "pin_limit_bytes", json_integer(integer(job->need->pin_limit_bytes)));
    if (job->device->plan_only) json_put(json, "assumed", assumed(job));
    if (job->device->card) json_put(json, "card", json_string(job->device->card->words));
    json_put(json, "stages", stages);
    return json;
}

/* ---- advice ---- */

/* Advice is listed only if it cuts the predicted time to this share or less. Smaller savings are within the
 * error of the measured rates. */
static const double HELPS = 0.98;

enum { ADVISED_BATCH = 4 };

static void put_machine(const struct job *job, json_t *list) {
    static const char *const kinds[] = {
        [ADVICE_RAM] = "ram", [ADVICE_VRAM] = "vram", [ADVICE_BUS] = "bus", [ADVICE_DISK] = "disk"};
    struct plan_advice found;
    plan_advise(job->candidates.needs, job->candidates.n, job->candidates.chosen, &job->plan, &found);
    double best = job->plan.seconds;
    for (int i = 0; i < found.n; i++) {
        const struct advice *a = &found.advice[i];
        bool memory = a->kind == ADVICE_RAM || a->kind == ADVICE_VRAM;
        if (a->seconds > HELPS * (memory ? best : job->plan.seconds)) continue;
        if (memory) best = a->seconds;
        json_t *entry = json_pack("{s:s, s:s, s:f, s:f}", "kind", kinds[a->kind], "stage",
                                  job->plan.stage[found.stage].name, "seconds", a->seconds,
                                  "seconds_per_step", a->step_seconds);
        if (memory)
            json_put(entry, "extra_bytes", json_integer((json_int_t)a->extra_bytes));
        else
            json_put(entry, "factor", json_real(a->factor));
        json_push(list, entry);
    }
}

/* Predicted times of a request. */
struct request_time {
    double seconds;         /* the whole run */
    double step_seconds;    /* one step */
    double denoise_seconds; /* all stages of the denoiser */
};

/* Returns the index of the first denoising stage; n_stages if there is none. */
static int denoise_stage(const struct job *job) {
    int stage = 0;
    while (stage < job->layout.n_stages && job->layout.kind[stage] != &stage_denoise) stage++;
    return stage;
}

static struct request_time time_of(const struct job *job) {
    struct request_time time = {job->plan.seconds, plan_step_seconds(&job->plan.stage[denoise_stage(job)]),
                                0};
    for (int s = 0; s < job->layout.n_stages; s++)
        if (job->layout.kind[s]->denoises) time.denoise_seconds += job->plan.stage[s].seconds;
    return time;
}

/* Plans a changed request under the job's memory budgets. Returns false if the request does not fit or is
 * refused. If memory is short, sets *failed to MEMORY. */
static bool plan_changed(const struct job *job, const struct job_context *context,
                         struct sluice_request request, struct request_time *time, struct error *failed) {
    struct job changed;
    struct error e = {0};
    request.plan = NULL;
    /* The job's request has the resolved flow shift 1, which a request for a model without flow must not set.
     */
    if (!job->settings.sampling.prediction->is_flow) request.flow_shift = 0;
    request.max_ram_bytes = (int64_t)job->plan.ram_budget_bytes;
    bool fits = job_open(&changed, context, &request, NULL, &e) == OK && planner_choose(&changed, &e) == OK &&
                plan_check(changed.need, &changed.plan, &e) == OK;
    if (fits) *time = time_of(&changed);
    job_close(&changed);
    if (e.code == MEMORY) *failed = e;
    return fits;
}

/* Adds an entry of advice to change the request; see advice_json. */
static void put_request_advice(const struct job *job, json_t *list, const char *kind, double factor,
                               struct request_time time) {
    json_push(list, json_pack("{s:s, s:s, s:f, s:f, s:f}", "kind", kind, "stage",
                              job->plan.stage[denoise_stage(job)].name, "factor", factor, "seconds",
                              time.seconds, "seconds_per_step", time.step_seconds));
}

/* Adds advice to use a larger batch under the same memory budget: all images of a batch share each streamed
 * block. */
static void put_batch(const struct job *job, json_t *list, struct error *e) {
    int stage = denoise_stage(job);
    if (stage == job->layout.n_stages || job->latents.batch > 1 ||
        !job->plan.stage[stage].streamed_bytes_per_evaluation)
        return;
    struct sluice_request request = job->request;
    struct request_time time;
    request.batch = ADVISED_BATCH;
    if (plan_changed(job, &job->context, request, &time, e) &&
        time.step_seconds <= HELPS * ADVISED_BATCH * plan_step_seconds(&job->plan.stage[stage]))
        put_request_advice(job, list, "batch", ADVISED_BATCH, time);
}

/* Plans a request in int8 and adds advice to use int8 if it saves time compared with *least, which then gets
 * the new time. Only the denoiser's time is taken from that plan: its --type applies to text encoders too,
 * the advice does not. */
static void put_int8_request(const struct job *job, const struct job_context *context,
                             const struct sluice_request *request, const char *kind, json_t *list,
                             double *least, struct error *e) {
    struct request_time now = time_of(job), time;
    if (!plan_changed(job, context, *request, &time, e)) return;
    time.seconds = now.seconds - now.denoise_seconds + time.denoise_seconds;
    if (time.seconds > HELPS * *least) return;
    put_request_advice(job, list, kind, now.seconds / time.seconds, time);
    *least = time.seconds;
}

/* Adds advice to compute in int8, if the device supports it and a step is not bound by the disk. First tries
 * weights that are converted while they are read, then an int8_convrot file. The planned requests need
 * converted components of their own, because the job uses those of the session. Adapters refer to the
 * session's components, so a run with adapters gets no such advice. */
static void put_int8(const struct job *job, json_t *list, struct error *e) {
    int stage = denoise_stage(job);
    const struct session_adapters *adapters = job->context.adapters;
    if (stage == job->layout.n_stages || job->settings.precision == PRECISION_INT8 ||
        job->device->unsupported[PRECISION_INT8] || job->plan.stage[stage].bound == BOUND_DISK ||
        (adapters && adapters->n_files))
        return;
    struct requantised *converted = sys_new(job->sys, 1, sizeof *converted, "the plan's advice", e);
    if (!converted) return;
    struct job_context context = job->context;
    struct sluice_request request = job->request;
    context.requantised = converted;
    request.precision = precision_name(PRECISION_INT8);
    double least = job->plan.seconds;
    put_int8_request(job, &context, &request, "int8", list, &least, e);
    if (!request.type && e->code == OK) {
        request.type = "int8_convrot";
        request.converted = true;
        put_int8_request(job, &context, &request, "int8_files", list, &least, e);
    }
    requantised_destroy(converted);
    job->sys->release(job->sys, converted);
}

json_t *advice_json(const struct job *job, struct error *e) {
    struct error over_budget = {0};
    json_t *list = json_array();
    if (!list || plan_check(job->need, &job->plan, &over_budget) != OK || !(job->plan.seconds > 0))
        return list;
    put_machine(job, list);
    put_batch(job, list, e);
    if (e->code == OK) put_int8(job, list, e);
    return list;
}

/* ---- the report ---- */

static json_t *hashes_json(const char (*hash)[SHA256_HEX], int n) {
    json_t *list = json_array();
    for (int i = 0; i < n; i++) json_push(list, json_string(hash[i]));
    return list;
}

static json_t *real_or_null(double number, bool known) {
    return known ? json_real(number) : json_null();
}

static void put_work(json_t *json, double seconds, double floor_seconds, struct processor_time spent,
                     const struct store_counters *moved, const struct stall *stall) {
    bool took = seconds > 0, floor = floor_seconds > 0;
    double computing = seconds - moved->stall_seconds, bytes = (double)moved->bytes_moved;
    json_put(json, "seconds", json_real(seconds));
    json_put(json, "compute_seconds", json_real(computing > 0 ? computing : 0));
    json_put(json, "user_seconds", json_real(spent.user));
    json_put(json, "system_seconds", json_real(spent.system));
    json_put(json, "page_faults", json_integer((json_int_t)spent.page_faults));
    json_put(json, "bytes_moved", json_integer(moved->bytes_moved));
    json_put(json, "gbytes_per_second", real_or_null(took ? bytes / seconds / 1e9 : 0, took));
    if (moved->bytes_windowed) json_put(json, "bytes_windowed", json_integer(moved->bytes_windowed));
    if (moved->bytes_unpinned) json_put(json, "bytes_unpinned", json_integer(moved->bytes_unpinned));
    json_put(json, "stall_seconds", json_real(moved->stall_seconds));
    json_put(json, "stall_block", stall->seconds > 0 ? json_string(stall->block) : json_null());
    json_put(json, "stall_block_seconds", json_real(stall->seconds));
    json_put(json, "floor_seconds", real_or_null(floor_seconds, floor));
    json_put(json, "efficiency", real_or_null(took ? floor_seconds / seconds : 0, took && floor));
}

static json_t *stages_json(const struct report *r) {
    json_t *list = json_array();
    for (int i = 0; i < r->n_stages; i++) {
        const struct stage_record *s = &r->stage[i];
        json_t *stage =
            json_pack("{s:s, s:I, s:I, s:I}", "name", r->stage_name[i], "bytes_direct",
                      (json_int_t)s->moved.bytes_direct, "planned_ram_bytes", (json_int_t)s->planned_bytes,
                      "measured_ram_bytes", (json_int_t)s->measured_bytes);
        put_work(stage, s->seconds, s->floor_seconds, s->spent, &s->moved, &s->stall);
        json_push(list, stage);
    }
    return list;
}

static void put_algorithm(void *list, const char *op, const char *shape, const char *algorithm) {
    json_push(list, json_pack("{s:s, s:s, s:s}", "op", op, "shape", shape, "algorithm", algorithm));
}

json_t *report_json(const struct report *r, json_t *plan, struct device *device) {
    json_t *steps = json_array(), *evicted = json_array();
    for (int i = 0; i < r->n_steps; i++) {
        const struct step_record *s = &r->step[i];
        json_t *step = json_pack("{s:i, s:f}", "index", i, "sigma", (double)r->sigma[i]);
        put_work(step, s->seconds, s->floor_seconds, s->spent, &s->moved, &s->stall);
        json_push(steps, step);
    }
    for (int i = 0; i < r->n_evicted; i++)
        json_push(evicted, json_pack("{s:s, s:i, s:I}", "stage", r->evicted[i].stage, "step",
                                     r->evicted[i].step, "given_up_bytes", (json_int_t)r->evicted[i].bytes));
    json_t *json = json_pack(
        "{s:i, s:i, s:O?, s:I, s:f, s:o, s:o, s:{s:I, s:I, s:I, s:I}, s:o, s:o, s:o}", "version", 1, "exit",
        r->error.code == OK ? 0 : r->error.exit, "plan", plan, "seed", (json_int_t)r->seed, "seconds",
        r->seconds, "latent_sha256", hashes_json(r->latent_sha256, r->n_latents), "image_sha256",
        hashes_json(r->image_sha256, r->n_images), "measured", "vram_bytes", (json_int_t)r->device_bytes,
        "ram_bytes", (json_int_t)r->peak_bytes, "base_bytes", (json_int_t)r->base_bytes, "library_bytes",
        (json_int_t)r->library_bytes, "stages", stages_json(r), "steps", steps, "replanned", evicted);
    if (r->n_sounds) json_put(json, "sound_sha256", hashes_json(r->sound_sha256, r->n_sounds));
    if (r->context_bytes)
        json_put(json_object_get(json, "measured"), "context_bytes",
                 json_integer((json_int_t)r->context_bytes));
    if (device->algorithms) {
        json_t *algorithms = json_array();
        device->algorithms(device, put_algorithm, algorithms);
        json_put(json, "algorithms", algorithms);
    }
    if (json && r->error.code != OK)
        json_put(json, "error",
                 json_pack("{s:s, s:o, s:o, s:o, s:o}", "code", status_name(r->error.code), "what",
                           json_string_of(r->error.what), "where", json_string_of(r->error.where), "found",
                           json_string_of(r->error.found), "expected", json_string_of(r->error.expected)));
    return json;
}
