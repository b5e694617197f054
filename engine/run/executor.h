/* The executor: the only loop over visits. It runs the forward functions, and calls the hooks for
 * cancellation, progress and work between evaluations. Between two evaluations a run can continue with fewer
 * residents (plan_evict), if a hook requests memory or an operator found none. A stage can also begin with
 * fewer residents. After an operator failed for lack of memory, the evaluation is computed again from the
 * first visit. The result has the same bits, because an evaluation does not overwrite state that the
 * evaluation reads. The visits before the first evaluation count as one evaluation. A chunk of video frames
 * overwrites the state that it reads, so the lane's earlier chunks are computed again too, without calling
 * their hooks again. The same loop runs dry on a device that only counts; that dry run is the only source of
 * struct run_need. */
#ifndef SLUICE_RUN_EXECUTOR_H
#define SLUICE_RUN_EXECUTOR_H

#include "engine/run/plan.h"
#include "engine/run/stage.h"
#include "engine/run/store.h"

enum evict_reason {
    EVICT_ASKED, /* reason for an eviction: other programs need memory */
    /* Reason for an eviction: an operator found no memory; the current evaluation is computed again. */
    EVICT_OPERATOR,
    EVICT_STAGE, /* reason for an eviction: a stage found no memory when it began; the stage begins again */
};

/* Callbacks of the session that the executor calls during a run. */
struct run_hooks {
    void *user;
    /* Called before every evaluation, also a repeated one, with its first visit: prepares the inputs. May be
     * NULL. */
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

/* A run as data: stages in order of computation, their visits, and callbacks (hooks) between visits. */
struct run {
    struct sys *sys;
    struct device *device;
    struct stage *stages;
    int n_stages;
    const struct visit_list *visits;
    const struct run_hooks *hooks;
    int readers;                 /* number of reader threads: see struct store_options */
    packed_converter *converter; /* converts element types while reading (--type); NULL: no conversion */
    /* True: this run decodes a preview inside an outer run, in device memory that the outer plan reserved
     * (callback_vram_bytes). */
    bool nested;
};

/* Measures the bytes of a stage's lane state and, separately, of its full-frame buffers (picture_bytes). */
enum status executor_state_bytes(struct sys *sys, struct stage *stage, uint64_t *bytes,
                                 uint64_t *picture_bytes, struct error *e);

/* Runs the forward functions dry against the device's cost table and fills need->stage. prepare: the device
 * also builds all kernels and primitives, so that the run itself builds none. */
enum status executor_measure(const struct run *run, bool prepare, struct run_need *need, struct error *e);

/* If the device has failed, replaces *e (such as MEMORY) with the device's error. Returns e->code. */
enum status executor_explain(struct device *device, struct error *e);

/* Executes the run under a plan that passed plan_check. residents: owned by the session. counters: may be
 * NULL; else updated during the run, so that hooks can read bytes moved and seconds waited. */
enum status executor_run(const struct run *run, const struct run_need *need, const struct plan *plan,
                         struct residents *residents, struct store_counters *counters, struct error *e);

#endif
