#include "engine/generate/generate.h"

#include "engine/base/text.h"
#include "engine/generate/denoise.h"
#include "engine/generate/dump.h"
#include "engine/generate/images.h"
#include "engine/generate/initial_latents.h"
#include "engine/generate/prompt_embeds.h"
#include "engine/generate/second_pass.h"
#include "engine/generate/running.h"
#include "engine/generate/sound.h"
#include "engine/generate/upscale.h"
#include "engine/job/layout.h"
#include "engine/job/upscale.h"
#include "engine/machine/machine.h"

#include <string.h>

/* Hooks of the executor (executor.h); user: a struct running. If an evaluation is repeated, evaluation_begins
 * is called again. */
static enum status evaluation_begins(void *user, const struct visit *visit, struct error *e) {
    struct running *r = user;
    const struct stage_kind *kind = r->job->layout.kind[visit->stage];
    bool encodes = kind == &stage_vision || kind == &stage_encode;
    int stage = running_enter_pass(r, visit->stage);
    if (kind == &stage_upscale) upscale_begins(r, visit->evaluation);
    return encodes ? encode_begins(r, stage, visit->evaluation, e) : OK;
}

static enum status evaluation_ended(void *user, const struct visit *visit, struct error *e) {
    struct running *r = user;
    const struct stage_kind *kind = r->job->layout.kind[visit->stage];
    int stage = running_enter_pass(r, visit->stage), evaluation = visit->evaluation;
    progress_evaluation_ends(r);
    if (kind == &stage_vision || kind == &stage_encode) encode_ended(r, stage, evaluation, e);
    if (kind == &stage_denoise) denoise_evaluation_ended(r, stage, evaluation, e);
    if (kind == &stage_sound) sound_decoded(r, evaluation, e);
    if (kind == &stage_vocoder) sound_vocoded(r, evaluation, e);
    if (kind == &stage_decode) images_decoded(r, stage, evaluation, e);
    if (kind == &stage_upscale) images_enlarged(r, stage, evaluation, e);
    progress_evaluation_ended(r, visit);
    return e->code;
}

static enum status stage_ended(void *user, int i_stage, struct error *e) {
    struct running *r = user;
    int stage = running_enter_pass(r, i_stage);
    const struct job *job = r->pass;
    const struct stage_kind *kind = job->layout.kind[stage];
    progress_stage_ended(r, i_stage);
    if (kind->encodes_prompts) prompt_embeds_stage_ended(r, stage, e);
    if (kind == &stage_encode && job->request.dump && !initial_latents_need_no_picture(job))
        dump_step_latents(job, 0, e);
    if (kind == &stage_denoise) denoise_stage_ended(r, stage, e);
    if (kind == &stage_upsample) second_pass_upsampled(r, e);
    bool last = kind == &stage_denoise && job->layout.span[stage] + 1 == job->schedule.n_spans;
    if (last && job->second_pass && e->code == OK) second_pass_begin(r, e);
    progress_stage_begins(r);
    return e->code;
}

/* Prepares every operator of the run on the device (oneDNN primitives, CUDA kernels), so that the run itself
 * compiles none. */
static enum status prepare_operators(struct job *job, const struct run *run, struct error *e) {
    size_t bytes = run_need_bytes(job->need->n_stages);
    struct run_need *need = sys_new(job->sys, 1, bytes, "preparing the run", e);
    if (!need) return e->code;
    memcpy(need, job->need, bytes);
    executor_measure(run, true, need, e);
    job->sys->release(job->sys, need);
    return e->code;
}

/* Collects files that cannot be opened for direct reads (O_DIRECT), for one warning. */
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

static void open_component_direct(const struct component *c, struct refused_direct *refused) {
    for (int i = 0; i < c->index.n_sources; i++) open_source_direct(&c->index.sources[i], refused);
}

/* Opens all files of the run for direct reads (O_DIRECT). Files that cannot be opened with O_DIRECT are read
 * through the page cache, and one warning reports all such files. */
static void open_direct(const struct running *r, struct job *job) {
    struct refused_direct refused = {0};
    const struct stage *stages = job->layout.stages;
    const struct session_adapters *adapters = r->job->context.adapters;
    if (!job->plan.bounce_bytes) return;
    for (int i = 0; i < job->layout.n_stages; i++) {
        if (i && stages[i].component == stages[i - 1].component)
            continue; /* skipped: the previous stage has the same component and networks, with open files */
        open_component_direct(stages[i].component, &refused);
        for (int k = 0; k < stages[i].n_controls; k++)
            open_component_direct(stages[i].control[k].component, &refused);
    }
    for (int i = 0; i < adapters->n_files; i++)
        open_source_direct(adapter_source(adapters->file[i]->adapter), &refused);
    if (refused.n)
        log_line(r->options, SLUICE_WARNING,
                 "reading through the page cache: %d files do not allow direct reads (first %s: %s)",
                 refused.n, refused.first, strerror(-refused.problem));
}

static bool continue_unless_cancelled(void *user, struct error *e) {
    const struct running *r = user;
    if (atomic_load(r->cancelled)) error_set(e, CANCELLED, "cancelled");
    return e->code == OK;
}

