/* Stages: a run's parts, each with a component, blocks, lanes and evaluations. */
#ifndef SLUICE_RUN_STAGE_H
#define SLUICE_RUN_STAGE_H

#include "engine/run/family.h"

/* A control network that runs in a denoiser's stage. Its blocks are part of the stage's blocks. A component
 * that runs for several control images has one entry for each; the entries share its blocks. */
struct stage_control {
    const struct component *component;
    struct lane *lanes; /* one for each lane of the stage, in the same order */
    /* Indices in the stage's blocks of the component's first block and of its first block of gathered rows,
     * before hoisted blocks are moved to their own stage. */
    int first_block, first_rows;
};

/* A stage of a run: its component, blocks, lanes and evaluations. */
struct stage {
    char name[16];
    const struct component *component;
    /* Component's blocks; blocks of gathered rows take the place of embedding tables. */
    const struct block **blocks;
    int n_blocks, n_model_blocks; /* n_model_blocks: leading blocks, which hold no gathered rows */
    /* n_groups groups of n_lanes lanes, one group after the other. The lanes of a group compute together;
     * lane i of every group uses the same state memory. Evaluation k belongs to group k % n_groups, at
     * timestep k / n_groups. */
    struct lane *lanes;
    int n_lanes, n_groups;
    struct stage_control control[CONTROLS_MAX];
    int n_controls;
    /* Chunks of video frames per lane in a VAE's stage; 0 in other stages. Chunks are computed in order,
     * because each reads state of the previous chunk. */
    int n_chunks;
    int evaluations;
    enum precision precision;
    const float *timesteps; /* NULL if the family uses no timesteps */
    /* This is a hoist stage: computes once the values that all evaluations of the next stage read. The next
     * stage has the same component, lanes and timesteps, and inherits the lane state. */
    bool hoists;
};

/* Index of the stage's first control network with the same component as network k. */
static inline int stage_first_network(const struct stage *stage, int k) {
    int first = 0;
    while (stage->control[first].component != stage->control[k].component) first++;
    return first;
}

#endif
