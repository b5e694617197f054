/* What a job needs in each layout that it can have: layouts are made, measured dry and let go; the plan
 * chooses among the needs. See job.h. */
#include "engine/api/job.h"
#include "engine/api/machine.h"
#include "engine/api/preview_run.h"
#include "engine/api/rate.h"
#include "engine/api/rates_file.h"
#include "engine/api/stages.h"

/* ---- the lines of a need that the dry run does not see ---- */

/* Descriptors of the rows that it gathers. */
static uint64_t candidates_gathered_bytes(const struct job *job) {
    uint64_t bytes = 0;
    for (int slot = 0; slot < SLOTS_MAX; slot++)
        for (int i = 0; i < GATHERED_MAX && job->rows[slot]; i++)
            bytes += sizeof(struct block) +
                     (uint64_t)job->rows[slot][i].n_segments * sizeof(struct packed_segment);
    return bytes;
}

/* Descriptors of ours that a run takes from the heap, counted generously: visits, fills, lists; and pictures
 * that it reads, the caller's pixels, which last through the run; and the device's table of primitives. */
static uint64_t candidates_host_bytes(const struct job *job, const struct layout *l) {
    uint64_t a_visit = 384, a_token = 32, tokens = 0, pictures = 0;
    for (int i = 0; i < SLOTS_MAX * PROMPTS_MAX; i++)
        tokens += (uint64_t)job->tokens[i / PROMPTS_MAX][i % PROMPTS_MAX].n_ids;
    for (int i = 0; i < PICTURES_MAX; i++) {
        const struct sluice_picture *given = &job->given[i], *used = &job->picture[i];
        pictures += (uint64_t)used->width * (uint64_t)used->height * 3;
        if (i < PICTURE_SHOWN && given->rgb && !used->rgb)
            pictures += (uint64_t)given->width * (uint64_t)given->height * 3;
    }
    pictures += job_control_bytes(job);
    return align_up(job->model->host_bytes + (uint64_t)l->visits.n_visits * a_visit + tokens * a_token +
                        candidates_gathered_bytes(job) +
                        (uint64_t)(job->n_needs + 1) * run_need_bytes(l->n_stages) + pictures +
                        (uint64_t)job->request.caller_bytes + recalled_bytes(job) +
                        preview_run_host_bytes(job) +
                        requantised_bytes(job->request.converted ? NULL : job->place.requantised,
                                          plan_readers(job->device->memory, PLAN_BOUNCE)) +
                        adapted_bytes(job->place.adapted) + (12 << 16),
                    1 << 16);
}

/* What takes the pictures while a stage makes them. */
static uint64_t candidates_image_bytes(const struct job *job, const struct stage_kind *kind) {
    const struct sluice_request *r = &job->request;
    if (kind != &stage_decode || r->no_decode || !r->image_bytes_a_pixel) return 0;
    uint64_t pixels = (uint64_t)r->width * (uint64_t)r->height;
    return align_up((1 << 20) + pixels * (uint64_t)r->image_bytes_a_pixel, PLAN_PAGE);
}

bool job_reads_direct(const char *direct_io, uint64_t model_bytes, uint64_t memory_bytes) {
    if (asked_for(direct_io, "on")) return true;
    if (asked_for(direct_io, "off")) return false;
    /* A quarter is for processes: what is read in turn and does not fit the rest is gone from the cache
     * before it is read again. */
    return memory_bytes && model_bytes > memory_bytes / 4 * 3;
}

/* What of the files is read: an embedding table's few rows are not worth counting. */
static uint64_t candidates_model_bytes(const struct layout *l) {
    uint64_t bytes = 0;
    for (int s = 0; s < l->n_stages; s++)
        for (int i = 0; i < l->stages[s].n_lasting; i++) bytes += l->stages[s].blocks[i]->bytes;
    return bytes;
}

/* What filling takes beyond reading the image: a file that has more bytes, also between those that are
 * wanted, and converting them. */
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
    if (asked_for(r->vae_tiling, "on")) return PICTURES_ON_HOST;
    return asked_for(r->vae_tiling, "off") ? PICTURES_ON_DEVICE : PICTURES_ANYWHERE;
}

