/* What the models that `sluice families` lists would take, each as it is published: memory and time on cards
 * known by name and on a processor, within budgets that are usual there. */
#ifndef SLUICE_CLI_FAMILIES_PLANS_H
#define SLUICE_CLI_FAMILIES_PLANS_H

#include "engine/sluice.h"

#include <jansson.h>
#include <stdbool.h>

/* Adds to every family of the library's list: "plans":[{"device","card" (null: a processor),"command" (that
 * prints this plan),"budget":{...},"least":{...},"peak":{...},"seconds","step_seconds" (of a step of the
 * sampler),"bound"}]. Nothing depends on the machine but what its oneDNN takes of host memory, some MiB.
 * shows: on a terminal a line says how far it is. */
int families_plans_add(json_t *families, bool shows, struct sluice_error *e);

#endif
