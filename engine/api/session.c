/* Sessions: see session.h. Opening, planning, running; the host's turns between evaluations. */
#include "engine/api/session.h"

#include "engine/api/advice_json.h"
#include "engine/api/devices.h"
#include "engine/api/latents.h"
#include "engine/api/machine.h"
#include "engine/api/plan_json.h"
#include "engine/api/pressure.h"
#include "engine/api/rate.h"
#include "engine/api/refusal.h"
#include "engine/api/start.h"
#include "engine/sample/flow.h"
#include "kernels/ops.h"
#include "loaders/json.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a run keeps on the way. */
struct running {
    struct sluice_session *session;
    struct job *job;
    struct start start;
    struct store_counters counters; /* kept up to date by the executor */
    struct store_counters at_stage, at_step, at_visit;
    const struct visit *visit; /* the last one seen by tick */
    double began, stage_began, step_began, last_progress;
    double done, all; /* FLOPs */
    double done_at_stage;
    double rate;            /* FLOPs a second, measured before the run; 0 if unknown */
    double planned_seconds; /* of the stages after the text, from measured rates; 0 if there are none */
    uint64_t reserve;       /* free memory under which residents are given up */
};

static void say(struct sluice_session *session, int level, const char *format, ...) {
    if (!session->options.on_log) return;
    char line[512];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    session->options.on_log(session->options.user, level, line);
}

static double now(const struct running *r) {
    return r->session->sys->clock(r->session->sys);
}

static struct store_counters since(struct store_counters now, struct store_counters then) {
    return (struct store_counters){.bytes_moved = now.bytes_moved - then.bytes_moved,
                                   .stall_seconds = now.stall_seconds - then.stall_seconds,
                                   .bytes_read = now.bytes_read - then.bytes_read,
                                   .bytes_direct = now.bytes_direct - then.bytes_direct};
}

/* ---- progress ---- */

/* What a run reaches of a plain product's rate: norms, softmax and small products take the rest (measured:
 * 0.6 to 0.8). */
#define SHARE_OF_RATE 0.7

/* Seconds for what is left, at this stage's own pace once it shows one; negative while unknown. */
static double seconds_left(const struct running *r) {
    double seconds = now(r) - r->stage_began, done = r->done - r->done_at_stage, left = r->all - r->done;
    if (seconds > 0 && done > 0.02 * r->all) return left / (done / seconds);
    return r->rate > 0 ? left / (SHARE_OF_RATE * r->rate) : -1;
}

static void report_progress(struct running *r, const struct visit *visit) {
    enum { TENTHS = 10 };
    struct sluice_session *s = r->session;
    double time = now(r);
    if (!s->options.on_progress || (time - r->last_progress < 1.0 / TENTHS && !visit->ends_evaluation))
        return;
    r->last_progress = time;
    const struct stage *stage = &r->job->stages[visit->stage];
    double seconds = time - r->began, fraction = r->all > 0 ? r->done / r->all : 0;
    struct sluice_progress progress = {
        .struct_size = sizeof progress,
        .stage = stage->name,
        .step = visit->evaluation < 0 ? 0 : visit->evaluation / stage->n_groups + 1,
        .of = stage->evaluations / stage->n_groups,
        .fraction = fraction < 1 ? fraction : 1,
        .seconds = seconds,
        .eta = seconds_left(r),
        .stall_seconds = r->counters.stall_seconds,
        .bytes_read = r->counters.bytes_moved,
    };
    s->options.on_progress(s->options.user, &progress);
}

static void note_longest(struct stall *longest, double seconds, const struct block *block) {
    if (seconds <= longest->seconds) return;
    longest->seconds = seconds;
    memcpy(longest->block, block->name, sizeof longest->block);
}

/* Which block was waited for longest, in this step and stage. visit: the one that computes now; NULL: none,
 * the last one's evaluation has ended. */
