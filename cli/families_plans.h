/* Plans of all supported models at published sizes: memory and predicted time on GPUs and on a CPU. */
#ifndef SLUICE_CLI_FAMILIES_PLANS_H
#define SLUICE_CLI_FAMILIES_PLANS_H

#include "engine/sluice.h"

#include <jansson.h>
#include <stdbool.h>

/* Adds to every family of the library's list: "plans":[{"device","card" (null: a CPU),"command" (prints this
 * plan),"budget":{...},"least":{...},"peak":{...},"seconds","step_seconds" (per sampler step),"bound"}]. Only
 * the RAM of oneDNN, some MiB, depends on this machine. shows: print progress on a terminal. */
int families_plans_add(json_t *families, bool shows, struct sluice_error *e);

#endif
