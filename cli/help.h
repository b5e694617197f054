/* --help and --help-all, from the tables. No line is wider than 80 columns, and --help fits 24 lines. */
#ifndef SLUICE_CLI_HELP_H
#define SLUICE_CLI_HELP_H

#include "cli/flags.h"

#include <stdio.h>

/* all: every flag, with all that there is to say; else the ten that matter most, a clause each. */
void help_command(const struct command *command, bool all);
void help_program(void);
/* Every command's help_command. */
void help_everything(void);

/* The first clause of a flag's help into out; returns out. */
char *help_clause(const struct flag *flag, char *out, size_t out_bytes);
/* What a flag's value is called, or may be; NULL for a switch. */
const char *help_value(const struct flag *flag);

#endif
