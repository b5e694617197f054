#ifndef SLUICE_LOADERS_ALLOC_ARRAY_H
#define SLUICE_LOADERS_ALLOC_ARRAY_H

#include "engine/base/error.h"
#include "engine/base/sys.h"

/* Allocates n elements (0 allowed) of host memory; n may come from a file. NULL with
 * OVERFLOW or MEMORY. */
void *alloc_array(struct sys *sys, uint64_t n, uint64_t element_bytes, struct error *e);
/* Returns an allocated copy of the bytes with a NUL appended; NULL with MEMORY in *e. */
char *copy_text(struct sys *sys, const char *from, uint64_t bytes, struct error *e);

#endif
