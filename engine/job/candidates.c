#include "engine/job/candidates.h"

#include "engine/job/layout.h"
#include "engine/job/pictures.h"
#include "engine/job/request.h"
#include "engine/job/schedule.h"
#include "engine/job/stages.h"
#include "engine/machine/device_open.h"
#include "engine/machine/machine.h"
#include "engine/machine/rates_file.h"

/* Heap bytes of a run, rounded up: descriptors (visits, ring fills, lists), input images, the caller's
 * pixels, and the device's table of oneDNN primitives. */
static uint64_t host_bytes(const struct job *job, const struct layout *l) {
    const struct job *preview = job->preview_job;
    uint64_t a_visit = 384, a_token = 32, tokens = 0, rows = 0, pictures = 0;
    for (int slot = 0; slot < SLOTS_MAX; slot++) {
        for (int i = 0; i < PROMPTS_MAX; i++) tokens += (uint64_t)job->prompts.tokens[slot][i].n_ids;
        for (int i = 0; i < GATHERED_MAX && job->prompts.gathered[slot]; i++)
            rows += sizeof(struct block) +
                    (uint64_t)job->prompts.gathered[slot][i].n_segments * sizeof(struct packed_segment);
    }
    for (int i = 0; i < PICTURES_MAX; i++) {
        const struct sluice_picture *unfitted = &job->pictures.input[i], *used = &job->pictures.fitted[i];
        pictures += (uint64_t)used->width * (uint64_t)used->height * 3;
        if (i < PICTURE_VISION && unfitted->rgb && !used->rgb)
            pictures += (uint64_t)unfitted->width * (uint64_t)unfitted->height * 3;
    }
    pictures += pictures_control_bytes(job);
    return align_up(
        job->model->host_bytes + (uint64_t)l->visits.n_visits * a_visit + tokens * a_token + rows +
            (uint64_t)(job->candidates.n + 1) * run_need_bytes(l->n_stages) + pictures +
            (uint64_t)job->request.caller_bytes + job->prompts.hits.peak_bytes +
            (preview ? sizeof *preview + preview->need->host_bytes - preview->model->host_bytes : 0) +
            requantised_bytes(job->request.converted ? NULL : job->context.requantised,
                              plan_readers(job->device->memory, PLAN_BOUNCE)) +
            session_adapters_bytes(job->context.adapters) + (12 << 16),
        1 << 16);
}

void candidates_add_preview(const struct job *job, bool runs_previews, struct stage_need *need) {
    const struct job *inner = job->preview_job;
    if (!inner) return;
    const struct run_need *n = inner->need;
    uint64_t primitives = n->primitives_bytes;
    uint64_t ram = inner->plan.ram_peak_bytes - n->base_bytes - n->host_bytes;
    uint64_t vram = n->separate ? inner->plan.vram_peak_bytes - n->device_bytes : 0;
    need->library_bytes += primitives;
    if (!runs_previews) return;
    need->callback_ram_bytes = ram - (n->separate ? 0 : primitives);
    need->callback_vram_bytes = vram - (n->separate ? primitives : 0);
    need->callback_seconds = inner->plan.seconds * schedule_count_previews(job);
}

bool candidates_read_direct(const char *direct_io, uint64_t model_bytes, uint64_t memory_bytes) {
    if (choice_is(direct_io, "on")) return true;
    if (choice_is(direct_io, "off")) return false;
    /* A model above 3/4 of the memory is read past the page cache: every step reads all weights in the same
     * order, so the cache would evict each weight before its next use. */
    return memory_bytes && model_bytes > memory_bytes / 4 * 3;
}

/* Computes how much longer each block loads than its size suggests: its type in the file is larger, or its
 * weights are converted. */
static void measure_fills(const struct job *job, const struct stage *stage, const struct rates *rates,
                          struct stage_need *need) {
    for (int i = 0; i < need->n_blocks; i++) {
        const struct block *block = stage->blocks[i];
        int64_t values = block_converted_values(block);
        double more = (double)block_file_bytes(block) - (double)block->bytes;
        if (values ? job->request.converted : more <= 0) continue;
        if (rates->disk <= 0) continue;
        need->block_fill_seconds[i] = more / rates->disk;
        if (values) need->block_fill_seconds[i] += requantised_seconds(job->settings.weights, values);
    }
}

