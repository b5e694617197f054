#include "engine/job/planner.h"

#include "engine/job/layout.h"
#include "engine/job/pictures.h"
#include "engine/job/prompts.h"
#include "engine/job/request.h"
#include "engine/job/second_pass.h"
#include "engine/job/upscale.h"
#include "engine/machine/machine.h"
#include "engine/machine/rates_file.h"
#include "loaders/json.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Heap bytes of a run, rounded up: descriptors (visits, ring fills, lists), input images, the caller's
 * pixels, the structures of model and session, and the device's table of oneDNN primitives. */
static uint64_t host_bytes(const struct job *job, const struct layout *l) {
    const struct job *preview = job->preview_job, *second = job->second_pass;
    uint64_t a_visit = 384, a_token = 32, tokens = 0, rows = 0, pictures = 0, networks = 0;
    for (int s = 0; s < l->n_stages; s++) {
        const struct stage *stage = &l->stages[s];
        /* While the planner compares layouts, up to three exist at once. */
        uint64_t lanes = stage->hoists ? 0 : 3 * (uint64_t)(stage->n_lanes * stage->n_groups);
        for (int k = 0; k < stage->n_controls; k++)
            networks += lanes * sizeof(struct lane) + CONTROL_VISITS_MAX * sizeof(struct control_visit) +
                        (uint64_t)stage->n_lanes * stage->control[k].component->family->state.bytes;
    }
    for (int slot = 0; slot < MODEL_COMPONENTS; slot++) {
        for (int i = 0; i < PROMPTS_MAX && slot < SLOTS_MAX; i++)
            tokens += (uint64_t)job->prompts.tokens[slot][i].n_ids;
        for (int i = 0; i < GATHERED_MAX && job->prompts.gathered[slot]; i++)
            rows += sizeof(struct block) +
                    (uint64_t)job->prompts.gathered[slot][i].n_segments * sizeof(struct packed_segment);
    }
    for (const struct job *pass = job; pass; pass = pass->second_pass)
        for (int i = 0; i < PICTURES_MAX; i++) {
            const struct sluice_picture *unfitted = &pass->pictures.input[i],
                                        *used = &pass->pictures.fitted[i];
            int bytes = pass->pictures.fitting[i].part.alpha ? RGBA : 3;
            pictures += (uint64_t)used->width * (uint64_t)used->height * (uint64_t)bytes;
            bool copy = i >= PICTURE_VISION && i < PICTURE_REDUX; /* counted as the picture it copies */
            if (!copy && unfitted->rgb && !used->rgb && pass == job)
                pictures += (uint64_t)unfitted->width * (uint64_t)unfitted->height * (uint64_t)bytes;
        }
    pictures += pictures_control_bytes(job);
    return align_up(
        job->model->host_bytes + (uint64_t)l->visits.n_visits * a_visit + tokens * a_token + rows + networks +
            (uint64_t)(job->candidates.n + 1) * run_need_bytes(l->n_stages) + pictures +
            (uint64_t)job->request.caller_bytes + job->prompts.hits.peak_bytes +
            /* The second pass's job and, while the planner compares layouts, two layouts. Twice, because
             * advice plans other requests while this job is open. */
            (second ? 2 * (sizeof *second + 2 * sizeof *l->second_pass) : 0) +
            (second && preview ? sizeof *preview + second->preview_job->need->host_bytes -
                                     second->preview_job->model->host_bytes
                               : 0) +
            (preview ? sizeof *preview + preview->need->host_bytes - preview->model->host_bytes : 0) +
            requantised_bytes(job->request.converted ? NULL : job->context.requantised,
                              plan_readers(job->device->memory, PLAN_BOUNCE)) +
            session_adapters_bytes(job->context.adapters) + sizeof *job->model + sizeof(struct requantised) +
            sizeof(struct session_adapters) + sizeof(struct residents) + (2 << 16),
        1 << 16);
}

