/* The executor: the only loop over visits. Cancelling, progress and the host's turns between evaluations hang
 * on it.
 *
 * Between two evaluations of a stage the run may go on with fewer residents (plan_evict): because a hook
 * asks for their memory, or because an operator found none; and a stage may begin with fewer, because it
 * found none for itself. After an operator the evaluation is computed again from its first visit, which gives
 * the same bits: an evaluation reads what was there before it (what crosses stages, and the state of the
 * visits before the first evaluation) and writes nothing of that. Those before the first one count as one
 * evaluation. A chunk of frames writes the state that it reads, so it is computed again with all of its
 * lane's before it, of which the host has had its turn already.
 *
 * The same loop runs dry, with a device that only counts: what a run needs (struct run_need) comes from there
 * and from nowhere else. */
#ifndef SLUICE_RUN_EXECUTOR_H
#define SLUICE_RUN_EXECUTOR_H

#include "engine/run/plan.h"
#include "engine/run/run.h"
#include "engine/run/store.h"

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
