/* Reads a whole text file that a flag names. */
#ifndef SLUICE_CLI_TEXTFILE_H
#define SLUICE_CLI_TEXTFILE_H

#include "engine/sluice.h"

#include <stddef.h>

/* Reads a file, or stdin if path is "-", into *text: at most bytes_max + 1 bytes and a final NUL; the
 * caller frees it. Returns 0 or an errno: EPIPE if no process opens a pipe for writing within a second,
 * EINTR after a signal. */
int textfile_read_bytes(const char *path, size_t bytes_max, char **text, size_t *bytes);

/* The error of textfile_read_bytes in words. */
const char *textfile_problem(int problem);

struct textfile_kind {
    const char *what; /* name in messages, such as "the plan" */
    size_t bytes_max;
    int too_large; /* error code for a file above bytes_max; a regular file is then not read */
};

/* Reads a text file into *text, NUL-terminated; the caller frees it. NUL bytes are an
 * error. Exit codes: 5 if out of memory, else 3. */
int textfile_read(const char *path, const struct textfile_kind *kind, char **text, struct sluice_error *e);

#endif
