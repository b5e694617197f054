#include "engine/generate/running.h"

#include "engine/base/text.h"
#include "engine/job/job.h"
#include "engine/job/layout.h"
#include "engine/job/open.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void log_line(const struct sluice_session_options *options, int level, const char *format, ...) {
    if (!options->on_log) return;
    char line[512];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    options->on_log(options->user, level, line);
}

int running_enter_pass(struct running *r, int stage) {
    bool second = stage >= r->job->layout.second_stage;
    r->pass = second ? r->job->second_pass : r->job;
    return second ? stage - r->job->layout.second_stage : stage;
}

int running_step(const struct running *r, int step) {
    return r->pass == r->job ? step : r->job->schedule.grid.n + step;
}

void draw_noise(struct running *r, int image, struct tensor to) {
    generator_normals(&r->generators[image], to.data, tensor_elements(&to));
}

enum status check_finite(struct tensor t, const char *what, const char *stage, int step, struct error *e) {
    const float *values = t.data;
    int64_t n = tensor_elements(&t), bad = 0;
    for (int64_t i = 0; i < n; i++) bad += !isfinite(values[i]);
    if (!bad) return OK;
    error_set(e, NONFINITE, "%s contains NaN or infinite values", what);
    step < 0 ? error_where(e, "stage %s", stage) : error_where(e, "stage %s, step %d", stage, step + 1);
    return error_found(e, "%lld of %lld values", (long long)bad, (long long)n);
}

static double progress_now(const struct running *r) {
    return r->job->sys->clock(r->job->sys);
}

static struct store_counters counters_since(struct store_counters now, struct store_counters then) {
    return (struct store_counters){.bytes_moved = now.bytes_moved - then.bytes_moved,
                                   .stall_seconds = now.stall_seconds - then.stall_seconds,
                                   .bytes_read = now.bytes_read - then.bytes_read,
                                   .bytes_direct = now.bytes_direct - then.bytes_direct,
                                   .bytes_unpinned = now.bytes_unpinned - then.bytes_unpinned,
                                   .bytes_windowed = now.bytes_windowed - then.bytes_windowed};
}

/* FLOP rate of a whole run divided by the rate of a plain matrix product (measured: 0.6 to 0.8). Norms,
 * softmax and small products lower the run's rate. */
#define RATE_EFFICIENCY 0.7

/* Calls on_progress for a visit. done: FLOPs of the run from its start to the end of this visit. */
static void progress_report(struct running *r, const struct visit *visit, double done) {
    const struct stage *stage = &r->job->layout.stages[visit->stage];
    double fraction = r->all > 0 ? done / r->all : 0;
    /* Estimates the seconds left: at the current stage's pace once this stage has done 2 % of the run's
     * FLOPs, before that at the rate measured before the run. Negative: unknown. */
    double in_stage = progress_now(r) - r->stage_began, work = r->done - r->done_at_stage,
           left = r->all - r->done;
    double eta = in_stage > 0 && work > 0.02 * r->all ? left / (work / in_stage)
                 : r->rate > 0                        ? left / (RATE_EFFICIENCY * r->rate)
                                                      : -1;
    struct sluice_progress progress = {
        .struct_size = sizeof progress,
        .stage = stage->name,
        .step = visit->evaluation < 0 ? 0 : visit->evaluation / stage->n_groups + 1,
        .of = stage->evaluations / stage->n_groups,
        .fraction = fraction < 1 ? fraction : 1,
        .seconds = progress_now(r) - r->began,
        .eta = done >= r->all ? 0 : eta,
        .stall_seconds = r->counters.stall_seconds,
        .bytes_read = r->counters.bytes_moved,
        .source = r->job->plan.stage[visit->stage].bound == BOUND_BUS ? "bus" : "disk",
    };
    r->options->on_progress(r->options->user, &progress);
}

static void progress_report_throttled(struct running *r, const struct visit *visit) {
    enum { TENTHS = 10 };
    double time = progress_now(r);
    if (!r->options->on_progress || (time - r->last_progress < 1.0 / TENTHS && !visit->ends_evaluation))
        return;
    r->last_progress = time;
    progress_report(r, visit, r->done);
}

void progress_ended(struct running *r) {
    const struct visit_list *visits = &r->job->layout.visits;
    if (r->options->on_progress) progress_report(r, &visits->visits[visits->n_visits - 1], r->all);
}

/* Replaces the longest wait by a visit's wait if that is longer. */
static void keep_longest_stall(struct stall *longest, double seconds, const struct job *job,
                               const struct visit *visit) {
    if (seconds <= longest->seconds) return;
    longest->seconds = seconds;
    layout_block_name(job, &job->layout, visit->stage, visit->block, longest->block);
}

