/* Makes each candidate layout of a job, measures the layout by a dry run and frees it. The planner then
 * chooses a layout by memory need and predicted time. Implements job_measure of job.h. */
#include "engine/api/job.h"
#include "engine/api/machine.h"
#include "engine/api/preview_run.h"
#include "engine/api/rate.h"
#include "engine/api/rates_file.h"
#include "engine/api/stages.h"

static uint64_t candidates_gathered_bytes(const struct job *job) {
    uint64_t bytes = 0;
    for (int slot = 0; slot < SLOTS_MAX; slot++)
        for (int i = 0; i < GATHERED_MAX && job->gathered[slot]; i++)
            bytes += sizeof(struct block) +
                     (uint64_t)job->gathered[slot][i].n_segments * sizeof(struct packed_segment);
    return bytes;
}

/* Heap bytes of a run, rounded up: descriptors (visits, ring fills, lists), input images, the caller's
 * pixels, and the device's table of oneDNN primitives. */
static uint64_t candidates_host_bytes(const struct job *job, const struct layout *l) {
    uint64_t a_visit = 384, a_token = 32, tokens = 0, pictures = 0;
    for (int i = 0; i < SLOTS_MAX * PROMPTS_MAX; i++)
        tokens += (uint64_t)job->tokens[i / PROMPTS_MAX][i % PROMPTS_MAX].n_ids;
    for (int i = 0; i < PICTURES_MAX; i++) {
        const struct sluice_picture *unfitted = &job->input_picture[i], *used = &job->picture[i];
        pictures += (uint64_t)used->width * (uint64_t)used->height * 3;
        if (i < PICTURE_VISION && unfitted->rgb && !used->rgb)
            pictures += (uint64_t)unfitted->width * (uint64_t)unfitted->height * 3;
    }
    pictures += job_control_bytes(job);
    return align_up(job->model->host_bytes + (uint64_t)l->visits.n_visits * a_visit + tokens * a_token +
                        candidates_gathered_bytes(job) +
                        (uint64_t)(job->n_needs + 1) * run_need_bytes(l->n_stages) + pictures +
                        (uint64_t)job->request.caller_bytes + prompt_cache_peak_bytes(job) +
                        preview_run_host_bytes(job) +
                        requantised_bytes(job->request.converted ? NULL : job->context.requantised,
                                          plan_readers(job->device->memory, PLAN_BOUNCE)) +
                        session_adapters_bytes(job->context.adapters) + (12 << 16),
                    1 << 16);
}

/* Bytes that the on_image callback needs in the decode stage (image_bytes_a_pixel in the request, times the
 * image's pixels). */
static uint64_t candidates_image_bytes(const struct job *job, const struct stage_kind *kind) {
    const struct sluice_request *r = &job->request;
    if (kind != &stage_decode || r->no_decode || !r->image_bytes_a_pixel) return 0;
    uint64_t pixels = (uint64_t)r->width * (uint64_t)r->height;
    return align_up((1 << 20) + pixels * (uint64_t)r->image_bytes_a_pixel, PLAN_PAGE);
}

bool job_reads_direct(const char *direct_io, uint64_t model_bytes, uint64_t memory_bytes) {
    if (choice_is(direct_io, "on")) return true;
    if (choice_is(direct_io, "off")) return false;
    /* A model above 3/4 of the memory is read past the page cache: every step reads all weights in the same
     * order, so the cache would evict each weight before its next use. */
    return memory_bytes && model_bytes > memory_bytes / 4 * 3;
}

/* Bytes of weights that a run reads; embedding tables are not counted, as a run reads only a few of their
 * rows. */
static uint64_t candidates_model_bytes(const struct layout *l) {
    uint64_t bytes = 0;
    for (int s = 0; s < l->n_stages; s++)
        for (int i = 0; i < l->stages[s].n_model_blocks; i++) bytes += l->stages[s].blocks[i]->bytes;
    return bytes;
}

/* Computes how much longer each block loads than its size suggests: its type in the file is larger, or its
 * weights are converted. */
static void candidates_measure_fills(const struct job *job, const struct stage *stage,
                                     const struct rates *rates, struct stage_need *need) {
    for (int i = 0; i < need->n_blocks; i++) {
        const struct block *block = stage->blocks[i];
        int64_t values = block_converted_values(block);
        double more = (double)block_file_bytes(block) - (double)block->bytes;
        if (values ? job->request.converted : more <= 0) continue;
        if (rates->disk <= 0) continue;
        need->block_fill_seconds[i] = more / rates->disk;
        if (values) need->block_fill_seconds[i] += requantised_seconds(job->weights, values);
    }
}

