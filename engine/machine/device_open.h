/* Opens a device by name; the device's default budget, identity and measured speed. */
#ifndef SLUICE_MACHINE_DEVICE_OPEN_H
#define SLUICE_MACHINE_DEVICE_OPEN_H

#include "kernels/device.h"

/* Opens a device: "cpu", "cuda" (the first GPU) or "cuda:N"; NULL: the first usable GPU, else the CPU.
 * threads: CPU threads. plans_only: without a usable GPU or without CUDA in this build, "cuda" gives a
 * planning device with assumed sizes, which cannot run; a GPU model's name ("cuda:4090", cards.h) also gives
 * a planning device. Returns NULL with USAGE, DEVICE or MEMORY. The caller frees the device with
 * device->destroy. */
struct device *device_open(struct sys *sys, const char *name, int threads, bool plans_only, struct error *e);

/* True if this machine has a GPU or driver that the default device cannot use; writes the reason to why. */
bool device_skipped(char *why, size_t why_bytes);

/* Writes a text of everything that can change a bit of the device's results: processor, instruction set,
 * library versions. The prompt cache's key includes it. name: the device's name as opened. Returns false for
 * a planning device or a GPU that the driver cannot describe. */
bool device_fingerprint(const struct device *device, const char *name, char *out, size_t out_bytes);

/* Default device memory budget: free memory less a reserve (a twentieth of the memory, at least 512 MiB, at
 * most half of the free memory); 8 GiB for a planning device of unknown size; 0 for the CPU. */
uint64_t device_default_budget(struct device *device);

/* Temporary memory of device_measure_rate in bytes. The plan counts it as part of opening a model. */
enum { DEVICE_RATE_BYTES = 5 << 19 };

/* Measures the device's rate in FLOP/s: a medium-sized matrix product, the best of a few tries; 0 on failure.
 * The time estimate that is logged before step 1 uses this rate. Call before a run. */
double device_measure_rate(struct sys *sys, struct device *device, enum precision precision);

#endif
