/* Sessions: the public functions that open, plan, run and report. The struct is in session.h. */
#include "engine/api/session.h"

#include "engine/api/advice_json.h"
#include "engine/api/arguments.h"
#include "engine/api/devices.h"
#include "engine/open/latent_file.h"
#include "engine/open/paths.h"
#include "engine/api/machine.h"
#include "engine/api/plan_json.h"
#include "engine/api/progress.h"
#include "engine/api/rate.h"
#include "engine/api/budget_error.h"
#include "engine/api/warnings.h"
#include "engine/api/stages.h"
#include "engine/api/stage_callbacks.h"
#include "engine/base/text.h"
#include "loaders/json.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void session_log(struct sluice_session *session, int level, const char *format, ...) {
    if (!session->options.on_log) return;
    char line[512];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    session->options.on_log(session->options.user, level, line);
}

static enum status session_evaluation_begins(void *user, const struct visit *visit, struct error *e) {
    struct running *r = user;
    const struct stage_kind *kind = r->job->layout.kind[visit->stage];
    return kind->evaluation_begins ? kind->evaluation_begins(r, visit->stage, visit->evaluation, e) : OK;
}

static enum status session_evaluation_ended(void *user, const struct visit *visit, struct error *e) {
    struct running *r = user;
    const struct stage_kind *kind = r->job->layout.kind[visit->stage];
    progress_evaluation_ends(r);
    if (kind->evaluation_ended) kind->evaluation_ended(r, visit->stage, visit->evaluation, e);
    progress_evaluation_ended(r, visit);
    return e->code;
}

static enum status session_stage_ended(void *user, int stage, struct error *e) {
    struct running *r = user;
    const struct stage_kind *kind = r->job->layout.kind[stage];
    progress_stage_ended(r, stage);
    if (kind->stage_ended) kind->stage_ended(r, stage, e);
    progress_stage_begins(r);
    return e->code;
}

static enum status prepare_steps(struct sluice_session *s, const struct job *job, struct error *e) {
    if (job->decode_only) return OK;
    size_t n = (size_t)job->grid.n;
    s->report.step = s->sys->alloc(s->sys, LINE_HOST, n * sizeof *s->report.step);
    s->report.sigma = s->sys->alloc(s->sys, LINE_HOST, n * sizeof *s->report.sigma);
    if (!s->report.step || !s->report.sigma) return error_set(e, MEMORY, "no memory for %zu steps", n);
    for (size_t i = 0; i < n; i++) s->report.sigma[i] = job->grid.step[i].at.sigma;
    return OK;
}

/* Prepares every operator of the run on the device (oneDNN primitives, CUDA kernels), so that the run itself
 * compiles none. */
static enum status prepare_operators(struct sluice_session *s, const struct run *run, const struct job *job,
                                     struct error *e) {
    struct run_need *need = s->sys->alloc(s->sys, LINE_HOST, run_need_bytes(job->need->n_stages));
    if (!need) return error_set(e, MEMORY, "no memory to plan the run");
    memcpy(need, job->need, run_need_bytes(job->need->n_stages));
    executor_measure(run, true, need, e);
    s->sys->release(s->sys, need);
    return e->code;
}

/* Predicted seconds of all stages after the text stages. 0 without measured rates, since default rates are
 * too low for a useful prediction. */
static double planned_seconds(const struct job *job) {
    double seconds = 0;
    for (int i = 0; i < job->layout.n_stages && job->request.rates; i++)
        if (!job->layout.kind[i]->encodes_prompts) seconds += job->plan.stage[i].seconds;
    return seconds;
}

/* The files of a run that cannot be opened for direct reads (O_DIRECT). */
struct refused_direct {
    int n;
    int problem;       /* negative errno of the first file that cannot be opened */
    const char *first; /* path of the first file that cannot be opened */
};

static void open_source_direct(struct byte_source *source, struct refused_direct *refused) {
    int failed = source_open_direct(source);
    if (!failed || refused->n++) return;
    refused->problem = failed;
    refused->first = source->path;
}

/* Opens all files of the run for direct reads (O_DIRECT). Files that cannot be opened with O_DIRECT are read
 * through the page cache, and one warning reports all such files. */
