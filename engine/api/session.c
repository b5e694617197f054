/* Sessions: the public functions that open, plan, run and report. The struct is in session.h. */
#include "engine/api/session.h"

#include "engine/api/plan_json.h"
#include "engine/api/warnings.h"
#include "engine/generate/generate.h"
#include "engine/job/open.h"
#include "engine/job/pictures.h"
#include "engine/job/planner.h"
#include "engine/machine/machine.h"
#include "engine/open/latent_file.h"
#include "engine/open/paths.h"
#include "engine/open/public_structs.h"
#include "loaders/json.h"

#include <stdio.h>
#include <string.h>

/* Refuses requests that can be planned but not run: a model without files, files still to be converted, no
 * prompt, previews without a callback. */
static enum status check_runnable(const struct sluice_session_options *options, const struct job *job,
                                  struct error *e) {
    if (job->model->published)
        return error_set(e, USAGE,
                         "--family opens no files: it can be planned, not run" WHERE "%s" EXPECTED
                         "a model opened from its files (-m)",
                         job->model->name);
    if (job->request.converted)
        return error_set(
            e, USAGE,
            "a request with `converted` set can be planned, not run: its files do not exist yet" EXPECTED
            "converted files, or a request without `converted`");
    if (job->settings.preview != PREVIEW_NONE && !options->on_preview)
        return error_set(e, USAGE,
                         "a request with previews needs the session's on_preview callback" FOUND
                         "preview \"%s\"" EXPECTED
                         "a session opened with on_preview, or a request without preview",
                         job->request.preview);
    if (job->settings.decode_only || job->request.prompt || job->settings.zero_prompt) return OK;
    return error_set(e, USAGE, "no prompt was given" EXPECTED "a prompt (-p TEXT; \"\" is an empty one)");
}

static void hash_text(struct sha256_ctx *sha, const char *text) {
    if (text) sha256_update(sha, strlen(text) + 1, (const uint8_t *)text);
}

/* Hashes sizes, addresses and names of n input pictures, not their pixels: a plan reads no pixels. */
static void hash_pictures(struct sha256_ctx *sha, const struct sluice_picture *const *pictures, int n) {
    for (int i = 0; i < n && pictures; i++) {
        struct sluice_picture picture = {0};
        if (pictures[i]) copy_sized(&picture, sizeof picture, pictures[i]);
        sha256_update(sha, sizeof picture, (const uint8_t *)&picture);
        hash_text(sha, picture.name);
    }
}

static void hash_controls(struct sha256_ctx *sha, const struct sluice_request *r) {
    for (int i = 0; i < r->n_controls && r->n_controls <= SLUICE_CONTROLS_MAX && r->controls; i++) {
        struct sluice_control control = {0};
        copy_sized(&control, sizeof control,
                   (const char *)r->controls + (size_t)i * r->controls->struct_size);
        const struct sluice_picture *const pictures[] = {control.image, control.mask, control.inpaint};
        sha256_update(sha, sizeof control, (const uint8_t *)&control);
        hash_pictures(sha, pictures, 3);
        hash_text(sha, control.mode_name);
    }
}

/* Computes a key of everything that a job depends on: the request's fields, pointers included, and the
 * contents behind these pointers. A kept job may serve a request with the same key. dim: shape of the latent
 * to decode; NULL: none. */
