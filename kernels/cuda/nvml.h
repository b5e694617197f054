/* The only interface to NVML (comes with every driver). NVML reports a GPU's free memory before this process
 * has a context, which CUDA cannot do. Without NVML only the measurement of free memory is missing.
 * test/emu/nvml.cc implements this header without NVML. */
#ifndef SLUICE_CUDA_NVML_H
#define SLUICE_CUDA_NVML_H

#ifdef __cplusplus
extern "C" {
#endif

#include "engine/base/sys.h"

struct nvml;

/* Opens NVML for CUDA's GPU number ordinal; creates no CUDA context. NULL: NVML is missing, the GPU does not
 * exist, or memory is short. */
struct nvml *nvml_open(struct sys *sys, int ordinal);
void nvml_close(struct nvml *nvml);
uint64_t nvml_free_bytes(const struct nvml *nvml);

#ifdef __cplusplus
}
#endif

#endif
