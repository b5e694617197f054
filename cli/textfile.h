/* Reads a whole text file that a flag names. */
#ifndef SLUICE_CLI_TEXTFILE_H
#define SLUICE_CLI_TEXTFILE_H

#include "engine/sluice.h"

#include <stddef.h>

/* Reads a file, or stdin if path is "-", into *text: at most bytes_max + 1 bytes and a final NUL; the caller
 * frees it. Returns 0 or an errno. A pipe is read to its end; EPIPE if no process opens it for writing within
 * a second. EINTR after a signal. */
int textfile_read_bytes(const char *path, size_t bytes_max, char **text, size_t *bytes);

/* The error of textfile_read_bytes in words. */
const char *textfile_problem(int problem);

struct textfile_kind {
    const char *what; /* for messages: "the plan" */
    size_t bytes_max;
    int too_large; /* the error code for a larger file; a regular file is then not read */
};

/* Reads a text file into *text, NUL-terminated; the caller frees it. Refuses NUL bytes in the file. Other
 * failures exit with 3, lack of memory with 5. */
int textfile_read(const char *path, const struct textfile_kind *kind, char **text, struct sluice_error *e);

#endif
