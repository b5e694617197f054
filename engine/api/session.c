/* Sessions: see session.h. Opening, planning, running. */
#include "engine/api/session.h"

#include "engine/api/advice_json.h"
#include "engine/api/caller.h"
#include "engine/api/devices.h"
#include "engine/open/latent_file.h"
#include "engine/open/paths.h"
#include "engine/api/machine.h"
#include "engine/api/plan_json.h"
#include "engine/api/progress.h"
#include "engine/api/rate.h"
#include "engine/api/refusal.h"
#include "engine/api/remarks.h"
#include "engine/api/stages.h"
#include "engine/api/turns.h"
#include "engine/base/text.h"
#include "loaders/json.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void session_say(struct sluice_session *session, int level, const char *format, ...) {
    if (!session->options.on_log) return;
    char line[512];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    session->options.on_log(session->options.user, level, line);
}

/* ---- hooks ---- */

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

/* ---- a run ---- */

static enum status prepare_steps(struct sluice_session *s, const struct job *job, struct error *e) {
    if (job->decode_only) return OK;
    size_t n = (size_t)job->grid.n;
    s->report.step = s->sys->alloc(s->sys, LINE_HOST, n * sizeof *s->report.step);
    s->report.sigma = s->sys->alloc(s->sys, LINE_HOST, n * sizeof *s->report.sigma);
    if (!s->report.step || !s->report.sigma) return error_set(e, MEMORY, "no memory for %zu steps", n);
    for (size_t i = 0; i < n; i++) s->report.sigma[i] = job->grid.step[i].at.sigma;
    return OK;
}

/* The device builds what the operators need, so that the run itself builds nothing. */
static enum status prepare_operators(struct sluice_session *s, const struct run *run, const struct job *job,
                                     struct error *e) {
    struct run_need *need = s->sys->alloc(s->sys, LINE_HOST, run_need_bytes(job->need->n_stages));
    if (!need) return error_set(e, MEMORY, "no memory for what a run needs");
    memcpy(need, job->need, run_need_bytes(job->need->n_stages));
    executor_measure(run, true, need, e);
    s->sys->release(s->sys, need);
    return e->code;
}

/* Stated defaults are too low to be worth an announcement. */
static double planned_seconds(const struct job *job) {
    double seconds = 0;
    for (int i = 0; i < job->layout.n_stages && job->request.rates; i++)
        if (!job->layout.kind[i]->of_texts) seconds += job->plan.stage[i].seconds;
    return seconds;
}

struct refused_direct {
    int n, problem; /* of the first */
    const char *first;
};

static void open_source_direct(struct byte_source *source, struct refused_direct *refused) {
    int failed = source_open_direct(source);
    if (!failed || refused->n++) return;
    refused->problem = failed;
    refused->first = source->path;
}

/* A file that cannot be read past the page cache is read through it, and one line says so. */
static void open_direct(struct sluice_session *s, struct job *job) {
    struct refused_direct refused = {0};
    const struct stage *stages = job->layout.stages;
    if (!job->plan.bounce_bytes) return;
    for (int i = 0; i < job->layout.n_stages; i++) {
        const struct tensor_index *index = &stages[i].component->index;
        if (i && stages[i].component == stages[i - 1].component) continue; /* a file is asked once */
        for (int k = 0; k < index->n_sources; k++) open_source_direct(&index->sources[k], &refused);
    }
    for (int i = 0; i < s->adapted.n_files; i++)
        open_source_direct(adapter_source(s->adapted.file[i]->adapter), &refused);
    if (refused.n)
        session_say(s, SLUICE_WARNING,
                    "reading through the page cache: direct reads of %d files are not allowed: %s: %s",
                    refused.n, refused.first, strerror(-refused.problem));
}

/* What is kept of an earlier run in another type would be taken for this one's. */
static struct job_place session_place(struct sluice_session *s, const struct sluice_request *request) {
    struct error e = {0};
    enum dtype wanted;
    struct sluice_request r;
    copy_sized(&r, sizeof r, request);
    if (requantised_type(r.type, r.converted, &wanted, &e) == OK && s->requantised.made &&
        s->requantised.wanted != wanted)
        residents_destroy(&s->residents);
    return (struct job_place){.model = s->model,
                              .device = s->device,
                              .requantised = &s->requantised,
                              .adapted = &s->adapted,
                              .conditionings = &s->conditionings};
}

static bool reading_goes_on(void *user, struct error *e) {
    struct sluice_session *s = user;
    if (atomic_load(&s->cancelled)) error_set(e, CANCELLED, "cancelled");
    return e->code == OK;
}