void candidates_add_preview(const struct job *job, bool runs_previews, struct stage_need *need) {
    const struct job *inner = job->preview_job;
    if (!inner) return;
    const struct run_need *n = inner->need;
    uint64_t primitives = n->primitives_bytes;
    uint64_t ram = inner->plan.ram_peak_bytes - n->base_bytes - n->host_bytes;
    uint64_t vram = n->separate ? inner->plan.vram_peak_bytes - n->device_bytes : 0;
    need->library_bytes += primitives;
    if (!runs_previews) return;
    need->callback_ram_bytes = ram - (n->separate ? 0 : primitives);
    need->callback_vram_bytes = vram - (n->separate ? primitives : 0);
    need->callback_seconds = inner->plan.seconds * schedule_count_previews(job);
}

bool candidates_read_direct(const char *direct_io, uint64_t model_bytes, uint64_t memory_bytes) {
    if (choice_is(direct_io, "on")) return true;
    if (choice_is(direct_io, "off")) return false;
    /* A model larger than 3/4 of host memory is read past the page cache: every step reads all weights in the
     * same order, so the cache would evict each weight before its next use. */
    return memory_bytes && model_bytes > memory_bytes / 4 * 3;
}

/* Assumed number of reader threads that convert weights in parallel beside a GPU. On the CPU device it is 1,
 * because the other cores compute. */
enum { CONVERTING_THREADS = 4 };

/* Computes the seconds that each block takes to load beyond reading its bytes as planned: its type in the
 * file is larger, or its weights are converted. Also adds the seconds of the scan for row scales, which reads
 * the file once before the run. */
static void measure_fills(const struct job *job, const struct stage *stage, const struct rates *rates,
                          struct stage_need *need) {
    const int threads = job->device->memory ? CONVERTING_THREADS : 1;
    for (int i = 0; i < need->n_blocks; i++) {
        const struct block *block = stage->blocks[i];
        int64_t values = block_converted_values(block);
        double more = (double)block_file_bytes(block) - (double)block->bytes;
        if (values ? job->request.converted : more <= 0) continue;
        if (rates->disk <= 0) continue;
        need->block_fill_seconds[i] = more / rates->disk;
        if (!values) continue;
        double scan = requantised_scan_seconds(job->settings.weights, values) / threads;
        double reads = scan > 0 ? (double)block_file_bytes(block) / rates->disk : 0;
        need->block_fill_seconds[i] += requantised_seconds(job->settings.weights, values) / threads;
        need->scan_seconds += scan > reads ? scan : reads;
    }
}

/* Limits pinned memory to what the system allows, found by pinning as much as any plan could use. Fails with
 * DEVICE if the attempt leaves the device unusable. */
static enum status limit_pins(const struct job *job, struct run_need *need, struct error *e) {
    const struct device_memory *own = job->device->memory;
    uint64_t requested = PLAN_STAGING, largest = 0, budget = (uint64_t)job->request.max_ram_bytes;
    double stalled = 0;
    if (!own || !own->pinnable) return OK;
    for (int s = 0; s < need->n_stages; s++) {
        const struct stage_need *n = &need->stage[s];
        requested += plan_pages(n->picture_bytes);
        for (int i = 0; i < n->n_blocks; i++) {
            requested += n->block_bytes[i];
            if (n->block_bytes[i] > largest) largest = n->block_bytes[i];
        }
    }
    requested += 4 * largest; /* four staging buffers, each as large as the largest block */
    if (budget && requested > budget) requested = budget;
    uint64_t allowed = own->pinnable(job->device, requested);
    if (allowed < requested) plan_limit_pins(need, allowed);
    return device_wait(job->device, &stalled, e);
}

