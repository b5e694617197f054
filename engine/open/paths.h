/* Paths, and whether something is there. */
#ifndef SLUICE_OPEN_PATHS_H
#define SLUICE_OPEN_PATHS_H

#include "engine/base/error.h"
#include "engine/base/sys.h"

#include <stdbool.h>

/* Joins two parts of a path; freed with sys->release. NULL: no memory. */
char *path_join(struct sys *sys, const char *folder, const char *name);
/* A link that leads nowhere is there: what it should lead to is missing, and reading it says so. So is what
 * nobody may look at. */
bool path_exists(const char *path);
/* Do both lead to one file? Through links of either kind too. */
bool path_same(const char *a, const char *b);
bool path_is_folder(const char *path);
/* From its last part on, which slashes may follow. */
const char *path_last_part(const char *path);
/* Is that one of the name's words, between other characters than letters and digits, in letters of any size?
 */
bool path_has_word(const char *name, const char *word);

/* These give new paths, freed with sys->release, or NULL with MEMORY in *e. A copy has no slashes at its end:
 * a file's name must not have one. */
char *path_copy(struct sys *sys, const char *path, struct error *e);
/* The folder in which a file or folder lies. */
char *path_folder(struct sys *sys, const char *path, struct error *e);
/* What is there under that name; NULL also where nothing is. */
char *path_existing(struct sys *sys, const char *folder, const char *name, struct error *e);

#endif