/* Limits pinned memory to what the system allows, found by pinning as much as any plan could use. Fails with
 * DEVICE if the attempt leaves the device unusable. */
static enum status limit_pins(const struct job *job, struct run_need *need, struct error *e) {
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

/* Measures one layout by a dry run. */
static enum status measure_layout(const struct job *job, struct layout *l, const struct rates *rates,
                                  struct run_need *need, struct error *e) {
    const struct sluice_request *r = &job->request;
    struct run run = layout_run(job, l, NULL);
    uint64_t model_bytes = 0; /* without embedding tables, as a run reads only a few of their rows */
    need->rates = *rates;
    need->precision = job->settings.precision;
    need->adapters = job->settings.decode_only ? 0 : session_adapters_hash(job->context.adapters);
    need->weights = r->converted ? N_DTYPES : job->settings.weights;
    if (executor_measure(&run, false, need, e) != OK) return e->code;
    for (int s = 0; s < need->n_stages; s++) {
        struct stage_need *stage = &need->stage[s];
        stage->pictures_place = choice_is(r->vae_tiling, "on")    ? PICTURES_ON_HOST
                                : choice_is(r->vae_tiling, "off") ? PICTURES_ON_DEVICE
                                                                  : PICTURES_ANYWHERE;
        /* The on_image callback runs in the decode stage. */
        uint64_t image_bytes = (uint64_t)r->width * (uint64_t)r->height * (uint64_t)r->image_bytes_a_pixel;
        bool has_callback = l->kind[s] == &stage_decode && !r->no_decode && r->image_bytes_a_pixel;
        stage->image_bytes = has_callback ? align_up((1 << 20) + image_bytes, PLAN_PAGE) : 0;
        measure_fills(job, &l->stages[s], rates, stage);
        candidates_add_preview(job, l->kind[s] == &stage_denoise, stage);
        for (int i = 0; i < l->stages[s].n_model_blocks; i++) model_bytes += l->stages[s].blocks[i]->bytes;
    }
    need->base_bytes = machine_base_bytes() + job->device->host_bytes;
    need->host_bytes = host_bytes(job, l);
    need->interstage_bytes = align_up(l->interstage.peak, PLAN_PAGE);
    if (candidates_read_direct(r->direct_io, model_bytes, machine_memory_bytes("")))
        need->bounce_bytes = PLAN_BOUNCE;
    /* The phases before the run follow one another, so open_bytes is the largest temporary memory of any
     * phase. */
    need->open_bytes =
        job->model->open_bytes > DEVICE_RATE_BYTES ? job->model->open_bytes : DEVICE_RATE_BYTES;
    if (pictures_reading_bytes(job) > need->open_bytes) need->open_bytes = pictures_reading_bytes(job);
    if (job->context.adapters && job->context.adapters->open_bytes > need->open_bytes)
        need->open_bytes = job->context.adapters->open_bytes;
    return limit_pins(job, need, e);
}

/* Bit set of spans (job->schedule.spans) to hoist: a span is hoisted if its precomputed timestep rows take
 * less memory than the weights that compute them. The bit set depends on the request only. */
static unsigned choose_hoisted(const struct job *job, struct error *e) {
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
static uint64_t picture_bytes(const struct job *job, struct layout_choice choice, struct error *e) {
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

/* Returns the next number of image groups above the given one that makes the largest group smaller; 0: none.
 */
static int next_groups(int batch, int groups) {
    int largest = (batch + groups - 1) / groups;
    return largest > 1 ? (batch + largest - 2) / (largest - 1) : 0;
}

/* Appends a layout's memory need to the candidates; returns the peak memory of the VAE stages. */
static uint64_t add_candidate(struct job *job, struct layout_choice choice, const struct rates *rates, int *n,
                              struct error *e) {
    struct layout l = {0};
    struct run_need *need = NULL;
    uint64_t peak = 0;
    if (e->code == OK && layout_open(job, choice, NULL, &l, e) == OK)
        need = sys_new(job->sys, 1, run_need_bytes(l.n_stages), "the plan", e);
    if (need && measure_layout(job, &l, rates, need, e) == OK)
        for (int s = 0; s < l.n_stages; s++) {
            if (!l.kind[s]->full_frames) continue;
            uint64_t bytes = need->separate ? plan_fixed_vram(need, s, true) : plan_fixed_ram(need, s, false);
            if (bytes > peak) peak = bytes;
        }
    job->candidates.choices[*n] = choice;
    job->candidates.needs[(*n)++] = need;
    layout_close(job->sys, &l);
    return peak;
}

enum status candidates_measure(struct job *job, struct error *e) {
    const char *how = job->request.vae_tiling;
    int most = job->settings.decode_only ? 1 : job->latents.batch, n = 0;
    struct rates rates;
    rates_default(job->device->name, job->device->threads, &rates);
    if (job->device->card) rates_of_card(job->device->card, &rates);
    if (job->request.rates && rates_read(job->device->name, job->request.rates_name, job->request.rates,
                                         job->device->threads, &rates, e) != OK)
        return e->code;
    struct layout_choice choice = {1, false, choose_hoisted(job, e)}, tiled = choice;
    tiled.tiled = true;
    /* Tiling takes less memory for large images, more or as much for small ones. */
    bool matters = e->code == OK && picture_bytes(job, choice, e) != picture_bytes(job, tiled, e);
    bool asked = choice_is(how, "on"), both = matters && !asked && !choice_is(how, "off");
    if (e->code != OK) return e->code;
    /* n is set before the dry runs, which count the memory of both lists. */
    job->candidates.n = 0;
    for (int groups = 1; groups; groups = next_groups(most, groups)) job->candidates.n += both ? 2 : 1;
    size_t n_max = (size_t)job->candidates.n + 1; /* plus one, because --vae-tiling on compares two layouts */
    job->candidates.needs = sys_new(job->sys, n_max, sizeof *job->candidates.needs, "the plan", e);
    if (job->candidates.needs)
        job->candidates.choices = sys_new(job->sys, n_max, sizeof *job->candidates.choices, "the plan", e);
    if (matters && asked && e->code == OK) {
        /* Keeps the tiled layout only if it takes less memory. */
        uint64_t with = add_candidate(job, tiled, &rates, &n, e);
        uint64_t without = add_candidate(job, choice, &rates, &n, e);
        int chosen = with < without ? 0 : 1;
        job->sys->release(job->sys, job->candidates.needs[1 - chosen]);
        job->candidates.needs[0] = job->candidates.needs[chosen];
        choice = job->candidates.choices[0] = job->candidates.choices[chosen];
        job->candidates.needs[1] = NULL;
        n = 1;
        choice.groups = next_groups(most, 1);
    }
    for (; choice.groups && e->code == OK; choice.groups = next_groups(most, choice.groups))
        add_candidate(job, choice, &rates, &n, e);
    for (; both && tiled.groups && e->code == OK; tiled.groups = next_groups(most, tiled.groups))
        add_candidate(job, tiled, &rates, &n, e);
    return e->code == OK ? candidates_lay_out(job, 1, job->candidates.choices[0].tiled, e) : e->code;
}

enum status candidates_lay_out(struct job *job, int groups, bool tiled, struct error *e) {
    int i = 0;
    while (i < job->candidates.n &&
           (job->candidates.choices[i].groups != groups || job->candidates.choices[i].tiled != tiled))
        i++;
    if (i < job->candidates.n) {
        struct run_need *need = job->candidates.needs[i];
        if (job->need == need) return OK;
        job->need = need;
        job->candidates.chosen = i;
        layout_close(job->sys, &job->layout);
        return layout_open(job, job->candidates.choices[i], NULL, &job->layout, e);
    }
    return error_set(e, BUDGET,
                     "this request cannot run with the image groups and VAE tiling of the plan file" FOUND
                     "%d groups of %d images, vae_tiling %s" EXPECTED
                     "\"groups\" as `sluice plan` chooses, \"vae_tiling\" as in the request",
                     groups, job->latents.batch, tiled ? "on" : "off");
}