static void open_direct(struct sluice_session *s, struct job *job) {
    struct refused_direct refused = {0};
    const struct stage *stages = job->layout.stages;
    if (!job->plan.bounce_bytes) return;
    for (int i = 0; i < job->layout.n_stages; i++) {
        const struct tensor_index *index = &stages[i].component->index;
        if (i && stages[i].component == stages[i - 1].component)
            continue; /* skipped: the last stage has the same component, whose files are open */
        for (int k = 0; k < index->n_sources; k++) open_source_direct(&index->sources[k], &refused);
    }
    for (int i = 0; i < s->adapters.n_files; i++)
        open_source_direct(adapter_source(s->adapters.file[i]->adapter), &refused);
    if (refused.n)
        session_log(s, SLUICE_WARNING,
                    "reading through the page cache: %d files do not allow direct reads (first %s: %s)",
                    refused.n, refused.first, strerror(-refused.problem));
}

/* The job's context. Drops resident weights that an earlier run converted to another type (--type), which the
 * store would mistake for the current run's weights. */
static struct job_context session_context(struct sluice_session *s, const struct sluice_request *request) {
    struct error e = {0};
    enum dtype new_type;
    struct sluice_request r;
    copy_sized(&r, sizeof r, request);
    if (requantised_type(r.type, r.converted, &new_type, &e) == OK && s->requantised.made &&
        s->requantised.type != new_type)
        residents_destroy(&s->residents);
    return (struct job_context){.model = s->model,
                                .device = s->device,
                                .requantised = &s->requantised,
                                .adapters = &s->adapters,
                                .prompt_cache = &s->prompt_cache};
}

static bool continue_unless_cancelled(void *user, struct error *e) {
    struct sluice_session *s = user;
    if (atomic_load(&s->cancelled)) error_set(e, CANCELLED, "cancelled");
    return e->code == OK;
}

/* Scans the adapters for NaN and computes quantisation scales, once before the run. */
static enum status scan_weights(struct sluice_session *s, const struct job *job, struct error *e) {
    struct adapter_base base = {s->model, &s->requantised};
    if (!job->decode_only) session_adapters_check_finite(&s->adapters, continue_unless_cancelled, s, e);
    for (int i = 0; i < job->layout.n_stages && e->code == OK; i++) {
        int slot = job->layout.slot[i];
        if (requantised_scale(&s->requantised, s->sys, slot, continue_unless_cancelled, s, e) == OK)
            session_adapters_copy_scales(&s->adapters, &base, slot);
    }
    return e->code;
}

static enum status execute(struct sluice_session *s, struct job *job, const char *latent_file,
                           struct error *e) {
    struct running r = {
        .session = s, .job = job, .all = job_flops(job), .planned_seconds = planned_seconds(job)};
    struct run_hooks hooks = {.user = &r,
                              .evaluation_begins = session_evaluation_begins,
                              .evaluation_ended = session_evaluation_ended,
                              .stage_ended = session_stage_ended,
                              .bytes_needed = progress_eviction_bytes,
                              .evicted = progress_evicted,
                              .tick = progress_tick};
    struct run run = job_run(job, &job->layout, &hooks);
    r.reserve = progress_pressure_reserve(s, job);
    /* A plan that keeps no residents does not count residents of an earlier run, so free them first. */
    if (!job->plan.keep) residents_destroy(&s->residents);
    if (!s->device->memory && (s->options.on_log || s->options.on_progress))
        r.rate = rate_measure(s->sys, s->device, job->precision);
    r.began = s->sys->clock(s->sys);
    progress_stage_begins(&r);
    for (int i = 0; i < job->layout.n_stages; i++)
        memcpy(s->report.stage_name[i], job->layout.stages[i].name, sizeof s->report.stage_name[i]);
    if (job->preview_job) {
        struct run preview_run_view = job_run(job->preview_job, &job->preview_job->layout, NULL);
        prepare_operators(s, &preview_run_view, job->preview_job, e);
    }
    if (prepare_operators(s, &run, job, e) != OK || prepare_steps(s, job, e) != OK) return e->code;
    if (job_allocate(job, e) != OK) return e->code;
    run = job_run(job, &job->layout, &hooks);
    open_direct(s, job);
    bool same_files =
        job->preview_job && !job->request.no_decode && job->preview_job->decoder_slot == job->decoder_slot;
    if (job->preview_job && !same_files) open_direct(s, job->preview_job);
    if (scan_weights(s, job, e) != OK) return e->code;
    const char *from = latent_file ? latent_file : job->request.init_latent;
    initial_latents_open(&r.initial_latents, job, from, e);
    if (e->code == OK && job->request.dump && !job->decode_only) dump_run_start(&r, e);
    if (e->code == OK) on_prompts_cached(&r, e);
    if (e->code == OK) executor_run(&run, job->need, &job->plan, &s->residents, &r.counters, e);
    if (e->code == OK) progress_ended(&r);
    initial_latents_close(&r.initial_latents);
    s->report.seconds = s->sys->clock(s->sys) - r.began;
    if (r.counters.bytes_unpinned)
        session_log(s, SLUICE_WARNING,
                    "%s of weights were copied to the GPU from memory that could not be pinned (slower)",
                    size_text(r.counters.bytes_unpinned, (char[SIZE_TEXT_BYTES]){0}));
    return e->code;
}

