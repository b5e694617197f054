#ifndef SLUICE_BASE_FREE_MEMORY_H
#define SLUICE_BASE_FREE_MEMORY_H

#include <stdint.h>

/* Free memory of the machine in bytes without swapping, or the bytes that this process's control groups
 * leave, if fewer. The page cache counts as free. Returns 0 if unknown, otherwise at least 1. root: as in
 * control_groups.h. Allocates nothing, because it runs while memory may be short. */
uint64_t free_memory_bytes(const char *root);

#endif