/* For as many stages as the layout has. */
static struct run_need *candidates_need(const struct job *job, const struct layout *l, struct error *e) {
    struct run_need *need = job->sys->alloc(job->sys, LINE_HOST, run_need_bytes(l->n_stages));
    if (!need) error_set(e, MEMORY, "no memory for what a run needs");
    return need;
}

/* What of the host's memory would be pinned at most, and whether it can be. DEVICE: it was lost by trying. */
static enum status candidates_limit_pins(const struct job *job, struct run_need *need, struct error *e) {
    const struct device_memory *own = job->device->memory;
    uint64_t wanted = PLAN_STAGING, largest = 0, budget = (uint64_t)job->request.max_ram_bytes;
    double stalled = 0;
    if (!own || !own->pinnable) return OK;
    for (int s = 0; s < need->n_stages; s++) {
        const struct stage_need *n = &need->stage[s];
        wanted += plan_pages(n->picture_bytes);
        for (int i = 0; i < n->n_blocks; i++) {
            wanted += n->block_bytes[i];
            if (n->block_bytes[i] > largest) largest = n->block_bytes[i];
        }
    }
    wanted += 4 * largest; /* of staging */
    if (budget && wanted > budget) wanted = budget;
    uint64_t can = own->pinnable(job->device, wanted);
    if (can < wanted) plan_limit_pins(need, can);
    return device_wait(job->device, &stalled, e);
}

static enum status candidates_measure(const struct job *job, struct layout *l, const struct rates *rates,
                                      struct run_need *need, struct error *e) {
    struct run run = job_run(job, l, NULL);
    need->rates = *rates;
    need->precision = job->precision;
    need->adapters = job->decode_only ? 0 : adapted_hash(job->place.adapted);
    need->weights = job->request.converted ? N_DTYPES : job->weights;
    if (executor_measure(&run, false, need, e) != OK) return e->code;
    for (int s = 0; s < need->n_stages; s++) {
        need->stage[s].pictures_place = candidates_pictures_place(&job->request);
        need->stage[s].image_bytes = candidates_image_bytes(job, l->kind[s]);
        candidates_measure_fills(job, &l->stages[s], rates, &need->stage[s]);
        preview_run_count(job, l->kind[s] == &stage_denoise, &need->stage[s]);
    }
    need->base_bytes = machine_base_bytes() + job->device->host_bytes;
    need->host_bytes = candidates_host_bytes(job, l);
    need->cross_bytes = align_up(l->cross.peak, PLAN_PAGE);
    if (job_reads_direct(job->request.direct_io, candidates_model_bytes(l), machine_memory_bytes("")))
        need->bounce_bytes = PLAN_BOUNCE;
    /* None lasts into the run, nor do they meet. */
    need->open_bytes = job->model->open_bytes > RATE_BYTES ? job->model->open_bytes : RATE_BYTES;
    if (job_reading_bytes(job) > need->open_bytes) need->open_bytes = job_reading_bytes(job);
    if (job->place.adapted && job->place.adapted->open_bytes > need->open_bytes)
        need->open_bytes = job->place.adapted->open_bytes;
    return candidates_limit_pins(job, need, e);
}

/* ---- hoisting ---- */

/* A span's rows are hoisted where those of all its calls take less memory than the weights that they replace:
 * many steps of a small model would cost more than they save. The request alone decides, never a budget. */
