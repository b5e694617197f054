#include "test/lib/store_adapters.h"

#include "engine/run/adapt.h"

/* Returns the index entry of a random vector in the test files with the given type and at least `values`
 * values. */
static const struct index_entry *random_vector(int32_t values, enum dtype dtype) {
    const struct tensor_index *index = &store_fixture.files.index;
    const struct index_entry *entry;
    do entry = &index->entries[below((uint64_t)index->n_entries)];
    while (entry->dim[0] < values || entry->dtype != dtype);
    return entry;
}

/* Returns a LoRA factor: `values` consecutive values of a random vector, or two pieces of such a vector in
 * swapped order. */
static struct factor random_values(int32_t values, enum dtype dtype) {
    const struct index_entry *entry = random_vector(values, dtype);
    struct factor f = {.name = entry->name,
                       .source = &store_fixture.files.index.sources[entry->source],
                       .offset = entry->offset,
                       .dtype = dtype,
                       .rank = 1,
                       .dim = {entry->dim[0]},
                       .n_parts = values > 1 ? 1 + (int)below(2) : 1};
    int32_t first = (int32_t)below((uint64_t)(entry->dim[0] - values) + 1), cut = values;
    if (f.n_parts == 2) cut = 1 + (int32_t)below((uint64_t)values - 1);
    f.part[0].first = first + values - cut;
    f.part[0].rows = cut;
    f.part[1].first = first;
    f.part[1].rows = values - cut;
    return f;
}

static void adapt_stage(int s, uint64_t percent) {
    struct replaced_vector vectors[3 * BLOCKS];
    struct adaptation all = {.vectors = vectors};
    struct error e = {0};
    struct component adapted, from = {.sys = &fault_sys.sys,
                                      .index = store_fixture.files.index,
                                      .blocks = store_fixture.base[s],
                                      .n_blocks = store_fixture.stages[s].n_blocks};
    for (int i = 0; i < 3 * from.n_blocks; i++) {
        const struct packed_tensor *t = &store_fixture.base[s][i / 3].tensors[i % 3];
        if (i % 3 >= store_fixture.base[s][i / 3].n_tensors || below(100) >= percent) continue;
        vectors[all.n_vectors++] = (struct replaced_vector){
            .block = i / 3, .weight = i % 3, .values = random_values(t->shape.dim[0], t->shape.dtype)};
    }
    component_adapt(&from, &all, &adapted, &e);
    assert_ok(&e);
    for (int b = 0; b < from.n_blocks; b++) store_fixture.blocks[s][b] = adapted.blocks[b];
    fault_sys.sys.release(&fault_sys.sys, adapted.blocks);
}

static uint64_t adapters_hash(int s) {
    uint64_t hash = 0;
    for (int b = 0; b < store_fixture.stages[s].n_model_blocks; b++)
        hash = hash * 31 + store_fixture.blocks[s][b].adapter_hash;
    return hash;
}

static void fit_ring(int s) {
    struct plan_stage *p = &store_fixture.plan.stage[s];
    for (int b = 0; b < store_fixture.stages[s].n_blocks; b++) {
        uint64_t bytes = plan_pages(store_fixture.blocks[s][b].bytes);
        if (!plan_is_resident(p, b) && p->ring_bytes < bytes) p->ring_bytes = bytes;
    }
}

void store_fixture_change_adapters(uint64_t percent) {
    for (int s = 0; s < store_fixture.need.n_stages; s++) {
        struct stage_need *need = &store_fixture.need.stage[s];
        uint64_t was = adapters_hash(s);
        for (int b = 0; b < store_fixture.stages[s].n_blocks; b++)
            block_destroy(&fault_sys.sys, &store_fixture.blocks[s][b]);
        adapt_stage(s, percent);
        store_fixture.same_adapters[s] = adapters_hash(s) == was;
        for (int b = 0; b < store_fixture.stages[s].n_blocks; b++) {
            need->block_bytes[b] = store_fixture.blocks[s][b].bytes;
            need->block_adapter_bytes[b] = store_fixture.blocks[s][b].adapter_bytes;
        }
        if (store_fixture.plan.n_stages) fit_ring(s);
    }
    if (store_fixture.plan.n_stages) plan_evaluate(&store_fixture.need, &store_fixture.plan);
}

void store_fixture_keep_fewer(void) {
    for (int s = 0; s < store_fixture.need.n_stages; s++) {
        struct plan_stage *p = &store_fixture.plan.stage[s];
        int b = 0;
        while (b < store_fixture.stages[s].n_blocks && !plan_is_resident(p, b)) b++;
        if (b < store_fixture.stages[s].n_blocks) plan_set_resident(p, b, false);
        for (b = 0; b < store_fixture.stages[s].n_blocks && !plan_is_pooled(p, b);) b++;
        if (b < store_fixture.stages[s].n_blocks) plan_set_pooled(p, b, false);
        fit_ring(s);
    }
    plan_evaluate(&store_fixture.need, &store_fixture.plan);
}

static bool stays_in(const struct plan *plan, int s, int b, bool pool) {
    return pool ? plan_is_pooled(&plan->stage[s], b) : plan_is_resident(&plan->stage[s], b);
}

static bool is_visited(int s, int b) {
    for (int i = 0; i < store_fixture.visits.n_visits; i++)
        if (store_fixture.visits.visits[i].stage == s && store_fixture.visits.visits[i].block == b)
            return true;
    return false;
}

/* Returns the offset of block b among the blocks that a stage keeps for the next run; b = number of blocks:
 * their total size. */
static uint64_t kept_offset(const struct plan *plan, int s, int b, bool pool, enum packed_part part) {
    uint64_t at = 0;
    for (int i = 0; i < b; i++)
        if (stays_in(plan, s, i, pool)) at += packed_part_bytes(&store_fixture.blocks[s][i], part);
    return at;
}

static bool is_kept(int s, int b, bool pool) {
    return b < store_fixture.stages[s].n_model_blocks && stays_in(&store_fixture.last_plan, s, b, pool) &&
           stays_in(&store_fixture.plan, s, b, pool) && store_fixture.blocks[s][b].bytes && is_visited(s, b);
}

bool store_fixture_kept(int s, int b, bool pool, enum packed_part part) {
    int n = store_fixture.stages[s].n_blocks;
    if (!store_fixture.last_plan.keep || !store_fixture.plan.keep || !is_kept(s, b, pool)) return false;
    if (part == PACKED_ADAPTER && !store_fixture.same_adapters[s]) return false;
    uint64_t was = plan_pages(kept_offset(&store_fixture.last_plan, s, n, pool, part)),
             is = plan_pages(kept_offset(&store_fixture.plan, s, n, pool, part));
    /* A kept block may move to an offset that is higher by at most the growth of the total size. */
    for (int i = 0; i < n; i++) {
        uint64_t from = kept_offset(&store_fixture.last_plan, s, i, pool, part),
                 to = kept_offset(&store_fixture.plan, s, i, pool, part);
        if (is_kept(s, i, pool) && to > from + (is > was ? is - was : 0)) return false;
    }
    return true;
}

void store_fixture_remove_adapters(void) {
    for (int i = 0; i < STAGES * BLOCKS; i++)
        block_destroy(&fault_sys.sys, &store_fixture.blocks[i / BLOCKS][i % BLOCKS]);
}
