/* Memory, processor and thread counts of the machine, and memory and time of this process. */
#ifndef SLUICE_MACHINE_MACHINE_H
#define SLUICE_MACHINE_MACHINE_H

#include <stddef.h>
#include <stdint.h>

/* Planned memory of the process with its libraries loaded, before any model. A rounded-up constant instead of
 * a measurement at run time, so that the same flags give the same plan. */
uint64_t machine_base_bytes(void);
/* Resident set size of this process, now (VmRSS) and at its peak (VmHWM); 0 if unknown. */
uint64_t machine_resident_bytes(void);
uint64_t machine_peak_bytes(void);
/* CPU seconds of all threads of this process, in user mode and in the kernel (file reads, page faults). */
struct processor_time {
    double user, system;
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

#endif
