/* A text file that a flag names, read whole. */
#ifndef SLUICE_CLI_TEXTFILE_H
#define SLUICE_CLI_TEXTFILE_H

#include "engine/sluice.h"

#include <stddef.h>

/* Any file's bytes, stdin's where path is "-", terminated and freed with free, up to one more than bytes_max:
 * *bytes tells. Returns 0 or errno. A pipe is read to its end, but one that nobody has opened for writing is
 * not waited for: EPIPE. EINTR after a signal. */
int textfile_read_bytes(const char *path, size_t bytes_max, char **text, size_t *bytes);

/* What textfile_read_bytes returned, in words. */
const char *textfile_problem(int problem);

struct textfile_kind {
    const char *what; /* how messages call it: "the plan" */
    size_t bytes_max;
    int too_large; /* the code of one that is larger: which is not read if it is a regular file */
};

/* *text is terminated and freed with free. A NUL in the file ends the text for whoever reads it as a string,
 * so it is refused. Exit 3 for all else but lack of memory. */
int textfile_read(const char *path, const struct textfile_kind *kind, char **text, struct sluice_error *e);

#endif