/* Index in the report of the step to which a visit of a denoise stage belongs. */
static int progress_step(const struct job *job, const struct visit *visit) {
    const struct layout *l = &job->layout;
    bool second = visit->stage >= l->second_stage;
    const struct job_schedule *schedule = second ? &job->second_pass->schedule : &job->schedule;
    const struct job_span *span = &schedule->spans[l->span[visit->stage]];
    int step = schedule->calls[span->first_call + visit->evaluation / l->choice.groups].step;
    return second ? job->schedule.grid.n + step : step;
}

/* Updates the longest stall (wait of a visit for its block's weights) of the current step and stage. visit:
 * the visit that computes now; NULL after the last evaluation. */
static void progress_note_stall(struct running *r, const struct visit *visit) {
    const struct visit *last = r->visit;
    if (last == visit) return;
    if (last) {
        double seconds = counters_since(r->counters, r->at_visit).stall_seconds;
        struct report *report = r->report;
        keep_longest_stall(&report->stage[last->stage].stall, seconds, r->job, last);
        if (r->job->layout.kind[last->stage] == &stage_denoise && last->evaluation >= 0)
            keep_longest_stall(&report->step[progress_step(r->job, last)].stall, seconds, r->job, last);
    }
    r->visit = visit;
    r->at_visit = r->counters;
}

bool progress_tick(void *user, const struct visit *visit, double done, struct error *e) {
    struct running *r = user;
    r->done = done;
    progress_note_stall(r, visit);
    if (atomic_load_explicit(r->cancelled, memory_order_relaxed)) {
        error_set(e, CANCELLED, "cancelled" WHERE "stage %s", r->job->layout.stages[visit->stage].name);
        return false;
    }
    progress_report_throttled(r, visit);
    return true;
}

/* Lower bound in seconds of a stage or step if all transfers overlapped with compute: the larger of compute
 * time and transfer time at the measured link rate. A link is ignored if the page cache made reads faster
 * than its rate. */
static double progress_measured_floor(const struct running *r, double seconds,
                                      const struct store_counters *moved) {
    const struct run_need *need = r->job->need;
    double rate = need->separate ? need->rates.h2d : need->rates.disk;
    double link = rate > 0 ? (double)moved->bytes_moved / rate : 0,
           computing = seconds - moved->stall_seconds;
    if (computing < 0) computing = 0;
    return link > computing && link <= seconds ? link : computing;
}

/* Returns the CPU time used since *since and sets *since to now. */
static struct processor_time processor_time_since(struct processor_time *since) {
    struct processor_time then = *since;
    *since = machine_processor_time();
    return (struct processor_time){since->user - then.user, since->system - then.system,
                                   since->page_faults - then.page_faults};
}

void progress_step_ended(struct running *r, int step) {
    double time = progress_now(r);
    struct step_record *record = &r->report->step[step];
    record->seconds = time - r->step_began;
    record->spent = processor_time_since(&r->time_at_step);
    record->moved = counters_since(r->counters, r->at_step);
    record->floor_seconds = progress_measured_floor(r, record->seconds, &record->moved);
    r->report->n_steps = step + 1;
    r->step_began = time;
    r->at_step = r->counters;
}

void progress_evaluation_ends(struct running *r) {
    progress_note_stall(r, NULL);
}

void progress_evaluation_ended(struct running *r, const struct visit *visit) {
    progress_report_throttled(r, visit);
}

void progress_stage_ended(struct running *r, int stage) {
    struct report *report = r->report;
    struct stage_record *record = &report->stage[stage];
    progress_note_stall(r, NULL);
    record->seconds = progress_now(r) - r->stage_began;
    record->spent = processor_time_since(&r->time_at_stage);
    record->moved = counters_since(r->counters, r->at_stage);
    record->floor_seconds = progress_measured_floor(r, record->seconds, &record->moved);
    record->planned_bytes = r->job->plan.stage[stage].peak_ram_bytes;
    record->measured_bytes = machine_peak_bytes();
    report->n_stages = stage + 1;
}

void progress_stage_begins(struct running *r) {
    r->stage_began = r->step_began = progress_now(r);
    r->at_stage = r->at_step = r->counters;
    r->time_at_stage = r->time_at_step = machine_processor_time();
    r->done_at_stage = r->done;
}

/* A copy of a picture with another size, for planning only; NULL for NULL. */
static const struct sluice_picture *resized_picture(const struct sluice_picture *picture, int width,
                                                    int height, struct sluice_picture *other) {
    if (!picture) return NULL;
    *other = *picture;
    other->width = width;
    other->height = height;
    return other;
}

