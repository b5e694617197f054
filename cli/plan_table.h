/* What people and runs read from a plan's JSON. */
#ifndef SLUICE_CLI_PLAN_TABLE_H
#define SLUICE_CLI_PLAN_TABLE_H

#include "engine/sluice.h"

#include <stdbool.h>
#include <stdio.h>

/* The plan as a table for people; bytes: with budgets to the byte. */
int plan_table_print(FILE *to, const char *json, bool bytes, struct sluice_error *e);
/* What the request of this plan makes; 1 where it does not say how many. */
struct plan_table_size {
    int batch, frames, width, height;
};
void plan_table_size(const char *json, struct plan_table_size *size);

#endif
