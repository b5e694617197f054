#ifndef SLUICE_LOADERS_ALLOC_ARRAY_H
#define SLUICE_LOADERS_ALLOC_ARRAY_H

#include "engine/base/error.h"
#include "engine/base/sys.h"

/* Allocates n elements (0 allowed) of host memory; n may come from a file. NULL with
 * OVERFLOW or MEMORY. */
void *alloc_array(struct sys *sys, uint64_t n, uint64_t element_bytes, struct error *e);

#endif
