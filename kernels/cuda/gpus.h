/* Selection of a GPU, and how much host memory it can pin. */
#ifndef SLUICE_CUDA_GPUS_H
#define SLUICE_CUDA_GPUS_H

#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/cudnn.h"

#include <cuda_runtime_api.h>

/* Checks that GPU number ordinal exists and has compute capability 8.0 or later, creates a context and makes
 * the GPU current for this thread. Fills info except free_bytes and library. Fails with USAGE, DEVICE or
 * MEMORY. */
enum status gpus_choose(int ordinal, struct cuda_info *info, struct error *e);

/* Lists in out the opened libraries (NULL: not opened) without kernels for the GPU, with the versions found
 * and needed. Empty: none. An old library opens without error on a newer GPU; its calls fail later, with
 * codes such as NOT_SUPPORTED. */
void gpus_outdated(const struct cuda_info *info, const struct products *products,
                   const struct convolutions *convolutions, char *out, size_t out_bytes);

/* Returns by trial how many of `bytes` bytes (at most 64 GiB) can be pinned in addition to memory already
 * pinned on this thread's GPU. Exact within 64 KiB. No system interface reports this limit: the driver
 * ignores the locked-memory limit and free memory, and in a virtual machine (WSL2) the limit depends on the
 * host. Needs 16 MiB of memory for a while: the same pages are pinned repeatedly at different addresses.
 * Takes about 0.2 s per GiB (calculated, not measured). *refused: error of the last failed attempt, or
 * cudaSuccess; a lost GPU also fails here. */
uint64_t gpus_try_pins(uint64_t bytes, cudaError_t *refused);

#endif
