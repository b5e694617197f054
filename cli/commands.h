/* The commands. Each function writes the result of its command to stdout, and returns SLUICE_OK or a code
 * with *e filled. */
#ifndef SLUICE_CLI_COMMANDS_H
#define SLUICE_CLI_COMMANDS_H

#include "cli/args.h"

int generate_command(const struct args *args, struct sluice_error *e);
int decode_command(const struct args *args, struct sluice_error *e);
int plan_command(const struct args *args, struct sluice_error *e);
int inspect_command(const struct args *args, struct sluice_error *e);
int tokenize_command(const struct args *args, struct sluice_error *e);
int convert_command(const struct args *args, struct sluice_error *e);
int bench_command(const struct args *args, struct sluice_error *e);
/* Error for `sluice bench NAME` if NAME is a command of sluice-dev now; SLUICE_OK for every other name. */
int bench_check_moved(const char *name, struct sluice_error *e);
int devices_command(const struct args *args, struct sluice_error *e);
/* For runs without --device: prints a note with the reason if no GPU can be used. */
void devices_note_cpu(void);
int families_command(const struct args *args, struct sluice_error *e);
int completion_command(const struct args *args, struct sluice_error *e);
int manual_command(const struct args *args, struct sluice_error *e);

#endif
