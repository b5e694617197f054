/* Plans of a whole run: least memory of stages, solving for two budgets, choosing among needs, eviction
 * during a run, the check of a plan. Pure functions; see plan.h. plan_search.c searches the plan of one
 * stage. */
#include "engine/run/plan.h"

#include "engine/base/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Less than this many bytes of staging buffers is not worth pinning, because copies would mostly wait for
 * each other. */
enum { STAGING_WORTH = 1 << 20 };

/* A plan is hashed byte by byte, so its structures must have no padding. */
_Static_assert(sizeof(struct plan_stage) ==
                   40 + 6 * 4 + (2 * (PLAN_BLOCKS_MAX / 64) + 6 + 6) * 8 + 3 * 8 + 4 * 2,
               "padding in struct plan_stage");
_Static_assert(sizeof(struct plan) ==
                   2 * 4 + PLAN_STAGES_MAX * sizeof(struct plan_stage) + 11 * 8 + 2 * 8 + 2 * 4,
               "padding in struct plan");

uint64_t plan_least_ring(const struct stage_need *need, const struct plan_stage *stage) {
    uint64_t largest = 0;
    for (int i = 0; i < need->n_blocks; i++)
        if (!plan_is_resident(stage, i) && need->block_bytes[i] > largest) largest = need->block_bytes[i];
    return plan_pages(largest);
}

/* Bytes of host memory that is always pinned: inter-stage tensors, buffers of nested runs (previews), and
 * full-frame buffers placed in host memory. */
static uint64_t always_pinned_bytes(const struct run_need *need, const struct plan_stage *stage,
                                    int i_stage) {
    uint64_t pictures = stage->pictures_on_host ? plan_pages(need->stage[i_stage].picture_bytes) : 0;
    return need->interstage_bytes + need->stage[i_stage].callback_ram_bytes + pictures;
}

/* Bytes of pinned memory that remain for staging buffers and for weights kept in host memory. */
static uint64_t pinnable_left(const struct run_need *need, const struct plan_stage *stage, int i_stage) {
    uint64_t taken = always_pinned_bytes(need, stage, i_stage), limit = need->pin_limit_bytes;
    if (!limit) return UINT64_MAX;
    return taken < limit ? limit - taken : 0;
}

/* Least bytes of staging buffers: the largest block that passes through staging buffers. Blocks kept in
 * pinned host memory pass only if pinned memory is limited. The result is at most PLAN_STAGING, and at most
 * the bytes that can be pinned if these reach STAGING_WORTH. */
uint64_t plan_least_staging(const struct run_need *need, const struct plan_stage *stage, int i_stage) {
    const struct stage_need *n = &need->stage[i_stage];
    uint64_t largest = 0;
    if (!need->separate) return 0;
    for (int i = 0; i < n->n_blocks; i++)
        if ((plan_is_resident(stage, i) || !plan_is_pooled(stage, i) || need->pin_limit_bytes) &&
            n->block_bytes[i] > largest)
            largest = n->block_bytes[i];
    uint64_t least = largest < PLAN_STAGING ? plan_pages(largest) : PLAN_STAGING;
    uint64_t left = pinnable_left(need, stage, i_stage) / PLAN_PAGE * PLAN_PAGE;
    return left >= STAGING_WORTH && left < least ? left : least;
}

void plan_limit_pins(struct run_need *need, uint64_t bytes) {
    need->pin_limit_bytes = bytes < PLAN_PAGE ? PLAN_PAGE : bytes / PLAN_PAGE * PLAN_PAGE;
    for (int s = 0; s < need->n_stages; s++) {
        struct stage_need *n = &need->stage[s];
        bool fits =
            need->interstage_bytes + n->callback_ram_bytes + plan_pages(n->picture_bytes) + PLAN_STAGING <=
            need->pin_limit_bytes;
        if (n->picture_bytes && n->pictures_place == PICTURES_ANYWHERE && !fits)
            n->pictures_place = PICTURES_ON_DEVICE;
    }
}

