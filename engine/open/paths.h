#ifndef SLUICE_OPEN_PATHS_H
#define SLUICE_OPEN_PATHS_H

#include "engine/base/error.h"
#include "engine/base/sys.h"

#include <stdbool.h>

/* Joins two parts of a path; freed with sys->release. NULL: no memory. */
char *path_join(struct sys *sys, const char *folder, const char *name);
/* True if a file or folder has the path. True also for broken symbolic links and for paths without access
 * permission, because the later attempt to read them reports the reason. */
bool path_exists(const char *path);
/* True if both paths lead to the same file, through symbolic or hard links too. */
bool path_same(const char *a, const char *b);
bool path_is_folder(const char *path);
/* True if the path is in /proc, /sys or another virtual file system. Virtual file systems hold no models, and
 * links in /proc may lead anywhere. */
bool path_is_on_kernel_files(const char *path);
/* Pointer to the last part of a path, with any trailing slashes. */
const char *path_last_part(const char *path);
/* True if `name` contains `word`, in upper or lower case, with no letter or digit directly before or
 * after. */
bool path_has_word(const char *name, const char *word);

/* Returns a copy of a path without trailing slashes, because open() refuses a file name with a trailing
 * slash; freed with sys->release. NULL with MEMORY in *e. */
char *path_copy(struct sys *sys, const char *path, struct error *e);
/* Returns a path's parent folder, "." for a bare name; freed with sys->release. NULL with MEMORY in *e. */
char *path_folder(struct sys *sys, const char *path, struct error *e);
/* Returns the path folder/name, freed with sys->release. NULL if no such file or folder exists (no error), or
 * with MEMORY in *e. */
char *path_existing(struct sys *sys, const char *folder, const char *name, struct error *e);

#endif
