/* Prints the list of families with their plans: for a terminal, and as the tables of models/README.md. */
#ifndef SLUICE_CLI_FAMILIES_TABLES_H
#define SLUICE_CLI_FAMILIES_TABLES_H

#include <jansson.h>

enum { FAMILIES_CELL = 128 };

/* Write cells of a plan into out and return out. "1.3 + 0.8": minimum VRAM and RAM in GiB; on a CPU only RAM.
 */
char *families_least(const json_t *plan, char out[FAMILIES_CELL]);
/* "3.1 s, 246 s": time per step, total; "-" if it does not fit. */
char *families_times(const json_t *plan, char out[FAMILIES_CELL]);
/* The files of a source: "the folder", or "`ae.safetensors`, 0.335" (10^9 bytes); quote surrounds the name.
 */
char *families_files(const json_t *source, const char *quote, char out[FAMILIES_CELL]);

/* Print to stdout. root: the library's list with plans (families_plans.h). */
void families_print_plans(json_t *root);
void families_markdown(json_t *root);

#endif