uint64_t plan_pinnable(const struct run_need *need, const struct plan_stage *stage, int i_stage) {
    uint64_t left = pinnable_left(need, stage, i_stage);
    if (left == UINT64_MAX) return left;
    return stage->staging_bytes < left ? left - stage->staging_bytes : 0;
}

uint64_t plan_blocks_bytes(const struct stage_need *need, const uint64_t blocks[PLAN_BLOCKS_MAX / 64]) {
    uint64_t base = 0, adapters = 0;
    for (int i = 0; i < need->n_blocks; i++) {
        if (!(blocks[i / 64] >> (i % 64) & 1)) continue;
        adapters += need->block_adapter_bytes[i];
        base += need->block_bytes[i] - need->block_adapter_bytes[i];
    }
    return plan_pages(base) + plan_pages(adapters);
}

uint64_t plan_state_bytes(const struct stage_need *n, bool pictures_on_host) {
    return plan_pages(n->state_bytes + (pictures_on_host ? 0 : n->picture_bytes));
}

/* Bytes of a stage's state, activations and workspace, except full-frame buffers in host memory. */
static uint64_t stage_memory_bytes(const struct stage_need *n, bool pictures_on_host) {
    return n->library_bytes + plan_state_bytes(n, pictures_on_host) + plan_pages(n->activation_bytes) +
           plan_pages(n->workspace_bytes);
}

uint64_t plan_fixed_ram(const struct run_need *need, int stage, bool pictures_on_host) {
    const struct stage_need *n = &need->stage[stage];
    return need->base_bytes + need->host_bytes + need->interstage_bytes + need->bounce_bytes +
           n->image_bytes + n->callback_ram_bytes + (pictures_on_host ? plan_pages(n->picture_bytes) : 0) +
           (need->separate ? 0 : stage_memory_bytes(n, false));
}

uint64_t plan_fixed_vram(const struct run_need *need, int stage, bool pictures_on_host) {
    const struct stage_need *n = &need->stage[stage];
    if (!need->separate) return 0;
    return need->device_bytes + n->callback_vram_bytes + stage_memory_bytes(n, pictures_on_host);
}

/* Fails with BUDGET: a peak exceeds its budget. flag: the flag of the budget. */
static enum status over_budget(const char *flag, uint64_t budget, uint64_t peak, uint64_t least,
                               struct error *e) {
    char size[SIZE_TEXT_BYTES], expected[SIZE_TEXT_BYTES];
    error_set(e, BUDGET,
              "the run does not fit the memory budget; the smallest budget that works is %s %" PRIu64
              "B (%s)" WHERE "memory",
              flag, least, size_text(least, size));
    /* The error shows sizes rounded, or exact if budget and peak round to the same text. */
    if (!strcmp(size_text(budget, size), size_text(peak, expected))) {
        error_found(e, "a budget of %" PRIu64 " bytes", budget);
        return error_expected(e, "at least %" PRIu64 " bytes for this plan", peak);
    }
    error_found(e, "a budget of %s", size);
    return error_expected(e, "at least %s for this plan", expected);
}

/* Fails with BUDGET if a ring or staging is too small for a block that passes through it. */
static enum status check_size(const char *what, const struct plan_stage *stage, uint64_t found,
                              uint64_t least, struct error *e) {
    if (found >= least) return OK;
    char size[SIZE_TEXT_BYTES];
    return error_set(e, BUDGET,
                     "the plan cannot work: the %s of stage '%s' is smaller than the largest block that "
                     "streams through it" FOUND "a %s of %s" EXPECTED "at least %" PRIu64 " bytes",
                     what, stage->name, what, size_text(found, size), least);
}

