#include "engine/machine/machine.h"

#include "engine/base/machine_limits.h"
#include "kernels/cpu/cpu.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* Resident memory of a release build after the first use of oneDNN 2.6 on Debian 12 (bench/LOG.md): 12 MiB
 * for program and libraries. oneDNN's processor-dependent share is not included (cpu_library_more_bytes). */
enum { BASE_MIB = 13 };

uint64_t machine_base_bytes(void) {
    return ((uint64_t)BASE_MIB << 20) + cpu_library_more_bytes();
}

/* Returns the bytes that a "NAME:   123 kB" line of a /proc file gives. */
static uint64_t read_kilobytes(const char *root, const char *path, const char *name) {
    char text[CONTROL_GROUPS_TEXT];
    return control_groups_number(control_groups_text(root, path, text), name) << 10;
}

struct processor_time machine_processor_time(void) {
    struct rusage used;
    if (getrusage(RUSAGE_SELF, &used)) return (struct processor_time){0};
    return (struct processor_time){(double)used.ru_utime.tv_sec + 1e-6 * (double)used.ru_utime.tv_usec,
                                   (double)used.ru_stime.tv_sec + 1e-6 * (double)used.ru_stime.tv_usec};
}

uint64_t machine_resident_bytes(void) {
    return read_kilobytes("", "/proc/self/status", "VmRSS:");
}

uint64_t machine_peak_bytes(void) {
    return read_kilobytes("", "/proc/self/status", "VmHWM:");
}

uint64_t machine_memory_bytes(const char *root) {
    uint64_t bytes = read_kilobytes(root, "/proc/meminfo", "MemTotal:");
    uint64_t limit = control_groups_memory(root);
    return limit < bytes ? limit : bytes;
}

uint64_t machine_default_budget(void) {
    uint64_t all = machine_memory_bytes(""), free = free_memory_bytes("");
    uint64_t reserve = all / 10 > (uint64_t)512 << 20 ? all / 10 : (uint64_t)512 << 20;
    if (reserve > free / 2) reserve = free / 2;
    return free - reserve + machine_resident_bytes();
}

int machine_cores(void) {
    cpu_set_t allowed;
    int cores = 0;
    if (sched_getaffinity(0, sizeof allowed, &allowed)) return 1;
    for (int i = 0; i < CPU_SETSIZE; i++) {
        if (!CPU_ISSET(i, &allowed)) continue;
        char path[128], siblings[64] = "";
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", i);
        FILE *f = fopen(path, "r");
        int first = i;
        if (f && fgets(siblings, sizeof siblings, f)) sscanf(siblings, "%d", &first);
        if (f) fclose(f);
        cores += first == i || !CPU_ISSET(first, &allowed); /* counts each physical core once */
    }
    return cores > 0 ? cores : 1;
}

int machine_threads(const char *root) {
    int cores = machine_cores();
    double quota = control_groups_processors(root);
    return quota < cores ? (int)ceil(quota) : cores;
}

int machine_hardware_threads(void) {
    cpu_set_t allowed;
    return sched_getaffinity(0, sizeof allowed, &allowed) ? 1 : CPU_COUNT(&allowed);
}

void machine_processor(char *out, size_t out_bytes) {
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "r");
    snprintf(out, out_bytes, "a processor");
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) || !colon || !colon[1]) continue;
        snprintf(out, out_bytes, "%s", colon + 2);
        break;
    }
    if (f) fclose(f);
    for (char *c = out; *c; c++)
        if (*c < ' ' || *c > '~') *c = '?';
}

char *machine_describe(char *out, size_t out_bytes) {
    char name[128];
    machine_processor(name, sizeof name);
    snprintf(out, out_bytes, "%s, %d cores, %.0f GiB", name, machine_cores(),
             (double)machine_memory_bytes("") / (1 << 30));
    return out;
}