/* Measures memory and time of one candidate layout by a dry run. */
static enum status measure_layout(const struct job *job, struct layout *l, const struct rates *rates,
                                  struct run_need *need, struct error *e) {
    const struct sluice_request *r = &job->request;
    struct run run = layout_run(job, l, NULL);
    /* Embedding tables do not count, because a run reads only a few of their rows. */
    uint64_t model_bytes = 0;
    need->rates = *rates;
    need->precision = job->settings.precision;
    need->adapters = job->settings.decode_only ? 0 : session_adapters_hash(job->context.adapters);
    need->weights = r->converted ? N_DTYPES : job->settings.weights.type;
    if (executor_measure(&run, false, need, e) != OK) return e->code;
    for (int s = 0; s < need->n_stages; s++) {
        struct stage_need *stage = &need->stage[s];
        stage->pictures_place = choice_is(r->vae_tiling, "on")    ? PICTURES_ON_HOST
                                : choice_is(r->vae_tiling, "off") ? PICTURES_ON_DEVICE
                                                                  : PICTURES_ANYWHERE;
        /* The on_image callback runs in the last stage that makes images, so only this stage includes the
         * caller's image buffer. Images of a first pass are enlarged instead. */
        const struct job *pass = s < l->second_stage ? job : job->second_pass;
        struct picture_size size = job_output_size(pass);
        const struct stage_kind *last = pass->upscale.to.width ? &stage_upscale : &stage_decode;
        uint64_t image_bytes =
            (uint64_t)size.width * (uint64_t)size.height * (uint64_t)r->image_bytes_a_pixel;
        if (pass->second_pass) last = NULL;
        if (l->kind[s] == last && r->image_bytes_a_pixel)
            stage->image_bytes = align_up((1 << 20) + image_bytes, PLAN_PAGE);
        if (l->kind[s] == &stage_upscale && last)
            stage->image_bytes += align_up(upscale_alpha_bytes(pass), PLAN_PAGE);
        measure_fills(job, &l->stages[s], rates, stage);
        candidates_add_preview(pass, l->kind[s] == &stage_denoise, stage);
        for (int i = 0; i < l->stages[s].n_model_blocks; i++) model_bytes += l->stages[s].blocks[i]->bytes;
    }
    need->base_bytes = machine_base_bytes() + job->device->host_bytes;
    need->host_bytes = host_bytes(job, l);
    need->interstage_bytes = align_up(l->interstage.peak, PLAN_PAGE);
    if (candidates_read_direct(r->direct_io, model_bytes, machine_memory_bytes("")))
        need->bounce_bytes = PLAN_BOUNCE;
    /* Opening model and adapters, measuring the device and reading pictures happen one after another before
     * the run. open_bytes is the largest temporary memory of any of them. */
    need->open_bytes =
        job->model->open_bytes > DEVICE_RATE_BYTES ? job->model->open_bytes : DEVICE_RATE_BYTES;
    for (const struct job *pass = job; pass; pass = pass->second_pass)
        if (pictures_reading_bytes(pass) > need->open_bytes) need->open_bytes = pictures_reading_bytes(pass);
    if (job->context.adapters && job->context.adapters->open_bytes > need->open_bytes)
        need->open_bytes = job->context.adapters->open_bytes;
    return limit_pins(job, need, e);
}

/* Bytes of a component's weights that hoisting replaces by precomputed rows. */
static uint64_t hoisted_bytes(const struct component *c) {
    uint64_t bytes = 0;
    for (int i = 0; i < c->n_blocks; i++)
        if (block_hoists(c->blocks[i].kind)) bytes += c->blocks[i].bytes;
    return bytes;
}

/* Bit set of spans (job->schedule.spans, those of a second pass from bit DENOISER_SPANS_MAX on) to hoist: a
 * span is hoisted if its precomputed timestep rows take less memory than the weights that compute them. The
 * bit set depends on the request only. */
