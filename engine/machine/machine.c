#include "engine/machine/machine.h"

#include "engine/base/machine_limits.h"
#include "engine/sluice.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cuda/cards.h"
#include "kernels/cuda/cuda.h"
#include "kernels/ops.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
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
                                   (double)used.ru_stime.tv_sec + 1e-6 * (double)used.ru_stime.tv_usec,
                                   used.ru_minflt};
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

_Static_assert((int)SLUICE_THREADS_MAX == (int)CPU_THREADS_MAX, "a session's threads are the device's");

/* N of "cuda:N", 0 for "cuda", -1 for anything else. N has at most two digits; card names are longer. */
static int ordinal_of(const char *name) {
    if (!strcmp(name, "cuda")) return 0;
    if (strncmp(name, "cuda:", 5) || !name[5] || strlen(name) > 7) return -1;
    return strspn(name + 5, "0123456789") == strlen(name + 5) ? atoi(name + 5) : -1;
}

/* The GPU model of a name such as "cuda:4090"; NULL: unknown. */
static const struct cuda_card *card_of(const char *name) {
    return strncmp(name, "cuda:", 5) ? NULL : cuda_card_named(name + 5);
}

bool device_skipped(char *why, size_t why_bytes) {
    struct cuda_info info;
    struct error e = {0};
    if (!cuda_count(why, why_bytes)) return strstr(why, "too old") != NULL;
    cuda_describe(0, &info, &e);
    error_line(&e, why, (int)why_bytes);
    return e.code != OK;
}

struct device *device_open(struct sys *sys, const char *name, int threads, bool plans_only, struct error *e) {
    if (!name) name = cuda_usable(0) ? "cuda" : "cpu";
    if (!strcmp(name, "cpu")) return cpu_open(sys, threads, e);
    if (plans_only && card_of(name)) return cuda_plan_device(sys, card_of(name), e);
    int ordinal = ordinal_of(name);
    if (ordinal >= 0) {
        bool assumed = plans_only && !cuda_usable(ordinal);
        struct device *device = assumed ? cuda_plan_device(sys, NULL, e) : cuda_open(sys, ordinal, e);
        if (!device && !e->where[0]) error_where(e, "--device cuda:%d", ordinal);
        return device;
    }
    bool named = !strncmp(name, "cuda:", 5) && plans_only;
    error_set(e, USAGE, "%s" WHERE "--device" FOUND "%.100s",
              strchr(name, ',') ? "several devices are not supported: a run uses one"
              : card_of(name)   ? "a card by name can be planned for (`sluice plan`), not run on"
              : named ? "unknown card: plan with the nearest known one and set its memory with --max-vram"
                      : "unknown device",
              name);
    if (!plans_only) return error_expected(e, "cpu, cuda or cuda:N (`sluice devices` lists them)"), NULL;
    error_expected(e, "cpu, cuda, cuda:N or a card as in cuda:4090 (`sluice devices` lists them)");
    return NULL;
}

/* Assumed memory of a planning device without a GPU model: a common small GPU's. */
static const uint64_t ASSUMED_BYTES = (uint64_t)8 << 30;

uint64_t device_default_budget(struct device *device) {
    const struct device_memory *own = device->memory;
    if (!own) return 0;
    uint64_t free = own->available ? own->available(device) : device->memory_bytes, reserve = free / 20;
    if (!free) return ASSUMED_BYTES;
    if (reserve < (uint64_t)512 << 20) reserve = (uint64_t)512 << 20;
    if (reserve > free / 2) reserve = free / 2;
    return free - reserve;
}

bool device_fingerprint(const struct device *device, const char *name, char *out, size_t out_bytes) {
    char processor[128], library[32];
    struct cuda_info info;
    struct error e = {0};
    if (device->plan_only) return false;
    if (device->memory) {
        if (cuda_describe(name ? ordinal_of(name) : 0, &info, &e) != OK) return false;
        snprintf(out, out_bytes, "cuda, %s, sm_%d%d, %s", info.name, info.major, info.minor, info.library);
        return true;
    }
    machine_processor(processor, sizeof processor);
    cpu_library(library, sizeof library);
    snprintf(out, out_bytes, "cpu, %s, %s, %s", processor, cpu_instructions(), library);
    return true;
}

double device_measure_rate(struct sys *sys, struct device *device, enum precision precision) {
    enum { T = 128, K = 512, N = 512, TRIES = 4 };
    struct error e = {0};
    struct arena arena = {.bytes = DEVICE_RATE_BYTES};
    double best = 0;
    bool ok = true;
    arena.base = sys->map(sys, LINE_WORKSPACE, arena.bytes);
    if (!arena.base) return 0;
    struct op op = {.kind = OP_LINEAR, .precision = precision};
    op.in[0] = arena_tensor(&arena, DTYPE_F32, 2, (int32_t[]){T, K}, &ok);
    /* int8 runs convert weights to this type while reading. */
    enum dtype weights = precision == PRECISION_INT8 ? DTYPE_I8_ROT256 : DTYPE_F32;
    op.in[1] = arena_tensor(&arena, weights, 2, (int32_t[]){N, K}, &ok);
    op.out = arena_tensor(&arena, DTYPE_F32, 2, (int32_t[]){T, N}, &ok);
    struct context x = {.device = device,
                        .precision = precision,
                        .workspace = arena.base + arena.used,
                        .workspace_bytes = arena.bytes - arena.used,
                        .error = &e};
    if (device->prepare(device, &op, &e) != OK) goto out;
    for (int i = 0; i < TRIES; i++) {
        double began = sys->clock(sys);
        op_linear(&x, op.out, op.in[0], op.in[1], (struct epilogue){0});
        double seconds = sys->clock(sys) - began;
        if (e.code == OK && seconds > 0 && op_flops(&op) / seconds > best) best = op_flops(&op) / seconds;
    }
out:
    sys->unmap(sys, LINE_WORKSPACE, arena.base, arena.bytes);
    return best;
}
