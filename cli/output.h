/* Names of the pictures, and the checks before any work that everything asked for can be written. */
#ifndef SLUICE_CLI_OUTPUT_H
#define SLUICE_CLI_OUTPUT_H

#include "cli/args.h"

#include <limits.h>

/* Which pictures names are made for. */
struct output_of {
    int number, n;       /* from 1, of so many */
    uint64_t first_seed; /* of number 1 */
};

/* %d is the number, %03d of so many digits, %s the seed, %% a %; without, -NUMBER before the extension when
 * n > 1. */
int output_name(const char *pattern, const struct output_of *of, char out[PATH_MAX], struct sluice_error *e);
/* Extensions, folders, that no two outputs are one file and none an input. Of all that are numbered; exit 2
 * or
 * 6. Leaves nothing behind but the folder of --dump. */
int output_check(const struct args *args, struct output_of of, struct sluice_error *e);
/* USAGE where the format has no pictures of such sides as are asked for. */
int output_check_side(const struct args *args, const struct sluice_request *request, struct sluice_error *e);
/* Is --report a file of its own, and no input? Where it is not, no report may be written, not even of this
 * mistake. */
int output_check_report(const struct args *args, struct output_of of, struct sluice_error *e);
/* What -o says, or its default. */
const char *output_pattern(const struct args *args);

#endif
