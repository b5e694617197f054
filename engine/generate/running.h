/* The state of one run of a job: counters, timers, progress, random generators. */
#ifndef SLUICE_GENERATE_RUNNING_H
#define SLUICE_GENERATE_RUNNING_H

#include "engine/generate/report.h"
#include "engine/job/job.h"
#include "engine/sample/noise.h"

#include <stdatomic.h>

struct running {
    struct job *job;
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
    double rate; /* FLOPs a second, measured before the run; 0 if unknown */
    double
        planned_seconds; /* predicted seconds of all stages after the text stages; 0 without measured rates */
    bool no_previews;    /* true: previews are off since memory was short or a preview had NaN */
    uint64_t reserve;    /* residents are evicted while free memory is below this many bytes */
};

/* Sends a line (at most 511 bytes, printf format) to the on_log callback, if there is one. level: enum
 * sluice_level. */
void log_line(const struct sluice_session_options *options, int level, const char *format, ...);
/* Fills `to` with standard normals from the generator of one image of the batch. */
void draw_noise(struct running *r, int image, struct tensor to);
/* Fails with NONFINITE, if t has NaN or infinity. The message names stage and step (step: from 0; negative:
 * not named). */
enum status check_finite(struct tensor t, const char *what, const char *stage, int step, struct error *e);

#endif
