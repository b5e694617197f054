/* Memory of the GPU, or of the emulated one, for tests that put operands there by hand. Beside what the
 * device's plans know of: the device itself never hears of it. */
#ifndef SLUICE_TEST_DEVICE_MEMORY_H
#define SLUICE_TEST_DEVICE_MEMORY_H

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/device.h"

/* One allocation of exactly so many bytes at a multiple of 256, so that tools which know allocations
 * (compute-sanitizer's memcheck, the address sanitizer) see what reaches beyond it. NULL: there is none. */
void *device_memory_take(size_t bytes);
void device_memory_give(void *memory);
/* These are queued behind the device's operators and waited for. false: CUDA refused. */
bool device_memory_put(struct device *device, void *to, const void *from, size_t bytes);
bool device_memory_get(struct device *device, void *to, const void *from, size_t bytes);
bool device_memory_fill(struct device *device, void *to, int value, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
