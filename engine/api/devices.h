/* Opens a session's device by name. */
#ifndef SLUICE_API_DEVICES_H
#define SLUICE_API_DEVICES_H

#include "kernels/device.h"

/* Opens a device: "cpu", "cuda" (the first GPU) or "cuda:N"; NULL: the first usable GPU, else the CPU.
 * threads: CPU threads. plans_only: without a usable GPU or without CUDA in this build, "cuda" gives a
 * planning device with assumed sizes, which cannot run; so does a card by name ("cuda:4090", cards.h).
 * Returns NULL with USAGE, DEVICE or MEMORY. The caller ends it with device->destroy. */
struct device *device_open(struct sys *sys, const char *name, int threads, bool plans_only, struct error *e);

/* True if this machine has a GPU or driver that the default device cannot use; writes the reason to why. */
bool device_skipped(char *why, size_t why_bytes);

/* Writes all that the device's results depend on bit for bit: processor, instruction set, library versions.
 * Part of the prompt cache's key. name: the device's name as opened. Returns false for a planning device. */
bool device_fingerprint(const struct device *device, const char *name, char *out, size_t out_bytes);

/* Default device memory budget: free memory less a reserve of a twentieth, at least 512 MiB, at most half of
 * the free memory; 8 GiB for a planning device of unknown size; 0 for the CPU. */
uint64_t device_default_budget(struct device *device);

#endif
