/* The commands, their help, and how they print JSON of the library. */
#ifndef SLUICE_CLI_COMMANDS_H
#define SLUICE_CLI_COMMANDS_H

#include "cli/args.h"

#include <jansson.h>

/* Each writes the result of its command to stdout, and returns SLUICE_OK or a code with *e filled. */
int generate_command(const struct args *args, struct sluice_error *e);
int upscale_command(const struct args *args, struct sluice_error *e);
int decode_command(const struct args *args, struct sluice_error *e);
int plan_command(const struct args *args, struct sluice_error *e);
int inspect_command(const struct args *args, struct sluice_error *e);
int tokenize_command(const struct args *args, struct sluice_error *e);
int convert_command(const struct args *args, struct sluice_error *e);
int bench_command(const struct args *args, struct sluice_error *e);
/* Error for `sluice bench NAME` if NAME has moved to the program sluice-dev, else SLUICE_OK. */
int bench_check_moved(const char *name, struct sluice_error *e);
int devices_command(const struct args *args, struct sluice_error *e);
/* Prints notes before a run: without --device, why no GPU can be used; on a GPU, that NVIDIA_TF32_OVERRIDE=0
 * slows convolutions. device: --device or NULL. */
void devices_note(const char *device);
int families_command(const struct args *args, struct sluice_error *e);
int completion_command(const struct args *args, struct sluice_error *e);
int manual_command(const struct args *args, struct sluice_error *e);

/* Print --help (at most 24 lines) or --help-all of a command, the program's help, and the full help of every
 * command, 80 columns wide. */
void help_command(const struct command *command, bool all);
void help_program(void);
void help_everything(void);

/* Prints json to stdout. what: name of the JSON in the error if it is invalid. print: prints the text form;
 * its strings are cleaned by sanitize_text. Returns SLUICE_OK or the code of *e. */
int answer_show(const struct args *args, const char *json, const char *what, void (*print)(json_t *root),
                struct sluice_error *e);
/* Calls answer_show if the library call that made json returned SLUICE_OK (status). Frees json. */
int answer_print(const struct args *args, int status, char *json, const char *what,
                 void (*print)(json_t *root), struct sluice_error *e);

#endif
