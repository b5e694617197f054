/* Checks the arguments of public functions, and copies between the structures of the public header
 * (engine/sluice.h) and the engine's structures. */
#ifndef SLUICE_OPEN_PUBLIC_STRUCTS_H
#define SLUICE_OPEN_PUBLIC_STRUCTS_H

#include "engine/base/error.h"
#include "engine/sluice.h"

#include <stdbool.h>
#include <stddef.h>

/* Copies a public structure that may be shorter or longer than this build's (struct_size). */
void copy_sized(void *to, size_t to_bytes, const void *from);

/* Copies an error to its public form. Returns the error's code. */
int publish_error(const struct error *e, struct sluice_error *public);
/* Copies a callback's error from its public form to *e. Returns the error's code. */
enum status adopt_error(const struct sluice_error *public, struct error *e);

/* Returns false, with USAGE, if the pointer argument is NULL. name: the argument's name in the public header.
 */
bool check_not_null(const void *pointer, const char *name, struct error *e);
/* Returns false, with USAGE, if the pointer to a public struct is NULL or its struct_size is 0. */
bool check_struct_size(const void *pointer, const char *name, struct error *e);
/* Returns false, with USAGE, if a session cannot run with this number of CPU threads. */
bool check_threads(int threads, struct error *e);

#endif