static void request_key(const struct sluice_request *r, const int32_t *dim, uint8_t key[SHA256_DIGEST_SIZE]) {
    const char *const texts[] = {r->prompt,         r->negative_prompt,
                                 r->precision,      r->init_latent,
                                 r->save_latent,    r->dump,
                                 r->plan,           r->rates,
                                 r->rates_name,     r->direct_io,
                                 r->vae_tiling,     r->plan_name,
                                 r->type,           r->fit,
                                 r->prompt_weights, r->sampler,
                                 r->scheduler,      r->prediction,
                                 r->preview,        r->lora_dir,
                                 r->hires_upscaler, r->save_audio_latent};
    const struct sluice_picture *const images[] = {r->init_image, r->mask, r->end_image};
    struct sha256_ctx sha;
    sha256_init(&sha);
    sha256_update(&sha, sizeof *r, (const uint8_t *)r);
    if (dim) sha256_update(&sha, 5 * sizeof *dim, (const uint8_t *)dim);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) hash_text(&sha, texts[i]);
    hash_pictures(&sha, images, 3);
    hash_pictures(&sha, r->references, r->n_references <= LANE_REFERENCES_MAX ? r->n_references : 0);
    hash_pictures(&sha, r->redux_images, r->n_redux_images <= SLUICE_CONTROLS_MAX ? r->n_redux_images : 0);
    hash_pictures(&sha, r->control, r->n_control);
    hash_controls(&sha, r);
    if (r->slg_layers && r->n_slg_layers > 0 && r->n_slg_layers <= FAMILY_BLOCKS_MAX)
        sha256_update(&sha, (size_t)r->n_slg_layers * sizeof *r->slg_layers, (const uint8_t *)r->slg_layers);
    if (r->stg_blocks && r->n_stg_blocks > 0 && r->n_stg_blocks <= SLUICE_STG_BLOCKS_MAX)
        sha256_update(&sha, (size_t)r->n_stg_blocks * sizeof *r->stg_blocks, (const uint8_t *)r->stg_blocks);
    if (r->sigmas && r->n_sigmas > 0 && r->n_sigmas <= SLUICE_STEPS_MAX)
        sha256_update(&sha, (size_t)r->n_sigmas * sizeof *r->sigmas, (const uint8_t *)r->sigmas);
    if (r->upscale_sigmas && r->n_upscale_sigmas > 0 && r->n_upscale_sigmas <= SLUICE_STEPS_MAX)
        sha256_update(&sha, (size_t)r->n_upscale_sigmas * sizeof *r->upscale_sigmas,
                      (const uint8_t *)r->upscale_sigmas);
    sha256_digest(&sha, SHA256_DIGEST_SIZE, key);
}

static void drop_planned(struct sluice_session *s) {
    if (s->planned) job_close(s->planned);
    s->sys->release(s->sys, s->planned);
    s->planned = NULL;
}

/* Opens a job and makes its plan. runs: the plan will be executed; fails with USAGE for a request that cannot
 * run. The caller closes the job, also after failure. */
static enum status plan_job(struct sluice_session *s, const struct sluice_request *request,
                            const int32_t *dim, bool runs, struct job *job, struct error *e) {
    struct conversion_choice choice;
    struct error ignored = {0};
    const struct job_context context = {.model = s->model,
                                        .device = s->device,
                                        .requantised = &s->requantised,
                                        .adapters = &s->adapters,
                                        .prompt_cache = &s->prompt_cache,
                                        .upscales = s->upscales || s->model->upscales_only};
    drop_planned(s);
    /* Frees resident weights that the previous run converted to another type. The store would mistake them
     * for weights of this run. */
    if (requantised_choice(request->type, request->precision, &choice, &ignored) == OK &&
        s->requantised.made && !conversion_equals(s->requantised.choice, choice))
        residents_destroy(&s->residents);
    if (job_open(job, &context, request, dim, e) != OK) return e->code;
    if (runs && check_runnable(&s->options, job, e) != OK) return e->code;
    return planner_decide(job, e);
}

/* Like plan_job, but reuses the job that sluice_plan_query kept for the same request. */
static enum status plan_run(struct sluice_session *s, const struct sluice_request *request,
                            const int32_t *dim, struct job *job, struct error *e) {
    uint8_t key[SHA256_DIGEST_SIZE];
    request_key(request, dim, key);
    if (!s->planned || memcmp(key, s->planned_key, sizeof key) != 0)
        return plan_job(s, request, dim, true, job, e);
    job_move(job, s->planned);
    drop_planned(s);
    if (check_runnable(&s->options, job, e) != OK || request->plan) return e->code;
    /* A default budget is computed again from the memory free now. */
    struct error does_not_fit = {0};
    bool fits =
        plan_check(job->need, &job->plan, &does_not_fit) == OK &&
        (job->request.max_ram_bytes || job->plan.ram_peak_bytes <= machine_default_budget()) &&
        (job->request.max_vram_bytes || job->plan.vram_peak_bytes <= device_default_budget(job->device));
    return fits ? OK : planner_decide(job, e);
}

/* True if the request with one changed option would fit its memory budgets. */
static bool fits_with(const struct job *job, const struct sluice_request *request) {
    struct job other;
    struct error e = {0};
    int32_t latent[5] = {job->latents.batch, job->latents.C, job->latents.F, job->latents.Y, job->latents.X};
    bool fits =
        job_open(&other, &job->context, request, job->settings.decode_only ? latent : NULL, &e) == OK &&
        planner_choose(&other, &e) == OK && plan_check(other.need, &other.plan, &e) == OK;
    job_close(&other);
    return fits;
}

/* Extends the BUDGET error e of a request whose VAE decode stage exceeds the memory budget: suggests
 * --vae-tiling on or --no-decode if the job would fit the budget with that flag. Plans each alternative;
 * reads no weights. */
