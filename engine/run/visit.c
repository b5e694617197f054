/* Builds visit lists from the update rates of blocks: implements visit.h. Order of a stage: blocks that
 * depend on the prompt alone; then, if hoisted, the rows of all timesteps; then the evaluations with the
 * other blocks. In each of these three parts, embedding rows come first, then blocks in the family's order.
 * Prompts, and images under guidance, compute together; pictures to encode or decode go one after another,
 * each through all its evaluations. Control networks are visited between the denoiser's blocks. */
#include "engine/run/visit.h"

#include "engine/run/stage.h"

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

/* Parameters of the visits of one component: the stage's own, or a control network. */
struct visit_builder {
    const struct component *c;
    const struct lane *lanes;
    int n_lanes;
    int first_block, first_rows; /* places of the component's blocks and rows in the stage's blocks */
    /* Evaluations per lane if lanes compute one after another (pictures); 0: lanes compute together. */
    int each;
    struct visit_list *list;
    struct error *e;
};

/* Returns block i of a component, counting embedding tables first. */
static const struct block *block_at(const struct component *c, int i) {
    return i < c->n_tables ? &c->tables[i] : &c->blocks[i - c->n_tables];
}

/* Number of leading lanes that are computed in the evaluation and do not skip the block. adds: the visit only
 * adds residuals; lanes with residuals_of count too. */
static int count_lanes(const struct visit_builder *l, const struct block *block, int evaluation, bool adds) {
    int n = 0;
    for (; n < l->n_lanes; n++) {
        const struct lane *lane = &l->lanes[n];
        bool skips = !adds && !lane_computes(lane);
        for (int k = 0; k < lane->n_skip_layers && block->kind->skippable; k++)
            skips = skips || lane->skip_layers[k] == block->number;
        if (skips || !lane_is_of(lane, evaluation)) break;
    }
    return n;
}

/* Adds the visits of block i: per prompt, per timestep or for all lanes, as its update rate requires. */
static void add_block(const struct visit_builder *l, int i, struct visit visit) {
    const struct component *c = l->c;
    const struct block *block = block_at(c, i);
    bool of_table = i < c->n_tables;
    visit.block = of_table ? l->first_rows + i : l->first_block + i - c->n_tables;
    if (!of_table && c->family->blocks.skips && c->family->blocks.skips(c, block, l->lanes)) return;
    if (of_table && c->family->kind == FAMILY_TEXT) {
        visit.n_lanes = 1;
        visit.block = l->first_rows + i * l->n_lanes;
        for (visit.first_lane = 0; visit.first_lane < l->n_lanes; visit.first_lane++, visit.block++)
            visit_add(l->list, visit, l->e);
        return;
    }
    switch (block->kind->update_rate) {
    case UPDATE_PER_EVALUATION:
        if (l->each) {
            visit.first_lane = visit.evaluation / l->each;
            visit.n_lanes = 1;
        } else {
            visit.n_lanes = count_lanes(l, block, visit.evaluation, false);
        }
        if (visit.n_lanes || !visit.control) visit_add(l->list, visit, l->e);
        break;
    case UPDATE_PER_TIMESTEP:
        visit.n_lanes = 1;
        if (lane_computes(l->lanes) && (visit.evaluation < 0 || lane_is_of(l->lanes, visit.evaluation)))
            visit_add(l->list, visit, l->e);
        break;
    case UPDATE_PER_PROMPT:
    case UPDATE_PER_TIMESTEP_AND_PROMPT: /* computed only for the first lane of each prompt */
        visit.n_lanes = 1;
        for (; visit.first_lane < l->n_lanes; visit.first_lane++)
            if (lane_first_of_prompt(l->lanes, visit.first_lane) == visit.first_lane &&
                lane_computes(&l->lanes[visit.first_lane]) &&
                (visit.evaluation < 0 || lane_is_of(&l->lanes[visit.first_lane], visit.evaluation)))
                visit_add(l->list, visit, l->e);
        break;
    }
}

/* The parts of a stage's visits, in this order. Each block belongs to one part. */
enum part { PART_PROMPT, PART_HOISTED, PART_EVALUATION };

static enum part part_of(const struct block *block, int hoisted) {
    if (block->kind->update_rate == UPDATE_PER_PROMPT) return PART_PROMPT;
    return hoisted && block_hoists(block->kind) ? PART_HOISTED : PART_EVALUATION;
}

/* The control networks of a stage. */
struct networks {
    const struct stage *stage;
    struct visit_builder builder[CONTROLS_MAX];
    /* Visits of the network's component; owned. NULL: an earlier network has the same component. */
    struct control_visit *visits[CONTROLS_MAX];
    int n_visits[CONTROLS_MAX];
};

/* Adds the visits of block i of network k's component, one for each network with this component. */
static void add_network_block(const struct networks *n, int k, int i, struct visit visit) {
    for (int j = k; j < n->stage->n_controls; j++) {
        if (n->stage->control[j].component != n->stage->control[k].component) continue;
        visit.control = j + 1;
        add_block(&n->builder[j], i, visit);
    }
}

/* Adds the visits of the networks' blocks of a part that precedes the evaluations. */
static void add_network_part(const struct networks *n, enum part part, struct visit visit) {
    for (int k = 0; k < n->stage->n_controls; k++) {
        const struct component *c = n->stage->control[k].component;
        if (!n->visits[k]) continue;
        for (int i = 0; i < c->n_tables + c->n_blocks; i++)
            if (part_of(block_at(c, i), n->builder[k].lanes->hoisted) == part)
                add_network_block(n, k, i, visit);
    }
}

