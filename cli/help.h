/* --help (at most 24 lines) and --help-all, printed from the tables of flags.h, 80 columns wide. */
#ifndef SLUICE_CLI_HELP_H
#define SLUICE_CLI_HELP_H

#include "cli/flags.h"

#include <stdio.h>

/* Prints the help of a command. all: every flag in full; else at most 15 flags with their first clause. */
void help_command(const struct command *command, bool all);
void help_program(void);
/* Prints the full help of every command. */
void help_everything(void);

/* Copies the first clause of a flag's help text into out; returns out. */
char *help_clause(const struct flag *flag, char *out, size_t out_bytes);
/* The placeholder of a flag's value ("FILE") or a short list of its choices; NULL for a switch. */
const char *help_value(const struct flag *flag);

#endif