static enum pictures_place candidates_pictures_place(const struct sluice_request *r) {
    if (choice_is(r->vae_tiling, "on")) return PICTURES_ON_HOST;
    return choice_is(r->vae_tiling, "off") ? PICTURES_ON_DEVICE : PICTURES_ANYWHERE;
}

static struct run_need *candidates_need(const struct job *job, const struct layout *l, struct error *e) {
    struct run_need *need = job->sys->alloc(job->sys, LINE_HOST, run_need_bytes(l->n_stages));
    if (!need) error_set(e, MEMORY, "no memory to plan the run");
    return need;
}

/* Limits pinned memory to what the system allows, found by pinning as much as any plan could use. Fails with
 * DEVICE if the attempt leaves the device unusable. */
static enum status candidates_limit_pins(const struct job *job, struct run_need *need, struct error *e) {
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

static enum status candidates_measure(const struct job *job, struct layout *l, const struct rates *rates,
                                      struct run_need *need, struct error *e) {
    struct run run = job_run(job, l, NULL);
    need->rates = *rates;
    need->precision = job->precision;
    need->adapters = job->decode_only ? 0 : session_adapters_hash(job->context.adapters);
    need->weights = job->request.converted ? N_DTYPES : job->weights;
    if (executor_measure(&run, false, need, e) != OK) return e->code;
    for (int s = 0; s < need->n_stages; s++) {
        need->stage[s].pictures_place = candidates_pictures_place(&job->request);
        need->stage[s].image_bytes = candidates_image_bytes(job, l->kind[s]);
        candidates_measure_fills(job, &l->stages[s], rates, &need->stage[s]);
        preview_run_add_need(job, l->kind[s] == &stage_denoise, &need->stage[s]);
    }
    need->base_bytes = machine_base_bytes() + job->device->host_bytes;
    need->host_bytes = candidates_host_bytes(job, l);
    need->interstage_bytes = align_up(l->interstage.peak, PLAN_PAGE);
    if (job_reads_direct(job->request.direct_io, candidates_model_bytes(l), machine_memory_bytes("")))
        need->bounce_bytes = PLAN_BOUNCE;
    /* The phases before the run follow one another, so open_bytes is the largest temporary memory of any
     * phase. */
    need->open_bytes = job->model->open_bytes > RATE_BYTES ? job->model->open_bytes : RATE_BYTES;
    if (job_reading_bytes(job) > need->open_bytes) need->open_bytes = job_reading_bytes(job);
    if (job->context.adapters && job->context.adapters->open_bytes > need->open_bytes)
        need->open_bytes = job->context.adapters->open_bytes;
    return candidates_limit_pins(job, need, e);
}

/* Bit set of spans (job->spans) to hoist: a span is hoisted if its precomputed timestep rows take less memory
 * than the weights that compute them. The bit set depends on the request only. */
static unsigned candidates_hoisted(const struct job *job, struct error *e) {
    struct layout plain, all = {0};
    unsigned hoisted = 0;
    layout_open(job, (struct layout_choice){.groups = 1}, NULL, &plain, e);
    if (e->code == OK) layout_open(job, (struct layout_choice){.groups = 1, .hoisted = ~0u}, NULL, &all, e);
    for (int s = 0; s + 1 < all.n_stages && e->code == OK && !job->model->no_hoist; s++) {
        uint64_t without = 0, with = 0, weights = 0, pictures;
        const struct component *c = all.stages[s].component;
        if (!all.stages[s].hoists) continue;
        for (int i = 0; i < c->n_blocks; i++)
            if (block_hoists(c->blocks[i].kind)) weights += c->blocks[i].bytes;
        executor_state_bytes(job->sys, &plain.stages[s + 1], &without, &pictures, e);
        executor_state_bytes(job->sys, &all.stages[s + 1], &with, &pictures, e);
        if (with - without < weights) hoisted |= 1u << all.span[s];
    }
    layout_close(job->sys, &plain);
    layout_close(job->sys, &all);
    return hoisted;
}

/* Bytes of full-frame activation buffers in a layout. */
static uint64_t candidates_picture_bytes(const struct job *job, struct layout_choice choice,
                                         struct error *e) {
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

/* True if VAE tiling changes the bytes of the full-frame buffers: less for large images, more or equal for
 * small ones. */
static bool candidates_tiling_matters(const struct job *job, unsigned hoisted, struct error *e) {
    struct layout_choice whole = {1, false, hoisted}, tiled = {1, true, hoisted};
    return candidates_picture_bytes(job, whole, e) != candidates_picture_bytes(job, tiled, e);
}

static uint64_t candidates_vae_peak(const struct layout *l, const struct run_need *need) {
    uint64_t peak = 0;
    for (int s = 0; s < l->n_stages; s++) {
        if (!l->kind[s]->full_frames) continue;
        uint64_t bytes = need->separate ? plan_fixed_vram(need, s, true) : plan_fixed_ram(need, s, false);
        if (bytes > peak) peak = bytes;
    }
    return peak;
}

/* Returns the next number of image groups above the given one that makes the largest group smaller; 0: none.
 */
static int candidates_next_groups(int batch, int groups) {
    int largest = (batch + groups - 1) / groups;
    return largest > 1 ? (batch + largest - 2) / (largest - 1) : 0;
}

struct candidates {
    struct job *job;
    struct rates rates;
    int n;
};

/* Appends the job's memory need in the layout of a choice to job->needs; returns the peak memory of the VAE
 * stages. */
static uint64_t candidates_add(struct candidates *c, struct layout_choice choice, struct error *e) {
    struct job *job = c->job;
    struct layout l = {0};
    struct run_need *need = NULL;
    uint64_t peak = 0;
    if (e->code == OK && layout_open(job, choice, NULL, &l, e) == OK) need = candidates_need(job, &l, e);
    if (need && candidates_measure(job, &l, &c->rates, need, e) == OK) peak = candidates_vae_peak(&l, need);
    job->choices[c->n] = choice;
    job->needs[c->n++] = need;
    layout_close(job->sys, &l);
    return peak;
}

/* For --vae-tiling on: measures the layout with and without tiling; keeps the tiled layout only if it takes
 * less memory. */
static void candidates_add_tiled(struct candidates *c, unsigned hoisted, struct error *e) {
    struct job *job = c->job;
    uint64_t tiled = candidates_add(c, (struct layout_choice){1, true, hoisted}, e);
    uint64_t whole = candidates_add(c, (struct layout_choice){1, false, hoisted}, e);
    int chosen = tiled < whole ? 0 : 1;
    job->sys->release(job->sys, job->needs[1 - chosen]);
    job->needs[0] = job->needs[chosen];
    job->choices[0] = job->choices[chosen];
    job->needs[1] = NULL;
    c->n = 1;
}

static void candidates_add_groups(struct candidates *c, struct layout_choice choice, struct error *e) {
    int most = c->job->decode_only ? 1 : c->job->batch;
    for (; choice.groups && e->code == OK; choice.groups = candidates_next_groups(most, choice.groups))
        candidates_add(c, choice, e);
}

/* Allocates job->needs and job->choices. Sets n_needs before the dry runs, which count the memory of both
 * arrays. */
static enum status candidates_begin(struct candidates *c, int n_ways, struct error *e) {
    struct job *job = c->job;
    int most = job->decode_only ? 1 : job->batch;
    job->n_needs = 0;
    for (int groups = 1; groups; groups = candidates_next_groups(most, groups)) job->n_needs += n_ways;
    size_t n_max = (size_t)job->n_needs + 1; /* plus one, because candidates_add_tiled compares two layouts */
    job->needs = job->sys->alloc(job->sys, LINE_HOST, n_max * sizeof *job->needs);
    job->choices = job->sys->alloc(job->sys, LINE_HOST, n_max * sizeof *job->choices);
    return job->needs && job->choices ? OK : error_set(e, MEMORY, "no memory to plan the run");
}

enum status job_measure(struct job *job, struct error *e) {
    struct candidates c = {.job = job};
    const char *how = job->request.vae_tiling;
    rates_default(job->device->name, job->device->threads, &c.rates);
    if (job->device->card) rates_of_card(job->device->card, &c.rates);
    if (job->request.rates && rates_read(job->device->name, job->request.rates_name, job->request.rates,
                                         job->device->threads, &c.rates, e) != OK)
        return e->code;
    struct layout_choice choice = {1, false, candidates_hoisted(job, e)};
    bool matters = e->code == OK && candidates_tiling_matters(job, choice.hoisted, e);
    bool both = matters && !choice_is(how, "on") && !choice_is(how, "off");
    if (e->code != OK || candidates_begin(&c, both ? 2 : 1, e) != OK) return e->code;
    if (matters && choice_is(how, "on")) {
        candidates_add_tiled(&c, choice.hoisted, e);
        choice = job->choices[0];
        choice.groups = candidates_next_groups(job->decode_only ? 1 : job->batch, 1);
    }
    candidates_add_groups(&c, choice, e);
    choice.tiled = true;
    if (both) candidates_add_groups(&c, choice, e);
    return e->code == OK ? job_lay_out(job, 1, job->choices[0].tiled, e) : e->code;
}
