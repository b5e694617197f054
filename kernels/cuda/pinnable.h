/* How much of the host's memory the system lets be pinned. Nothing says so beforehand: not the limit of
 * locked memory, which the driver does not ask, nor what is free; a virtual machine's share is the host's
 * affair (WSL2). So it is tried. */
#ifndef SLUICE_CUDA_PINNABLE_H
#define SLUICE_CUDA_PINNABLE_H

#ifdef __cplusplus
extern "C" {
#endif

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

/* Of so many bytes, at most 64 GiB, how many can be pinned beside what this thread's GPU has pinned now,
 * within 64 KiB. Takes 16 MiB of memory for a while: the same pages are pinned again and again, as many as
 * there would be. Calculated, not measured: a fifth of a second a GiB. *refused: what the last that could not
 * be was refused with, cudaSuccess where all can: a GPU that is lost says no, too. */
uint64_t pinnable_try(uint64_t bytes, cudaError_t *refused);

/* Whether a system is known to end somewhere that only trying shows: Linux within Windows. */
bool pinnable_must_be_tried(void);

#ifdef __cplusplus
}
#endif

#endif