static void note_stall(struct running *r, const struct visit *visit) {
    const struct visit *last = r->visit;
    if (last == visit) return;
    if (last) {
        double seconds = since(r->counters, r->at_visit).stall_seconds;
        const struct block *block = r->job->stages[last->stage].blocks[last->block];
        struct report *report = &r->session->report;
        note_longest(&report->stage[last->stage].stall, seconds, block);
        if (r->job->kind[last->stage] == STAGE_DENOISE && last->evaluation >= 0)
            note_longest(&report->step[last->evaluation / r->job->groups].stall, seconds, block);
    }
    r->visit = visit;
    r->at_visit = r->counters;
}

static bool tick(void *user, const struct visit *visit, double done, struct error *e) {
    struct running *r = user;
    r->done = done;
    note_stall(r, visit);
    if (atomic_load_explicit(&r->session->cancelled, memory_order_relaxed)) {
        error_set(e, CANCELLED, "cancelled");
        error_where(e, "stage %s", r->job->stages[visit->stage].name);
        return false;
    }
    report_progress(r, visit);
    return true;
}

/* ---- the host's turns ---- */

static enum status dump_latents(struct job *job, int step, struct error *e) {
    char name[32];
    snprintf(name, sizeof name, "latent_%03d", step);
    return ring_save_latents(job->sys, job->request.dump, name, job->latent, job->batch, e);
}

/* The first picture under the plain name, others numbered. */
static enum status dump_picture(struct job *job, int image, struct error *e) {
    char name[32] = "decoded";
    if (image) snprintf(name, sizeof name, "decoded_%03d", image);
    return ring_save_picture(job->sys, job->request.dump, name, job->picture, e);
}

/* What the work had to take, had nobody waited who need not: the computing that was measured, or the bytes at
 * the link's rate. A rate that the measurement refutes (bytes came faster, out of a cache) says nothing. */
static double measured_floor(const struct running *r, double seconds, const struct store_counters *moved) {
    const struct run_need *need = r->job->need;
    double rate = need->separate ? need->rates.h2d : need->rates.disk;
    double link = rate > 0 ? (double)moved->bytes_moved / rate : 0,
           computing = seconds - moved->stall_seconds;
    if (computing < 0) computing = 0;
    return link > computing && link <= seconds ? link : computing;
}

/* One group's images of the step. */
static enum status group_ended(struct job *job, int step, int group, struct error *e) {
    float sigma = job->sigmas[step], next = job->sigmas[step + 1];
    int first, n;
    job_images(job, group, &first, &n);
    for (int i = 0; i < n && e->code == OK; i++) {
        struct tensor latent = job->latent[first + i];
        float *cond = job->prediction[i].data;
        int64_t elements = tensor_elements(&latent);
        if (job->n_prompts > 1)
            flow_guide(cond, job->prediction[job->together + i].data, elements, job->request.cfg_scale);
        flow_step(latent.data, cond, elements, sigma, next);
        check_finite(latent, "the latent", "denoise", step, e);
    }
    return e->code;
}

static enum status step_ended(struct running *r, int step, struct error *e) {
    struct job *job = r->job;
    if (job->request.dump) dump_latents(job, step + 1, e);
    double time = now(r);
    struct step_record *record = &r->session->report.step[step];
    record->seconds = time - r->step_began;
    record->moved = since(r->counters, r->at_step);
    record->floor_seconds = measured_floor(r, record->seconds, &record->moved);
    r->session->report.n_steps = step + 1;
    r->step_began = time;
    r->at_step = r->counters;
    return e->code;
}

static enum status denoised(struct running *r, int evaluation, struct error *e) {
    int groups = r->job->groups, step = evaluation / groups, group = evaluation % groups;
    if (group_ended(r->job, step, group, e) != OK || group + 1 < groups) return e->code;
    return step_ended(r, step, e);
}

