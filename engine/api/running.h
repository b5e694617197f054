/* A run of a job in a session: what the host keeps while it lasts. */
#ifndef SLUICE_API_RUNNING_H
#define SLUICE_API_RUNNING_H

#include "engine/api/session.h"
#include "engine/api/start.h"

#include <nettle/sha2.h>

struct running {
    struct sluice_session *session;
    struct job *job;
    struct start start;
    struct sha256_ctx frames;       /* of the video that is being decoded */
    struct store_counters counters; /* kept up to date by the executor */
    struct store_counters at_stage, at_step, at_visit;
    const struct visit *visit; /* the last one seen by tick */
    struct processor_time time_at_stage, time_at_step;
    double began, stage_began, step_began, last_progress;
    double done, all; /* FLOPs */
    double done_at_stage;
    double rate;            /* FLOPs a second, measured before the run; 0 if unknown */
    double planned_seconds; /* of the stages after the text, from measured rates; 0 if there are none */
    bool no_previews;       /* there is no memory for them */
    uint64_t reserve;       /* free memory under which residents are given up */
};

#endif
