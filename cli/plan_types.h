/* plan --types: compares weight types, as a table below the plan or as `types` in its JSON. */
#ifndef SLUICE_CLI_PLAN_TYPES_H
#define SLUICE_CLI_PLAN_TYPES_H

#include "cli/generation.h"

#include <stdio.h>

/* USAGE if --types is combined with --type, --plan or a latent, which fix the type. */
int plan_types_check(const struct args *args, struct sluice_error *e);
/* Plans the request with the weights of transformer and text encoders in several types, and adds to the
 * plan's JSON: "types": [{"type", "bytes" (of these weights), "seconds", "fits", "convert": {"bytes",
 * "seconds", "fits"}}]. The outer values are for conversion while reading, "convert" for files converted
 * beforehand. The first entry is for the types in the files; its type and convert are null. Replaces *json.
 */
int plan_types_add(struct generation *generation, char **json, struct sluice_error *e);
/* Prints the types of a plan, if it has any. */
void plan_types_print(FILE *to, const char *json);

#endif
