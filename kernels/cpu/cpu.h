/* The CPU device: oneDNN (single-threaded calls) for matrix products and convolutions, C for other operators,
 * and a thread pool that shares the work. onednn.h declares cpu_instructions, cpu_library and
 * cpu_library_more_bytes, which describe the loaded oneDNN. */
#ifndef SLUICE_CPU_CPU_H
#define SLUICE_CPU_CPU_H

#include "kernels/cpu/onednn.h"
#include "kernels/device.h"

enum { CPU_THREADS_MAX = 1024 };

/* Opens the device with 1 to CPU_THREADS_MAX threads; the thread count changes no bit of the results. The
 * first prepare() starts the threads, so planning starts no threads. One thread at a time uses the device.
 * sys must outlive the device; memory is counted as LINE_HOST. NULL with MEMORY, DEVICE (oneDNN does not
 * start) or USAGE. End with device->destroy. */
struct device *cpu_open(struct sys *sys, int threads, struct error *e);

#endif
