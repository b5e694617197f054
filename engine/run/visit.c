/* Builds visit lists from the update rates of blocks: implements visit.h. Order of a stage: blocks that
 * depend on the prompt alone; then, if hoisted, the rows of all timesteps; then the evaluations with the
 * other blocks. In each of these three parts, embedding rows come first, then blocks in the family's order.
 * Prompts, and images under guidance, compute together; pictures to encode or decode go one after another,
 * each through all its evaluations. */
#include "engine/run/visit.h"

#include <string.h>

enum status visit_add(struct visit_list *list, struct visit visit, struct error *e) {
    if (list->n_visits == list->capacity) {
        int capacity = list->capacity ? 2 * list->capacity : 256;
        struct visit *grown = sys_new(list->sys, (size_t)capacity, sizeof *grown, "the list of visits", e);
        if (!grown) return e->code;
        if (list->n_visits) memcpy(grown, list->visits, (size_t)list->n_visits * sizeof *grown);
        list->sys->release(list->sys, list->visits);
        list->visits = grown;
        list->capacity = capacity;
    }
    list->visits[list->n_visits++] = visit;
    return OK;
}

void visit_list_destroy(struct visit_list *list) {
    if (list->sys) list->sys->release(list->sys, list->visits);
    *list = (struct visit_list){.sys = list->sys};
}

struct visit_builder {
    const struct component *c;
    const struct lane *lanes;
    int n_lanes;
    /* Evaluations per lane if lanes compute one after another (pictures); 0: lanes compute together. */
    int each;
    struct visit_list *list;
    struct error *e;
};

/* Returns block i of a component, counting embedding tables first. */
static const struct block *block_at(const struct component *c, int i) {
    return i < c->n_tables ? &c->tables[i] : &c->blocks[i - c->n_tables];
}

/* Adds the visits of block i: per prompt, per timestep or for all lanes, as its update rate requires. */
static void add_block(const struct visit_builder *l, int i, struct visit visit) {
    const struct component *c = l->c;
    const struct block *block = block_at(c, i);
    bool of_table = i < c->n_tables;
    visit.block = of_table ? c->n_blocks + i : i - c->n_tables;
    if (!of_table && c->family->blocks.skips && c->family->blocks.skips(c, block, l->lanes)) return;
    if (of_table && c->family->kind == FAMILY_TEXT) {
        visit.n_lanes = 1;
        visit.block = c->n_blocks + i * l->n_lanes;
        for (visit.first_lane = 0; visit.first_lane < l->n_lanes; visit.first_lane++, visit.block++)
            visit_add(l->list, visit, l->e);
        return;
    }
    switch (block->kind->update_rate) {
    case UPDATE_PER_EVALUATION:
        if (l->each) {
            visit.first_lane = visit.evaluation / l->each;
            visit.n_lanes = 1;
        } else { /* all leading lanes that are computed in this evaluation and do not skip the block */
            visit.n_lanes = 0;
            while (visit.n_lanes < l->n_lanes) {
                const struct lane *lane = &l->lanes[visit.n_lanes];
                bool skips = false;
                for (int k = 0; k < lane->n_skip_layers && block->kind->skippable; k++)
                    skips = skips || lane->skip_layers[k] == block->number;
                if (skips || !lane_is_of(lane, visit.evaluation)) break;
                visit.n_lanes++;
            }
        }
        visit_add(l->list, visit, l->e);
        break;
    case UPDATE_PER_TIMESTEP:
        visit.n_lanes = 1;
        visit_add(l->list, visit, l->e);
        break;
    case UPDATE_PER_PROMPT:
    case UPDATE_PER_TIMESTEP_AND_PROMPT: /* computed only for the first lane of each prompt */
        visit.n_lanes = 1;
        for (; visit.first_lane < l->n_lanes; visit.first_lane++)
            if (lane_first_of_prompt(l->lanes, visit.first_lane) == visit.first_lane &&
                (visit.evaluation < 0 || lane_is_of(&l->lanes[visit.first_lane], visit.evaluation)))
                visit_add(l->list, visit, l->e);
        break;
    }
}

enum status component_visits(const struct component *c, int stage, const struct lane *lanes, int n_lanes,
                             int evaluations, struct visit_list *list, struct error *e) {
    const struct family *family = c->family;
    if (family->lanes.check && family->lanes.check(c, lanes, n_lanes, e) != OK) return e->code;
    if (family->lanes.visits) return family->lanes.visits(c, stage, lanes, n_lanes, evaluations, list, e);
    bool one_by_one = family->kind != FAMILY_TEXT && family->kind != FAMILY_DENOISER;
    struct visit_builder l = {c, lanes, n_lanes, one_by_one ? evaluations / n_lanes : 0, list, e};
    int hoisted = lanes[0].hoisted, n = c->n_tables + c->n_blocks;
    struct visit visit = {.stage = stage, .evaluation = -1};
    for (int i = 0; i < n; i++)
        if (block_at(c, i)->kind->update_rate == UPDATE_PER_PROMPT) add_block(&l, i, visit);
    visit.n_hoisted = hoisted;
    for (int i = 0; i < n && hoisted; i++)
        if (block_hoists(block_at(c, i)->kind)) add_block(&l, i, visit);
    visit.n_hoisted = 0;
    for (visit.evaluation = 0; visit.evaluation < evaluations && e->code == OK; visit.evaluation++) {
        for (int i = 0; i < n; i++) {
            const struct block_kind *kind = block_at(c, i)->kind;
            bool before = kind->update_rate == UPDATE_PER_PROMPT || (hoisted && block_hoists(kind));
            if (!before) add_block(&l, i, visit);
        }
        /* A text encoder's visits end no evaluation, because only the next stage reads its output. */
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
    if (!family->blocks.rows) return block_gather_rows(c->sys, table, lane->tokens, lane->n_tokens, out, e);
    if (family->lanes.check && family->lanes.check(c, lane, 1, e) != OK) return e->code;
    int n = family->blocks.rows(c, i_table, lane, NULL);
    int32_t *rows = sys_new(c->sys, (size_t)n, sizeof *rows, "the row numbers of an embedding table", e);
    if (!rows) return e->code;
    family->blocks.rows(c, i_table, lane, rows);
    block_gather_rows(c->sys, table, rows, n, out, e);
    c->sys->release(c->sys, rows);
    return e->code;
}