static enum status suggest_smaller_decode(const struct job *job, struct error *e) {
    const struct error plain = *e;
    const struct sluice_request *r = &job->request;
    struct sluice_request with_tiling = *r, undecoded = *r;
    if (r->plan || r->no_decode || job->context.upscales)
        return e->code; /* no suggestion: a --plan file is fixed, or --no-decode is already set */
    with_tiling.vae_tiling = "on";
    undecoded.no_decode = true;
    bool tiled = r->vae_tiling && !strcmp(r->vae_tiling, "off") && fits_with(job, &with_tiling);
    bool without = !job->settings.decode_only && fits_with(job, &undecoded);
    struct sluice_request smaller = *r;
    smaller.upscale = false;
    if (r->upscale && without && fits_with(job, &smaller)) {
        *e = (struct error){0};
        return error_set(e, BUDGET,
                         "only the enlargement (--upscale-model) is too large: %s" WHERE "%s" FOUND
                         "%s" EXPECTED "%s; or no --upscale-model, then `sluice upscale` elsewhere",
                         plain.what, plain.where, plain.found, plain.expected);
    }
    if (!tiled && !without) return e->code;
    *e = (struct error){0};
    return error_set(e, BUDGET, "%s is too large: %s" WHERE "%s" FOUND "%s" EXPECTED "%s%s%s",
                     without ? "only the decode" : "the decode", plain.what, plain.where, plain.found,
                     plain.expected, tiled ? "; or --vae-tiling on" : "",
                     without ? "; or --no-decode --save-latent FILE, then `sluice decode` elsewhere" : "");
}

/* Frees the report of the previous run. */
static void drop_report(struct sluice_session *s) {
    json_decref(s->plan);
    s->sys->release(s->sys, s->report.step);
    s->sys->release(s->sys, s->report.sigma);
    s->plan = NULL;
    s->report = (struct report){0};
}

/* Measures the memory of the process and of the device after a run. */
static void measure_memory(struct sluice_session *s) {
    const struct device_memory *own = s->device->memory;
    struct memory_use use = sys_memory_use(s->sys);
    struct report *report = &s->report;
    uint64_t known = report->base_bytes;
    for (int i = 0; i < N_MEMORY_LINES; i++) known += (uint64_t)use.peak_bytes[i];
    report->peak_bytes = machine_peak_bytes();
    report->library_bytes = report->peak_bytes > known ? report->peak_bytes - known : 0;
    if (own && own->used) report->device_bytes = own->used(s->device);
    if (own && own->context) report->context_bytes = own->context(s->device);
}

static enum status run_job(struct sluice_session *s, const struct sluice_request *request,
                           const char *latent_file, const int32_t *latent_dim, struct error *e) {
    struct job job = {0};
    s->busy = true;
    drop_report(s);
    s->report.base_bytes = machine_resident_bytes();
    s->report.seed = request->seed;
    atomic_store(&s->cancelled, 0);
    if (plan_run(s, request, latent_dim, &job, e) != OK) goto out;
    s->plan = plan_json(&job);
    s->summary = plan_summary(&job);
    if (plan_check(job.need, &job.plan, e) == BUDGET) suggest_smaller_decode(&job, e);
    if (e->code != OK) goto out;
    warn_run(&s->options, &job, request->cfg_scale);
    for (struct job *pass = &job; pass && e->code == OK; pass = pass->second_pass) pictures_read(pass, e);
    if (e->code != OK) goto out;
    struct running running = {.job = &job,
                              .options = &s->options,
                              .report = &s->report,
                              .residents = &s->residents,
                              .cancelled = &s->cancelled,
                              .latent_file = latent_file ? latent_file : job.request.init_latent};
    generate(&running, e);
out:
    job_close(&job);
    s->report.error = *e;
    measure_memory(s);
    s->busy = false;
    return e->code;
}

