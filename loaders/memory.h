/* Memory for what files say there is: sizes are checked, and lacking it is an error that names them. */
#ifndef SLUICE_LOADERS_MEMORY_H
#define SLUICE_LOADERS_MEMORY_H

#include "engine/base/error.h"
#include "engine/base/sys.h"

/* sys->alloc of n elements under LINE_HOST; NULL with MEMORY or OVERFLOW. n may be 0. */
void *alloc_array(struct sys *sys, uint64_t n, uint64_t element_bytes, struct error *e);
/* A copy of bytes and a NUL, or NULL with MEMORY. */
char *copy_text(struct sys *sys, const char *from, uint64_t bytes, struct error *e);

#endif
