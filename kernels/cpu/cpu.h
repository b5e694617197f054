/* The CPU device: oneDNN for matrix products and convolutions, each on one thread, C for the rest, and a team
 * of threads that share the work. */
#ifndef SLUICE_CPU_CPU_H
#define SLUICE_CPU_CPU_H

#include "engine/base/sys.h"
#include "kernels/device.h"

enum { CPU_THREADS_MAX = 1024 };

/* Opens the device with a fixed number of threads (1 to CPU_THREADS_MAX); no bit depends on it. They are
 * started by the first prepare, so that a plan starts none. One thread uses the device at a time. sys
 * outlives it; its own memory is taken under LINE_HOST. MEMORY, DEVICE (oneDNN does not start) or USAGE; then
 * NULL is returned. Ends with device->destroy. */
struct device *cpu_open(struct sys *sys, int threads, struct error *e);

/* The instruction set of products, the processor's best unless DNNL_MAX_CPU_ISA says less, in oneDNN's words:
 * "AVX512_CORE_BF16"; "default" where they have none. */
const char *cpu_instructions(void);
/* What the library takes once it has started, beyond what oneDNN 2.6 does on AVX-512: another version, other
 * instructions. */
uint64_t cpu_library_more_bytes(void);
/* "oneDNN 2.6.3", the one that is loaded, into out. */
void cpu_library(char *out, size_t out_bytes);

#endif
