/* Removes files and folders named NAME.tmp.PID of killed processes. A process that is still
 * writing holds a lock (flock), which also works between machines that share a file system. */
#ifndef SLUICE_CLI_LEFTOVERS_H
#define SLUICE_CLI_LEFTOVERS_H

#include <limits.h>

/* Removes abandoned files NAME.tmp.PID of `name`, and every abandoned folder *.tmp.PID next to it that has a
 * lock file. Keeps entries that are locked or belong to another user. */
void leftovers_clear(const char *name);

/* Creates and locks the lock file of a temporary folder. Returns its descriptor, or -1 with errno. Closing
 * the descriptor releases the lock. */
int leftovers_lock(const char *folder);
/* Removes the lock file, when the folder is complete. Returns 0, or -1 with errno. */
int leftovers_unlock(const char *folder);

void leftovers_remove_tree(const char *folder);

/* Splits a path: writes its folder with the final slash ("./" if there is none) to out and returns the base
 * name. NULL: too long. */
const char *leftovers_folder(const char *name, char out[PATH_MAX]);

#endif
