/* Names of the pictures, and the checks before any work that everything asked for can be written. */
#ifndef SLUICE_CLI_OUTPUT_H
#define SLUICE_CLI_OUTPUT_H

#include "cli/args.h"

#include <limits.h>

/* The name of picture number (from 1) of n: %d replaced, else -NUMBER before the extension when n > 1. */
int output_name(const char *pattern, int number, int n, char out[PATH_MAX], struct sluice_error *e);
/* Extensions, folders, that no two outputs are one file and none an input. n pictures; exit 2 or 6. Leaves
 * nothing behind but the folder of --dump. */
int output_check(const struct args *args, int n, struct sluice_error *e);
/* Is --report a file of its own, and no input? Where it is not, no report may be written, not even of this
 * mistake. */
int output_check_report(const struct args *args, int n, struct sluice_error *e);
/* What -o says, or its default. */
const char *output_pattern(const struct args *args);

#endif
