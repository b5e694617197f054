/* Atomic output files: a file appears complete under its name, or not at all.
 *
 * The data goes to an unnamed file (O_TMPFILE), or to a locked NAME.tmp.PID where the file system has no
 * unnamed files; then fsync, rename, close, fsync of the folder. The next file of the same name removes
 * abandoned NAME.tmp.PID (leftovers.h). An existing device or pipe is written in place, because renaming
 * would replace it. One file at a time. */
#ifndef SLUICE_CLI_OUTFILE_H
#define SLUICE_CLI_OUTFILE_H

#include "engine/sluice.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>

struct outfile {
    FILE *file;
    bool renames; /* false: the file is an existing device or pipe, written in place */
    bool unnamed; /* open with O_TMPFILE; the path `temporary` does not exist yet */
    char name[PATH_MAX], temporary[PATH_MAX];
};

/* Opens the file. Exit code 6 if it cannot be written; CANCELLED if a signal arrives while a pipe has no
 * reader. After failure nothing has to be closed. */
int outfile_open(struct outfile *out, const char *name, struct sluice_error *e);
/* Completes the file under its name. On failure the file is removed, as by outfile_abandon. */
int outfile_commit(struct outfile *out, struct sluice_error *e);
/* Closes and removes an unfinished file. */
void outfile_abandon(struct outfile *out);
/* Checks that outfile_open and outfile_commit can succeed, by creating and removing the temporary name. Pipes
 * are not opened. */
int outfile_probe(const char *name, struct sluice_error *e);
/* If name is a pipe: warns if it has no reader. A pipe with a reader stays open until outfile_open has opened
 * it, because closing it would end the reader. For at most 8 pipes. */
void outfile_check_pipe(const char *name);
/* The signal handler removes NAME.tmp.PID of the file `name`, which the library writes. NULL: none. */
void outfile_set_library_path(const char *name);
/* Removes the temporary files that are being written. Async-signal-safe. */
void outfile_unlink_in_handler(void);

/* Writes JSON and a newline to a file, or to stdout if name is "-". */
int outfile_write_text(const char *name, const char *text, struct sluice_error *e);
/* Flush stdout; exit code 6 on failure. outfile_flush_text: a reader that has closed the pipe is no error. */
int outfile_flush_stdout(struct sluice_error *e);
int outfile_flush_text(struct sluice_error *e);

#endif
