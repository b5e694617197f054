/* --help, from the tables of flags and commands. Written to stdout. */
#ifndef SLUICE_CLI_HELP_H
#define SLUICE_CLI_HELP_H

#include "cli/flags.h"

void help_program(void);
void help_command(const struct command *command);

#endif
