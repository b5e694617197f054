/* Which GPUs there are, and whether one of them will do. */
#ifndef SLUICE_CUDA_GPUS_H
#define SLUICE_CUDA_GPUS_H

#include "engine/base/error.h"

/* GPU number ordinal is there, of compute capability 8.0 or later, has a context, and is this thread's.
 * USAGE, DEVICE, MEMORY. */
enum status gpus_choose(int ordinal, struct error *e);

#endif
