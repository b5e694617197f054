#ifndef SLUICE_BASE_FREE_MEMORY_H
#define SLUICE_BASE_FREE_MEMORY_H

#include <stdint.h>

/* Free memory in bytes, without swapping: of the machine, or left by this process's control groups if that is
 * less. The page cache counts as free. 0: unknown; otherwise at least 1. root: as in control_groups.h.
 * Allocates nothing, because it runs while memory may be short. */
uint64_t free_memory_bytes(const char *root);

#endif
