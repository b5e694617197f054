/* The command line of sluice-dev and its two commands. */
#ifndef SLUICE_DEV_DEV_H
#define SLUICE_DEV_DEV_H

#include "engine/sluice.h"

#include <stdbool.h>

struct dev_args {
    const char *operands[2]; /* positional arguments; `checkpoint`: FAMILY, then DIR or FILE */
    int n_operands;
    const char *dimensions, *adapter, *clock; /* flag values as typed; NULL: flag not given */
    int rank, threads;                        /* 0: flag not given */
    uint64_t seed;
    bool text_encoders, json, quiet, no_progress;
};

/* The commands of sluice-dev write their results to stdout or to files. They return SLUICE_OK, or an error
 * code with *e filled. */
int checkpoint_command(const struct dev_args *args, struct sluice_error *e);
int stream_command(const struct dev_args *args, struct sluice_error *e);

#endif