enum status plan_check(const struct run_need *need, const struct plan *plan, struct error *e) {
    if (plan->ram_peak_bytes > plan->ram_budget_bytes)
        return over_budget("--max-ram", plan->ram_budget_bytes, plan->ram_peak_bytes, plan->ram_least_bytes,
                           e);
    if (need->separate && plan->vram_peak_bytes > plan->vram_budget_bytes)
        return over_budget("--max-vram", plan->vram_budget_bytes, plan->vram_peak_bytes,
                           plan->vram_least_bytes, e);
    for (int s = 0; s < need->n_stages; s++) {
        const struct plan_stage *stage = &plan->stage[s];
        if (check_size("ring", stage, stage->ring_bytes, plan_least_ring(&need->stage[s], stage), e) != OK)
            return e->code;
        uint64_t pinned = always_pinned_bytes(need, stage, s), limit = need->pin_limit_bytes;
        char size[SIZE_TEXT_BYTES], most[SIZE_TEXT_BYTES];
        if (limit && pinned > limit)
            return error_set(e, BUDGET,
                             "the plan needs more pinned host memory than the system allows" WHERE
                             "stage '%s'" FOUND "%s" EXPECTED "at most %s%s",
                             stage->name, size_text(pinned, size), size_text(limit, most),
                             stage->pictures_on_host ? ", or --vae-tiling auto" : "");
        uint64_t least = plan_least_staging(need, stage, s);
        if (check_size("staging", stage, stage->staging_bytes, least, e) != OK) return e->code;
    }
    return OK;
}

/* FNV-1a hash over the bytes of struct plan, which plan_begin zeroes. */
char *plan_hash(const struct plan *plan, char *out) {
    uint64_t hash = 14695981039346656037u;
    const unsigned char *bytes = (const unsigned char *)plan;
    for (size_t i = 0; i < sizeof *plan; i++) hash = (hash ^ bytes[i]) * 1099511628211u;
    snprintf(out, 17, "%016" PRIx64, hash);
    return out;
}

/* Plans whose times differ by less than this factor count as equally fast; the plan tried first wins. */
static const double TIE = 1 + 1e-9;

void plan_begin(const struct run_need *need, struct plan *plan) {
    memset(plan, 0, sizeof *plan);
    plan->n_stages = need->n_stages;
    plan->base_bytes = need->base_bytes;
    plan->host_bytes = need->host_bytes;
    plan->interstage_bytes = need->interstage_bytes;
    plan->bounce_bytes = need->bounce_bytes;
    plan->adapters = need->adapters;
    plan->precision = (int16_t)need->precision;
    plan->weights = (int16_t)need->weights;
    for (int s = 0; s < need->n_stages; s++) {
        const struct stage_need *from = &need->stage[s];
        struct plan_stage *to = &plan->stage[s];
        memcpy(to->name, from->name, sizeof to->name);
        memcpy(to->family, from->family, sizeof to->family);
        to->evaluations = from->evaluations;
        to->lanes = from->lanes;
        to->groups = (int16_t)from->groups;
        to->tiled = from->tiled;
        to->n_blocks = from->n_blocks;
        to->state_bytes = plan_state_bytes(from, false);
        to->activation_bytes = plan_pages(from->activation_bytes);
        to->workspace_bytes = plan_pages(from->workspace_bytes);
        to->library_bytes = from->library_bytes;
        to->flops = from->flops;
    }
}

/* Predicts the seconds of all stages, and their sum. */
static void time_stages(const struct run_need *need, struct plan *plan) {
    double longest = -1;
    plan->seconds = plan->floor_seconds = 0;
    for (int s = 0; s < need->n_stages; s++) {
        struct plan_stage *stage = &plan->stage[s];
        struct timing timing = timing_predict(need, plan, s);
        double extra = need->stage[s].callback_seconds + need->stage[s].scan_seconds;
        if (timing.seconds <= 0) extra = 0;
        stage->seconds = timing.seconds + extra;
        stage->floor_seconds = timing.floor_seconds + extra;
        stage->bound = (int16_t)timing.bound;
        plan->seconds += stage->seconds;
        plan->floor_seconds += stage->floor_seconds;
        if (timing.seconds > longest) plan->bound = stage->bound, longest = timing.seconds;
    }
}

