/* Log lines before a session, plan or run begins: assumptions, options without effect, inputs that are
 * resized or cut. */
#ifndef SLUICE_API_WARNINGS_H
#define SLUICE_API_WARNINGS_H

#include "engine/api/session.h"

void warn_session(struct sluice_session *s);
void warn_plan(struct sluice_session *s, const struct job *job);
/* requested_scale: the caller's cfg_scale, which the job may have replaced. */
void warn_run(struct sluice_session *s, const struct job *job, double requested_scale);

#endif
