/* Suggestions in the error of a request that does not fit its budget because of the VAE decoder. */
#ifndef SLUICE_API_BUDGET_ERROR_H
#define SLUICE_API_BUDGET_ERROR_H

#include "engine/api/job.h"

/* Extends the BUDGET error e of the job's plan: whether all stages but decode fit, and the flags with which
 * the request would fit (--vae-tiling on, --no-decode). Plans each alternative; reads no weights. */
enum status budget_error_suggest(const struct job *job, struct error *e);

#endif
