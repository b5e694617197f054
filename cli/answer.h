/* Prints JSON from the library: unchanged with --json, otherwise as text. */
#ifndef SLUICE_CLI_ANSWER_H
#define SLUICE_CLI_ANSWER_H

#include "cli/args.h"

#include <jansson.h>

/* Prints json to stdout. what: its name in the error for invalid JSON. print: prints the text; gets strings
 * cleaned by sanitize_text. Returns SLUICE_OK or the code of *e. */
int answer_show(const struct args *args, const char *json, const char *what, void (*print)(json_t *root),
                struct sluice_error *e);
/* answer_show for the result of a library call: prints only if status is SLUICE_OK, otherwise returns status.
 * Frees json, which may be NULL. */
int answer_print(const struct args *args, int status, char *json, const char *what,
                 void (*print)(json_t *root), struct sluice_error *e);

#endif
