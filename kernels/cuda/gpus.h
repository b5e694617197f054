/* Which GPUs there are, and whether one of them will do. */
#ifndef SLUICE_CUDA_GPUS_H
#define SLUICE_CUDA_GPUS_H

#include "engine/base/error.h"

#include <stdint.h>

/* GPU number ordinal is there, of compute capability 8.0 or later, has a context, and is this thread's.
 * *bytes: all its memory. USAGE, DEVICE, MEMORY. */
enum status gpus_choose(int ordinal, uint64_t *bytes, struct error *e);

#endif
