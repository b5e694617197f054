/* A session: one model on one device, used by one thread at a time. */
#ifndef SLUICE_API_SESSION_H
#define SLUICE_API_SESSION_H

#include "engine/api/job.h"
#include "engine/api/report.h"

#include <stdatomic.h>

struct sluice_session {
    struct sys *sys;
    const struct sluice_model *model;
    struct sluice_session_options options;
    struct device *device;
    struct residents residents;
    struct requantised requantised;   /* components with the last request's --type */
    struct session_adapters adapters; /* components with the last request's adapters */
    struct prompt_cache prompt_cache;
    struct report report;
    atomic_int cancelled;
};

/* Sends a line (at most 511 bytes, printf format) to the session's on_log callback, if it has one. level:
 * enum sluice_level. */
void session_log(struct sluice_session *session, int level, const char *format, ...);

#endif
