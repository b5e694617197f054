/* What would help a request that does not fit its budget, where it is the decoder that does not. */
#ifndef SLUICE_API_REFUSAL_H
#define SLUICE_API_REFUSAL_H

#include "engine/api/job.h"

/* e holds the refusal of the job's plan. Says in it if everything but the decode would fit, and what other
 * requests would; each is planned like any other, so nothing is read. */
enum status refusal_explain(const struct job *job, struct error *e);

#endif
