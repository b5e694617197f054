/* Solves plans, over plan_search.c, which searches the plan of one stage: fills in the derived values of a
 * plan (plan_evaluate), solves all stages within two budgets (plan_solve), chooses among needs that differ in
 * lanes per group (plan_choose), and evicts residents during a run (plan_evict). Pure functions; see plan.h.
 */
#include "engine/run/timing.h"

#include <string.h>

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
        double callbacks = timing.seconds > 0 ? need->stage[s].callback_seconds : 0;
        stage->seconds = timing.seconds + callbacks;
        stage->floor_seconds = timing.floor_seconds + callbacks;
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
                stage->streamed_bytes_per_evaluation += n->block_bytes[i];
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

/* Makes the plan of a stage that needs the least memory with these residents: no pool, and a ring for the
 * largest block. Full-frame buffers lie in device memory, which saves host memory, unless they do not fit
 * there. */
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

/* Least device memory of a run. Full-frame buffers count as in host memory, unless the request forbids it, or
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
        seconds += bound > 0 ? bound + need->stage[s].callback_seconds : 0;
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

/* Evicts as few residents as return `bytes`. First tries a ring for two blocks, so that reading overlaps
 * computation; then a ring for one block. */
static uint64_t evict_enough(const struct evictable *g, uint64_t bytes, struct plan_stage *to) {
    for (int n_ring = 2; n_ring >= 1; n_ring--)
        for (int k = 1; k <= g->n; k++) {
            uint64_t returned = evict_evenly(g, k, n_ring, to);
            if (returned >= bytes) return returned;
        }
    return evict_evenly(g, g->n, 1, to);
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
        uint64_t more = g.n ? evict_enough(&g, bytes - returned, &to) : 0;
        if (more) reduced->stage[s] = to;
        returned += more;
    }
    if (returned) plan_evaluate(need, reduced);
    return returned;
}