static unsigned choose_hoisted(const struct job *job, struct error *e) {
    struct layout plain, all = {0};
    unsigned hoisted = 0;
    layout_open(job, (struct layout_choice){.groups = 1}, NULL, &plain, e);
    if (e->code == OK) layout_open(job, (struct layout_choice){.groups = 1, .hoisted = ~0u}, NULL, &all, e);
    for (int s = 0; s + 1 < all.n_stages && e->code == OK && !job->model->no_hoist; s++) {
        uint64_t without = 0, with = 0, weights, pictures;
        const struct component *c = all.stages[s].component;
        if (!all.stages[s].hoists) continue;
        weights = hoisted_bytes(c);
        for (int k = 0; k < all.stages[s].n_controls; k++) {
            if (stage_first_network(&all.stages[s], k) == k)
                weights += hoisted_bytes(all.stages[s].control[k].component);
        }
        executor_state_bytes(job->sys, &plain.stages[s + 1], &without, &pictures, e);
        executor_state_bytes(job->sys, &all.stages[s + 1], &with, &pictures, e);
        int bit = all.span[s] + (s < all.second_stage ? 0 : DENOISER_SPANS_MAX);
        if (with - without < weights) hoisted |= 1u << bit;
    }
    layout_close(job->sys, &plain);
    layout_close(job->sys, &all);
    return hoisted;
}

/* Bytes of full-frame activation buffers in a layout. */
static uint64_t picture_bytes(const struct job *job, struct layout_choice choice, struct error *e) {
    struct layout l;
    uint64_t state, each, bytes = 0;
    layout_open(job, choice, NULL, &l, e);
    for (int s = 0; s < l.n_stages && e->code == OK; s++) {
        if (!l.kind[s]->full_frames) continue;
        executor_state_bytes(job->sys, &l.stages[s], &state, &each, e);
        bytes += each;
    }
    layout_close(job->sys, &l);
    return bytes;
}

/* Returns the next higher number of image groups at which the largest group has fewer images; 0: none. */
static int next_groups(int batch, int groups) {
    int largest = (batch + groups - 1) / groups;
    return largest > 1 ? (batch + largest - 2) / (largest - 1) : 0;
}

/* Appends a layout's memory need to the candidates; returns the peak memory of the VAE stages. */
static uint64_t add_candidate(struct job *job, struct layout_choice choice, const struct rates *rates, int *n,
                              struct error *e) {
    struct layout l = {0};
    struct run_need *need = NULL;
    uint64_t peak = 0;
    if (e->code == OK && layout_open(job, choice, NULL, &l, e) == OK)
        need = sys_new(job->sys, 1, run_need_bytes(l.n_stages), "the plan", e);
    if (need && measure_layout(job, &l, rates, need, e) == OK)
        for (int s = 0; s < l.n_stages; s++) {
            if (!l.kind[s]->full_frames) continue;
            uint64_t bytes = need->separate ? plan_fixed_vram(need, s, true) : plan_fixed_ram(need, s, false);
            if (bytes > peak) peak = bytes;
        }
    job->candidates.choices[*n] = choice;
    job->candidates.needs[(*n)++] = need;
    layout_close(job->sys, &l);
    return peak;
}

/* Switches the job to the candidate layout with these groups, tiling and prefix; choice.hoisted is ignored.
 * Fails with BUDGET if there is no such candidate. */
static enum status lay_out_candidate(struct job *job, struct layout_choice choice, struct error *e) {
    int i = 0;
    for (; i < job->candidates.n; i++) {
        const struct layout_choice *c = &job->candidates.choices[i];
        if (c->groups == choice.groups && c->tiled == choice.tiled && c->keeps_prefix == choice.keeps_prefix)
            break;
    }
    if (i < job->candidates.n) {
        struct run_need *need = job->candidates.needs[i];
        if (job->need == need) return OK;
        job->need = need;
        job->candidates.chosen = i;
        return layout_choose(job, job->candidates.choices[i], NULL, e);
    }
    return error_set(
        e, BUDGET,
        "this request cannot run with the image groups, VAE tiling and prefix of the plan file" FOUND
        "%d groups of %d images, vae_tiling %s, prefix %s" EXPECTED
        "\"groups\" and \"prefix\" as `sluice plan` chooses, \"vae_tiling\" as in the request",
        choice.groups, job->latents.batch, choice.tiled ? "on" : "off",
        choice.keeps_prefix ? "kept" : "recomputed");
}

