/* Prints a plan from its JSON. */
#ifndef SLUICE_CLI_PLAN_TABLE_H
#define SLUICE_CLI_PLAN_TABLE_H

#include "engine/sluice.h"

#include <stdbool.h>
#include <stdio.h>

/* Prints the plan as a table. bytes: print budgets also in bytes. */
int plan_table_print(FILE *to, const char *json, bool bytes, struct sluice_error *e);

#endif
