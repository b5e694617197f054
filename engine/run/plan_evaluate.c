/* Derived values of a plan: sums, peaks, seconds. Implements plan_evaluate of plan.h. */
#include "engine/run/timing.h"

#include <string.h>

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

static void sum_stage(const struct run_need *need, int s, struct plan_stage *stage) {
    const struct stage_need *n = &need->stage[s];
    uint64_t pooled[PLAN_BLOCKS_MAX / 64] = {0};
    stage->resident_bytes = plan_blocks_bytes(n, stage->resident);
    stage->streamed_bytes_per_evaluation = 0;
    for (int i = 0; i < PLAN_BLOCKS_MAX / 64; i++) pooled[i] = stage->pooled[i] & ~stage->resident[i];
    stage->pool_bytes = need->separate ? plan_blocks_bytes(n, pooled) : 0;
    for (int i = 0; i < n->n_blocks; i++) {
        if (plan_is_resident(stage, i)) continue;
        if (n->block_repeats[i] || n->hoists) stage->streamed_bytes_per_evaluation += n->block_bytes[i];
    }
    if (!need->separate) stage->staging_bytes = 0;
    if (!need->separate || !n->picture_bytes)
        stage->pictures_on_host = 0;
    else if (!plan_pictures_may(n, stage->pictures_on_host))
        stage->pictures_on_host = !stage->pictures_on_host;
    stage->state_bytes = plan_state_bytes(n, stage->pictures_on_host);
}

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

static uint64_t most(uint64_t a, uint64_t b) {
    return a > b ? a : b;
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
        sum_stage(need, s, &plan->stage[s]);
        residents += plan->stage[s].resident_bytes;
        pools += plan->stage[s].pool_bytes;
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
        plan->ram_peak_bytes = most(plan->ram_peak_bytes, stage->peak_ram_bytes);
        plan->vram_peak_bytes = most(plan->vram_peak_bytes, stage->peak_vram_bytes);
    }
    time_stages(need, plan);
}
