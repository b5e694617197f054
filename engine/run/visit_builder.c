/* Builds the visit list of ordinary stages from the update rates of blocks: component_visits of family.h.
 * Order: blocks that depend on the prompt alone; then, if hoisted, the rows of all timesteps; then the
 * evaluations with the other blocks. In each of these three parts, embedding rows come first, then blocks in
 * the family's order. Prompts, and images under guidance, compute together; pictures to encode or decode go
 * one after another, each through all its evaluations. */
#include "engine/run/family.h"

struct visit_builder {
    const struct component *c;
    const struct lane *lanes;
    int n_lanes;
    int each; /* number of evaluations per lane if lanes compute one after another; else 0 */
    struct visit_list *list;
    struct error *e;
};

/* Returns block i of the list of embedding tables followed by the other blocks. */
static const struct block *visit_builder_block(const struct component *c, int i) {
    return i < c->n_tables ? &c->tables[i] : &c->blocks[i - c->n_tables];
}

static const struct block_kind *visit_builder_kind(const struct component *c, int i) {
    return visit_builder_block(c, i)->kind;
}

static bool visit_builder_skips(const struct lane *lane, const struct block *block) {
    int i = 0;
    while (i < lane->n_skip_layers && (!block->kind->skippable || lane->skip_layers[i] != block->number)) i++;
    return i < lane->n_skip_layers;
}

/* Number of leading lanes that visit the block in this evaluation. */
static int visit_builder_lanes(const struct visit_builder *l, const struct block *block, int evaluation) {
    int n = 0;
    while (n < l->n_lanes && lane_is_of(&l->lanes[n], evaluation) &&
           !visit_builder_skips(&l->lanes[n], block))
        n++;
    return n;
}

/* Adds the visits of block i: per prompt, per timestep or for all lanes, as its update rate requires. */
static void visit_builder_add(const struct visit_builder *l, int i, struct visit visit) {
    const struct component *c = l->c;
    bool of_table = i < c->n_tables;
    visit.block = of_table ? c->n_blocks + i : i - c->n_tables;
    if (!of_table && c->family->skips_block && c->family->skips_block(c, &c->blocks[visit.block], l->lanes))
        return;
    if (of_table && c->family->kind == FAMILY_TEXT) {
        visit.n_lanes = 1;
        visit.block = c->n_blocks + i * l->n_lanes;
        for (visit.first_lane = 0; visit.first_lane < l->n_lanes; visit.first_lane++, visit.block++)
            visit_add(l->list, visit, l->e);
        return;
    }
    switch (visit_builder_kind(c, i)->update_rate) {
    case UPDATE_PER_EVALUATION:
        visit.first_lane = l->each ? visit.evaluation / l->each : 0;
        visit.n_lanes = l->each ? 1 : visit_builder_lanes(l, visit_builder_block(c, i), visit.evaluation);
        visit_add(l->list, visit, l->e);
        break;
    case UPDATE_PER_TIMESTEP:
        visit.n_lanes = 1;
        visit_add(l->list, visit, l->e);
        break;
    case UPDATE_PER_PROMPT:
    case UPDATE_PER_TIMESTEP_AND_PROMPT:
        visit_add_prompts(l->list, visit, l->lanes, l->n_lanes, l->e);
        break;
    }
}

enum status component_visits(const struct component *c, int stage, const struct lane *lanes, int n_lanes,
                             int evaluations, struct visit_list *list, struct error *e) {
    const struct family *family = c->family;
    if (family->check_lanes && family->check_lanes(c, lanes, n_lanes, e) != OK) return e->code;
    if (family->visits) return family->visits(c, stage, lanes, n_lanes, evaluations, list, e);
    bool one_by_one = family->kind != FAMILY_TEXT && family->kind != FAMILY_DENOISER;
    struct visit_builder l = {c, lanes, n_lanes, one_by_one ? evaluations / n_lanes : 0, list, e};
    int hoisted = lanes[0].hoisted, n = c->n_tables + c->n_blocks;
    struct visit visit = {.stage = stage, .evaluation = -1};
    for (int i = 0; i < n; i++)
        if (visit_builder_kind(c, i)->update_rate == UPDATE_PER_PROMPT) visit_builder_add(&l, i, visit);
    visit.n_hoisted = hoisted;
    for (int i = 0; i < n && hoisted; i++)
        if (block_hoists(visit_builder_kind(c, i))) visit_builder_add(&l, i, visit);
    visit.n_hoisted = 0;
    for (visit.evaluation = 0; visit.evaluation < evaluations && e->code == OK; visit.evaluation++) {
        for (int i = 0; i < n; i++) {
            const struct block_kind *kind = visit_builder_kind(c, i);
            bool before = kind->update_rate == UPDATE_PER_PROMPT || (hoisted && block_hoists(kind));
            if (!before) visit_builder_add(&l, i, visit);
        }
        /* A text encoder's output is read in the next stage only, so no visit ends an evaluation. */
        if (list->n_visits) list->visits[list->n_visits - 1].ends_evaluation = family->kind != FAMILY_TEXT;
    }
    return e->code;
}

int component_gathered_blocks(const struct component *c, int n_lanes) {
    return c->n_tables * (c->family->kind == FAMILY_TEXT ? n_lanes : 1);
}

enum status component_gather_rows(const struct component *c, int i_table, const struct lane *lane,
                                  struct block *out, struct error *e) {
    const struct family *family = c->family;
    const struct block *table = &c->tables[i_table];
    if (!family->rows) return block_gather_rows(c->sys, table, lane->tokens, lane->n_tokens, out, e);
    if (family->check_lanes && family->check_lanes(c, lane, 1, e) != OK) return e->code;
    int n = family->rows(c, i_table, lane, NULL);
    int32_t *rows = c->sys->alloc(c->sys, LINE_HOST, (size_t)n * sizeof *rows);
    if (!rows)
        return error_set(e, MEMORY, "no memory for %d row numbers of embedding table '%s'", n, table->name);
    family->rows(c, i_table, lane, rows);
    block_gather_rows(c->sys, table, rows, n, out, e);
    c->sys->release(c->sys, rows);
    return e->code;
}
