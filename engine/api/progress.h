/* Progress of a run: what is told while it lasts and what its report will say of time; when to give residents
 * up to other programs. */
#ifndef SLUICE_API_PROGRESS_H
#define SLUICE_API_PROGRESS_H

#include "engine/api/running.h"

/* Hooks of the executor, of a struct running: see executor.h. */
bool progress_tick(void *user, const struct visit *visit, double done, struct error *e);
uint64_t progress_bytes_needed(void *user);
void progress_gave_up(void *user, const struct visit *first, uint64_t bytes, enum evict_reason reason);

/* Before the host's turn after a visit: nobody waits for a block now. */
void progress_evaluation_ends(struct running *r);
/* After it. */
void progress_evaluation_ended(struct running *r, const struct visit *visit);
void progress_step_ended(struct running *r, int step);
/* Before the host's turn after a stage, and after it. */
void progress_stage_ended(struct running *r, int stage);
void progress_stage_begins(struct running *r);

/* After the last stage of a run that ended well: all of it is done. */
void progress_ended(struct running *r);

/* One line on how long the rest will take, if that is worth one: from the plan's time if that follows from
 * measured rates, else from the rate measured before the run. */
void progress_predict(struct running *r);

/* Free memory under which residents are given up; 0: they never are. Before anything of the run is taken. */
uint64_t progress_reserve(const struct sluice_session *s, const struct job *job);

#endif
