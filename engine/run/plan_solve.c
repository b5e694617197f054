/* Solves all stages within two budgets: residents, rings, pools, least budgets, and whether memory is kept
 * for the next run. plan_search.c searches each stage. */
#include "engine/run/plan_search.h"

#include <string.h>

static bool plan_solve_fits(const struct run_need *need, const struct plan *plan) {
    return plan->ram_peak_bytes <= plan->ram_budget_bytes &&
           (!need->separate || plan->vram_peak_bytes <= plan->vram_budget_bytes);
}

/* Makes the smallest plan with these residents: no pool, and a ring for the largest block. Full-frame buffers
 * lie in device memory, which saves host memory, unless they do not fit there. */
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
 * host memory is too small for them but sufficient for the rest. */
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

static void all_resident(const struct run_need *need, struct plan *plan) {
    plan->keep = true;
    for (int s = 0; s < need->n_stages; s++)
        for (int i = 0; i < need->stage[s].n_blocks; i++)
            plan_set_resident(&plan->stage[s], i, need->stage[s].block_keepable[i]);
    solve_least(need, plan);
}

static void widen_rings(const struct run_need *need, struct plan *plan) {
    uint64_t all = 0;
    if (!plan_solve_fits(need, plan)) return;
    for (int s = 0; s < need->n_stages; s++) all += plan->stage[s].resident_bytes;
    for (int s = 0; s < need->n_stages; s++) {
        uint64_t residents[PLAN_BLOCKS_MAX / 64];
        memcpy(residents, plan->stage[s].resident, sizeof residents);
        struct plan_search_input q = {need, plan, s, all - plan->stage[s].resident_bytes, residents};
        plan_search(&q, &plan->stage[s]);
    }
    plan_evaluate(need, plan);
}

/* Tries to keep all streamed model blocks in the pool after the run, so that the next run reads nothing from
 * the disk. Rejected if slower: with limited pinned memory, kept pools leave less pinned memory for other
 * stages. */
static void keep_pools(const struct run_need *need, struct plan *plan) {
    struct plan keeping = *plan;
    keeping.keep = true;
    for (int s = 0; s < need->n_stages; s++)
        for (int i = 0; i < need->stage[s].n_blocks; i++)
            plan_set_pooled(&keeping.stage[s], i,
                            need->stage[s].block_keepable[i] && !plan_is_resident(&keeping.stage[s], i));
    plan_evaluate(need, &keeping);
    bool slower = keeping.seconds > plan->seconds * (1 + 1e-9);
    if (need->separate && plan_solve_fits(need, &keeping) && !slower) *plan = keeping;
}

bool plan_exists(const struct run_need *need, uint64_t ram_budget_bytes, uint64_t vram_budget_bytes) {
    struct plan plan;
    plan_begin(need, &plan);
    plan.ram_budget_bytes = ram_budget_bytes;
    plan.vram_budget_bytes = vram_budget_bytes;
    solve_least(need, &plan);
    return plan_solve_fits(need, &plan);
}

/* Writes the plan with the least memory, and the plan with all blocks resident. */
static void solve_leasts(const struct run_need *need, uint64_t ram_budget_bytes, uint64_t vram_budget_bytes,
                         struct plan *plan, struct plan *all) {
    plan_begin(need, plan);
    plan->ram_budget_bytes = ram_budget_bytes;
    plan->vram_budget_bytes = need->separate ? vram_budget_bytes : 0;
    *all = *plan;
    solve_least(need, plan);
    all_resident(need, all);
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
    widen_rings(need, &all);
    if (plan_solve_fits(need, plan)) {
        for (int s = 0; s < need->n_stages; s++)
            plan_search(&(struct plan_search_input){.need = need, .budget = plan, .stage = s},
                        &plan->stage[s]);
        plan_evaluate(need, plan);
        keep_pools(need, plan);
    }
    /* The plan with all blocks resident is preferred unless it is slower, because of its smaller rings. */
    if (plan_solve_fits(need, &all) &&
        (!plan_solve_fits(need, plan) || all.seconds <= plan->seconds * (1 + 1e-9)))
        *plan = all;
}
