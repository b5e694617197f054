/* Memory available without swapping. */
#ifndef SLUICE_BASE_FREE_MEMORY_H
#define SLUICE_BASE_FREE_MEMORY_H

#include <stdint.h>

/* Bytes available on the machine, or left by the control groups of this process if that is less. The page
 * cache counts as free. 0: unknown; otherwise at least 1. root: as in control_groups.h. Allocates nothing,
 * because it is called during runs when memory may be short. */
uint64_t free_memory_bytes(const char *root);

#endif
