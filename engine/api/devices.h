/* Devices by name. */
#ifndef SLUICE_API_DEVICES_H
#define SLUICE_API_DEVICES_H

#include "kernels/device.h"

/* Opens a session's device: "cpu", "cuda" (the first GPU), "cuda:N"; NULL: the first GPU if that will do,
 * else the CPU. threads: of the CPU's. plans_only: where there is no GPU that will do, or no CUDA in this
 * build, a device that says what one is assumed to need, and cannot run; also for cards by name (cards.h),
 * "cuda:4090", whatever is there. USAGE, DEVICE, MEMORY; NULL then.
 * Ends with device->destroy. */
struct device *device_open(struct sys *sys, const char *name, int threads, bool plans_only, struct error *e);

/* Where the default is the CPU: whether a GPU or a driver is there that it leaves aside, and why. */
bool device_passed_over(char *why, size_t why_bytes);

/* What the bits of a session's device depend on, besides what is asked of it: processor, instructions and the
 * versions of libraries, as text. name: what it was opened as. False: it cannot compute. */
bool device_arithmetic(const struct device *device, const char *name, char *out, size_t out_bytes);

/* The budget of device memory where none is asked for: what is free less a twentieth, but at least 512 MiB
 * (or half of what is free, where that is less); 8 GiB of a device that is only planned for. */
uint64_t device_default_budget(struct device *device);

#endif
