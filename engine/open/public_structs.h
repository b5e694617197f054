/* Copies between the structures of the public header (engine/sluice.h) and the engine's structures. */
#ifndef SLUICE_OPEN_PUBLIC_STRUCTS_H
#define SLUICE_OPEN_PUBLIC_STRUCTS_H

#include "engine/base/error.h"
#include "engine/sluice.h"

#include <stddef.h>

/* Copies a public structure that may be shorter or longer than this build's (struct_size). */
void copy_sized(void *to, size_t to_bytes, const void *from);

/* Copies an error to its public form. Returns the error's code. */
int publish_error(const struct error *e, struct sluice_error *public);
/* Copies a callback's error from its public form to *e. Returns the error's code. */
enum status adopt_error(const struct sluice_error *public, struct error *e);

#endif
