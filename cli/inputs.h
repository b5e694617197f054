/* What a command reads, so that nothing it writes takes the place of any of it: a model, a latent or a prompt
 * that is gone cannot be had again by running once more. */
#ifndef SLUICE_CLI_INPUTS_H
#define SLUICE_CLI_INPUTS_H

#include "cli/args.h"

#include <limits.h>
#include <stdbool.h>

/* The folder that name lies in, its links resolved. False if it is not there. */
bool inputs_folder_of(const char *name, char out[PATH_MAX]);

/* May the file that flag names be written? Not if it is, through links too, a file that another flag reads,
 * lies in a folder that a flag gives as a model or a part of one, or beside a part's file and is read with
 * it, or is called as an adapter and lies in the folder of those that prompts name. What is not there yet
 * may, wherever it is; so may devices, pipes and "-". USAGE naming both flags. */
int inputs_spared(const struct args *args, const char *flag, const char *name, struct sluice_error *e);

#endif
