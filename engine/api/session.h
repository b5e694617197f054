/* A session: one model on one device, for one thread. Runs every recipe. */
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
    struct requantised requantised; /* as the last request asked for */
    struct adapted adapted;         /* the same */
    struct conditionings conditionings;
    struct report report;
    atomic_int cancelled;
};

/* A line of the log. */
void session_say(struct sluice_session *session, int level, const char *format, ...);

#endif
