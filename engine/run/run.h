/* A run as data: stages in order of computation, their visits, and hooks between visits. */
#ifndef SLUICE_RUN_RUN_H
#define SLUICE_RUN_RUN_H

#include "engine/run/family.h"
#include "engine/run/reader.h"

struct stage {
    char name[16];
    const struct component *component;
    const struct block **blocks; /* component's blocks; gathered rows replace embedding tables */
    int n_blocks, n_model_blocks;
    /* n_groups groups of n_lanes lanes, one group after the other. The lanes of a group compute together;
     * lane i of every group uses the same state memory. Evaluation k belongs to group k % n_groups, at
     * timestep k / n_groups. */
    struct lane *lanes;
    int n_lanes, n_groups;
    /* Chunks of video frames per lane, which a VAE computes in order, passing state on; 0 in other stages. */
    int n_chunks;
    int evaluations;
    enum precision precision;
    const float *timesteps; /* NULL if the family uses no timesteps */
    /* This is a hoist stage: computes once the values that all evaluations of the next stage read. The next
     * stage has the same component, lanes and timesteps, and inherits the lane state. */
    bool hoists;
};

enum evict_reason {
    EVICT_ASKED,    /* other programs need the memory */
    EVICT_OPERATOR, /* an operator found no memory; the current evaluation is computed again */
    EVICT_STAGE,    /* a stage found no memory when it began; the stage begins again */
};

struct run_hooks {
    void *user;
    /* Called before an evaluation (also repeated) with its first visit: prepares inputs. May be NULL. */
    enum status (*evaluation_begins)(void *user, const struct visit *visit, struct error *e);
    /* Called after an evaluation: sampler update, output of a frame. */
    enum status (*evaluation_ended)(void *user, const struct visit *visit, struct error *e);
    enum status (*stage_ended)(void *user, int stage, struct error *e);
    /* Called between operators and in waits. done: FLOPs of all visits so far. False cancels, with *e set. */
    bool (*tick)(void *user, const struct visit *visit, double done, struct error *e);
    /* Called between evaluations: returns the bytes of residents to free for other programs. May be NULL. */
    uint64_t (*bytes_needed)(void *user);
    /* Called after at least `bytes` bytes of residents were evicted, or could not be allocated, during a run.
     * first: first visit of the evaluation that runs next. May be NULL. */
    void (*evicted)(void *user, const struct visit *first, uint64_t bytes, enum evict_reason reason);
};

struct run {
    struct sys *sys;
    struct device *device;
    struct stage *stages;
    int n_stages;
    const struct visit_list *visits;
    const struct run_hooks *hooks;
    int readers; /* number of reader threads: see struct store_options */
    packed_converter *converter;
    bool nested; /* a preview inside an outer run, within the outer run's callback_vram_bytes */
};

#endif