/* True if the job's denoiser has a prefix whose keys and values can be kept for later evaluations. */
static bool may_keep_prefix(const struct job *job) {
    const struct component *c =
        job->settings.decode_only ? NULL : model_component(job->model, FAMILY_DENOISER);
    return c && c->family->lanes.prefix && job->schedule.n_calls > 1;
}

enum status candidates_measure(struct job *job, struct error *e) {
    const char *how = job->request.vae_tiling;
    int most = job->settings.decode_only ? 1 : job->latents.batch, n = 0;
    struct rates rates;
    rates_default(job->device->name, job->device->threads, &rates);
    if (job->device->card) rates_of_card(job->device->card, &rates);
    if (job->request.rates && rates_read(job->device->name, job->request.rates_name, job->request.rates,
                                         job->device->threads, &rates, e) != OK)
        return e->code;
    bool may_keep = may_keep_prefix(job);
    struct layout_choice choice = {1, false, choose_hoisted(job, e), may_keep}, tiled = choice;
    tiled.tiled = true;
    /* VAE tiling takes less memory for large images, and more or as much for small ones. */
    bool matters = e->code == OK && picture_bytes(job, choice, e) != picture_bytes(job, tiled, e);
    bool asked = choice_is(how, "on"), both = matters && !asked && !choice_is(how, "off");
    if (e->code != OK) return e->code;
    /* candidates.n is set before the dry runs, because their estimate of host memory includes both candidate
     * arrays. */
    job->candidates.n = 0;
    for (int groups = 1; groups; groups = next_groups(most, groups)) job->candidates.n += both ? 2 : 1;
    job->candidates.n *= may_keep ? 2 : 1;
    /* Plus one: --vae-tiling on measures the tiled and the untiled layout. */
    size_t n_max = (size_t)job->candidates.n + 1;
    job->candidates.needs = sys_new(job->sys, n_max, sizeof *job->candidates.needs, "the plan", e);
    if (job->candidates.needs)
        job->candidates.choices = sys_new(job->sys, n_max, sizeof *job->candidates.choices, "the plan", e);
    if (matters && asked && e->code == OK) {
        /* Keeps the tiled layout only if it takes less memory. */
        uint64_t with = add_candidate(job, tiled, &rates, &n, e);
        uint64_t without = add_candidate(job, choice, &rates, &n, e);
        int chosen = with < without ? 0 : 1;
        job->sys->release(job->sys, job->candidates.needs[1 - chosen]);
        job->candidates.needs[0] = job->candidates.needs[chosen];
        choice = job->candidates.choices[0] = job->candidates.choices[chosen];
        job->candidates.needs[1] = NULL;
        n = 1;
        choice.groups = next_groups(most, 1);
    }
    for (int keeps = may_keep; keeps >= 0; keeps--) {
        choice.keeps_prefix = tiled.keeps_prefix = keeps;
        for (; choice.groups && e->code == OK; choice.groups = next_groups(most, choice.groups))
            add_candidate(job, choice, &rates, &n, e);
        for (; both && tiled.groups && e->code == OK; tiled.groups = next_groups(most, tiled.groups))
            add_candidate(job, tiled, &rates, &n, e);
        choice.groups = tiled.groups = 1;
    }
    return e->code == OK ? lay_out_candidate(job, job->candidates.choices[0], e) : e->code;
}

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

json_t *planner_describe_upscaled(const struct job *job) {
    const struct job *last = job->second_pass ? job->second_pass : job;
    const struct job_upscale *upscale = &last->upscale;
    return upscale->to.width ? json_pack("{s:s, s:i, s:i}", "family",
                                         job->model->component[upscale->component].family->name, "width",
                                         upscale->to.width, "height", upscale->to.height)
                             : NULL;
}