/* Assigns pinned memory to pools. A pool holds a stage's weights in host memory. Pools that are kept stay
 * pinned during all stages. Kept pools share the pinned memory that no stage needs for staging and full-frame
 * buffers; pools of earlier stages come first. */
static void pin_pools(const struct run_need *need, struct plan *plan) {
    uint64_t pinned_so_far = 0, left = UINT64_MAX;
    for (int s = 0; s < need->n_stages; s++) {
        uint64_t bytes = plan_pinnable(need, &plan->stage[s], s);
        if (bytes < left) left = bytes;
    }
    for (int s = 0; s < need->n_stages; s++) {
        struct plan_stage *stage = &plan->stage[s];
        uint64_t available = plan->keep ? left - pinned_so_far : plan_pinnable(need, stage, s);
        stage->pinned_bytes = stage->pool_bytes < available ? stage->pool_bytes : available;
        pinned_so_far += stage->pinned_bytes;
    }
}

void plan_evaluate(const struct run_need *need, struct plan *plan) {
    uint64_t residents = 0, pools = 0;
    for (int s = 0; s < need->n_stages; s++) {
        const struct stage_need *n = &need->stage[s];
        struct plan_stage *stage = &plan->stage[s];
        uint64_t pooled[PLAN_BLOCKS_MAX / 64];
        for (int i = 0; i < PLAN_BLOCKS_MAX / 64; i++) pooled[i] = stage->pooled[i] & ~stage->resident[i];
        stage->resident_bytes = plan_blocks_bytes(n, stage->resident);
        stage->pool_bytes = need->separate ? plan_blocks_bytes(n, pooled) : 0;
        residents += stage->resident_bytes;
        pools += stage->pool_bytes;
        stage->streamed_bytes_per_evaluation = 0;
        for (int i = 0; i < n->n_blocks; i++)
            if (!plan_is_resident(stage, i) && (n->block_repeats[i] || n->hoists))
                stage->streamed_bytes_per_evaluation += stage_streamed_bytes(n, i);
        if (!need->separate) stage->staging_bytes = 0;
        if (!need->separate || !n->picture_bytes)
            stage->pictures_on_host = 0;
        else if (!plan_pictures_may(n, stage->pictures_on_host))
            stage->pictures_on_host = !stage->pictures_on_host;
        stage->state_bytes = plan_state_bytes(n, stage->pictures_on_host);
    }
    pin_pools(need, plan);
    plan->ram_peak_bytes = need->base_bytes + need->host_bytes + need->open_bytes;
    plan->vram_peak_bytes = 0;
    for (int s = 0; s < need->n_stages; s++) {
        struct plan_stage *stage = &plan->stage[s];
        uint64_t weights = stage->ring_bytes + (plan->keep ? residents : stage->resident_bytes);
        uint64_t host = stage->staging_bytes + (plan->keep ? pools : stage->pool_bytes);
        bool pictures = stage->pictures_on_host;
        stage->peak_ram_bytes = plan_fixed_ram(need, s, pictures) + (need->separate ? host : weights);
        stage->peak_vram_bytes = need->separate ? plan_fixed_vram(need, s, pictures) + weights : 0;
        if (stage->peak_ram_bytes > plan->ram_peak_bytes) plan->ram_peak_bytes = stage->peak_ram_bytes;
        if (stage->peak_vram_bytes > plan->vram_peak_bytes) plan->vram_peak_bytes = stage->peak_vram_bytes;
    }
    time_stages(need, plan);
}

/* True if the plan's memory peaks are within its budgets. */
static bool fits(const struct run_need *need, const struct plan *plan) {
    return plan->ram_peak_bytes <= plan->ram_budget_bytes &&
           (!need->separate || plan->vram_peak_bytes <= plan->vram_budget_bytes);
}

/* Completes a plan whose residents are chosen so that it needs the least memory: no pools, and in each stage
 * a ring for the largest streamed block. Full-frame buffers are in device memory, which saves host memory,
 * unless they do not fit there. */
