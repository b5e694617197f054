/* The solver: see plan.h.
 *
 * This first solver is simple: a ring for two of the largest blocks, so that one can arrive while another
 * computes; what is left goes to residents, evenly spread, because a prefix of residents leaves the reader
 * idle. Only blocks that are visited again are worth residence, unless everything fits and stays for the next
 * run. */
#include "engine/run/plan.h"

#include "engine/base/arena.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static uint64_t pages(uint64_t bytes) {
    return align_up(bytes, PLAN_PAGE);
}

static uint64_t smaller(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

static uint64_t largest_streamed(const struct stage_need *need, const struct plan_stage *stage) {
    uint64_t largest = 0;
    for (int i = 0; i < need->n_blocks; i++)
        if (!plan_is_resident(stage, i) && need->block_bytes[i] > largest) largest = need->block_bytes[i];
    return pages(largest);
}

uint64_t plan_resident_offset(const struct stage_need *need, const struct plan_stage *stage, int block) {
    uint64_t offset = 0;
    for (int i = 0; i < block; i++)
        if (plan_is_resident(stage, i)) offset += need->block_bytes[i];
    return offset;
}

uint64_t plan_staging_piece(const struct run_need *need) {
    uint64_t largest = 1;
    for (int s = 0; s < need->n_stages; s++)
        for (int i = 0; i < need->stage[s].n_blocks; i++)
            if (need->stage[s].block_bytes[i] > largest) largest = need->stage[s].block_bytes[i];
    return pages(smaller(largest, PLAN_COPY_PIECE));
}

/* What a stage takes besides residents and ring. */
static uint64_t fixed_bytes(const struct run_need *need, int s) {
    const struct stage_need *n = &need->stage[s];
    return need->base_bytes + need->host_bytes + need->cross_bytes + need->bounce_bytes + n->library_bytes +
           pages(n->state_bytes) + pages(n->activation_bytes) + pages(n->workspace_bytes);
}

static void evaluate_stage(const struct stage_need *need, struct plan_stage *stage) {
    stage->resident_bytes = pages(plan_resident_offset(need, stage, need->n_blocks));
    stage->streamed_bytes_per_evaluation = 0;
    for (int i = 0; i < need->n_blocks; i++)
        if (!plan_is_resident(stage, i) && need->block_repeats[i])
            stage->streamed_bytes_per_evaluation += need->block_bytes[i];
}

void plan_evaluate(const struct run_need *need, struct plan *plan) {
    uint64_t kept = 0, peak = need->base_bytes + need->host_bytes + need->open_bytes;
    for (int s = 0; s < need->n_stages; s++) {
        evaluate_stage(&need->stage[s], &plan->stage[s]);
        kept += plan->stage[s].resident_bytes;
    }
    for (int s = 0; s < need->n_stages; s++) {
        struct plan_stage *stage = &plan->stage[s];
        stage->peak_ram_bytes =
            fixed_bytes(need, s) + stage->ring_bytes + (plan->keep ? kept : stage->resident_bytes);
        if (stage->peak_ram_bytes > peak) peak = stage->peak_ram_bytes;
    }
    plan->ram_peak_bytes = peak;
}

static void copy_need(const struct run_need *need, struct plan *plan) {
    memset(plan, 0, sizeof *plan);
    plan->n_stages = need->n_stages;
    plan->base_bytes = need->base_bytes;
    plan->host_bytes = need->host_bytes;
    plan->cross_bytes = need->cross_bytes;
    plan->bounce_bytes = need->bounce_bytes;
    for (int s = 0; s < need->n_stages; s++) {
        const struct stage_need *from = &need->stage[s];
        struct plan_stage *to = &plan->stage[s];
        memcpy(to->name, from->name, sizeof to->name);
        memcpy(to->family, from->family, sizeof to->family);
        to->evaluations = from->evaluations;
        to->lanes = from->lanes;
        to->n_blocks = from->n_blocks;
        to->state_bytes = pages(from->state_bytes);
        to->activation_bytes = pages(from->activation_bytes);
        to->workspace_bytes = pages(from->workspace_bytes);
        to->library_bytes = from->library_bytes;
        to->flops = from->flops;
    }
}

/* The least: nothing resident, a ring for the largest block. */
static void solve_least(const struct run_need *need, struct plan *plan) {
    for (int s = 0; s < need->n_stages; s++)
        plan->stage[s].ring_bytes = largest_streamed(&need->stage[s], &plan->stage[s]);
    plan_evaluate(need, plan);
}

static void solve_all_resident(const struct run_need *need, struct plan *plan) {
    plan->keep = true;
    for (int s = 0; s < need->n_stages; s++) {
        for (int i = 0; i < need->stage[s].n_blocks; i++)
            plan_set_resident(&plan->stage[s], i, need->stage[s].block_lasts[i]);
        plan->stage[s].ring_bytes = largest_streamed(&need->stage[s], &plan->stage[s]);
    }
    plan_evaluate(need, plan);
}

static bool worth_residence(const struct stage_need *need, int block) {
    return need->block_repeats[block] && need->block_lasts[block] && need->evaluations > 1;
}

/* Spreads at most available bytes of residents evenly over the blocks that are worth it. Returns what it
 * used. */
static uint64_t spread_residents(const struct stage_need *need, struct plan_stage *stage,
                                 uint64_t available) {
    uint64_t worth = 0, used = 0;
    for (int i = 0; i < need->n_blocks; i++)
        if (worth_residence(need, i)) worth += need->block_bytes[i];
    if (!worth) return 0;
    double share = available >= worth ? 1 : (double)available / (double)worth, due = 0;
    for (int i = 0; i < need->n_blocks; i++) {
        uint64_t bytes = need->block_bytes[i];
        if (!worth_residence(need, i)) continue;
        due += share * (double)bytes;
        bool resident = used + bytes <= available && (double)used + 0.5 * (double)bytes <= due;
        plan_set_resident(stage, i, resident);
        if (resident) used += bytes;
    }
    return used;
}

/* ring: what is left for weights, at least the largest block. */
static void solve_stage(const struct stage_need *need, struct plan_stage *stage, uint64_t available) {
    uint64_t least = largest_streamed(need, stage), all = 0;
    for (int i = 0; i < need->n_blocks; i++) all += need->block_bytes[i];
    uint64_t ring = smaller(smaller(2 * least, pages(all)), available / PLAN_PAGE * PLAN_PAGE);
    stage->ring_bytes = ring > least ? ring : least;
    uint64_t rest = available - stage->ring_bytes;
    uint64_t used = spread_residents(need, stage, rest / PLAN_PAGE * PLAN_PAGE);
    /* Everything that repeats may be resident although the ring has no room for two: then a smaller ring
     * does. */
    uint64_t streamed_largest = largest_streamed(need, stage);
    if (used == 0 || stage->ring_bytes <= 2 * streamed_largest) return;
    stage->ring_bytes = 2 * streamed_largest;
}

void plan_solve(const struct run_need *need, uint64_t ram_budget_bytes, struct plan *plan) {
    copy_need(need, plan);
    solve_least(need, plan);
    uint64_t least = plan->ram_peak_bytes;
    struct plan all = *plan;
    solve_all_resident(need, &all);
    if (all.ram_peak_bytes <= ram_budget_bytes) {
        *plan = all;
    } else if (least <= ram_budget_bytes) {
        for (int s = 0; s < need->n_stages; s++)
            solve_stage(&need->stage[s], &plan->stage[s], ram_budget_bytes - fixed_bytes(need, s));
        plan_evaluate(need, plan);
    }
    plan->ram_least_bytes = least < all.ram_peak_bytes ? least : all.ram_peak_bytes;
    plan->ram_budget_bytes = ram_budget_bytes;
}

enum status plan_check(const struct run_need *need, const struct plan *plan, struct error *e) {
    if (plan->ram_peak_bytes > plan->ram_budget_bytes) {
        error_set(e, BUDGET,
                  "does not fit the memory budget: the least that would do is --max-ram %" PRIu64 "B",
                  plan->ram_least_bytes);
        error_where(e, "memory");
        error_found(e, "a budget of %" PRIu64 " bytes", plan->ram_budget_bytes);
        return error_expected(e, "at least %" PRIu64 " bytes for this plan", plan->ram_peak_bytes);
    }
    for (int s = 0; s < need->n_stages; s++) {
        const struct plan_stage *stage = &plan->stage[s];
        uint64_t largest = largest_streamed(&need->stage[s], stage);
        if (stage->ring_bytes >= largest) continue;
        error_set(e, BUDGET,
                  "the plan cannot work: the ring of stage '%s' is smaller than a block that must pass",
                  stage->name);
        error_found(e, "a ring of %" PRIu64 " bytes", stage->ring_bytes);
        return error_expected(e, "at least %" PRIu64, largest);
    }
    return OK;
}

/* FNV-1a over the structure, which is zeroed before it is filled. */
char *plan_hash(const struct plan *plan, char *out) {
    uint64_t hash = 14695981039346656037u;
    const unsigned char *bytes = (const unsigned char *)plan;
    for (size_t i = 0; i < sizeof *plan; i++) hash = (hash ^ bytes[i]) * 1099511628211u;
    snprintf(out, 17, "%016" PRIx64, hash);
    return out;
}