static enum status to_rgb(struct running *r, struct error *e) {
    struct job *job = r->job;
    struct context x = {.device = job->device, .error = e};
    double stalled = 0;
    op_image_to_rgb(&x, job->rgb, job->picture);
    return device_wait(job->device, &stalled, e);
}

static enum status picture_ended(struct running *r, int image, struct error *e) {
    struct job *job = r->job;
    struct sluice_session *s = r->session;
    struct report *report = &s->report;
    if (check_finite(job->picture, "the picture", "decode", -1, e) != OK) return e->code;
    if (job->request.dump) dump_picture(job, image, e);
    if (e->code != OK || to_rgb(r, e) != OK) return e->code;
    sha256_hex(job->rgb.data, (size_t)tensor_bytes(&job->rgb), report->image_sha256[image]);
    report->n_images = image + 1;
    struct sluice_image out = {
        .struct_size = sizeof out,
        .index = image,
        .width = job->rgb.dim[1],
        .height = job->rgb.dim[0],
        .rgb = job->rgb.data,
        .seed = job->request.seed + (uint64_t)image,
        .sha256 = report->image_sha256[image],
    };
    if (s->options.on_image) s->options.on_image(s->options.user, &out);
    return OK;
}

static enum status evaluation_ended(void *user, const struct visit *visit, struct error *e) {
    struct running *r = user;
    note_stall(r, NULL);
    switch (r->job->kind[visit->stage]) {
    case STAGE_DENOISE:
        denoised(r, visit->evaluation, e);
        break;
    case STAGE_ENCODE:
        start_encoded(&r->start, visit->evaluation, e);
        break;
    case STAGE_DECODE:
        picture_ended(r, visit->evaluation, e);
        break;
    case STAGE_TEXT:
    case STAGE_HOIST:
        break;
    }
    report_progress(r, visit);
    return e->code;
}

/* A picture that is only planned with, as if it were of that size. */
static const struct sluice_picture *of_size(const struct sluice_picture *picture, int width, int height,
                                            struct sluice_picture *other) {
    if (!picture) return NULL;
    *other = *picture;
    other->width = width;
    other->height = height;
    return other;
}

/* FLOPs of the same request at i sixteenths of its sides, which go to width and height; 0 if it cannot be
 * asked. */
static double flops_at(const struct running *r, int i, int *width, int *height) {
    const struct job *job = r->job;
    int step = job->model->size_step;
    struct sluice_request smaller = job->request;
    smaller.width = *width = (smaller.width * i / 16 + step - 1) / step * step;
    smaller.height = *height = (smaller.height * i / 16 + step - 1) / step * step;
    struct sluice_picture init, mask;
    smaller.init_image = of_size(smaller.init_image, *width, *height, &init);
    smaller.mask = of_size(smaller.mask, *width, *height, &mask);
    struct job try;
    struct error e = {0};
    double flops = job_open(&try, &job->place, &smaller, NULL, &e) == OK ? job_flops(&try) : 0;
    job_close(&try);
    return flops;
}

/* The largest size between whose work is at most about a quarter of this job's, measured dry; 0 if none is.
 */
static void quarter_size(const struct running *r, int *width, int *height) {
    double quarter = job_flops(r->job) / 4 * 1.05;
    int low = 0, high = 16; /* low fits or is 0, high does not fit */
    *width = *height = 0;
    while (high - low > 1) {
        int w, h, middle = (low + high) / 2;
        if (flops_at(r, middle, &w, &h) > quarter) {
            high = middle;
            continue;
        }
        low = middle;
        *width = w;
        *height = h;
    }
}

enum { WORTH_A_LINE = 2 }; /* seconds */

/* One line before step 1, from the plan's time if that follows from measured rates, else from the rate
 * measured before the run. */
