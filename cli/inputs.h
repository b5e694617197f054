/* Refuses outputs that would overwrite an input: a lost model, latent or prompt cannot be generated again. */
#ifndef SLUICE_CLI_INPUTS_H
#define SLUICE_CLI_INPUTS_H

#include "cli/args.h"

#include <limits.h>
#include <stdbool.h>

/* The folder of the file `name`, with links resolved. False if the folder does not exist. */
bool inputs_folder_of(const char *name, char out[PATH_MAX]);

/* Fails with USAGE and both flags if the existing file `name` of the output flag is an input: a file that
 * another flag reads (also through links), a file in the folder of a model or part, a companion of a
 * part's file, or a .safetensors file in --lora-dir. New files, devices, pipes and "-" are allowed. */
int inputs_check_output(const struct args *args, const char *flag, const char *name, struct sluice_error *e);

#endif