int sluice_session_open(sluice_model *model, const struct sluice_session_options *options,
                        sluice_session **session, struct sluice_error *error) {
    struct error e = {0};
    if (!check_not_null(session, "session", &e)) return publish_error(&e, error);
    *session = NULL;
    if (!check_not_null(model, "model", &e) || !check_struct_size(options, "options", &e))
        return publish_error(&e, error);
    struct sys *sys = model->sys;
    struct sluice_session *s = sys->alloc(sys, LINE_HOST, sizeof *s);
    if (!s) {
        error_set(&e, MEMORY, "no memory for a session");
        return publish_error(&e, error);
    }
    s->sys = sys;
    s->model = model;
    s->residents.sys = sys;
    copy_sized(&s->options, sizeof s->options, options);
    s->prompt_cache = (struct prompt_cache){.sys = sys, .limit_bytes = s->options.prompt_cache_bytes};
    if (s->options.prompt_cache) s->prompt_cache.folder = path_copy(sys, s->options.prompt_cache, &e);
    int threads = s->options.threads ? s->options.threads : machine_threads("");
    if (e.code == OK && check_threads(threads, &e))
        s->device = device_open(sys, s->options.device, threads, s->options.plans_only, &e);
    if (s->device && s->device->memory) s->residents.device = s->device;
    /* Planning devices get no prompt cache files, because they encode no prompts. */
    struct prompt_cache *cache = &s->prompt_cache;
    if (s->device && !(cache->folder && device_fingerprint(s->device, s->options.device, cache->fingerprint,
                                                           sizeof cache->fingerprint))) {
        sys->release(sys, cache->folder);
        cache->folder = NULL;
    }
    if (e.code == OK) {
        *session = s;
        warn_session(&s->options, model, s->device);
    } else {
        sluice_session_close(s);
    }
    return publish_error(&e, error);
}

void sluice_session_close(sluice_session *s) {
    if (!s) return;
    drop_planned(s);
    residents_destroy(&s->residents);
    session_adapters_destroy(&s->adapters);
    requantised_destroy(&s->requantised);
    prompt_cache_evict(&s->prompt_cache, 0);
    s->sys->release(s->sys, s->prompt_cache.folder);
    drop_report(s);
    if (s->device) s->device->destroy(s->device);
    s->sys->release(s->sys, s);
}

static bool check_run_arguments(const struct sluice_session *session, const struct sluice_request *request,
                                struct error *e) {
    if (!check_not_null(session, "session", e) || !check_struct_size(request, "request", e)) return false;
    if (session->busy)
        error_set(e, USAGE,
                  "the session is busy" FOUND "a call from one of the session's callbacks" EXPECTED
                  "the call after the run, or a session of its own");
    return !session->busy;
}

int sluice_run(sluice_session *session, const struct sluice_request *request, struct sluice_error *error) {
    struct error e = {0};
    struct sluice_request r;
    if (!check_run_arguments(session, request, &e)) return publish_error(&e, error);
    copy_sized(&r, sizeof r, request);
    run_job(session, &r, NULL, NULL, &e);
    return publish_error(&e, error);
}

enum { LATENT_SIDE_MAX = 2048 };

static enum status decode_dims(struct sluice_session *s, const char *path, int32_t dim[5], struct error *e) {
    struct tensor_index index;
    if (latent_open(s->sys, path, &index, dim, e) == OK) {
        const struct component *decoder = model_decoder(s->model);
        int channels = decoder->latent_channels, frames = s->model->recipe->frames_max;
        int most = frames ? (frames - 1) / component_frame_factor(decoder) + 1 : 1;
        char of_video[24] = "";
        bool fits = dim[0] >= 1 && dim[0] <= BATCH_MAX && dim[1] == channels && dim[2] >= 1 && dim[2] <= most;
        for (int i = 3; i < 5; i++) fits &= dim[i] >= 1 && dim[i] <= LATENT_SIDE_MAX;
        if (!fits) {
            /* A VAE file without config.json does not name a pipeline: opened alone as an image VAE, it could
             * belong to a video pipeline whose recipe has the same decoder family. */
            bool may_be_video = false;
            for (const struct recipe *const *r = recipes; *r && s->model->decodes_only && !frames; r++)
                may_be_video |=
                    (*r)->frames_max && recipe_family(*r, decoder->family->kind) == decoder->family;
            error_set(e, SHAPE, "the latent's shape does not fit this model's VAE" WHERE "%s", path);
            latent_found(index_find(&index, "latent"), e);
            if (frames) snprintf(of_video, sizeof of_video, "1 to %d, ", most);
            error_expected(
                e, "[1 to %d, %d, %sh, w]%s", BATCH_MAX, channels, of_video,
                dim[2] > 1 && may_be_video
                    ? "; for video latents give -m the model's folder, or put config.json beside the VAE"
                    : "");
        }
    }
    index_destroy(&index);
    if (e->code != OK) return e->code;
    /* Recipes with the same latent space share one table of preview colours. */
    struct latent_origin origin = latent_read_origin(s->sys, path);
    for (const struct recipe *const *r = recipes; *r; r++)
        if (!strcmp((*r)->name, origin.recipe) && (*r)->colours != s->model->recipe->colours)
            error_set(e, META,
                      "the latent was made by another model, whose VAE scales latents differently" WHERE
                      "%s" FOUND "a latent of %s" EXPECTED "a latent of %s, or -m with a model of %s",
                      path, origin.recipe, s->model->recipe->name, origin.recipe);
    return e->code;
}

