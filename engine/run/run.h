/* A run: its stages in the order in which they compute, their visits, and the host's hooks between those.
 * What the executor goes through, and what a stage's room is taken for. */
#ifndef SLUICE_RUN_RUN_H
#define SLUICE_RUN_RUN_H

#include "engine/run/family.h"
#include "engine/run/reader.h"

struct stage {
    char name[16];
    const struct component *component;
    const struct block **blocks; /* the component's, with this request's in place of embedding tables */
    int n_blocks, n_lasting;
    /* Of n_lanes that compute together there are n_groups, one behind the other in lanes: lane i of every
     * group computes in the same state. Evaluation k is one of group k % n_groups at timestep k / n_groups.
     */
    struct lane *lanes;
    int n_lanes, n_groups;
    /* Of frames, that an autoencoder's half computes of each lane one after another, with state that goes
     * from one to the next; of other stages 0. */
    int n_chunks;
    int evaluations;
    enum precision precision;
    const float *timesteps; /* or NULL where the family does not ask */
    /* It computes once what the next stage reads: that one has the same component, lanes and timesteps, and
     * goes on with the lanes' state. */
    bool hoists;
};

/* Why residents were given up. */
enum evict_reason {
    EVICT_ASKED,    /* other programs need their memory */
    EVICT_OPERATOR, /* one found no memory; its evaluation is computed once more */
    EVICT_STAGE,    /* a stage found no memory to begin with; it begins once more */
};

struct run_hooks {
    void *user;
    /* The host's turn before an evaluation, with this visit its first: what it is to read. Also where it is
     * computed again. May be NULL. */
    enum status (*evaluation_begins)(void *user, const struct visit *visit, struct error *e);
    /* The host's turn after an evaluation: sampler update, picture out. */
    enum status (*evaluation_ended)(void *user, const struct visit *visit, struct error *e);
    enum status (*stage_ended)(void *user, int stage, struct error *e);
    /* Between operators and while waiting; done: work of all visits so far, in FLOPs. False cancels; *e is
     * then set. */
    bool (*tick)(void *user, const struct visit *visit, double done, struct error *e);
    /* Asked between two evaluations: bytes of residents that other programs need; 0: none. May be NULL. */
    uint64_t (*bytes_needed)(void *user);
    /* So many bytes of residents went back (at least), or will not be taken, before the evaluation that
     * begins with this visit. May be NULL. */
    void (*evicted)(void *user, const struct visit *first, uint64_t bytes, enum evict_reason reason);
};

struct run {
    struct sys *sys;
    struct device *device;
    struct stage *stages;
    int n_stages;
    const struct visit_list *visits;
    const struct run_hooks *hooks;
    int readers; /* of the store: see there, as of converter */
    packed_converter *converter;
    bool within; /* in a host's turn of another run, whose plan has this one's memory (turn_vram_bytes) */
};

#endif