/* Adds the visits of blocks that family_control.visits does not list: embedding rows, timestep blocks. */
static void add_network_inputs(const struct networks *n, int k, struct visit visit) {
    const struct component *c = n->stage->control[k].component;
    for (int i = 0; i < c->n_tables + c->n_blocks; i++) {
        const struct block *block = block_at(c, i);
        bool listed = i >= c->n_tables && block->kind->update_rate == UPDATE_PER_EVALUATION;
        if (!listed && part_of(block, n->builder[k].lanes->hoisted) == PART_EVALUATION)
            add_network_block(n, k, i, visit);
    }
}

/* Adds the networks' visits that follow the denoiser's block `after`, in one evaluation. next: index of each
 * component's next visit. */
static void add_network_visits(const struct networks *n, int after, int next[CONTROLS_MAX],
                               struct visit visit) {
    for (int k = 0; k < n->stage->n_controls; k++) {
        const struct component *c = n->stage->control[k].component;
        visit.pass = 0;
        for (; n->visits[k] && next[k] < n->n_visits[k] && n->visits[k][next[k]].after <= after; next[k]++) {
            const struct control_visit *at = &n->visits[k][next[k]];
            if (!next[k]) add_network_inputs(n, k, visit);
            visit.pass = at->pass;
            if (!at->adds) {
                add_network_block(n, k, c->n_tables + at->block, visit);
                continue;
            }
            for (int j = k; j < n->stage->n_controls; j++) {
                const struct visit_builder *l = &n->builder[j];
                if (l->c != c) continue;
                struct visit adds = visit;
                adds.control = j + 1;
                adds.block = l->first_block + at->block;
                adds.n_lanes = count_lanes(l, &c->blocks[at->block], visit.evaluation, true);
                if (adds.n_lanes) visit_add(l->list, adds, l->e);
            }
        }
    }
}

/* Lists the visits of each network's component in an evaluation. The caller frees the lists, also after
 * failure. */
static enum status open_networks(const struct stage *stage, struct visit_list *list, struct networks *n,
                                 struct error *e) {
    *n = (struct networks){.stage = stage};
    for (int k = 0; k < stage->n_controls && e->code == OK; k++) {
        const struct stage_control *control = &stage->control[k];
        n->builder[k] = (struct visit_builder){.c = control->component,
                                               .lanes = control->lanes,
                                               .n_lanes = stage->n_lanes,
                                               .first_block = control->first_block,
                                               .first_rows = control->first_rows,
                                               .list = list,
                                               .e = e};
        if (stage_first_network(stage, k) < k) continue;
        n->visits[k] =
            sys_new(list->sys, CONTROL_VISITS_MAX, sizeof **n->visits, "the visits of a control network", e);
        if (n->visits[k])
            n->n_visits[k] = control->component->family->control.visits(control->component, stage->component,
                                                                        n->visits[k]);
    }
    return e->code;
}

/* Adds the visits of one evaluation. */
static void add_evaluation(const struct visit_builder *l, const struct networks *n, struct visit visit) {
    const struct component *c = l->c;
    int next[CONTROLS_MAX] = {0};
    add_network_visits(n, -1, next, visit);
    for (int i = 0; i < c->n_tables + c->n_blocks; i++) {
        if (part_of(block_at(c, i), l->lanes->hoisted) == PART_EVALUATION) add_block(l, i, visit);
        if (i >= c->n_tables) add_network_visits(n, i - c->n_tables, next, visit);
    }
    /* A text encoder's visits end no evaluation, because only the next stage reads its output. */
    if (l->list->n_visits)
        l->list->visits[l->list->n_visits - 1].ends_evaluation = c->family->kind != FAMILY_TEXT;
}

enum status stage_visits(const struct stage *stage, int i_stage, struct visit_list *list, struct error *e) {
    const struct component *c = stage->component;
    const struct family *family = c->family;
    const struct lane *lanes = stage->lanes;
    int n_lanes = stage->n_lanes;
    if (family->lanes.check && family->lanes.check(c, lanes, n_lanes, e) != OK) return e->code;
    if (family->lanes.visits)
        return family->lanes.visits(c, i_stage, lanes, n_lanes, stage->evaluations, list, e);
    bool one_by_one = family->kind != FAMILY_TEXT && family->kind != FAMILY_DENOISER;
    struct visit_builder l = {.c = c,
                              .lanes = lanes,
                              .n_lanes = n_lanes,
                              .first_rows = stage->n_model_blocks,
                              .each = one_by_one ? stage->evaluations / n_lanes : 0,
                              .list = list,
                              .e = e};
    struct networks networks;
    struct visit visit = {.stage = i_stage, .evaluation = -1};
    open_networks(stage, list, &networks, e);
    for (enum part part = PART_PROMPT; part < PART_EVALUATION && e->code == OK; part++) {
        visit.n_hoisted = part == PART_HOISTED ? lanes->hoisted : 0;
        for (int i = 0; i < c->n_tables + c->n_blocks; i++)
            if (part_of(block_at(c, i), lanes->hoisted) == part) add_block(&l, i, visit);
        add_network_part(&networks, part, visit);
    }
    visit.n_hoisted = 0;
    for (visit.evaluation = 0; visit.evaluation < stage->evaluations && e->code == OK; visit.evaluation++)
        add_evaluation(&l, &networks, visit);
    for (int k = 0; k < stage->n_controls; k++) list->sys->release(list->sys, networks.visits[k]);
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
