/* Finds how much host memory can be pinned, by trial. No system interface reports the limit: the driver
 * ignores the locked-memory limit and free memory, and in a virtual machine (WSL2) the limit depends on the
 * host. */
#ifndef SLUICE_CUDA_PINNABLE_H
#define SLUICE_CUDA_PINNABLE_H

#ifdef __cplusplus
extern "C" {
#endif

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

/* Returns how many of `bytes` bytes (at most 64 GiB) can be pinned in addition to the memory already pinned
 * on this thread's GPU, within 64 KiB. Needs 16 MiB of memory for a while: the same pages are pinned
 * repeatedly at different addresses. Takes about 0.2 s per GiB (calculated, not measured). *refused: error of
 * the last failed attempt, or cudaSuccess; a lost GPU also fails here. */
uint64_t pinnable_try(uint64_t bytes, cudaError_t *refused);

/* True on Linux within Windows (WSL2), where only a trial shows the limit. */
bool pinnable_must_be_tried(void);

#ifdef __cplusplus
}
#endif

#endif
