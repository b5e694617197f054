/* Least memory of stages, and the check of a plan: implements a part of plan.h. */
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
    error_set(e, BUDGET,
              "the plan cannot work: the %s of stage '%s' is smaller than the largest block that streams "
              "through it",
              what, stage->name);
    char size[SIZE_TEXT_BYTES];
    error_found(e, "a %s of %s", what, size_text(found, size));
    return error_expected(e, "at least %" PRIu64 " bytes", least);
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
