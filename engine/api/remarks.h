/* Remarks: what is said of a session, a plan or a run before it begins, a line of the log each: what was
 * assumed, what of the request does nothing, what is read otherwise than it was given. */
#ifndef SLUICE_API_REMARKS_H
#define SLUICE_API_REMARKS_H

#include "engine/api/session.h"

void remarks_of_session(struct sluice_session *s);
void remarks_of_plan(struct sluice_session *s, const struct job *job);
/* asked: the caller's scale of guidance, which the job may not have. */
void remarks_of_run(struct sluice_session *s, const struct job *job, double asked);

#endif
