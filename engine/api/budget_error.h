/* Suggestions in the error of a request that does not fit its budget because of the VAE decoder. */
#ifndef SLUICE_API_BUDGET_ERROR_H
#define SLUICE_API_BUDGET_ERROR_H

#include "engine/api/job.h"

/* e: the BUDGET error of the job's plan. Adds to it whether all but the decode stage fits, and the flags that
 * would make the request fit (--vae-tiling on, --no-decode). Each alternative is planned; no weights are
 * read. */
enum status budget_error_suggest(const struct job *job, struct error *e);

#endif
