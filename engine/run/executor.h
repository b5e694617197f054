/* The executor: the only loop over visits. Cancelling, progress and the host's turns between evaluations hang
 * on it.
 *
 * Between two evaluations of a stage the run may go on with fewer residents (plan_give_up): because a hook
 * asks for their memory, or because an operator found none; and a stage may begin with fewer, because it
 * found none for itself. After an operator the evaluation is computed again from its first visit, which gives
 * the same bits: an evaluation reads what was there before it (what crosses stages, and the state of the
 * visits before the first evaluation) and writes nothing of that. Those before the first one count as one
 * evaluation.
 *
 * The same loop runs dry, with a device that only counts: what a run needs (struct run_need) comes from there
 * and from nowhere else. */
#ifndef SLUICE_RUN_EXECUTOR_H
#define SLUICE_RUN_EXECUTOR_H

#include "engine/run/family.h"
#include "engine/run/plan.h"
#include "engine/run/store.h"

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
    int n_chunks; /* of frames, that a decoder makes of each lane one after another; of other stages 0 */
    int evaluations;
    enum precision precision;
    const float *timesteps; /* or NULL where the family does not ask */
    /* It computes once what the next stage reads: that one has the same component, lanes and timesteps, and
     * goes on with the lanes' state. */
    bool hoists;
};

/* Why residents were given up. */
enum give_up_reason {
    GIVE_UP_ASKED,    /* other programs need their memory */
    GIVE_UP_OPERATOR, /* one found no memory; its evaluation is computed once more */
    GIVE_UP_STAGE,    /* a stage found no memory to begin with; it begins once more */
};

struct run_hooks {
    void *user;
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
    void (*gave_up)(void *user, const struct visit *first, uint64_t bytes, enum give_up_reason reason);
};

struct run {
    struct sys *sys;
    struct device *device;
    struct stage *stages;
    int n_stages;
    const struct visit_list *visits;
    const struct run_hooks *hooks;
    int readers; /* of the store: see there, as of converter */
    image_converter *converter;
};

/* Bytes of the state of a stage's lanes, and apart from it of its whole-picture buffers. */
enum status executor_state_bytes(struct sys *sys, struct stage *stage, uint64_t *bytes,
                                 uint64_t *picture_bytes, struct error *e);

/* Runs the forwards dry against the device's cost table and fills need->stage (all but base, host, cross and
 * open bytes). prepare: also lets the device build what the operators need, so that the run itself builds
 * nothing. */
enum status executor_measure(const struct run *run, bool prepare, struct run_need *need, struct error *e);

/* Memory of the device was not to be had, as e says: if the device has failed, that is why. */
enum status executor_explain(struct device *device, struct error *e);

/* Runs. The plan has been checked. residents belong to the session. counters, if not NULL, is kept up to
 * date, so that hooks can read what has been moved and waited for so far. */
enum status executor_run(const struct run *run, const struct run_need *need, const struct plan *plan,
                         struct residents *residents, struct store_counters *counters, struct error *e);

#endif