/* ---- plan files ---- */

static const char *plan_name(const struct job *job) {
    return job->request.plan_name ? job->request.plan_name : "plan";
}

/* Fails with META. where: the stage, or NULL. */
static enum status plan_invalid(const struct job *job, struct error *e, const char *what, const char *where) {
    return error_set(e, META,
                     "invalid plan file: %s" WHERE "%s%s%s" EXPECTED "the output of `sluice plan --json`",
                     what, plan_name(job), where ? ", " : "", where ? where : "");
}

#define OTHER "this plan was made for another request or model: "

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

/* Fails with BUDGET if the plan file's controls have other networks or ranges of steps, or strengths of 0.
 * Other strengths and images may differ. */
static enum status check_same_controls(const struct job *job, const json_t *theirs, struct error *e) {
    int n = (int)json_array_size(theirs);
    if (n != job->n_controls)
        return error_set(e, BUDGET,
                         OTHER "the number of control images differs" WHERE "%s" FOUND
                               "%d in the plan" EXPECTED "%d as requested, or a new plan",
                         plan_name(job), n, job->n_controls);
    for (int i = 0; i < n; i++) {
        const struct job_control *own = &job->controls[i];
        const json_t *control = json_array_get(theirs, (size_t)i);
        const double a[] = {json_number_value(json_object_get(control, "network")),
                            json_number_value(json_object_get(control, "start")),
                            json_number_value(json_object_get(control, "end"))};
        const double b[] = {own->component < 0 ? -1 : own->component - MODEL_CONTROL, own->start, own->end};
        double strength = json_number_value(json_object_get(control, "strength"));
        bool same = (strength == 0) == (own->strength == 0);
        for (int k = 0; k < 3; k++) same &= fabs(a[k] - b[k]) < 1e-9;
        if (same) continue;
        return error_set(e, BUDGET,
                         OTHER "control image %d differs" WHERE "%s" FOUND
                               "network %g, range %g to %g, strength %g in the plan" EXPECTED
                               "%g, %g to %g, %g as requested, or a new plan",
                         i, plan_name(job), a[0], a[1], a[2], strength, b[0], b[1], b[2], own->strength);
    }
    return OK;
}

/* Fails with BUDGET if both requests have the object `key` and the objects differ. Takes over `ours`, which
 * may be NULL. */
static enum status check_same_object(const struct job *job, const json_t *theirs, const char *key,
                                     json_t *ours, struct error *e) {
    const json_t *object = json_object_get(theirs, key);
    if (object && ours && !json_equal(object, ours)) {
        char *found = json_dumps(object, JSON_COMPACT), *expected = json_dumps(ours, JSON_COMPACT);
        error_set(e, BUDGET,
                  OTHER "its request differs" WHERE "%s" FOUND "%s %.100s in the plan" EXPECTED
                        "%.100s as requested, or a new plan (`sluice plan ... --json`)",
                  plan_name(job), key, found ? found : "", expected ? expected : "");
        free(found);
        free(expected);
    }
    json_decref(ours);
    return e->code;
}

/* Fails with BUDGET if the plan file's request differs from the job's in a field that changes visits or
 * tensor sizes. A field that the plan file lacks is not compared. Prompts and seeds may differ. */