static void predict(struct running *r) {
    double seconds = r->planned_seconds;
    if (seconds <= 0 && r->rate > 0) seconds = (r->all - r->done) / (SHARE_OF_RATE * r->rate);
    if (seconds < WORTH_A_LINE || !r->session->options.on_log) return;
    bool long_one = seconds >= 60;
    int width = 0, height = 0;
    if (long_one) quarter_size(r, &width, &height);
    char quarter[64] = "";
    if (width) snprintf(quarter, sizeof quarter, "; %dx%d would take about a quarter", width, height);
    say(r->session, SLUICE_INFO, "about %.0f %s for %dx%d, %d steps%s", long_one ? seconds / 60 : seconds,
        long_one ? "minutes" : "seconds", r->job->request.width, r->job->request.height, r->job->steps,
        quarter);
}

static enum status text_given(struct job *job, const char *stage, const char *ring, struct tensor given,
                              struct error *e) {
    if (check_finite(given, "the conditioning", stage, -1, e) != OK || !job->request.dump) return e->code;
    return ring_save(job->sys, job->request.dump, ring, given, e);
}

/* The time that is left is told once, after the last text. */
static enum status text_ended(struct running *r, int stage, struct error *e) {
    static const char *const names[PROMPTS_MAX] = {"cond", "uncond"}, *const pooled[PROMPTS_MAX] = {
                                                                          "pooled", "pooled_uncond"};
    struct job *job = r->job;
    const struct component *c = job->stages[stage].component;
    for (int i = 0; i < job->n_prompts && e->code == OK; i++) {
        if (c->text_columns) text_given(job, job->stages[stage].name, names[i], job->text[i], e);
        if (c->pooled_columns && e->code == OK)
            text_given(job, job->stages[stage].name, pooled[i], job->pooled[i], e);
    }
    if (e->code == OK && job->kind[stage + 1] != STAGE_TEXT) predict(r);
    return e->code;
}

static enum status denoise_ended(struct running *r, struct error *e) {
    struct job *job = r->job;
    struct report *report = &r->session->report;
    for (int i = 0; i < job->batch; i++)
        sha256_hex(job->latent[i].data, (size_t)tensor_bytes(&job->latent[i]), report->latent_sha256[i]);
    report->n_latents = job->batch;
    if (job->request.save_latent)
        latents_save(job->sys, job->request.save_latent, "latent", job->latent, job->batch, e);
    return e->code;
}

static enum status stage_ended(void *user, int stage, struct error *e) {
    struct running *r = user;
    struct report *report = &r->session->report;
    struct stage_record *record = &report->stage[stage];
    note_stall(r, NULL);
    record->seconds = now(r) - r->stage_began;
    record->moved = since(r->counters, r->at_stage);
    record->floor_seconds = measured_floor(r, record->seconds, &record->moved);
    record->planned_bytes = r->job->plan.stage[stage].peak_ram_bytes;
    record->measured_bytes = machine_peak_bytes();
    report->n_stages = stage + 1;
    if (r->job->kind[stage] == STAGE_TEXT) text_ended(r, stage, e);
    if (r->job->kind[stage] == STAGE_ENCODE && r->job->request.dump && !start_is_early(r->job))
        dump_latents(r->job, 0, e);
    if (r->job->kind[stage] == STAGE_DENOISE) denoise_ended(r, e);
    r->stage_began = r->step_began = now(r);
    r->at_stage = r->at_step = r->counters;
    r->done_at_stage = r->done;
    return e->code;
}

/* ---- pressure ---- */

static uint64_t bytes_needed(void *user) {
    struct running *r = user;
    struct sys *sys = r->session->sys;
    return pressure_bytes(r->reserve, sys->free_bytes(sys));
}

