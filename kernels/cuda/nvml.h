/* The only door to NVML, the driver's library that looks at GPUs from outside: it says how much of their
 * memory is free where this process has no context yet, which CUDA cannot say. It comes with every driver;
 * without it nothing is lost but a measurement. test/emu/ has another file behind this header. */
#ifndef SLUICE_CUDA_NVML_H
#define SLUICE_CUDA_NVML_H

#ifdef __cplusplus
extern "C" {
#endif

#include "engine/base/sys.h"

struct nvml;

/* For CUDA's GPU number ordinal; makes no context. NULL: no library, no such GPU, no memory. */
struct nvml *nvml_open(struct sys *sys, int ordinal);
/* NULL is fine. */
void nvml_close(struct nvml *nvml);
/* Bytes of the GPU that nobody has; 0: not known. */
uint64_t nvml_free_bytes(const struct nvml *nvml);

#ifdef __cplusplus
}
#endif

#endif
