/* Prints a plan from its JSON, and reads sizes from it. */
#ifndef SLUICE_CLI_PLAN_TABLE_H
#define SLUICE_CLI_PLAN_TABLE_H

#include "engine/sluice.h"

#include <stdbool.h>
#include <stdio.h>

/* Prints the plan as a table. bytes: print budgets also in bytes. */
int plan_table_print(FILE *to, const char *json, bool bytes, struct sluice_error *e);
/* Number and size of a plan's images or videos; a value that the JSON lacks is 1. */
struct plan_table_size {
    int batch, frames, width, height;
};
void plan_table_size(const char *json, struct plan_table_size *size);

#endif
