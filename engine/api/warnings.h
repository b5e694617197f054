/* Log lines before a session, plan or run begins: assumptions, options without effect, inputs that are
 * resized or cut. */
#ifndef SLUICE_API_WARNINGS_H
#define SLUICE_API_WARNINGS_H

#include "engine/api/session.h"

void warn_session(struct sluice_session *s);
void warn_plan(struct sluice_session *s, const struct job *job);
/* requested_scale: cfg_scale as the caller set it; the job may use another scale. */
void warn_run(struct sluice_session *s, const struct job *job, double requested_scale);

#endif
