/* What the library answers as JSON: for programs as it is, for people as a command prints it. */
#ifndef SLUICE_CLI_ANSWER_H
#define SLUICE_CLI_ANSWER_H

#include "cli/args.h"

#include <jansson.h>

/* Prints an answer to stdout. what: names it in the error of one that is no JSON. print: sees strings that
 * plain_make has been through. Returns SLUICE_OK or *e's code. */
int answer_show(const struct args *args, const char *json, const char *what, void (*print)(json_t *root),
                struct sluice_error *e);
/* The same of a call that returned status: prints nothing unless that is SLUICE_OK, else returns it; frees
 * json (NULL: there is none). */
int answer_print(const struct args *args, int status, char *json, const char *what,
                 void (*print)(json_t *root), struct sluice_error *e);

#endif
