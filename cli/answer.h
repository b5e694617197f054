/* Prints JSON from the library: unchanged with --json, otherwise as text. */
#ifndef SLUICE_CLI_ANSWER_H
#define SLUICE_CLI_ANSWER_H

#include "cli/args.h"

#include <jansson.h>

/* Prints json to stdout. what: name of the JSON in the error if it is invalid. print: prints the text form;
 * its strings are cleaned by sanitize_text. Returns SLUICE_OK or the code of *e. */
int answer_show(const struct args *args, const char *json, const char *what, void (*print)(json_t *root),
                struct sluice_error *e);
/* Calls answer_show if the library call that made json returned SLUICE_OK (status). Frees json. */
int answer_print(const struct args *args, int status, char *json, const char *what,
                 void (*print)(json_t *root), struct sluice_error *e);

#endif
