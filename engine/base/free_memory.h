/* How much memory other programs leave. */
#ifndef SLUICE_BASE_FREE_MEMORY_H
#define SLUICE_BASE_FREE_MEMORY_H

#include <stdint.h>

/* Memory that can be had without anybody swapping: the machine's, or what the limits of the process's control
 * groups leave if that is less. Pages that only cache files count as free in both. 0: not known, else at
 * least 1. root: as control_groups.h has it. Allocates nothing: it is asked in mid-run, when there may be
 * nothing left. */
uint64_t free_memory_bytes(const char *root);

#endif
