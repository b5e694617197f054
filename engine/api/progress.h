/* Progress of a run: progress callbacks, the times in its report, and when to evict resident weights
 * because other programs need memory. */
#ifndef SLUICE_API_PROGRESS_H
#define SLUICE_API_PROGRESS_H

#include "engine/api/running.h"

/* Hooks of the executor (executor.h); user: a struct running. */
bool progress_tick(void *user, const struct visit *visit, double done, struct error *e);
uint64_t progress_eviction_bytes(void *user);
void progress_evicted(void *user, const struct visit *first, uint64_t bytes, enum evict_reason reason);

/* Ends the current stall measurement. Call before the stage callback of an evaluation. */
void progress_evaluation_ends(struct running *r);
/* Call progress_evaluation_ended after each evaluation's stage callback, and progress_step_ended after the
 * last evaluation of a step. */
void progress_evaluation_ended(struct running *r, const struct visit *visit);
void progress_step_ended(struct running *r, int step);
/* progress_stage_begins resets the timers. progress_stage_ended records the stage's times; call it after the
 * stage's callback. */
void progress_stage_ended(struct running *r, int stage);
void progress_stage_begins(struct running *r);

/* Reports 100 %. Call after the last stage of a successful run. */
void progress_ended(struct running *r);

/* Logs the estimated time unless below 2 seconds. The estimate is from the plan if the plan has measured
 * rates, else from the rate measured before the run. If the estimate is a minute or more, also names an
 * output size that takes a quarter of the time. */
void progress_log_estimate(struct running *r);

/* Free host memory in bytes below which residents are evicted; 0: never. Call before allocating the run. */
uint64_t progress_pressure_reserve(const struct sluice_session *s, const struct job *job);

#endif