static void gave_up(void *user, const struct visit *first, uint64_t bytes, enum give_up_reason reason) {
    static const char *const said[] = {
        [GIVE_UP_ASKED] = "another program took memory: %.1f MiB of residents given up, the run goes on",
        [GIVE_UP_OPERATOR] =
            "an operator found no memory: %.1f MiB of residents given up, it is computed again",
        [GIVE_UP_STAGE] = "a stage found no memory: %.1f MiB of residents given up, it begins again",
    };
    struct running *r = user;
    struct report *report = &r->session->report;
    struct given_up *last = &report->given_up[GIVEN_UP_MAX - 1];
    double mib = (double)bytes / (1 << 20);
    if (report->n_given_up < GIVEN_UP_MAX)
        report->given_up[report->n_given_up++] = (struct given_up){
            report->stage_name[first->stage],
            first->evaluation < 0 ? 0 : first->evaluation / r->job->stages[first->stage].n_groups, bytes};
    else
        last->bytes += bytes;
    say(r->session, SLUICE_WARNING, said[reason], mib);
}

/* Before anything of this run is taken. Where weights lie on a device of their own, giving them up would not
 * help the host. */
static uint64_t find_reserve(struct sluice_session *s, const struct job *job) {
    if (s->device->memory) return 0;
    return pressure_reserve(s->sys->free_bytes(s->sys), s->report.base_bytes, job->plan.ram_peak_bytes);
}

/* ---- a run ---- */

static enum status dump_tokens(struct job *job, int text, struct error *e) {
    for (int i = 0; i < job->n_prompts && e->code == OK; i++) {
        struct prompt_tokens *tokens = &job->tokens[job->text_slot[text]][i];
        char number[16], name[32];
        snprintf(name, sizeof name, "%s%s", job_numbered("tokens", text, number), i ? "_uncond" : "");
        ring_save(job->sys, job->request.dump, name, tensor_make(tokens->ids, DTYPE_I32, 1, &tokens->n_ids),
                  e);
    }
    return e->code;
}

static enum status dump_start(struct job *job, struct error *e) {
    int32_t n_sigmas = job->steps + 1;
    for (int text = 0; text < job->n_texts && e->code == OK; text++) dump_tokens(job, text, e);
    if (e->code == OK)
        ring_save(job->sys, job->request.dump, "sigmas", tensor_make(job->sigmas, DTYPE_F32, 1, &n_sigmas),
                  e);
    return e->code == OK && start_is_early(job) ? dump_latents(job, 0, e) : e->code;
}

static enum status prepare_steps(struct sluice_session *s, const struct job *job, struct error *e) {
    if (job->decode_only) return OK;
    size_t n = (size_t)job->steps;
    s->report.step = s->sys->alloc(s->sys, LINE_HOST, n * sizeof *s->report.step);
    s->report.sigma = s->sys->alloc(s->sys, LINE_HOST, n * sizeof *s->report.sigma);
    if (!s->report.step || !s->report.sigma) return error_set(e, MEMORY, "no memory for %zu steps", n);
    memcpy(s->report.sigma, job->sigmas, n * sizeof *s->report.sigma);
    return OK;
}

/* Stated defaults are too low to be worth an announcement. */
static double planned_seconds(const struct job *job) {
    double seconds = 0;
    for (int i = 0; i < job->n_stages && job->request.rates; i++)
        if (job->kind[i] != STAGE_TEXT) seconds += job->plan.stage[i].seconds;
    return seconds;
}

static void warn_of_component(struct sluice_session *s, const struct component *c) {
    uint64_t bytes = index_bytes(&c->index), claimed = c->index.claimed_bytes;
    if (c->n_unknown)
        say(s, SLUICE_WARNING, "%d unknown tensors in the %s are not used; `inspect` lists them",
            c->n_unknown, c->family->name);
    if (claimed && claimed != bytes)
        say(s, SLUICE_WARNING,
            "the shard index of the %s says total_size %llu, its tensors have %llu bytes: the tensors count",
            c->family->name, (unsigned long long)claimed, (unsigned long long)bytes);
}

