/* Paths: joining, copying, and tests on the file system. */
#ifndef SLUICE_OPEN_PATHS_H
#define SLUICE_OPEN_PATHS_H

#include "engine/base/error.h"
#include "engine/base/sys.h"

#include <stdbool.h>

/* Joins two parts of a path; freed with sys->release. NULL: no memory. */
char *path_join(struct sys *sys, const char *folder, const char *name);
/* True if something has that path. A broken symbolic link counts, and so does a path without permission to
 * look: reading it then reports the reason. */
bool path_exists(const char *path);
/* True if both paths lead to the same file, through symbolic or hard links too. */
bool path_same(const char *a, const char *b);
bool path_is_folder(const char *path);
/* True in /proc, /sys and other file systems that the kernel makes up: no model lies there, and links in
 * /proc lead anywhere. */
bool path_is_on_kernel_files(const char *path);
/* Pointer to the last part of the path; slashes may follow that part. */
const char *path_last_part(const char *path);
/* True if `word` stands in `name` between characters that are neither letters nor digits; ignores case. */
bool path_has_word(const char *name, const char *word);

/* These return new paths, freed with sys->release, or NULL with MEMORY in *e. The copy has no trailing slash,
 * because open() refuses a file name with one. */
char *path_copy(struct sys *sys, const char *path, struct error *e);
/* The parent folder of a file or folder; "." for a bare name. */
char *path_folder(struct sys *sys, const char *path, struct error *e);
/* folder/name if it exists; NULL without an error if it does not. */
char *path_existing(struct sys *sys, const char *folder, const char *name, struct error *e);

#endif
