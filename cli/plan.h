/* Plans: the command, and a plan's JSON as text. */
#ifndef SLUICE_CLI_PLAN_H
#define SLUICE_CLI_PLAN_H

#include "engine/sluice.h"

#include <stdio.h>

/* The plan as a table for people. */
int plan_print(FILE *to, const char *json, struct sluice_error *e);
/* How many pictures the request of this plan makes; 1 where it does not say. */
int plan_batch(const char *json);

#endif