static void warn_of_cuts(struct sluice_session *s, const struct job *job) {
    const struct recipe *recipe = job->model->recipe;
    for (int i = 0; i < SLOTS_MAX * PROMPTS_MAX; i++) {
        int slot = i / PROMPTS_MAX, prompt = i % PROMPTS_MAX;
        if (job->tokens[slot][prompt].cut)
            say(s, SLUICE_WARNING, "the %s is longer than %d tokens: the %s does not see its end",
                prompt ? "negative prompt" : "prompt", recipe->slot[slot].text.tokens_max,
                recipe->slot[slot].family->word);
    }
    for (int i = 0; i < SLOTS_MAX; i++) {
        const struct component *c = &s->model->component[i];
        if (c->family && c->family->kind != FAMILY_ENCODER) /* the decoder's tensors are its own */
            warn_of_component(s, c);
    }
}

/* A picture of another size than its model reads. */
static void say_resized(struct sluice_session *s, const struct job *job) {
    for (int i = 0; i < job->n_encoded; i++) {
        const struct tensor *to = &job->encoded[i].resized;
        const struct sluice_picture *from = job_source(job, &job->encoded[i]);
        if (to->rank)
            say(s, SLUICE_INFO, "%s is read at %dx%d instead of %dx%d",
                from->name ? from->name : "a reference", to->dim[1], to->dim[0], from->width, from->height);
    }
}

/* A file that cannot be read past the page cache is read through it, and one line says so. */
static void open_direct(struct sluice_session *s, struct job *job) {
    const char *first = NULL;
    int refused = 0, n_refused = 0;
    for (int i = 0; i < job->n_stages && job->plan.bounce_bytes; i++) {
        const struct tensor_index *index = &job->stages[i].component->index;
        if (i && job->stages[i].component == job->stages[i - 1].component)
            continue; /* a file is asked once */
        for (int k = 0; k < index->n_sources; k++) {
            int failed = source_open_direct(&index->sources[k]);
            if (!failed || n_refused++) continue;
            refused = failed;
            first = index->sources[k].path;
        }
    }
    if (n_refused)
        say(s, SLUICE_WARNING,
            "reading through the page cache: direct reads of %d files are not allowed: %s: %s", n_refused,
            first, strerror(-refused));
}

/* What is kept of an earlier run in another type would be taken for this one's. */
static struct job_place session_place(struct sluice_session *s, const struct sluice_request *request) {
    struct error e = {0};
    enum dtype wanted;
    struct sluice_request r;
    copy_sized(&r, sizeof r, request);
    if (retyped_type(r.type, &wanted, &e) == OK && s->retyped.made && s->retyped.wanted != wanted)
        residents_destroy(&s->residents);
    return (struct job_place){s->model, s->device, &s->retyped};
}

static bool scaling_goes_on(void *user, struct error *e) {
    struct sluice_session *s = user;
    if (atomic_load(&s->cancelled)) error_set(e, CANCELLED, "cancelled");
    return e->code == OK;
}

static enum status execute(struct sluice_session *s, struct job *job, const char *latent_file,
                           struct error *e) {
    struct running r = {
        .session = s, .job = job, .all = job_flops(job), .planned_seconds = planned_seconds(job)};
    struct run_hooks hooks = {.user = &r,
                              .evaluation_ended = evaluation_ended,
                              .stage_ended = stage_ended,
                              .bytes_needed = bytes_needed,
                              .gave_up = gave_up,
                              .tick = tick};
    struct run run = job_run(job, &hooks);
    struct run_need need = *job->need;
    r.reserve = find_reserve(s, job);
    /* What an earlier run kept and this one does not comes first: it is in no line of this plan. */
    if (!job->plan.keep) residents_destroy(&s->residents);
    if (!s->device->memory && (s->options.on_log || s->options.on_progress))
        r.rate = rate_measure(s->sys, s->device, job->precision);
    r.began = r.stage_began = r.step_began = now(&r);
    for (int i = 0; i < job->n_stages; i++)
        memcpy(s->report.stage_name[i], job->stages[i].name, sizeof s->report.stage_name[i]);
    if (executor_measure(&run, true, &need, e) != OK || prepare_steps(s, job, e) != OK) return e->code;
    if (job_allocate(job, e) != OK) return e->code;
    open_direct(s, job);
    if (retyped_scale(&s->retyped, s->sys, scaling_goes_on, s, e) != OK) return e->code;
    const char *from = latent_file ? latent_file : job->request.init_latent;
    start_open(&r.start, job, from, e);
    if (e->code == OK && job->request.dump && !job->decode_only) dump_start(job, e);
    if (e->code == OK) executor_run(&run, job->need, &job->plan, &s->residents, &r.counters, e);
    start_close(&r.start);
    s->report.seconds = now(&r) - r.began;
    if (r.counters.bytes_unpinned)
        say(s, SLUICE_WARNING,
            "%.1f MiB went to the device out of host memory that could not be pinned, which is slower",
            (double)r.counters.bytes_unpinned / (1 << 20));
    return e->code;
}

