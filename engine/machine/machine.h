/* The machine: its memory, processor and thread counts, memory and time of this process; devices by name,
 * with default budget, identity and measured speed. */
#ifndef SLUICE_MACHINE_MACHINE_H
#define SLUICE_MACHINE_MACHINE_H

#include "kernels/device.h"

#include <stddef.h>
#include <stdint.h>

/* Planned memory of the process with its libraries loaded, before any model. A rounded-up constant instead of
 * a measurement at run time, so that the same flags give the same plan. */
uint64_t machine_base_bytes(void);
/* Resident set size of this process, now (VmRSS) and at its peak (VmHWM); 0 if unknown. */
uint64_t machine_resident_bytes(void);
uint64_t machine_peak_bytes(void);
/* CPU seconds of all threads of this process, in user mode and in the kernel (file reads, page faults), and
 * the number of page faults without disk access: first touches of memory. */
struct processor_time {
    double user, system;
    int64_t page_faults;
};
struct processor_time machine_processor_time(void);
/* Memory of the machine, or the control group's limit if lower. root: put before the paths that are read; ""
 * outside tests. */
uint64_t machine_memory_bytes(const char *root);
/* Default memory budget: free memory and this process's resident set, less a reserve (a tenth of the
 * machine's memory, at least 512 MiB, at most half of the free memory). */
uint64_t machine_default_budget(void);
/* Physical cores that this process may use, at least 1. */
int machine_cores(void);
/* Default number of threads of a session: physical cores, or the control group's CPU quota rounded up. */
int machine_threads(const char *root);
/* Hardware threads (logical CPUs) that this process may use; at least 1. */
int machine_hardware_threads(void);
/* Writes the processor's model name in ASCII to out; "a processor" if unknown. */
void machine_processor(char *out, size_t out_bytes);
/* Writes a description such as "AMD EPYC, 2 cores, 23 GiB", in ASCII, to out; returns out. */
char *machine_describe(char *out, size_t out_bytes);

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

/* Default device memory budget: free memory less a reserve (a twentieth of it, at least 512 MiB, at most
 * half of it); 8 GiB for a planning device of unknown size; 0 for the CPU. */
uint64_t device_default_budget(struct device *device);

/* Temporary memory of device_measure_rate in bytes. The plan counts it as part of opening a model. */
enum { DEVICE_RATE_BYTES = 5 << 19 };

/* Measures the device's rate in FLOP/s: a medium-sized matrix product, the best of a few tries; 0 on failure.
 * The time estimate that is logged before step 1 uses this rate. Call before a run. */
double device_measure_rate(struct sys *sys, struct device *device, enum precision precision);

#endif
