/* What killed processes leave, under names that end in ".tmp.PID": files that were to be renamed, and folders
 * that were being filled. Whoever still writes one has it locked (flock), on whatever machine. */
#ifndef SLUICE_CLI_LEFTOVERS_H
#define SLUICE_CLI_LEFTOVERS_H

#include <limits.h>

/* Beside `name`: what was to become it, if it is a file, and every folder with a mark. What is locked,
 * another user's or without mark stays. */
void leftovers_clear(const char *name);

/* A file in a folder that is being filled says so for as long as that process has it locked: makes it, and
 * returns it open, or -1 and errno. Closing it takes the lock away. */
int leftovers_mark(const char *folder);
/* The folder is whole: 0, or -1 and errno. */
int leftovers_unmark(const char *folder);

/* A folder with all that is in it. */
void leftovers_remove_tree(const char *folder);

/* The folder of name, with its last slash, in out; the rest is returned. NULL: too long. */
const char *leftovers_folder(const char *name, char out[PATH_MAX]);

#endif
