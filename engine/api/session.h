/* A session: one model on one device, used by one thread at a time. */
#ifndef SLUICE_API_SESSION_H
#define SLUICE_API_SESSION_H

#include "engine/generate/report.h"

#include <jansson.h>
#include <stdatomic.h>

struct sluice_session {
    struct sys *sys;
    const struct sluice_model *model;
    struct sluice_session_options options;
    struct device *device;
    struct residents residents;
    struct requantised requantised;   /* the previous run's components, if --type converted their weights */
    struct session_adapters adapters; /* the previous run's components with their adapters */
    struct prompt_cache prompt_cache;
    /* Job of the previous plan, reused by a run of the same request, which then does not plan again; NULL:
     * none. planned_key identifies the request (session.c). */
    struct job *planned;
    uint8_t planned_key[SHA256_DIGEST_SIZE];
    struct sluice_plan summary; /* numbers of the latest plan; struct_size 0: none yet */
    struct report report;       /* report of the previous run */
    json_t *plan;               /* plan of the previous run, as JSON; NULL: the run failed before planning */
    bool upscales;              /* during sluice_upscale: the job only enlarges init_image */
    bool busy; /* a run, decode or plan query is in progress: its callbacks must not start another one */
    atomic_int cancelled;
};

#endif