int sluice_decode(sluice_session *session, const struct sluice_request *request, const char *latent_file,
                  struct sluice_error *error) {
    struct error e = {0};
    struct sluice_request r;
    int32_t dim[5];
    if (!check_run_arguments(session, request, &e) || !check_not_null(latent_file, "latent_file", &e))
        return publish_error(&e, error);
    copy_sized(&r, sizeof r, request);
    if (decode_dims(session, latent_file, dim, &e) == OK) run_job(session, &r, latent_file, dim, &e);
    session->report.error = e;
    return publish_error(&e, error);
}

int sluice_upscale(sluice_session *session, const struct sluice_picture *picture,
                   const struct sluice_request *request, struct sluice_error *error) {
    struct error e = {0};
    struct sluice_request r;
    if (!check_run_arguments(session, request, &e) || !check_struct_size(picture, "picture", &e))
        return publish_error(&e, error);
    copy_sized(&r, sizeof r, request);
    r.init_image = picture;
    if (!session->model->upscales_only) drop_planned(session); /* that plan is not of an upscaling job */
    session->upscales = true;
    run_job(session, &r, NULL, NULL, &e);
    session->upscales = false;
    return publish_error(&e, error);
}

int sluice_plan_query(sluice_session *session, const struct sluice_request *request,
                      const char *decode_latent, char **json, bool *fits, struct sluice_error *error) {
    struct error e = {0};
    struct sluice_request r;
    struct job job = {0};
    int32_t dim[5];
    if (!check_not_null(json, "json", &e) || !check_not_null(fits, "fits", &e) ||
        !check_run_arguments(session, request, &e))
        return publish_error(&e, error);
    *json = NULL;
    *fits = false;
    copy_sized(&r, sizeof r, request);
    if (decode_latent && decode_dims(session, decode_latent, dim, &e) != OK) return publish_error(&e, error);
    const int32_t *dim_or_null = decode_latent ? dim : NULL;
    session->busy = true;
    if (plan_job(session, &r, dim_or_null, false, &job, &e) == OK) {
        warn_plan(&session->options, &job);
        session->summary = plan_summary(&job);
        *fits = session->summary.fits;
        unsigned json_failures = failed_json_allocations();
        json_t *plan = plan_json(&job);
        if (plan) json_put(plan, "advice", advice_json(&job, &e));
        if (e.code == OK)
            *json = json_to_text(plan, JSON_INDENT(1), json_failures);
        else
            json_decref(plan);
        if (!*json) error_set(&e, MEMORY, "no memory for the plan's text");
    }
    /* Keeps the planned job for a later run of the same request, unless it has adapters, whose files may
     * change. */
    struct sys *sys = session->sys;
    if (e.code == OK && !session->adapters.n_files) {
        request_key(&r, dim_or_null, session->planned_key);
        session->planned = sys->alloc(sys, LINE_HOST, sizeof *session->planned);
    }
    session->planned ? job_move(session->planned, &job) : job_close(&job);
    session->busy = false;
    return publish_error(&e, error);
}

int sluice_plan_summary(const sluice_session *session, struct sluice_plan *plan, struct sluice_error *error) {
    struct error e = {0};
    if (!check_not_null(session, "session", &e) || !check_struct_size(plan, "plan", &e))
        return publish_error(&e, error);
    size_t bytes = plan->struct_size;
    if (!session->summary.struct_size) {
        error_set(&e, USAGE, "the session has no plan yet" EXPECTED "sluice_plan_query or a run first");
    } else {
        memset(plan, 0, bytes);
        memcpy(plan, &session->summary, bytes < sizeof *plan ? bytes : sizeof *plan);
        plan->struct_size = bytes;
    }
    return publish_error(&e, error);
}

int sluice_report(sluice_session *session, char **json, struct sluice_error *error) {
    struct error e = {0};
    if (!check_not_null(session, "session", &e) || !check_not_null(json, "json", &e))
        return publish_error(&e, error);
    unsigned json_failures = failed_json_allocations();
    *json = json_to_text(report_json(&session->report, session->plan, session->device), JSON_INDENT(1),
                         json_failures);
    if (!*json) error_set(&e, MEMORY, "no memory for the report");
    return publish_error(&e, error);
}

void sluice_cancel(sluice_session *session) {
    if (session) atomic_store(&session->cancelled, 1);
}
