/* Implements plan_choose of plan.h: chooses how many lanes compute together as a group. Each grouping is
 * solved as its own run_need. Fewer groups stream less; more groups hold the state of fewer lanes. */
#include "engine/run/plan.h"

/* Plans whose times differ by less than this factor count as equally fast; the plan tried first wins. */
static const double TIE = 1 + 1e-9;

/* Lowers *ram and *vram to the least budgets of one more solved plan. A least budget counts only if it works
 * while the other budget stays as requested. */
static void collect_least(const struct run_need *need, const struct plan *found, uint64_t *ram,
                          uint64_t *vram) {
    bool ram_does = plan_exists(need, found->ram_budget_bytes, found->vram_least_bytes);
    bool vram_does = !need->separate || plan_exists(need, found->ram_least_bytes, found->vram_budget_bytes);
    if (vram_does && found->ram_least_bytes < *ram) *ram = found->ram_least_bytes;
    if (ram_does && found->vram_least_bytes < *vram) *vram = found->vram_least_bytes;
}

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

/* True if no plan of this need can be better than the best one. */
static bool cannot_win(const struct run_need *need, const struct plan *best, bool best_works) {
    static const double ROUNDED = 1 + 1e-11;
    return best_works && best->seconds > 0 && plan_bound_seconds(need) * TIE >= best->seconds * ROUNDED;
}

int plan_choose(const struct run_need *const *needs, int n, uint64_t ram_budget_bytes,
                uint64_t vram_budget_bytes, struct plan *plan) {
    uint64_t least_ram = UINT64_MAX, least_vram = UINT64_MAX;
    bool best_works = false;
    int best = -1;
    for (int i = 0; i < n; i++) {
        struct plan found;
        bool hopeless = best >= 0 && cannot_win(needs[i], plan, best_works);
        (hopeless ? plan_least : plan_solve)(needs[i], ram_budget_bytes, vram_budget_bytes, &found);
        collect_least(needs[i], &found, &least_ram, &least_vram);
        if (hopeless) continue;
        bool found_works = plan_check(needs[i], &found, &(struct error){0}) == OK;
        if (best >= 0 && !is_better(&found, found_works, plan, best_works)) continue;
        *plan = found;
        best = i;
        best_works = found_works;
    }
    if (least_ram < plan->ram_least_bytes) plan->ram_least_bytes = least_ram;
    if (least_vram < plan->vram_least_bytes) plan->vram_least_bytes = least_vram;
    return best;
}
