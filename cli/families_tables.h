/* Prints the list of families with their plans: for a terminal, and as the tables of models/README.md. */
#ifndef SLUICE_CLI_FAMILIES_TABLES_H
#define SLUICE_CLI_FAMILIES_TABLES_H

#include <jansson.h>

enum { FAMILIES_CELL = 128 };

/* Writes a plan's minimum memory, "1.3 + 0.8": VRAM and RAM in GiB; on a CPU only RAM. Returns out. */
char *families_least(const json_t *plan, char out[FAMILIES_CELL]);
/* Writes a plan's times, "3.1 s, 246 s": per step and in total; "-" if the plan does not fit. Returns out. */
char *families_times(const json_t *plan, char out[FAMILIES_CELL]);
/* Writes a source's files: "the folder" or "`ae.safetensors`, 0.335" (GB, quote "`"). Returns out. */
char *families_files(const json_t *source, const char *quote, char out[FAMILIES_CELL]);

/* Print to stdout. root: the library's list with plans (families_plans.h). */
void families_print_plans(json_t *root);
void families_markdown(json_t *root);

#endif
