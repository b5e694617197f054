/* Detection and selection of GPUs. */
#ifndef SLUICE_CUDA_GPUS_H
#define SLUICE_CUDA_GPUS_H

#include "kernels/cuda/cuda.h"

/* Checks that GPU number ordinal exists and has compute capability 8.0 or later, creates a context and makes
 * the GPU current for this thread. Fills info except free_bytes and library. Fails with USAGE, DEVICE or
 * MEMORY. */
enum status gpus_choose(int ordinal, struct cuda_info *info, struct error *e);

#endif
