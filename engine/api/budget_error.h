/* Suggests flags in the error message of a request whose VAE decode stage exceeds the memory budget. */
#ifndef SLUICE_API_BUDGET_ERROR_H
#define SLUICE_API_BUDGET_ERROR_H

#include "engine/api/job.h"

/* Extends the BUDGET error e: names --vae-tiling on and --no-decode if the job would fit its budget with
 * them. Plans each alternative; reads no weights. */
enum status budget_error_suggest(const struct job *job, struct error *e);

#endif
