/* A run from checks to report: see job.h. Every failure leaves through job_run, so that one place writes the
 * report and one error decides the exit code. */
#include "cli/job.h"

#include "cli/fail.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/parameters.h"
#include "cli/plan.h"
#include "cli/png.h"
#include "cli/report.h"
#include "cli/request.h"
#include "cli/say.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- callbacks ---- */

static void on_log(void *user, int level, const char *line) {
    struct job *job = user;
    if (level == SLUICE_WARNING) say_note("warning: %s", line);
    if (level != SLUICE_WARNING && !job->args->quiet) say_note("%s", line);
    interrupt_pending();
}

static void on_progress(void *user, const struct sluice_progress *now) {
    struct job *job = user;
    job->last = *now;
    progress_show(&job->progress, now);
    interrupt_pending();
}

static int save_image(struct job *job, const struct sluice_image *image, struct sluice_error *e) {
    char name[PATH_MAX];
    /* A latent file may hold more pictures than its plan said: those still get names of their own. */
    int n = image->index < job->n_images ? job->n_images : image->index + 1;
    int status = output_name(output_pattern(job->args), image->index + 1, n, name, e);
    if (status) return status;
    char *text = parameters_text(job->args, &job->request, image);
    if (!text) return fail(e, SLUICE_MEMORY, "no memory for the picture's text");
    status = png_write(name, image, text, e);
    free(text);
    if (status) return status;
    job->n_written++;
    if (!job->args->quiet)
        say_note("wrote %s (%dx%d, seed %llu, sha256 %s)", strcmp(name, "-") ? name : "the picture to stdout",
                 image->width, image->height, (unsigned long long)image->seed, image->sha256);
    return SLUICE_OK;
}

/* The callback cannot fail the run, so the first failure is kept and the run cancelled. */
static void on_image(void *user, const struct sluice_image *image) {
    struct job *job = user;
    if (!job->failure.code && save_image(job, image, &job->failure)) sluice_cancel(job->session);
}

/* ---- one run ---- */

int job_open(struct job *job, struct sluice_error *e) {
    const struct args *args = job->args;
    struct sluice_session_options options = {.struct_size = sizeof options,
                                             .device = args->device,
                                             .threads = args->threads,
                                             .on_log = on_log,
                                             .on_progress = on_progress,
                                             .on_image = on_image,
                                             .user = job};
    int status = request_read_plan(args, &job->plan_text, e);
    if (!status) status = sluice_model_open(&args->model, &job->model, e);
    if (!status) status = sluice_session_open(job->model, &options, &job->session, e);
    if (status) return status;
    job->request.struct_size = sizeof job->request;
    request_fill(&job->request, job->model, args, job->seed, job->plan_text);
    interrupt_watch(job->session);
    return SLUICE_OK;
}

void job_close(struct job *job) {
    interrupt_watch(NULL);
    sluice_session_close(job->session);
    sluice_model_close(job->model);
    free(job->plan_text);
}

/* How many pictures a latent holds stands in its plan; -v shows the plan. */
static int look_at_plan(struct job *job, struct sluice_error *e) {
    char *json = NULL;
    bool fits;
    if (!job->latent && !job->args->verbose) return SLUICE_OK;
    int status = sluice_plan_query(job->session, &job->request, job->latent, &json, &fits, e);
    if (status) return status;
    if (job->latent) job->n_images = plan_batch(json);
    if (job->args->verbose) status = plan_print(stderr, json, e);
    sluice_free(json);
    return status;
}

static int run(struct job *job, struct sluice_error *e) {
    if (interrupt_pending()) return interrupt_error(e);
    job->ran = true;
    int status = job->latent ? sluice_decode(job->session, &job->request, job->latent, e)
                             : sluice_run(job->session, &job->request, e);
    say_live_end();
    if (!job->failure.code) return status;
    *e = job->failure;
    return e->code;
}

static void summarise(const struct job *job) {
    char spent[32], read[32];
    if (job->args->quiet) return;
    double seconds = now_seconds() - job->started;
    double waiting = job->last.seconds > 0 ? 100 * job->last.stall_seconds / job->last.seconds : 0;
    say_note("done: %d picture%s in %s, %s read, %.0f %% of the time waiting for weights", job->n_written,
             job->n_written == 1 ? "" : "s", progress_duration(seconds, spent),
             progress_bytes((double)job->last.bytes_read, read), waiting);
}

static int prepare(struct job *job, struct sluice_error *e) {
    const struct args *args = job->args;
    int status = request_check(args, e);
    if (!status) status = output_check(args, job->n_images, e);
    if (!status) status = request_seed(args, &job->seed, e);
    if (status) return status;
    if (args->seed.random || !(args->quiet || job->latent))
        say_note("seed %llu", (unsigned long long)job->seed);
    if (args->no_decode && args->output && !args->quiet) say_note("no picture is written: --no-decode");
    return SLUICE_OK;
}

int job_run(const struct args *args, const char *latent, struct sluice_error *e) {
    struct job job = {.args = args, .latent = latent, .started = now_seconds()};
    job.n_images = args->batch ? args->batch : 1;
    /* Before everything that could end in a report. */
    if (output_check_report(args, job.n_images, e)) return e->code;
    interrupt_gracefully();
    progress_start(&job.progress, args->quiet || args->no_progress);
    int status = prepare(&job, e);
    if (!status) status = job_open(&job, e);
    if (!status) status = look_at_plan(&job, e);
    if (!status && latent) status = output_check(args, job.n_images, e);
    if (!status) status = run(&job, e);
    if (!status) summarise(&job);
    struct report report = {.name = args->report, .session = job.ran ? job.session : NULL, .seed = job.seed};
    report.seconds = now_seconds() - job.started;
    status = report_write(&report, e);
    job_close(&job);
    return status;
}
