/* The list of families with their plans, as a table for a terminal and as those of models/README.md. */
#ifndef SLUICE_CLI_FAMILIES_TABLES_H
#define SLUICE_CLI_FAMILIES_TABLES_H

#include <jansson.h>

/* To stdout; root: the library's list with plans (families_plans.h). */
void families_print_plans(json_t *root);
void families_markdown(json_t *root);

#endif