/* What of weights is looked at once, before the run: scales of types that need one, an adapter's numbers. */
static enum status read_beforehand(struct sluice_session *s, const struct job *job, struct error *e) {
    struct adapted_base base = {s->model, &s->requantised};
    if (!job->decode_only) adapted_check(&s->adapted, reading_goes_on, s, e);
    for (int i = 0; i < job->layout.n_stages && e->code == OK; i++) {
        int slot = job->layout.slot[i];
        if (requantised_scale(&s->requantised, s->sys, slot, reading_goes_on, s, e) == OK)
            adapted_scale(&s->adapted, &base, slot);
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
                              .bytes_needed = progress_bytes_needed,
                              .evicted = progress_gave_up,
                              .tick = progress_tick};
    struct run run = job_run(job, &job->layout, &hooks);
    r.reserve = progress_reserve(s, job);
    /* What an earlier run kept and this one does not comes first: it is in no line of this plan. */
    if (!job->plan.keep) residents_destroy(&s->residents);
    if (!s->device->memory && (s->options.on_log || s->options.on_progress))
        r.rate = rate_measure(s->sys, s->device, job->precision);
    r.began = s->sys->clock(s->sys);
    progress_stage_begins(&r);
    for (int i = 0; i < job->layout.n_stages; i++)
        memcpy(s->report.stage_name[i], job->layout.stages[i].name, sizeof s->report.stage_name[i]);
    if (job->within) {
        struct run within = job_run(job->within, &job->within->layout, NULL);
        prepare_operators(s, &within, job->within, e);
    }
    if (prepare_operators(s, &run, job, e) != OK || prepare_steps(s, job, e) != OK) return e->code;
    if (job_allocate(job, e) != OK) return e->code;
    run = job_run(job, &job->layout, &hooks);
    open_direct(s, job);
    bool same_files =
        job->within && !job->request.no_decode && job->within->decoder_slot == job->decoder_slot;
    if (job->within && !same_files) open_direct(s, job->within);
    if (read_beforehand(s, job, e) != OK) return e->code;
    const char *from = latent_file ? latent_file : job->request.init_latent;
    start_open(&r.start, job, from, e);
    if (e->code == OK && job->request.dump && !job->decode_only) turn_dump_start(&r, e);
    if (e->code == OK) turn_texts_recalled(&r, e);
    if (e->code == OK) executor_run(&run, job->need, &job->plan, &s->residents, &r.counters, e);
    if (e->code == OK) progress_ended(&r);
    start_close(&r.start);
    s->report.seconds = s->sys->clock(s->sys) - r.began;
    if (r.counters.bytes_unpinned)
        session_say(s, SLUICE_WARNING,
                    "%s went to the device out of host memory that could not be pinned, which is slower",
                    size_text(r.counters.bytes_unpinned, (char[SIZE_TEXT_BYTES]){0}));
    return e->code;
}

/* What may be left out, or assumed, for planning only. */
static enum status session_check_drawable(const struct sluice_session_options *options, const struct job *job,
                                          struct error *e) {
    if (job->model->published) {
        error_set(e, USAGE, "a model without files can be planned with, not drawn with");
        error_where(e, "%s", job->model->name);
        return error_expected(e, "a model opened from its files");
    }
    if (job->request.converted) {
        error_set(e, USAGE, "files that are not converted yet can be planned with, not drawn with");
        return error_expected(e, "a request that is not `converted`");
    }
    if (job->preview != PREVIEW_NONE && !options->on_preview) {
        error_set(e, USAGE, "previews are asked for, and nobody takes them");
        error_found(e, "\"%s\"", job->request.preview);
        return error_expected(e, "a session with on_preview, or a request without `preview`");
    }
    return job->decode_only || job->request.prompt ? OK : error_set(e, USAGE, "no prompt was given");
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
    struct job_place place = session_place(s, request);
    if (job_open(&job, &place, request, latent_dim, e) != OK ||
        session_check_drawable(&s->options, &job, e) != OK || plan_take(&job, e) != OK)
        goto out;
    s->report.plan = plan_json(&job);
    if (plan_check(job.need, &job.plan, e) == BUDGET) refusal_explain(&job, e);
    if (e->code != OK) goto out;
    remarks_of_run(s, &job, request->cfg_scale);
    if (job_read_pictures(&job, e) != OK) goto out;
    execute(s, &job, latent_file, e);
out:
    job_close(&job);
    s->report.error = *e;
    measure_process(s);
    return e->code;
}

/* A device that only plans computes nothing that could be found. */
static void open_conditionings(struct sluice_session *s) {
    struct conditionings *c = &s->conditionings;
    if (c->folder && device_arithmetic(s->device, s->options.device, c->arithmetic, sizeof c->arithmetic))
        return;
    s->sys->release(s->sys, c->folder);
    c->folder = NULL;
}

/* ---- the public functions ---- */

