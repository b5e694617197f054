/* The CPU device: oneDNN (single-threaded calls) for matrix products and convolutions, C for the rest, and a
 * thread pool that shares the work. */
#ifndef SLUICE_CPU_CPU_H
#define SLUICE_CPU_CPU_H

#include "engine/base/sys.h"
#include "kernels/device.h"

enum { CPU_THREADS_MAX = 1024 };

/* Opens the device with 1 to CPU_THREADS_MAX threads; the thread count changes no bit of the results. The
 * first prepare() starts the threads, so planning starts no threads. One thread at a time uses the device.
 * sys must outlive the device; memory is counted as LINE_HOST. NULL with MEMORY, DEVICE (oneDNN does not
 * start) or USAGE. End with device->destroy. */
struct device *cpu_open(struct sys *sys, int threads, struct error *e);

/* Returns the instruction set used for products, as oneDNN names it ("AVX512_CORE_BF16"): the CPU's best, or
 * less if DNNL_MAX_CPU_ISA is set; "default" if oneDNN has no name. */
const char *cpu_instructions(void);
/* Returns the bytes that the loaded oneDNN takes after start, beyond those of oneDNN 2.6 on AVX-512. */
uint64_t cpu_library_more_bytes(void);
/* Writes the version of the loaded library, such as "oneDNN 2.6.3", to out. */
void cpu_library(char *out, size_t out_bytes);

#endif