/* Refuses requests that can be planned but not run: no files, files to be converted, no prompt, previews
 * without a callback. */
static enum status session_check_runnable(const struct sluice_session_options *options, const struct job *job,
                                          struct error *e) {
    if (job->model->published) {
        return error_set(e, USAGE,
                         "--family opens no files: it can be planned, not run" WHERE "%s" EXPECTED
                         "a model opened from its files (-m)",
                         job->model->name);
    }
    if (job->request.converted) {
        return error_set(
            e, USAGE,
            "a request with `converted` set can be planned, not run: its files do not exist yet" EXPECTED
            "converted files, or a request without `converted`");
    }
    if (job->preview != PREVIEW_NONE && !options->on_preview) {
        return error_set(e, USAGE,
                         "a request with previews needs the session's on_preview callback" FOUND
                         "preview \"%s\"" EXPECTED
                         "a session opened with on_preview, or a request without preview",
                         job->request.preview);
    }
    if (job->decode_only || job->request.prompt) return OK;
    return error_set(e, USAGE, "no prompt was given" EXPECTED "a prompt (-p TEXT; \"\" is an empty one)");
}

static void put_algorithm(void *list, const char *op, const char *shape, const char *algorithm) {
    json_push(list, json_pack("{s:s, s:s, s:s}", "op", op, "shape", shape, "algorithm", algorithm));
}

static void measure_device(struct sluice_session *s) {
    struct device *device = s->device;
    const struct device_memory *own = device->memory;
    if (own && own->used) s->report.device_bytes = own->used(device);
    if (own && own->context) s->report.context_bytes = own->context(device);
    if (device->algorithms && (s->report.algorithms = json_array()))
        device->algorithms(device, put_algorithm, s->report.algorithms);
}

static void measure_process(struct sluice_session *s) {
    struct memory_use use = sys_memory_use(s->sys);
    int64_t own = 0;
    for (int i = 0; i < N_MEMORY_LINES; i++) own += use.peak_bytes[i];
    s->report.peak_bytes = machine_peak_bytes();
    measure_device(s);
    uint64_t known = s->report.base_bytes + (uint64_t)own;
    s->report.library_bytes = s->report.peak_bytes > known ? s->report.peak_bytes - known : 0;
}

static enum status run_job(struct sluice_session *s, const struct sluice_request *request,
                           const char *latent_file, const int32_t *latent_dim, struct error *e) {
    struct job job;
    report_destroy(s->sys, &s->report);
    s->report.base_bytes = machine_resident_bytes();
    s->report.seed = request->seed;
    atomic_store(&s->cancelled, 0);
    struct job_context place = session_context(s, request);
    if (job_open(&job, &place, request, latent_dim, e) != OK ||
        session_check_runnable(&s->options, &job, e) != OK || plan_take(&job, e) != OK)
        goto out;
    s->report.plan = plan_json(&job);
    if (plan_check(job.need, &job.plan, e) == BUDGET) budget_error_suggest(&job, e);
    if (e->code != OK) goto out;
    warn_run(s, &job, request->cfg_scale);
    if (job_read_pictures(&job, e) != OK) goto out;
    execute(s, &job, latent_file, e);
out:
    job_close(&job);
    s->report.error = *e;
    measure_process(s);
    return e->code;
}

