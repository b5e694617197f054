/* Memory of the real or emulated GPU for operands of tests, not counted by the device and its plans. */
#ifndef SLUICE_TEST_DEVICE_MEMORY_H
#define SLUICE_TEST_DEVICE_MEMORY_H

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/device.h"

/* Allocates exactly `bytes` of device memory at a multiple of 256, so that memcheck and ASan find accesses
 * beyond the end. Returns NULL without memory. */
void *device_memory_take(size_t bytes);
void device_memory_give(void *memory);
/* Copies or fills memory after the device's queued operators have run, and waits for completion. Returns
 * false if CUDA fails. */
bool device_memory_put(struct device *device, void *to, const void *from, size_t bytes);
bool device_memory_get(struct device *device, void *to, const void *from, size_t bytes);
bool device_memory_fill(struct device *device, void *to, int value, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
