/* Checks the arguments of the library's public functions. */
#ifndef SLUICE_API_ARGUMENTS_H
#define SLUICE_API_ARGUMENTS_H

#include "engine/base/error.h"

#include <stdbool.h>
#include <stddef.h>

/* Returns false, with USAGE, if the pointer argument is NULL. name: the argument's name in the public header.
 */
bool check_not_null(const void *pointer, const char *name, struct error *e);
/* Returns false, with USAGE, if the pointer to a public struct is NULL or its struct_size is 0. */
bool check_struct_size(const void *pointer, const char *name, struct error *e);
/* Returns false, with USAGE, if a session cannot run with this number of CPU threads. */
bool check_threads(int threads, struct error *e);

#endif