static enum status check_same_request(const struct job *job, const json_t *theirs, struct error *e) {
    static const char *const keys[] = {"family", "width",   "height", "frames",   "steps",
                                       "batch",  "sampler", "decode", "strength", "cfg_until"};
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
    if (ours && r->cfg_until < 1) json_put(ours, "cfg_until", json_real(r->cfg_until));
    if (!ours) return error_set(e, MEMORY, "no memory to compare the plan with the request");
    for (size_t i = 0; i < sizeof keys / sizeof *keys && e->code == OK; i++) {
        const json_t *a = json_object_get(theirs, keys[i]), *b = json_object_get(ours, keys[i]);
        if (!a || !b || json_equal(a, b)) continue;
        error_set(e, BUDGET,
                  OTHER "its request differs" WHERE "%s" FOUND "%s %s in the plan" EXPECTED
                        "%s %s as requested, or a new plan (`sluice plan ... --json`)",
                  plan_name(job), keys[i], value_text(a, found), keys[i], value_text(b, expected));
    }
    json_decref(ours);
    if (e->code != OK || !json_is_object(theirs)) return e->code;
    if (check_same_controls(job, json_object_get(theirs, "controls"), e) != OK ||
        check_same_object(job, theirs, "hires", second_pass_json(job), e) != OK ||
        check_same_object(job, theirs, "upscaled", planner_describe_upscaled(job), e) != OK)
        return e->code;
    json_int_t frames = json_integer_value(json_object_get(theirs, "frames"));
    if ((frames ? frames : 1) != job->request.frames)
        error_set(e, BUDGET,
                  OTHER "its request differs" WHERE "%s" FOUND "frames %lld in the plan" EXPECTED
                        "frames %d as requested, or a new plan (`sluice plan ... --json`)",
                  plan_name(job), (long long)(frames ? frames : 1), job->request.frames);
    static const char *const guidance[] = {"no guidance (--cfg-scale 1)", "guidance"};
    size_t prompts = json_array_size(json_object_get(theirs, "tokens"));
    if (prompts && (int)prompts != job->settings.n_prompts)
        error_set(e, BUDGET,
                  OTHER "guidance (--cfg-scale) differs" WHERE "%s" FOUND "a plan with %s" EXPECTED
                        "a plan with %s",
                  plan_name(job), guidance[prompts > 1], guidance[job->settings.n_prompts > 1]);
    return e->code;
}

