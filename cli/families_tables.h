/* The list of families with their plans, as a table for a terminal and as those of models/README.md. */
#ifndef SLUICE_CLI_FAMILIES_TABLES_H
#define SLUICE_CLI_FAMILIES_TABLES_H

#include <jansson.h>

enum { FAMILIES_CELL = 128 };

/* Cells of a plan, into out; return out. "1.3 + 0.8": the least of GPU and host, GiB, or of a processor's. */
char *families_least(const json_t *plan, char out[FAMILIES_CELL]);
/* "3.1 s, 246 s": a step, all; "-" where it does not fit. */
char *families_times(const json_t *plan, char out[FAMILIES_CELL]);
/* What of a repository: "the folder", "`ae.safetensors`, 0.335" (10^9 bytes) with that quote around it. */
char *families_files(const json_t *source, const char *quote, char out[FAMILIES_CELL]);

/* To stdout; root: the library's list with plans (families_plans.h). */
void families_print_plans(json_t *root);
void families_markdown(json_t *root);

#endif
