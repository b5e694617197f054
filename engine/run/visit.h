/* Visits: a run is a list of visits, from text encoder to decoder, made before the run starts. The visits of
 * a stage follow from the update rates of its blocks. Gathered embedding rows become blocks too. */
#ifndef SLUICE_RUN_VISIT_H
#define SLUICE_RUN_VISIT_H

#include "engine/run/family.h"

struct stage;

struct visit {
    int stage, block; /* block: index in the stage's list of blocks */
    int control;      /* 0: a visit of the stage's component; k: of control network k - 1 (stage.control) */
    int first_lane, n_lanes;
    int evaluation;       /* index of the evaluation; -1: the visit runs once, before the first evaluation */
    int pass;             /* control_visit.pass */
    int n_hoisted;        /* with evaluation -1: number of hoisted timesteps (see block_hoists) */
    bool ends_evaluation; /* last visit of the evaluation: the hook evaluation_ended is called after it */
};

struct visit_list {
    struct sys *sys;
    struct visit *visits;
    int n_visits, capacity;
};

/* Appends a visit. Fails with MEMORY. */
enum status visit_add(struct visit_list *list, struct visit visit, struct error *e);
void visit_list_destroy(struct visit_list *list);

/* Appends the visits of a stage; visits before the first evaluation come first. visit.block indexes the
 * stage's blocks: blocks of the component, of the control networks (stage_control.first_block), then of
 * gathered embedding rows. Rows of table t for lane i of a text encoder are at n_model_blocks + t * n_lanes +
 * i; rows of table t of another component at n_model_blocks + t, of a control network at first_rows + t.
 *
 * Control networks: blocks that depend on the prompt alone, and hoisted blocks, follow the component's blocks
 * of that kind. In an evaluation, the visits are where family_control.visits puts them; the network's other
 * blocks (rows of embedding tables, of the timestep if not hoisted) precede its first visit. If two networks
 * are the same component, the visits of a block are adjacent, so the block is loaded once. */
enum status stage_visits(const struct stage *stage, int i_stage, struct visit_list *list, struct error *e);
/* Number of blocks of gathered embedding rows in a stage with n_lanes lanes. */
int component_gathered_blocks(const struct component *c, int n_lanes);
/* Makes a block of the embedding-table rows that a lane needs. The caller destroys the block, also on
 * failure. */
enum status component_gather_rows(const struct component *c, int i_table, const struct lane *lane,
                                  struct block *out, struct error *e);

#endif
