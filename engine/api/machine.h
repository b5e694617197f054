/* What the engine must know of the machine and of its own process. */
#ifndef SLUICE_API_MACHINE_H
#define SLUICE_API_MACHINE_H

#include <stddef.h>
#include <stdint.h>

/* The process as it stands with its libraries loaded and warmed: the plan's line. A constant of the build,
 * rounded up, never read at run time, so that the same flags give the same plan. */
uint64_t machine_base_bytes(void);
/* Resident set of this process: now, and the highest so far (VmHWM). 0 where the system does not say. */
uint64_t machine_resident_bytes(void);
uint64_t machine_peak_bytes(void);
/* Seconds that the processors spent for this process so far, all threads together: computing, and in the
 * system, which is reading files, and giving memory its pages. */
struct processor_time {
    double user, system;
};
struct processor_time machine_processor_time(void);
/* Memory of the machine, or what its control groups limit it to. root: as control_groups.h has it. */
uint64_t machine_memory_bytes(const char *root);
/* The budget when none is given: what is free, less a reserve of a tenth or 512 MiB, plus what the process
 * has already. */
uint64_t machine_default_budget(void);
/* Physical cores that this process may use, at least 1. */
int machine_cores(void);
/* Threads that a session has by itself: one for each of these cores, or fewer whole ones where control groups
 * allow less time than that. */
int machine_threads(const char *root);
/* Those that it may use, both of a core counted; at least 1. */
int machine_hardware_threads(void);
/* The processor as the system calls it, in ASCII, into out; "a processor" where it does not say. */
void machine_processor(char *out, size_t out_bytes);
/* "AMD EPYC, 2 cores, 23 GiB" in ASCII into out; returns out. */
char *machine_describe(char *out, size_t out_bytes);

#endif