static unsigned candidates_hoisted(const struct job *job, struct error *e) {
    struct layout plain, all = {0};
    unsigned hoisted = 0;
    layout_open(job, (struct layout_choice){.groups = 1}, NULL, &plain, e);
    if (e->code == OK) layout_open(job, (struct layout_choice){.groups = 1, .hoisted = ~0u}, NULL, &all, e);
    for (int s = 0; s + 1 < all.n_stages && e->code == OK && !job->model->plain; s++) {
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

/* ---- tiling ---- */

/* Bytes of whole pictures in a layout. */
static uint64_t candidates_picture_bytes(const struct job *job, struct layout_choice choice,
                                         struct error *e) {
    struct layout l;
    uint64_t state, each, bytes = 0;
    layout_open(job, choice, NULL, &l, e);
    for (int s = 0; s < l.n_stages && e->code == OK; s++) {
        if (!l.kind[s]->whole_pictures) continue;
        executor_state_bytes(job->sys, &l.stages[s], &state, &each, e);
        bytes += each;
    }
    layout_close(job->sys, &l);
    return bytes;
}

/* Which of both ways differ from each other: low, flat and narrow pictures are less than their bands. */
static bool candidates_tiling_matters(const struct job *job, unsigned hoisted, struct error *e) {
    struct layout_choice whole = {1, false, hoisted}, tiled = {1, true, hoisted};
    return candidates_picture_bytes(job, whole, e) != candidates_picture_bytes(job, tiled, e);
}

/* What the autoencoder takes at most. */
static uint64_t candidates_taken(const struct layout *l, const struct run_need *need) {
    uint64_t taken = 0;
    for (int s = 0; s < l->n_stages; s++) {
        if (!l->kind[s]->whole_pictures) continue;
        uint64_t bytes = need->separate ? plan_fixed_vram(need, s, true) : plan_fixed_ram(need, s, false);
        if (bytes > taken) taken = bytes;
    }
    return taken;
}

/* ---- all ---- */

/* More groups of the same size would gain nothing: the next number of groups whose images are fewer, or 0. */
static int candidates_next_groups(int batch, int groups) {
    int together = (batch + groups - 1) / groups;
    return together > 1 ? (batch + together - 2) / (together - 1) : 0;
}

/* The list as it grows. */
struct candidates {
    struct job *job;
    struct rates rates;
    int n;
};

/* Appends what the job needs in that layout; returns what its autoencoder takes. */
static uint64_t candidates_add(struct candidates *c, struct layout_choice choice, struct error *e) {
    struct job *job = c->job;
    struct layout l = {0};
    struct run_need *need = NULL;
    uint64_t taken = 0;
    if (e->code == OK && layout_open(job, choice, NULL, &l, e) == OK) need = candidates_need(job, &l, e);
    if (need && candidates_measure(job, &l, &c->rates, need, e) == OK) taken = candidates_taken(&l, need);
    job->choices[c->n] = choice;
    job->needs[c->n++] = need;
    layout_close(job->sys, &l);
    return taken;
}

/* Tiling is asked for: without it where it takes no less. Leaves the one that it is. */
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

/* That layout, and in more groups. */
static void candidates_add_groups(struct candidates *c, struct layout_choice choice, struct error *e) {
    int most = c->job->decode_only ? 1 : c->job->batch;
    for (; choice.groups && e->code == OK; choice.groups = candidates_next_groups(most, choice.groups))
        candidates_add(c, choice, e);
}

/* Room for them; how many there will be is itself part of what a run takes. */
static enum status candidates_begin(struct candidates *c, int n_ways, struct error *e) {
    struct job *job = c->job;
    int most = job->decode_only ? 1 : job->batch;
    job->n_needs = 0;
    for (int groups = 1; groups; groups = candidates_next_groups(most, groups)) job->n_needs += n_ways;
    size_t room = (size_t)job->n_needs + 1; /* of two ways that are compared one goes */
    job->needs = job->sys->alloc(job->sys, LINE_HOST, room * sizeof *job->needs);
    job->choices = job->sys->alloc(job->sys, LINE_HOST, room * sizeof *job->choices);
    return job->needs && job->choices ? OK : error_set(e, MEMORY, "no memory for what a run needs");
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
    bool both = matters && !asked_for(how, "on") && !asked_for(how, "off");
    if (e->code != OK || candidates_begin(&c, both ? 2 : 1, e) != OK) return e->code;
    if (matters && asked_for(how, "on")) {
        candidates_add_tiled(&c, choice.hoisted, e);
        choice = job->choices[0];
        choice.groups = candidates_next_groups(job->decode_only ? 1 : job->batch, 1);
    }
    candidates_add_groups(&c, choice, e);
    choice.tiled = true;
    if (both) candidates_add_groups(&c, choice, e);
    return e->code == OK ? job_lay_out(job, 1, job->choices[0].tiled, e) : e->code;
}
