/* Suggests flags in the error message of a request whose VAE decode stage exceeds the memory budget. */
#ifndef SLUICE_API_BUDGET_ERROR_H
#define SLUICE_API_BUDGET_ERROR_H

#include "engine/api/job.h"

/* Extends the BUDGET error e: suggests --vae-tiling on or --no-decode if the job would fit the budget with
 * that flag. Plans each alternative; reads no weights. */
enum status budget_error_suggest(const struct job *job, struct error *e);

#endif
