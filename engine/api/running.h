/* The host's state during one run of a job: counters, timers, progress. */
#ifndef SLUICE_API_RUNNING_H
#define SLUICE_API_RUNNING_H

#include "engine/api/session.h"
#include "engine/api/initial_latents.h"

#include <nettle/sha2.h>

struct running {
    struct sluice_session *session;
    struct job *job;
    struct initial_latents initial_latents;
    struct sha256_ctx frames;       /* SHA-256 over the decoded frames of the current video */
    struct store_counters counters; /* counters of the store, updated by the executor */
    struct store_counters at_stage, at_step, at_visit;
    const struct visit *visit; /* visit at the last call of progress_tick */
    struct processor_time time_at_stage, time_at_step;
    double began, stage_began, step_began, last_progress;
    double done, all; /* done: FLOPs that the run has finished; all: FLOPs of the whole run */
    double done_at_stage;
    double rate;            /* FLOPs a second, measured before the run; 0 if unknown */
    double planned_seconds; /* predicted time of all stages after the text stages; 0 without measured rates */
    bool no_previews;       /* true: previews are off, because memory was short or a preview had NaN */
    uint64_t reserve;       /* free memory in bytes below which residents are evicted */
};

#endif
