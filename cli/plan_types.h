/* What other types of weights would bring to a plan: a table under it, or `types` in its JSON. */
#ifndef SLUICE_CLI_PLAN_TYPES_H
#define SLUICE_CLI_PLAN_TYPES_H

#include "cli/drawing.h"

#include <stdio.h>

/* USAGE where --types would have nothing to compare: beside a type or a plan that is asked for, or a latent.
 */
int plan_types_check(const struct args *args, struct sluice_error *e);
/* Plans the same request with the weights of transformer and text encoders in each of some types and adds to
 * the plan's JSON: "types": [{"type", "bytes" (of these weights), "seconds", "fits", "convert": {"bytes",
 * "seconds", "fits"}}], converted as they are read and, under "convert", beforehand; the first as files have
 * them, of type and convert null. *json is replaced. */
int plan_types_add(struct drawing *drawing, char **json, struct sluice_error *e);
/* Those of a plan, if it has any. */
void plan_types_print(FILE *to, const char *json);

#endif