static void solve_least(const struct run_need *need, struct plan *plan) {
    for (int s = 0; s < need->n_stages; s++) {
        plan->stage[s].ring_bytes = plan_least_ring(&need->stage[s], &plan->stage[s]);
        plan->stage[s].staging_bytes = plan_least_staging(need, &plan->stage[s], s);
    }
    plan_evaluate(need, plan);
    bool moved = false;
    for (int s = 0; s < need->n_stages; s++) {
        const struct stage_need *n = &need->stage[s];
        if (plan->stage[s].peak_vram_bytes <= plan->vram_budget_bytes || !n->picture_bytes) continue;
        if (!plan_pictures_may(n, true)) continue;
        plan->stage[s].pictures_on_host = 1;
        moved = true;
    }
    if (moved) plan_evaluate(need, plan);
}

/* Least device memory of a run. Counts full-frame buffers as host memory, unless the request forbids that or
 * host memory suffices only without them. */
static uint64_t least_vram(const struct run_need *need, const struct plan *least) {
    uint64_t most = 0, ram = least->ram_budget_bytes;
    for (int s = 0; s < need->n_stages; s++) {
        uint64_t staging = least->stage[s].staging_bytes;
        const struct stage_need *n = &need->stage[s];
        bool lacks = plan_fixed_ram(need, s, true) + staging > ram &&
                     plan_fixed_ram(need, s, false) + staging <= ram && plan_pictures_may(n, false);
        bool host = need->separate && n->picture_bytes && plan_pictures_may(n, true) && !lacks;
        uint64_t bytes = plan_fixed_vram(need, s, host) + least->stage[s].ring_bytes;
        if (bytes > most && need->separate) most = bytes;
    }
    return most;
}

bool plan_exists(const struct run_need *need, uint64_t ram_budget_bytes, uint64_t vram_budget_bytes) {
    struct plan plan;
    plan_begin(need, &plan);
    plan.ram_budget_bytes = ram_budget_bytes;
    plan.vram_budget_bytes = vram_budget_bytes;
    solve_least(need, &plan);
    return fits(need, &plan);
}

/* Writes the plan with the least memory, and the plan with all blocks resident. */
static void solve_leasts(const struct run_need *need, uint64_t ram_budget_bytes, uint64_t vram_budget_bytes,
                         struct plan *plan, struct plan *all) {
    plan_begin(need, plan);
    plan->ram_budget_bytes = ram_budget_bytes;
    plan->vram_budget_bytes = need->separate ? vram_budget_bytes : 0;
    *all = *plan;
    solve_least(need, plan);
    all->keep = true;
    for (int s = 0; s < need->n_stages; s++)
        for (int i = 0; i < need->stage[s].n_blocks; i++)
            plan_set_resident(&all->stage[s], i, need->stage[s].block_keepable[i]);
    solve_least(need, all);
    plan->vram_least_bytes = all->vram_least_bytes = least_vram(need, plan);
    plan->ram_least_bytes = plan->ram_peak_bytes;
    if (!need->separate && all->ram_peak_bytes < plan->ram_least_bytes)
        plan->ram_least_bytes = all->ram_peak_bytes;
    all->ram_least_bytes = plan->ram_least_bytes;
}

void plan_least(const struct run_need *need, uint64_t ram_budget_bytes, uint64_t vram_budget_bytes,
                struct plan *plan) {
    struct plan all;
    solve_leasts(need, ram_budget_bytes, vram_budget_bytes, plan, &all);
}

double plan_bound_seconds(const struct run_need *need) {
    double seconds = 0;
    for (int s = 0; s < need->n_stages; s++) {
        double bound = plan_search_bound(need, s);
        seconds += bound > 0 ? bound + need->stage[s].callback_seconds + need->stage[s].scan_seconds : 0;
    }
    return seconds;
}