/* Returns the FLOPs of this request at i/16 of its width and height, and writes that size to *width, *height;
 * 0: invalid request. */
static double progress_flops_at(const struct running *r, int i, int *width, int *height) {
    const struct job *job = r->job;
    int step = job->model->size_step;
    struct sluice_request smaller = job->request;
    smaller.preview = NULL;
    smaller.width = *width = (smaller.width * i / 16 + step - 1) / step * step;
    smaller.height = *height = (smaller.height * i / 16 + step - 1) / step * step;
    struct sluice_picture init, mask;
    smaller.init_image = resized_picture(smaller.init_image, *width, *height, &init);
    smaller.mask = resized_picture(smaller.mask, *width, *height, &mask);
    struct job try;
    struct error e = {0};
    double flops = job_open(&try, &job->context, &smaller, NULL, &e) == OK ? job_flops(&try) : 0;
    job_close(&try);
    return flops;
}

/* Finds, by dry runs, the largest output size (in sixteenths of this job's) that needs at most about a
 * quarter of this job's FLOPs; 0x0: none. */
static void progress_quarter_size(const struct running *r, int *width, int *height) {
    double quarter = job_flops(r->job) / 4 * 1.05;
    int low = 0, high = 16; /* output sizes in sixteenths of the job's: `low` needs at most a quarter of the
                               FLOPs, `high` more */
    *width = *height = 0;
    while (high - low > 1) {
        int w, h, middle = (low + high) / 2;
        if (progress_flops_at(r, middle, &w, &h) > quarter) {
            high = middle;
            continue;
        }
        low = middle;
        *width = w;
        *height = h;
    }
}

enum { LOG_ETA_FROM_SECONDS = 2 };

void progress_log_estimate(struct running *r) {
    double seconds = r->planned_seconds;
    if (seconds <= 0 && r->rate > 0) seconds = (r->all - r->done) / (RATE_EFFICIENCY * r->rate);
    if (seconds < LOG_ETA_FROM_SECONDS || !r->options->on_log) return;
    bool long_one = seconds >= 60;
    int width = 0, height = 0;
    if (long_one) progress_quarter_size(r, &width, &height);
    char quarter[64] = "";
    if (width) snprintf(quarter, sizeof quarter, "; %dx%d would take about a quarter of that", width, height);
    log_line(r->options, SLUICE_INFO, "estimated time: %.0f %s for %dx%d, %d steps%s",
             long_one ? seconds / 60 : seconds, long_one ? "minutes" : "seconds", r->job->request.width,
             r->job->request.height, r->job->schedule.grid.n, quarter);
}

uint64_t progress_eviction_bytes(void *user) {
    struct running *r = user;
    struct sys *sys = r->job->sys;
    return pressure_bytes(r->reserve, sys->free_bytes(sys));
}

void progress_evicted(void *user, const struct visit *first, uint64_t bytes, enum evict_reason reason) {
    static const char *const messages[] = {
        [EVICT_ASKED] = ("another program needs memory: freed %s of cached weights; the run continues and "
                         "rereads them each step"),
        [EVICT_OPERATOR] =
            "out of memory while computing: freed %s of cached weights and repeating the computation",
        [EVICT_STAGE] =
            "out of memory at the start of a stage: freed %s of cached weights and starting it again",
    };
    struct running *r = user;
    struct report *report = r->report;
    struct evicted *last = &report->evicted[EVICTED_MAX - 1];
    char size[SIZE_TEXT_BYTES];
    if (report->n_evicted < EVICTED_MAX)
        report->evicted[report->n_evicted++] =
            (struct evicted){report->stage_name[first->stage],
                             first->evaluation < 0 || r->job->layout.kind[first->stage] != &stage_denoise
                                 ? 0
                                 : progress_step(r->job, first),
                             bytes};
    else
        last->bytes += bytes;
    log_line(r->options, SLUICE_WARNING, messages[reason], size_text(bytes, size));
}

uint64_t pressure_reserve(uint64_t free_bytes, uint64_t has_bytes, uint64_t peak_bytes) {
    if (!free_bytes) return 0;
    uint64_t all = free_bytes + has_bytes, left = all > peak_bytes ? all - peak_bytes : 0;
    if (left / 2 > PRESSURE_RESERVE_MOST) return PRESSURE_RESERVE_MOST;
    return left / 2 < PRESSURE_RESERVE_LEAST ? PRESSURE_RESERVE_LEAST : left / 2;
}

uint64_t pressure_bytes(uint64_t reserve, uint64_t free_bytes) {
    return free_bytes && free_bytes < reserve ? reserve - free_bytes : 0;
}
