/* What a job needs in each layout that it can have: layouts are made, measured dry and let go; the plan
 * chooses among the needs. See job.h. */
#include "engine/api/job.h"
#include "engine/api/machine.h"
#include "engine/api/rate.h"
#include "engine/api/rates_file.h"
#include "engine/api/stages.h"

/* ---- the lines of a need that the dry run does not see ---- */

/* Descriptors of ours that a run takes from the heap, counted generously: visits, fills, lists; and pictures
 * that it reads, the caller's pixels, which last through the run. */
static uint64_t candidates_host_bytes(const struct job *job, const struct layout *l) {
    uint64_t a_visit = 384, a_token = 128, tokens = 0, pictures = 0;
    for (int i = 0; i < SLOTS_MAX * PROMPTS_MAX; i++)
        tokens += (uint64_t)job->tokens[i / PROMPTS_MAX][i % PROMPTS_MAX].n_ids;
    for (int i = 0; i < job->n_encoded; i++) {
        const struct sluice_picture *given = job_source(job, &job->encoded[i]);
        pictures += (uint64_t)given->width * (uint64_t)given->height * 3;
    }
    return align_up(job->model->host_bytes + (uint64_t)l->visits.n_visits * a_visit + tokens * a_token +
                        (uint64_t)(job->n_needs + 1) * run_need_bytes(l->n_stages) + pictures +
                        requantised_bytes(job->place.requantised) + (1 << 19),
                    1 << 16);
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

/* What filling takes beyond reading the image: a file that has more bytes, and converting them. */
static void candidates_measure_fills(const struct job *job, const struct stage *stage,
                                     const struct rates *rates, struct stage_need *need) {
    for (int i = 0; i < need->n_blocks; i++) {
        const struct block *block = stage->blocks[i];
        int64_t values = block_converted_values(block);
        if (!values || rates->disk <= 0) continue;
        double more = (double)block_file_bytes(block) - (double)block->bytes;
        need->block_fill_seconds[i] = more / rates->disk + requantised_seconds(job->weights, values);
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

static enum status candidates_measure(const struct job *job, struct layout *l, const struct rates *rates,
                                      struct run_need *need, struct error *e) {
    struct run run = job_run(job, l, NULL);
    need->rates = *rates;
    need->precision = job->precision;
    need->weights = job->weights;
    if (executor_measure(&run, false, need, e) != OK) return e->code;
    for (int s = 0; s < need->n_stages; s++) {
        need->stage[s].pictures_place = candidates_pictures_place(&job->request);
        candidates_measure_fills(job, &l->stages[s], rates, &need->stage[s]);
    }
    need->base_bytes = machine_base_bytes() + job->device->host_bytes;
    need->host_bytes = candidates_host_bytes(job, l);
    need->cross_bytes = align_up(l->cross.peak, PLAN_PAGE);
    if (job_reads_direct(job->request.direct_io, candidates_model_bytes(l), machine_memory_bytes()))
        need->bounce_bytes = PLAN_BOUNCE;
    /* Neither lasts into the run, nor do they meet. */
    need->open_bytes = job->model->open_bytes > RATE_BYTES ? job->model->open_bytes : RATE_BYTES;
    return OK;
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

/* What the autoencoder takes at most. */
static uint64_t candidates_taken(const struct job *job, struct layout_choice choice,
                                 const struct rates *rates, struct error *e) {
    struct layout l = {0};
    uint64_t taken = 0;
    struct run_need *need = NULL;
    if (layout_open(job, choice, NULL, &l, e) == OK) need = candidates_need(job, &l, e);
    if (need) candidates_measure(job, &l, rates, need, e);
    for (int s = 0; s < l.n_stages && e->code == OK; s++) {
        if (!l.kind[s]->whole_pictures) continue;
        uint64_t bytes = need->separate ? plan_fixed_vram(need, s, true) : plan_fixed_ram(need, s, false);
        if (bytes > taken) taken = bytes;
    }
    layout_close(job->sys, &l);
    job->sys->release(job->sys, need);
    return taken;
}

/* Which of both ways are candidates: as the request asks for, or both if they differ. Low, flat and narrow
 * pictures are less than their bands. */
static enum status candidates_tiling(const struct job *job, unsigned hoisted, const struct rates *rates,
                                     bool ways[2], struct error *e) {
    const char *how = job->request.vae_tiling;
    struct layout_choice choice[2] = {{1, false, hoisted}, {1, true, hoisted}};
    bool matters = candidates_picture_bytes(job, choice[0], e) != candidates_picture_bytes(job, choice[1], e);
    bool on = asked_for(how, "on") && matters && e->code == OK &&
              candidates_taken(job, choice[1], rates, e) < candidates_taken(job, choice[0], rates, e);
    ways[0] = !on;
    ways[1] = on || (matters && !asked_for(how, "on") && !asked_for(how, "off"));
    return e->code;
}

/* ---- all ---- */

/* More groups of the same size would gain nothing: the next number of groups whose images are fewer, or 0. */
static int candidates_next_groups(int batch, int groups) {
    int together = (batch + groups - 1) / groups;
    return together > 1 ? (batch + together - 2) / (together - 1) : 0;
}

enum status job_measure(struct job *job, struct error *e) {
    struct rates rates;
    int most = job->decode_only ? 1 : job->batch, n = 0;
    bool ways[2];
    rates_default(job->device->name, job->device->threads, &rates);
    if (job->request.rates && rates_read(job->device->name, job->request.rates_name, job->request.rates,
                                         job->device->threads, &rates, e) != OK)
        return e->code;
    unsigned hoisted = candidates_hoisted(job, e);
    if (e->code != OK || candidates_tiling(job, hoisted, &rates, ways, e) != OK) return e->code;
    for (int groups = 1; groups; groups = candidates_next_groups(most, groups))
        job->n_needs += ways[0] + ways[1];
    job->needs = job->sys->alloc(job->sys, LINE_HOST, (size_t)job->n_needs * sizeof *job->needs);
    job->choices = job->sys->alloc(job->sys, LINE_HOST, (size_t)job->n_needs * sizeof *job->choices);
    if (!job->needs || !job->choices) return error_set(e, MEMORY, "no memory for what a run needs");
    for (int tiled = 0; tiled < 2; tiled++)
        for (int groups = 1; groups && ways[tiled] && e->code == OK;
             groups = candidates_next_groups(most, groups)) {
            struct layout l;
            job->choices[n] = (struct layout_choice){groups, tiled, hoisted};
            if (layout_open(job, job->choices[n], NULL, &l, e) == OK)
                job->needs[n] = candidates_need(job, &l, e);
            if (e->code == OK) candidates_measure(job, &l, &rates, job->needs[n++], e);
            layout_close(job->sys, &l);
        }
    return e->code == OK ? job_lay_out(job, 1, !ways[0], e) : e->code;
}