void plan_solve(const struct run_need *need, uint64_t ram_budget_bytes, uint64_t vram_budget_bytes,
                struct plan *plan) {
    struct plan all;
    solve_leasts(need, ram_budget_bytes, vram_budget_bytes, plan, &all);
    if (fits(need, &all)) {
        /* Keeps all blocks resident, and searches the fastest ring of each stage. */
        uint64_t residents_bytes = 0;
        for (int s = 0; s < need->n_stages; s++) residents_bytes += all.stage[s].resident_bytes;
        for (int s = 0; s < need->n_stages; s++) {
            uint64_t residents[PLAN_BLOCKS_MAX / 64];
            memcpy(residents, all.stage[s].resident, sizeof residents);
            struct plan_search_input q = {need, &all, s, residents_bytes - all.stage[s].resident_bytes,
                                          residents};
            plan_search(&q, &all.stage[s]);
        }
        plan_evaluate(need, &all);
    }
    if (fits(need, plan)) {
        for (int s = 0; s < need->n_stages; s++)
            plan_search(&(struct plan_search_input){.need = need, .budget = plan, .stage = s},
                        &plan->stage[s]);
        plan_evaluate(need, plan);
        /* Tries to keep all streamed model blocks in the pool after the run, so that the next run reads
         * nothing from the disk. Rejected if slower: with limited pinned memory, kept pools leave less pinned
         * memory for other stages. */
        struct plan keeping = *plan;
        keeping.keep = true;
        for (int s = 0; s < need->n_stages; s++)
            for (int i = 0; i < need->stage[s].n_blocks; i++)
                plan_set_pooled(&keeping.stage[s], i,
                                need->stage[s].block_keepable[i] && !plan_is_resident(&keeping.stage[s], i));
        plan_evaluate(need, &keeping);
        bool slower = keeping.seconds > plan->seconds * TIE;
        if (need->separate && fits(need, &keeping) && !slower) *plan = keeping;
    }
    /* Prefers the plan with all blocks resident, which has smaller rings, unless it is slower. */
    if (fits(need, &all) && (!fits(need, plan) || all.seconds <= plan->seconds * TIE)) *plan = all;
}

/* Bytes that all evaluations of the run stream. */
static double streamed(const struct plan *plan) {
    double bytes = 0;
    for (int s = 0; s < plan->n_stages; s++)
        bytes += (double)plan->stage[s].streamed_bytes_per_evaluation * plan->stage[s].evaluations;
    return bytes;
}

/* True if `found` is better than `best`. A plan that fits the budgets beats a plan that does not. Of two
 * plans that fit, the faster wins, or without rates the plan that streams less. Of two plans that do not fit,
 * the plan with less memory wins. */
static bool is_better(const struct plan *found, bool found_works, const struct plan *best, bool best_works) {
    if (found_works != best_works) return found_works;
    if (!found_works)
        return found->ram_least_bytes + found->vram_least_bytes <
               best->ram_least_bytes + best->vram_least_bytes;
    if (found->seconds > 0 && best->seconds > 0) return found->seconds * TIE < best->seconds;
    return streamed(found) < streamed(best);
}

/* Solves each grouping of lanes as a run_need of its own. Fewer groups stream fewer bytes; more groups hold
 * the state of fewer lanes at a time. */
int plan_choose(const struct run_need *const *needs, int n, uint64_t ram_budget_bytes,
                uint64_t vram_budget_bytes, struct plan *plan) {
    const double ROUNDED = 1 + 1e-11;
    uint64_t least_ram = UINT64_MAX, least_vram = UINT64_MAX;
    bool best_works = false;
    int best = -1;
    for (int i = 0; i < n; i++) {
        const struct run_need *need = needs[i];
        struct plan found;
        /* A grouping of lanes whose lower bound of seconds is above the best time cannot win; only its least
         * budgets count. */
        bool hopeless = best >= 0 && best_works && plan->seconds > 0 &&
                        plan_bound_seconds(need) * TIE >= plan->seconds * ROUNDED;
        (hopeless ? plan_least : plan_solve)(need, ram_budget_bytes, vram_budget_bytes, &found);
        /* A least budget counts only if it works while the other budget stays as requested. */
        if (found.vram_least_bytes < least_vram &&
            plan_exists(need, found.ram_budget_bytes, found.vram_least_bytes))
            least_vram = found.vram_least_bytes;
        if (found.ram_least_bytes < least_ram &&
            (!need->separate || plan_exists(need, found.ram_least_bytes, found.vram_budget_bytes)))
            least_ram = found.ram_least_bytes;
        if (hopeless) continue;
        bool found_works = plan_check(need, &found, &(struct error){0}) == OK;
        if (best >= 0 && !is_better(&found, found_works, plan, best_works)) continue;
        *plan = found;
        best = i;
        best_works = found_works;
    }
    if (least_ram < plan->ram_least_bytes) plan->ram_least_bytes = least_ram;
    if (least_vram < plan->vram_least_bytes) plan->vram_least_bytes = least_vram;
    return best;
}

