/* Opens and closes jobs: resolves a request and measures the layouts that the planner may choose from. */
#ifndef SLUICE_JOB_OPEN_H
#define SLUICE_JOB_OPEN_H

#include "engine/job/job.h"

/* Resolves the request, encodes its prompts to tokens, makes the candidate layouts and measures each by a dry
 * run. latent_dim: [N, C, F, Y, X] of a latent file to decode, or NULL. Fails with USAGE for an invalid
 * request. The caller closes the job, also after failure. */
enum status job_open(struct job *job, const struct job_context *context, const struct sluice_request *request,
                     const int32_t *latent_dim, struct error *e);
void job_close(struct job *job);
/* Moves an open job, none of whose inter-stage buffers are allocated, to another address. */
void job_move(struct job *to, struct job *from);

#endif
