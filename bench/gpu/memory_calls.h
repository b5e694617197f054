/* What the calls cost by which a run gets its memory: pinning the host's, mapping the device's. */
#ifndef SLUICE_BENCH_GPU_MEMORY_CALLS_H
#define SLUICE_BENCH_GPU_MEMORY_CALLS_H

#include "kernels/device.h"

#include <jansson.h>

/* Rows {"call","bytes","seconds"}, each handed to on_row as it comes: "pin cold" (pages that nobody has
 * touched), "pin warm", "unpin" of host memory; "provide" (the device's chunks), "commit" and "decommit"
 * (mapping them) of device memory. Medians of a few rounds. MEMORY, DEVICE: then some are missing. */
json_t *memory_calls_measure(struct sys *sys, struct device *device, bool small,
                             void (*on_row)(const json_t *row), struct error *e);

#endif
