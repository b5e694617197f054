/* Output files that appear complete under their name or not at all, and the signals that cancel a run and
 * remove its temporary files.
 *
 * The data goes to an unnamed file (O_TMPFILE), or to a locked NAME.tmp.PID where the file system has no
 * unnamed files; then fsync, rename, close, fsync of the folder. An existing device or pipe is written in
 * place, because renaming would replace it. One file at a time.
 *
 * Files and folders NAME.tmp.PID that a killed process left behind are removed when the next output of that
 * name is opened. A process that is still writing holds a lock (flock), which also works between machines
 * that share a file system. */
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
/* The signal handler removes NAME.tmp.PID of `name`, a file that the library writes. NULL: no file. */
void outfile_set_library_path(const char *name);

/* Writes JSON and a newline to a file, or to stdout if name is "-". */
int outfile_write_text(const char *name, const char *text, struct sluice_error *e);
/* Flush stdout; exit code 6 on failure. outfile_flush_text: a reader that has closed the pipe is no error. */
int outfile_flush_stdout(struct sluice_error *e);
int outfile_flush_text(struct sluice_error *e);

/* Removes abandoned files NAME.tmp.PID of `name`, and every abandoned folder *.tmp.PID next to it that has a
 * lock file. Keeps entries that are locked or belong to another user. */
void leftovers_clear(const char *name);
/* Creates and locks the lock file of a temporary folder. Returns its descriptor, or -1 with errno. Closing
 * the descriptor releases the lock. */
int leftovers_lock(const char *folder);
/* Removes the lock file of a temporary folder, when the folder is complete. Returns 0, or -1 with errno. */
int leftovers_unlock(const char *folder);
/* Removes a folder with everything in it. */
void leftovers_remove_tree(const char *folder);
/* Splits a path: writes its folder with the final slash ("./" if there is none) to out and returns the base
 * name. Returns NULL if the folder does not fit. */
const char *leftovers_folder(const char *name, char out[PATH_MAX]);

/* Installs the handlers of SIGINT (Ctrl-C), SIGTERM and SIGHUP (closed terminal): until interrupt_gracefully
 * is called the first signal exits; afterwards it cancels the watched session, and the second one exits.
 * Temporary files are removed in every case. Ignores SIGPIPE, so that writing to a closed pipe fails. */
void interrupt_install(void);
/* After this call the first signal does not exit: the caller polls interrupt_pending and cleans up itself. */
void interrupt_gracefully(void);
/* Sets the session that a signal cancels. Pass NULL before closing the session. */
void interrupt_watch(sluice_session *session);
/* True after a signal. Cancels the watched session again, because sluice_cancel has no effect before the run
 * begins; callbacks of the run therefore call this. */
bool interrupt_pending(void);
/* Fills the error of a cancelled run. */
int interrupt_error(struct sluice_error *error);

#endif