/* Scans the adapters for NaN and computes quantisation scales, once before the run. */
static enum status scan_weights(struct running *r, struct error *e) {
    const struct job *job = r->job;
    const struct job_context *context = &job->context;
    struct adapter_base base = {job->model, context->requantised};
    int readers = plan_readers(job->device->memory, job->plan.bounce_bytes);
    if (!job->settings.decode_only)
        session_adapters_check_finite(context->adapters, continue_unless_cancelled, r, e);
    for (int i = 0; i < job->layout.n_stages && e->code == OK; i++) {
        int slot = job->layout.slot[i];
        if (requantised_scale(context->requantised, job->sys, slot, readers, continue_unless_cancelled, r,
                              e) == OK)
            session_adapters_copy_scales(context->adapters, &base, slot);
    }
    for (int i = 0; i < job->n_controls && e->code == OK; i++)
        if (job->controls[i].component >= 0)
            requantised_scale(context->requantised, job->sys, job->controls[i].component, readers,
                              continue_unless_cancelled, r, e);
    return e->code;
}

/* Allocates the report's list of steps and copies the stage names, which the report needs after the job is
 * closed. */
static enum status prepare_report(struct report *report, const struct job *job, struct error *e) {
    const struct job *second = job->second_pass;
    size_t first = (size_t)job->schedule.grid.n, n = first + (second ? (size_t)second->schedule.grid.n : 0);
    for (int i = 0; i < job->layout.n_stages; i++)
        memcpy(report->stage_name[i], job->layout.stages[i].name, sizeof report->stage_name[i]);
    if (job->settings.decode_only) return OK;
    report->step = sys_new(job->sys, n, sizeof *report->step, "the steps", e);
    if (report->step) report->sigma = sys_new(job->sys, n, sizeof *report->sigma, "the steps", e);
    for (size_t i = 0; i < n && report->sigma; i++)
        report->sigma[i] =
            i < first ? job->schedule.grid.step[i].at.sigma : second->schedule.grid.step[i - first].at.sigma;
    return e->code;
}

enum status generate(struct running *r, struct error *e) {
    struct job *job = r->job, *preview_job = job->preview_job;
    struct sys *sys = job->sys;
    const struct run_hooks hooks = {.user = r,
                                    .evaluation_begins = evaluation_begins,
                                    .evaluation_ended = evaluation_ended,
                                    .stage_ended = stage_ended,
                                    .bytes_needed = progress_eviction_bytes,
                                    .evicted = progress_evicted,
                                    .tick = progress_tick};
    struct run run = layout_run(job, &job->layout, &hooks);
    r->pass = job;
    r->all = job_flops(job);
    /* No prediction from default rates: they are too low to predict a useful time. */
    for (int i = 0; i < job->layout.n_stages && job->request.rates; i++)
        if (!job->layout.kind[i]->encodes_prompts) r->planned_seconds += job->plan.stage[i].seconds;
    /* Memory pressure is handled only on devices that compute in host memory: elsewhere evicting resident
     * weights frees no host memory. */
    if (!job->device->memory)
        r->reserve = pressure_reserve(sys->free_bytes(sys), r->report->base_bytes, job->plan.ram_peak_bytes);
    /* If the plan keeps no residents, residents of the previous run are freed first: the plan's memory peak
     * excludes them. */
    if (!job->plan.keep) residents_destroy(r->residents);
    if (!job->device->memory && (r->options->on_log || r->options->on_progress))
        r->rate = device_measure_rate(sys, job->device, job->settings.precision);
    r->began = sys->clock(sys);
    progress_stage_begins(r);
    for (struct job *pass = job; pass && e->code == OK; pass = pass->second_pass) {
        if (!pass->preview_job) continue;
        struct run previews = layout_run(pass->preview_job, &pass->preview_job->layout, NULL);
        prepare_operators(pass->preview_job, &previews, e);
    }
    if (e->code != OK) return e->code;
    if (prepare_operators(job, &run, e) != OK || prepare_report(r->report, job, e) != OK) return e->code;
    if (layout_allocate(job, e) != OK) return e->code;
    run = layout_run(job, &job->layout, &hooks);
    open_direct(r, job);
    bool same_files = preview_job && !job->request.no_decode &&
                      preview_job->settings.decoder_slot == job->settings.decoder_slot;
    if (preview_job && !same_files) open_direct(r, preview_job);
    if (scan_weights(r, e) != OK) return e->code;
    initial_latents_make(r, e);
    if (e->code == OK && job->request.dump && !job->settings.decode_only && dump_run_start(job, e) == OK &&
        initial_latents_need_no_picture(job))
        dump_step_latents(job, 0, e);
    if (e->code == OK) prompt_embeds_from_cache(r, e);
    if (e->code == OK) executor_run(&run, job->need, &job->plan, r->residents, &r->counters, e);
    if (e->code == OK) progress_ended(r);
    sys->release(sys, r->generators);
    r->report->seconds = sys->clock(sys) - r->began;
    if (r->counters.bytes_unpinned)
        log_line(r->options, SLUICE_WARNING,
                 "%s of weights were copied to the GPU from memory that could not be pinned (slower)",
                 size_text(r->counters.bytes_unpinned, (char[SIZE_TEXT_BYTES]){0}));
    return e->code;
}