static enum status read_blocks(const struct job *job, int s, json_t *blocks, struct plan_stage *p,
                               struct error *e) {
    const struct stage *stage = &job->layout.stages[s];
    if ((int)json_array_size(blocks) != stage->n_blocks)
        return error_set(e, BUDGET,
                         OTHER "the number of blocks differs" WHERE "%s, %s" FOUND "%d blocks" EXPECTED
                               "%d blocks",
                         plan_name(job), stage->name, (int)json_array_size(blocks), stage->n_blocks);
    for (int i = 0; i < stage->n_blocks; i++) {
        json_t *block = json_array_get(blocks, (size_t)i);
        const char *name = json_string_value(json_object_get(block, "name"));
        char ours[LAYOUT_NAME_BYTES];
        layout_block_name(job, &job->layout, s, i, ours);
        json_t *resident = json_object_get(block, "resident");
        if (!name || !json_is_boolean(resident))
            return plan_invalid(job, e, "a block lacks \"name\" or \"resident\"", stage->name);
        if (strcmp(name, ours))
            return error_set(e, BUDGET,
                             OTHER "the names of blocks differ" WHERE "%s, %s" FOUND
                                   "block \"%.100s\"" EXPECTED "block \"%s\"",
                             plan_name(job), stage->name, name, ours);
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
        if (!json_is_integer(value) || number < 0 || number > plan_copier_limits[i].most)
            return error_set(e, META,
                             "invalid plan file: \"%s\" is out of range" WHERE "%s, %s" EXPECTED
                             "a whole number from 0 to %d",
                             plan_copier_limits[i].key, plan_name(job), p->name, plan_copier_limits[i].most);
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
    if (strcmp(name, p->name))
        return error_set(e, BUDGET,
                         OTHER "the names of stages differ" WHERE "%s" FOUND "stage \"%.100s\"" EXPECTED
                               "stage \"%s\"",
                         plan_name(job), name, p->name);
    uint64_t bytes = (uint64_t)json_integer_value(ring);
    if (bytes > (uint64_t)1 << 50)
        return error_set(e, BUDGET, OTHER "\"ring_bytes\" is above 1 PiB" WHERE "%s, %s", plan_name(job),
                         name);
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

/* Lays the job out with the plan's number of image groups (default 1), VAE tiling and prefix (default:
 * unchanged). */
static enum status read_layout(struct job *job, json_t *stages, struct error *e) {
    json_t *groups = stage_value(job, stages, &stage_denoise, "groups");
    json_t *tiling = stage_value(job, stages, &stage_decode, "vae_tiling");
    json_t *prefix = stage_value(job, stages, &stage_denoise, "prefix");
    const char *how = json_string_value(tiling), *kept = json_string_value(prefix);
    json_int_t n = groups ? json_integer_value(groups) : 1;
    bool tiled = tiling ? how && !strcmp(how, "on") : job->layout.choice.tiled;
    if ((groups && !json_is_integer(groups)) || n < 1 || n > BATCH_MAX)
        return plan_invalid(job, e, "\"groups\" is not a whole number from 1 to the batch limit", "denoise");
    if (tiling && (!how || (!tiled && strcmp(how, "off"))))
        return plan_invalid(job, e, "\"vae_tiling\" is neither \"on\" nor \"off\"", "decode");
    bool keeps = prefix ? kept && !strcmp(kept, "kept") : job->layout.choice.keeps_prefix;
    if (prefix && (!kept || (!keeps && strcmp(kept, "recomputed"))))
        return plan_invalid(job, e, "\"prefix\" is neither \"kept\" nor \"recomputed\"", "denoise");
    return lay_out_candidate(job, (struct layout_choice){(int)n, tiled, 0, keeps}, e);
}

/* Fails with BUDGET if the plan was made for another device, precision, weight type or other adapters. */
static enum status check_same_device(const struct job *job, const json_t *root, struct error *e) {
    const char *type = json_string_value(json_object_get(json_object_get(root, "request"), "type"));
    enum dtype weights = job->settings.weights.type;
    const struct {
        const char *what, *theirs, *ours, *flag;
    } same[] = {{"another device", json_string_value(json_object_get(root, "device")), job->device->name,
                 "a plan for --device "},
                {"another precision", json_string_value(json_object_get(root, "precision")),
                 precision_name(job->settings.precision), "a plan for --precision "},
                {"another weight type (--type)", type ? type : "the files' own types",
                 weights == N_DTYPES ? "the files' own types" : dtype_name(weights), ""}};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        if (same[i].theirs && strcmp(same[i].theirs, same[i].ours))
            return error_set(e, BUDGET, OTHER "%s" WHERE "%s" FOUND "%.100s" EXPECTED "%s%s", same[i].what,
                             plan_name(job), same[i].theirs, same[i].flag, same[i].ours);
    json_t *loras = planner_list_loras(job),
           *theirs = json_object_get(json_object_get(root, "request"), "loras");
    bool alike = json_equal(loras, theirs) || (!theirs && !json_array_size(loras));
    json_decref(loras);
    if (alike) return OK;
    return error_set(e, BUDGET,
                     OTHER "other LoRAs (--lora) or strengths" WHERE "%s" EXPECTED
                           "a new plan with these LoRAs (`sluice plan ... --json`)",
                     plan_name(job));
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
    if ((int)json_array_size(stages) != job->layout.n_stages)
        return error_set(
            e, BUDGET, OTHER "the number of stages differs" WHERE "%s" FOUND "%d stages" EXPECTED "%d stages",
            plan_name(job), (int)json_array_size(stages), job->layout.n_stages);
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
    return lay_out_candidate(job, job->candidates.choices[chosen], e);
}

enum status planner_decide(struct job *job, struct error *e) {
    return job->request.plan ? read_text(job, job->request.plan, e) : planner_choose(job, e);
}
