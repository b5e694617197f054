/* A file that appears whole under its name, or not at all.
 *
 * Written without a name, or where the system has no such files as NAME.tmp.PID, which is locked, in the same
 * folder; then fsync, rename, close, fsync of the folder. What killed processes left of NAME so goes with the
 * next. Something that
 * is there and is no regular file (a device, a pipe) is written in place: renaming would replace it. One at a
 * time. */
#ifndef SLUICE_CLI_OUTFILE_H
#define SLUICE_CLI_OUTFILE_H

#include "engine/sluice.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>

struct outfile {
    FILE *file; /* write here; buffered */
    bool renames;
    bool unnamed; /* temporary is not there yet */
    char name[PATH_MAX], temporary[PATH_MAX];
};

/* Opens it; exit 6 where it cannot be written, CANCELLED if a signal came while a pipe had no reader. On
 * failure there is nothing to close. */
int outfile_open(struct outfile *out, const char *name, struct sluice_error *e);
/* Brings it under its name; on failure it is gone as after outfile_abandon. */
int outfile_commit(struct outfile *out, struct sluice_error *e);
/* Closes and removes it. */
void outfile_abandon(struct outfile *out);
/* Would outfile_open succeed? Leaves no trace. */
int outfile_probe(const char *name, struct sluice_error *e);
/* The library writes name itself, the same way. NULL: no longer. */
void outfile_of_library(const char *name);
/* Removes the temporary files that are being written, if there are any. */
void outfile_unlink_in_handler(void);

/* JSON and a newline to a file, or to stdout if name is "-". */
int outfile_write_text(const char *name, const char *text, struct sluice_error *e);
/* fflush of stdout with its error: exit 6. */
int outfile_flush_stdout(struct sluice_error *e);
/* The same for text that people and scripts read: who closed the pipe has read enough, and that is no error.
 */
int outfile_flush_text(struct sluice_error *e);

#endif
