/* Evicts residents during a run: implements plan_evict of plan.h. */
#include "engine/run/plan.h"

/* Bytes of the whole pages that a block of this size occupies alone, wherever it starts. Only these pages can
 * be returned to the system (see resident_memory_reduce). */
static uint64_t pages_alone(uint64_t bytes) {
    uint64_t n = bytes / PLAN_PAGE;
    return n > 1 ? (n - 1) * PLAN_PAGE : 0;
}

static uint64_t block_pages_alone(const struct stage_need *need, int block) {
    uint64_t side = need->block_adapter_bytes[block];
    return pages_alone(side) + pages_alone(need->block_bytes[block] - side);
}

/* A stage with residents that can be evicted. */
struct evictable {
    const struct stage_need *need;
    const struct plan_stage *stage; /* the stage's current plan */
    bool active;                    /* the stage is running: its ring occupies pages */
    int place[PLAN_BLOCKS_MAX], n;
};

static void evictable_find(struct evictable *g) {
    g->n = 0;
    for (int i = 0; i < g->need->n_blocks; i++)
        if (plan_is_resident(g->stage, i) && block_pages_alone(g->need, i)) g->place[g->n++] = i;
}

/* Evicts k residents, spread evenly: if only the first blocks streamed, copies would idle for the rest of the
 * evaluation. The ring grows to n_ring times the largest streamed block. Returns the bytes returned now; 0 if
 * the larger ring would take all of them. */
static uint64_t evict_evenly(const struct evictable *g, int k, int n_ring, struct plan_stage *to) {
    uint64_t freed = 0;
    *to = *g->stage;
    for (int i = 0; i < k; i++) {
        int block = g->place[(2 * i + 1) * g->n / (2 * k)];
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
        int s = i < plan->n_stages ? i : stage; /* the active stage comes last */
        if ((i == stage && i < plan->n_stages) || !(held >> s & 1)) continue;
        struct plan_stage to;
        struct evictable g = {.need = &need->stage[s], .stage = &plan->stage[s], .active = s == stage};
        evictable_find(&g);
        uint64_t more = g.n ? evict_enough(&g, bytes - returned, &to) : 0;
        if (more) reduced->stage[s] = to;
        returned += more;
    }
    if (returned) plan_evaluate(need, reduced);
    return returned;
}
