/* The state of one run of a job: counters, timers, random generators; progress callbacks, the times in the
 * run's report, and the decision to evict resident weights if other programs need memory. */
#ifndef SLUICE_GENERATE_RUNNING_H
#define SLUICE_GENERATE_RUNNING_H

#include "engine/generate/report.h"
#include "engine/job/job.h"
#include "engine/sample/noise.h"

#include <stdatomic.h>

struct running {
    struct job *job;
    struct job *pass; /* job of the pass that runs: `job`, or its second pass (--hires) */
    const struct sluice_session_options *options; /* session options, for their callbacks */
    struct report *report;                        /* report that the run fills in; borrowed */
    struct residents *residents;  /* blocks that an earlier run of the session left resident */
    const atomic_int *cancelled;  /* set by sluice_cancel */
    const char *latent_file;      /* file of initial noise (--init-latent) or latent to decode; NULL: none */
    struct generator *generators; /* random generators, one per image; owned */
    struct sha256_ctx frames;     /* SHA-256 over the decoded frames of the current video */
    struct store_counters counters; /* counters of the store, updated by the executor */
    struct store_counters at_stage, at_step, at_visit;
    const struct visit *visit; /* visit of the latest progress callback */
    struct processor_time time_at_stage, time_at_step;
    double began, stage_began, step_began, last_progress;
    double done, all; /* done: FLOPs that the run has finished; all: FLOPs of the whole run */
    double done_at_stage;
    double rate;            /* FLOPs a second, measured before the run; 0 if unknown */
    double planned_seconds; /* predicted seconds after the text stages; 0 without measured rates */
    bool no_previews;       /* true: previews are off since memory was short or a preview had NaN */
    uint64_t reserve;       /* residents are evicted while free memory is below this many bytes */
};

/* Sets r->pass to the pass of a stage of r->job's layout. Returns the stage's index in that pass's layout. */
int running_enter_pass(struct running *r, int stage);
/* Index in the report of a step of the current pass: the second pass's steps follow those of the first. */
int running_step(const struct running *r, int step);
/* Sends a line (at most 511 bytes, printf format) to the on_log callback, if there is one. level: enum
 * sluice_level. */
void log_line(const struct sluice_session_options *options, int level, const char *format, ...);
/* Fills `to` with standard normals from the generator of one image of the batch. */
void draw_noise(struct running *r, int image, struct tensor to);
/* Fails with NONFINITE, if t has NaN or infinity. The message names stage and step (step: from 0; negative:
 * not named). */
enum status check_finite(struct tensor t, const char *what, const char *stage, int step, struct error *e);

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

/* Memory pressure: how many bytes of residents a run evicts when other programs take memory.
 *
 * pressure_reserve: bytes of free memory below which a run evicts residents: half of the memory that stays
 * free at the run's planned peak, within PRESSURE_RESERVE_LEAST and PRESSURE_RESERVE_MOST. Only half of that
 * memory, so that a run does not mistake its own growth for another program's. free_bytes: free memory before
 * the run; if 0 (unknown) the function returns 0. has_bytes: the process's memory before the run. peak_bytes:
 * the process's planned peak. pressure_bytes: bytes of residents to evict now; 0: none. Both are pure. */
enum { PRESSURE_RESERVE_MOST = 512 << 20, PRESSURE_RESERVE_LEAST = 32 << 20 };
uint64_t pressure_reserve(uint64_t free_bytes, uint64_t has_bytes, uint64_t peak_bytes);
uint64_t pressure_bytes(uint64_t reserve, uint64_t free_bytes);

#endif