/* What a budget that nobody gave came to. */
static void say_budget(struct sluice_session *s, const struct job *job) {
    const struct device_memory *own = s->device->memory;
    if (!own || !own->available || job->request.max_vram_bytes || job->request.plan) return;
    say(s, SLUICE_INFO, "device memory: %.1f MiB free on %s, a budget of %.1f MiB",
        (double)(own->available(s->device) - own->used(s->device)) / (1 << 20), s->device->name,
        (double)job->plan.vram_budget_bytes / (1 << 20));
}

static enum status check_prompt(const struct job *job, struct error *e) {
    return job->decode_only || job->request.prompt ? OK : error_set(e, USAGE, "no prompt was given");
}

static void measure_process(struct sluice_session *s) {
    struct memory_use use = sys_memory_use(s->sys);
    int64_t own = 0;
    for (int i = 0; i < N_MEMORY_LINES; i++) own += use.peak_bytes[i];
    s->report.peak_bytes = machine_peak_bytes();
    const struct device_memory *device = s->device->memory;
    if (device && device->used) s->report.device_bytes = device->used(s->device);
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
    if (job_open(&job, &place, request, latent_dim, e) != OK || check_prompt(&job, e) != OK ||
        job_plan(&job, e) != OK)
        goto out;
    s->report.plan = plan_json(&job);
    if (plan_check(job.need, &job.plan, e) == BUDGET) refusal_explain(&job, e);
    if (e->code != OK) goto out;
    warn_of_cuts(s, &job);
    say_resized(s, &job);
    say_budget(s, &job);
    execute(s, &job, latent_file, e);
out:
    job_close(&job);
    s->report.error = *e;
    measure_process(s);
    return e->code;
}

/* ---- the public functions ---- */

static void say_passed_over(struct sluice_session *s) {
    char why[512];
    if (!s->options.device && !s->device->memory && device_passed_over(why, sizeof why))
        say(s, SLUICE_INFO, "on the CPU: %s", why);
}

static void say_assumptions(struct sluice_session *s) {
    char lines[MODEL_NOTES_MAX][MODEL_NOTE_BYTES];
    int n = model_notes(s->model, lines);
    for (int i = 0; i < n; i++) say(s, SLUICE_INFO, "%s", lines[i]);
}

int sluice_session_open(sluice_model *model, const struct sluice_session_options *options,
                        sluice_session **session, struct sluice_error *error) {
    struct error e = {0};
    struct sys *sys = model->sys;
    struct sluice_session *s = sys->alloc(sys, LINE_HOST, sizeof *s);
    *session = NULL;
    if (!s) {
        error_set(&e, MEMORY, "no memory for a session");
        return publish_error(&e, error);
    }
    s->sys = sys;
    s->model = model;
    s->residents.sys = sys;
    copy_sized(&s->options, sizeof s->options, options);
    int threads = s->options.threads ? s->options.threads : machine_cores();
    if (threads < 1 || threads > 1024) {
        error_set(&e, USAGE, "the number of threads cannot be used");
        error_found(&e, "%d", threads);
        error_expected(&e, "1 to 1024");
    } else {
        s->device = device_open(sys, s->options.device, threads, s->options.plans_only, &e);
    }
    if (s->device && s->device->memory) s->residents.device = s->device;
    if (e.code == OK) {
        *session = s;
        say_passed_over(s);
        say_assumptions(s);
    } else {
        sluice_session_close(s);
    }
    return publish_error(&e, error);
}

