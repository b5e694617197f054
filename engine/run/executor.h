/* The executor: the only loop over visits. Runs the forward functions, and calls the hooks for cancellation,
 * progress and work between evaluations.
 *
 * A run can continue with fewer residents (plan_evict) between two evaluations: because a hook requests
 * memory, or because an operator found none. A stage can also begin with fewer. After a failed operator the
 * evaluation is computed again from its first visit, with the same bits: an evaluation reads only state from
 * before it (inter-stage tensors, and results of visits before the first evaluation) and overwrites none of
 * that. The visits before the first evaluation count as one evaluation. A chunk of video frames overwrites
 * the state that it reads, so all earlier chunks of its lane are computed again too, without calling their
 * hooks again.
 *
 * The same loop runs dry on a device that only counts. That dry run is the only source of struct run_need. */
#ifndef SLUICE_RUN_EXECUTOR_H
#define SLUICE_RUN_EXECUTOR_H

#include "engine/run/plan.h"
#include "engine/run/run.h"
#include "engine/run/store.h"

/* Bytes of the lane state of a stage and, separately, of its full-frame buffers. */
enum status executor_state_bytes(struct sys *sys, struct stage *stage, uint64_t *bytes,
                                 uint64_t *picture_bytes, struct error *e);

/* Runs the forward functions dry against the cost table of the device and fills need->stage; base, host,
 * cross and open bytes stay with the caller. prepare: the device also builds the kernels and primitives that
 * the run needs, so that the run itself builds none. */
enum status executor_measure(const struct run *run, bool prepare, struct run_need *need, struct error *e);

/* Explains a MEMORY error: if the device has failed, replaces *e with that failure. Returns e->code. */
enum status executor_explain(struct device *device, struct error *e);

/* Executes the run under a checked plan. The residents belong to the session. counters may be NULL; otherwise
 * hooks can read there how much has been moved and waited for so far. */
enum status executor_run(const struct run *run, const struct run_need *need, const struct plan *plan,
                         struct residents *residents, struct store_counters *counters, struct error *e);

#endif
