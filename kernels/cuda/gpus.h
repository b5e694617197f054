/* Which GPUs there are, and whether one of them will do. */
#ifndef SLUICE_CUDA_GPUS_H
#define SLUICE_CUDA_GPUS_H

#include "kernels/cuda/cuda.h"

/* GPU number ordinal is there, of compute capability 8.0 or later, has a context, and is this thread's.
 * Of info all but free_bytes and library is filled in. USAGE, DEVICE, MEMORY. */
enum status gpus_choose(int ordinal, struct cuda_info *info, struct error *e);

#endif