int sluice_session_open(sluice_model *model, const struct sluice_session_options *options,
                        sluice_session **session, struct sluice_error *error) {
    struct error e = {0};
    if (!caller_gave(session, "session", &e)) return publish_error(&e, error);
    *session = NULL;
    if (!caller_gave(model, "model", &e) || !caller_filled(options, "options", &e) ||
        !caller_has_stack(SLUICE_STACK_BYTES_TO_OPEN, &e))
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
    s->conditionings = (struct conditionings){.sys = sys, .limit_bytes = s->options.prompt_cache_bytes};
    if (s->options.prompt_cache) s->conditionings.folder = path_copy(sys, s->options.prompt_cache, &e);
    int threads = s->options.threads ? s->options.threads : machine_threads("");
    if (e.code == OK && caller_threads(threads, &e))
        s->device = device_open(sys, s->options.device, threads, s->options.plans_only, &e);
    if (s->device && s->device->memory) s->residents.device = s->device;
    if (s->device) open_conditionings(s);
    if (e.code == OK) {
        *session = s;
        remarks_of_session(s);
    } else {
        sluice_session_close(s);
    }
    return publish_error(&e, error);
}

void sluice_session_close(sluice_session *s) {
    if (!s) return;
    residents_destroy(&s->residents);
    adapted_destroy(&s->adapted);
    requantised_destroy(&s->requantised);
    conditionings_shrink(&s->conditionings, 0);
    s->sys->release(s->sys, s->conditionings.folder);
    report_destroy(s->sys, &s->report);
    if (s->device) s->device->destroy(s->device);
    s->sys->release(s->sys, s);
}

static bool can_work(const struct sluice_session *session, const struct sluice_request *request,
                     struct error *e) {
    return caller_gave(session, "session", e) && caller_filled(request, "request", e) &&
           caller_has_stack(SLUICE_STACK_BYTES, e);
}

int sluice_run(sluice_session *session, const struct sluice_request *request, struct sluice_error *error) {
    struct error e = {0};
    struct sluice_request r;
    if (!can_work(session, request, &e)) return publish_error(&e, error);
    copy_sized(&r, sizeof r, request);
    run_job(session, &r, NULL, NULL, &e);
    return publish_error(&e, error);
}

enum { LATENT_SIDE_MAX = 2048 };

/* Is there a pipeline of videos whose decoder has the same shapes? An autoencoder by itself need not say. */
static bool may_be_of_videos(const struct sluice_model *m) {
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
            error_set(e, SHAPE, "the latent does not fit this model");
            error_where(e, "%s", path);
            latent_found(index_find(&index, "latent"), e);
            if (frames) snprintf(of_video, sizeof of_video, "1 to %d, ", most);
            error_expected(e, "[1 to %d, %d, %sh, w]%s", BATCH_MAX, channels, of_video,
                           dim[2] > 1 && may_be_of_videos(s->model)
                               ? "; of a video, the model's folder, or config.json beside the autoencoder"
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
    if (!can_work(session, request, &e) || !caller_gave(latent_file, "latent_file", &e))
        return publish_error(&e, error);
    copy_sized(&r, sizeof r, request);
    if (decode_dims(session, latent_file, dim, &e) == OK) run_job(session, &r, latent_file, dim, &e);
    session->report.error = e;
    return publish_error(&e, error);
}

/* dim: of the latent that is decoded, or NULL. */
__attribute__((noinline)) static enum status plan_text(sluice_session *session,
                                                       const struct sluice_request *request,
                                                       const int32_t *dim, char **json, bool *fits,
                                                       struct error *e) {
    struct error misfit = {0};
    struct job job = {0};
    struct job_place place = session_place(session, request);
    if (job_open(&job, &place, request, dim, e) == OK && plan_take(&job, e) == OK) {
        remarks_of_plan(session, &job);
        *fits = plan_check(job.need, &job.plan, &misfit) == OK;
        unsigned losses = json_losses();
        json_t *plan = plan_json(&job);
        if (plan) json_put(plan, "advice", advice_json(&job));
        *json = json_hand_out(plan, JSON_INDENT(1), losses);
        if (!*json) error_set(e, MEMORY, "no memory for the plan's text");
    }
    job_close(&job);
    return e->code;
}

int sluice_plan_query(sluice_session *session, const struct sluice_request *request,
                      const char *decode_latent, char **json, bool *fits, struct sluice_error *error) {
    struct error e = {0};
    int32_t dim[5];
    if (!caller_gave(json, "json", &e) || !caller_gave(fits, "fits", &e) || !can_work(session, request, &e))
        return publish_error(&e, error);
    *json = NULL;
    *fits = false;
    if (!decode_latent || decode_dims(session, decode_latent, dim, &e) == OK)
        plan_text(session, request, decode_latent ? dim : NULL, json, fits, &e);
    return publish_error(&e, error);
}

int sluice_report(sluice_session *session, char **json, struct sluice_error *error) {
    struct error e = {0};
    if (!caller_gave(session, "session", &e) || !caller_gave(json, "json", &e) ||
        !caller_has_stack(SLUICE_STACK_BYTES_TO_OPEN, &e))
        return publish_error(&e, error);
    unsigned losses = json_losses();
    *json = json_hand_out(report_json(&session->report), JSON_INDENT(1), losses);
    if (!*json) error_set(&e, MEMORY, "no memory for the report");
    return publish_error(&e, error);
}

void sluice_cancel(sluice_session *session) {
    if (session) atomic_store(&session->cancelled, 1);
}
