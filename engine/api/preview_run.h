/* Previews that a decoder makes: a run within the run, in the host's turn behind a step. It is the job of
 * decoding one picture, with a plan of its own, the least: everything streams, nothing stays. What it takes
 * is counted beside what the stage has that it interrupts, whose readers go on meanwhile. */
#ifndef SLUICE_API_PREVIEW_RUN_H
#define SLUICE_API_PREVIEW_RUN_H

#include "engine/api/running.h"

/* Makes job->within, of a settled request. As job_open; the job that has it closes it, also after failure. */
enum status preview_run_open(struct job *job, struct error *e);
/* Descriptors of it, which last as long as the job's own. 0 without one. */
uint64_t preview_run_host_bytes(const struct job *job);
/* Adds to a stage's need what it takes, in turns: all of it; else what libraries keep through the run. */
void preview_run_count(const struct job *job, bool in_turns, struct stage_need *need);
/* Decodes a latent frame, planes [C, Y X] with any distance between them, to *rgb [Y, X, 3] U8, in memory
 * that job_give_back of job->within gives back, also after failure. Nobody may be using the device. */
enum status preview_run(struct running *r, struct tensor frame, struct tensor *rgb, struct error *e);

#endif