/* Sets up the prompt cache's folder. Planning devices get no folder, because they encode no prompts. */
static void open_prompt_cache(struct sluice_session *s) {
    struct prompt_cache *c = &s->prompt_cache;
    if (c->folder && device_fingerprint(s->device, s->options.device, c->fingerprint, sizeof c->fingerprint))
        return;
    s->sys->release(s->sys, c->folder);
    c->folder = NULL;
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
    if (s->device) open_prompt_cache(s);
    if (e.code == OK) {
        *session = s;
        warn_session(s);
    } else {
        sluice_session_close(s);
    }
    return publish_error(&e, error);
}

void sluice_session_close(sluice_session *s) {
    if (!s) return;
    residents_destroy(&s->residents);
    session_adapters_destroy(&s->adapters);
    requantised_destroy(&s->requantised);
    prompt_cache_evict(&s->prompt_cache, 0);
    s->sys->release(s->sys, s->prompt_cache.folder);
    report_destroy(s->sys, &s->report);
    if (s->device) s->device->destroy(s->device);
    s->sys->release(s->sys, s);
}

static bool check_run_arguments(const struct sluice_session *session, const struct sluice_request *request,
                                struct error *e) {
    return check_not_null(session, "session", e) && check_struct_size(request, "request", e);
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

/* True if a VAE file, opened alone as an image VAE, could belong to a video pipeline: a video recipe has the
 * same decoder family, and without config.json the file does not name a pipeline. */
static bool may_be_video_vae(const struct sluice_model *m) {
    const struct family *decoder = model_decoder(m)->family;
    bool may = false;
    for (const struct recipe *const *r = recipes; *r && m->decodes_only; r++)
        may = may || ((*r)->frames_max && recipe_family(*r, decoder->kind) == decoder);
    return may && !m->recipe->frames_max;
}

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
            error_set(e, SHAPE, "the latent's shape does not fit this model's VAE" WHERE "%s", path);
            latent_found(index_find(&index, "latent"), e);
            if (frames) snprintf(of_video, sizeof of_video, "1 to %d, ", most);
            error_expected(
                e, "[1 to %d, %d, %sh, w]%s", BATCH_MAX, channels, of_video,
                dim[2] > 1 && may_be_video_vae(s->model)
                    ? "; for video latents give -m the model's folder, or put config.json beside the VAE"
                    : "");
        }
    }
    index_destroy(&index);
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

static enum status plan_text(sluice_session *session, const struct sluice_request *request,
                             const int32_t *dim, char **json, bool *fits, struct error *e) {
    struct error failure = {0};
    struct job job = {0};
    struct job_context place = session_context(session, request);
    if (job_open(&job, &place, request, dim, e) == OK && plan_take(&job, e) == OK) {
        warn_plan(session, &job);
        *fits = plan_check(job.need, &job.plan, &failure) == OK;
        unsigned json_failures = failed_json_allocations();
        json_t *plan = plan_json(&job);
        if (plan) json_put(plan, "advice", advice_json(&job));
        *json = json_to_text(plan, JSON_INDENT(1), json_failures);
        if (!*json) error_set(e, MEMORY, "no memory for the plan's text");
    }
    job_close(&job);
    return e->code;
}

int sluice_plan_query(sluice_session *session, const struct sluice_request *request,
                      const char *decode_latent, char **json, bool *fits, struct sluice_error *error) {
    struct error e = {0};
    int32_t dim[5];
    if (!check_not_null(json, "json", &e) || !check_not_null(fits, "fits", &e) ||
        !check_run_arguments(session, request, &e))
        return publish_error(&e, error);
    *json = NULL;
    *fits = false;
    if (!decode_latent || decode_dims(session, decode_latent, dim, &e) == OK)
        plan_text(session, request, decode_latent ? dim : NULL, json, fits, &e);
    return publish_error(&e, error);
}

int sluice_report(sluice_session *session, char **json, struct sluice_error *error) {
    struct error e = {0};
    if (!check_not_null(session, "session", &e) || !check_not_null(json, "json", &e))
        return publish_error(&e, error);
    unsigned json_failures = failed_json_allocations();
    *json = json_to_text(report_json(&session->report), JSON_INDENT(1), json_failures);
    if (!*json) error_set(&e, MEMORY, "no memory for the report");
    return publish_error(&e, error);
}

void sluice_cancel(sluice_session *session) {
    if (session) atomic_store(&session->cancelled, 1);
}