void sluice_session_close(sluice_session *s) {
    if (!s) return;
    residents_destroy(&s->residents);
    retyped_destroy(&s->retyped);
    report_destroy(s->sys, &s->report);
    if (s->device) s->device->destroy(s->device);
    s->sys->release(s->sys, s);
}

int sluice_run(sluice_session *session, const struct sluice_request *request, struct sluice_error *error) {
    struct error e = {0};
    struct sluice_request r;
    copy_sized(&r, sizeof r, request);
    run_job(session, &r, NULL, NULL, &e);
    return publish_error(&e, error);
}

static enum status decode_dims(struct sluice_session *s, const char *path, int32_t dim[4], struct error *e) {
    struct tensor_index index;
    if (latent_open(s->sys, path, &index, dim, e) == OK) {
        int channels = model_component(s->model, FAMILY_DECODER)->latent_channels;
        if (dim[1] != channels || dim[0] < 1 || dim[0] > BATCH_MAX || dim[2] < 1 || dim[3] < 1 ||
            dim[2] > 2048 || dim[3] > 2048) {
            error_set(e, SHAPE, "the latent does not fit this model");
            error_where(e, "%s", path);
            error_found(e, "[%d, %d, %d, %d]", dim[0], dim[1], dim[2], dim[3]);
            error_expected(e, "[1 to %d, %d, h, w]", BATCH_MAX, channels);
        }
    }
    index_destroy(&index);
    return e->code;
}

int sluice_decode(sluice_session *session, const struct sluice_request *request, const char *latent_file,
                  struct sluice_error *error) {
    struct error e = {0};
    struct sluice_request r;
    int32_t dim[4];
    copy_sized(&r, sizeof r, request);
    if (decode_dims(session, latent_file, dim, &e) == OK) run_job(session, &r, latent_file, dim, &e);
    session->report.error = e;
    return publish_error(&e, error);
}

int sluice_plan_query(sluice_session *session, const struct sluice_request *request,
                      const char *decode_latent, char **json, bool *fits, struct sluice_error *error) {
    struct error e = {0}, misfit = {0};
    struct job job = {0};
    int32_t dim[4];
    *json = NULL;
    *fits = false;
    if (decode_latent && decode_dims(session, decode_latent, dim, &e) != OK) goto out;
    struct job_place place = session_place(session, request);
    if (job_open(&job, &place, request, decode_latent ? dim : NULL, &e) != OK || job_plan(&job, &e) != OK)
        goto out;
    *fits = plan_check(job.need, &job.plan, &misfit) == OK;
    unsigned losses = json_losses();
    json_t *plan = plan_json(&job);
    if (plan) json_put(plan, "advice", advice_json(&job));
    *json = json_hand_out(plan, JSON_INDENT(1), losses);
    if (!*json) error_set(&e, MEMORY, "no memory for the plan's text");
out:
    job_close(&job);
    return publish_error(&e, error);
}

int sluice_report(sluice_session *session, char **json, struct sluice_error *error) {
    struct error e = {0};
    unsigned losses = json_losses();
    *json = json_hand_out(report_json(&session->report), JSON_INDENT(1), losses);
    if (!*json) error_set(&e, MEMORY, "no memory for the report");
    return publish_error(&e, error);
}

void sluice_cancel(sluice_session *session) {
    atomic_store(&session->cancelled, 1);
}
