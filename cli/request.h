/* From flags to a request: what this build cannot honour is refused here, never ignored. */
#ifndef SLUICE_CLI_REQUEST_H
#define SLUICE_CLI_REQUEST_H

#include "cli/args.h"

/* Flags and combinations that no model of this build can honour: exit 2. */
int request_check(const struct args *args, struct sluice_error *e);
/* The seed as given, or drawn. */
int request_seed(const struct args *args, uint64_t *seed, struct sluice_error *e);
/* The text of --plan, to be freed; NULL without the flag. */
int request_read_plan(const struct args *args, char **text, struct sluice_error *e);
/* The model's defaults, then what was given. */
void request_fill(struct sluice_request *request, const sluice_model *model, const struct args *args,
                  uint64_t seed, const char *plan_text);

#endif