/* Bytes of the whole pages that a block of this size shares with no other block, wherever it starts. Only
 * these pages can be returned to the system (see resident_memory_reduce). */
static uint64_t pages_alone(uint64_t bytes) {
    uint64_t n = bytes / PLAN_PAGE;
    return n > 1 ? (n - 1) * PLAN_PAGE : 0;
}

static uint64_t block_pages_alone(const struct stage_need *need, int block) {
    uint64_t adapters = need->block_adapter_bytes[block];
    return pages_alone(adapters) + pages_alone(need->block_bytes[block] - adapters);
}

/* A stage whose resident blocks can be evicted during a run. */
struct evictable {
    const struct stage_need *need;
    const struct plan_stage *stage; /* the stage's current plan */
    bool active;                    /* the stage is running: its ring occupies pages */
    int block[PLAN_BLOCKS_MAX], n;  /* indices of residents that return pages if evicted */
};

/* Evicts k residents, spread evenly: if only the first blocks streamed, copies would idle for the rest of the
 * evaluation. The ring grows to n_ring times the largest streamed block. Returns the bytes returned now; 0 if
 * the larger ring would take all of them. */
static uint64_t evict_evenly(const struct evictable *g, int k, int n_ring, struct plan_stage *to) {
    uint64_t freed = 0;
    *to = *g->stage;
    for (int i = 0; i < k; i++) {
        int block = g->block[(2 * i + 1) * g->n / (2 * k)];
        plan_set_resident(to, block, false);
        freed += block_pages_alone(g->need, block);
    }
    uint64_t ring = (uint64_t)n_ring * plan_least_ring(g->need, to), growth = 0;
    if (ring > to->ring_bytes) {
        growth = ring - to->ring_bytes;
        to->ring_bytes = ring;
    }
    if (growth >= freed) return 0;
    return g->active ? freed - growth : freed;
}

uint64_t plan_evict(const struct run_need *need, const struct plan *plan, int stage, uint32_t held,
                    uint64_t bytes, struct plan *reduced) {
    uint64_t returned = 0;
    *reduced = *plan;
    for (int i = 0; i <= plan->n_stages && returned < bytes; i++) {
        int s = i < plan->n_stages ? i : stage; /* inactive stages are reduced first */
        if ((i == stage && i < plan->n_stages) || !(held >> s & 1)) continue;
        struct plan_stage to;
        struct evictable g = {.need = &need->stage[s], .stage = &plan->stage[s], .active = s == stage};
        for (int k = 0; k < g.need->n_blocks; k++)
            if (plan_is_resident(g.stage, k) && block_pages_alone(g.need, k)) g.block[g.n++] = k;
        /* Evicts as few residents as return the bytes. First tries a ring for two blocks, so that reading
         * overlaps computation; then a ring for one block. */
        uint64_t more = 0;
        for (int n_ring = 2; n_ring >= 1; n_ring--)
            for (int n = 1; n <= g.n && more < bytes - returned; n++) more = evict_evenly(&g, n, n_ring, &to);
        if (more) reduced->stage[s] = to;
        returned += more;
    }
    if (returned) plan_evaluate(need, reduced);
    return returned;
}
