/* A text file that a flag names, read whole. */
#ifndef SLUICE_CLI_TEXTFILE_H
#define SLUICE_CLI_TEXTFILE_H

#include "engine/sluice.h"

#include <stddef.h>

/* Any file's bytes, terminated and freed with free, up to one more than bytes_max: *bytes tells. Returns 0 or
 * errno. A pipe is read to its end, but one that nobody has opened for writing is not waited for: EPIPE. */
int textfile_read_bytes(const char *path, size_t bytes_max, char **text, size_t *bytes);

/* What textfile_read_bytes returned, in words. */
const char *textfile_problem(int problem);

/* *text is terminated and freed with free; what: how the message calls it ("the plan"). A NUL in the file
 * ends the text for whoever reads it as a string, so it is refused. Exit 3 for all but lack of memory. */
int textfile_read(const char *path, const char *what, size_t bytes_max, char **text, struct sluice_error *e);

#endif
