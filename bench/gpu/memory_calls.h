/* Measures the cost of memory calls: pinning host memory, mapping device memory. */
#ifndef SLUICE_BENCH_GPU_MEMORY_CALLS_H
#define SLUICE_BENCH_GPU_MEMORY_CALLS_H

#include "kernels/device.h"

#include <jansson.h>

/* Returns rows {"call","bytes","seconds"} and passes each to on_row as it finishes. Host memory: "pin cold"
 * (untouched pages), "pin warm", "unpin". Device memory: "provide" (allocating chunks), "commit" and
 * "decommit" (mapping them). Medians of a few rounds. After the errors MEMORY and DEVICE rows are
 * missing. */
json_t *memory_calls_measure(struct sys *sys, struct device *device, bool small,
                             void (*on_row)(const json_t *row), struct error *e);

#endif
