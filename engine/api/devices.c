/* Opens devices by name, and lists the machine's devices for `sluice devices`. */
#include "engine/api/devices.h"

#include "engine/api/arguments.h"

#include "engine/api/machine.h"
#include "engine/open/model.h"
#include "engine/base/free_memory.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cuda/cards.h"
#include "kernels/cuda/cuda.h"
#include "loaders/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static struct device *open_cuda(struct sys *sys, int ordinal, bool plans_only, struct error *e) {
    bool assumed = plans_only && !cuda_usable(ordinal);
    struct device *device = assumed ? cuda_plan_device(sys, NULL, e) : cuda_open(sys, ordinal, e);
    if (!device && !e->where[0]) error_where(e, "--device cuda:%d", ordinal);
    return device;
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
    if (ordinal >= 0) return open_cuda(sys, ordinal, plans_only, e);
    bool named = !strncmp(name, "cuda:", 5) && plans_only;
    error_set(e, USAGE, "%s" WHERE "--device" FOUND "%.100s",
              strchr(name, ',') ? "several devices are not supported: a run uses one"
              : card_of(name)   ? "a card by name can be planned for (`sluice plan`), not run on"
              : named ? "unknown card: plan with the nearest known one and set its memory with --max-vram"
                      : "unknown device",
              name);
    char cards[112];
    if (!plans_only) return error_expected(e, "cpu, cuda or cuda:N (`sluice devices` lists them)"), NULL;
    cuda_card_names(cards, sizeof cards);
    error_expected(e, "cpu, cuda, cuda:N or a card as in cuda:4090: %s", cards);
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

static json_t *precisions(const struct device *device) {
    json_t *list = json_array();
    for (int p = 0; p < N_PRECISIONS; p++)
        if (!device->unsupported[p]) json_push(list, json_string(precision_name((enum precision)p)));
    return list;
}

static json_t *describe_cpu(const struct device *device) {
    char processor[128], library[32];
    machine_processor(processor, sizeof processor);
    cpu_library(library, sizeof library);
    return json_pack("{s:s, s:s, s:I, s:I, s:i, s:i, s:s, s:s, s:o}", "name", "cpu", "processor", processor,
                     "bytes", (json_int_t)machine_memory_bytes(""), "free_bytes",
                     (json_int_t)free_memory_bytes(""), "threads", machine_threads(""), "hardware_threads",
                     machine_hardware_threads(), "instructions", cpu_instructions(), "library", library,
                     "precisions", precisions(device));
}

/* Lists GPUs. An unusable GPU is listed as absent with the reason; so is a machine without GPUs. */
static void list_cuda(json_t *devices, json_t *absent) {
    char why[256] = "";
    int n = cuda_count(why, sizeof why);
    if (!n) json_push(absent, json_pack("{s:s, s:s}", "name", "cuda", "reason", why));
    for (int i = 0; i < n; i++) {
        struct cuda_info info = {0};
        struct error e = {0};
        char name[24], arch[16], line[1024];
        snprintf(name, sizeof name, "cuda:%d", i);
        if (cuda_describe(i, &info, &e) != OK) {
            json_push(absent,
                      json_pack("{s:s, s:s}", "name", name, "reason", error_line(&e, line, sizeof line)));
            continue;
        }
        snprintf(arch, sizeof arch, "sm_%d%d", info.major, info.minor);
        json_push(devices,
                  json_pack("{s:s, s:s, s:I, s:I, s:s, s:s, s:[s]}", "name", name, "processor", info.name,
                            "bytes", (json_int_t)info.bytes, "free_bytes", (json_int_t)info.free_bytes,
                            "instructions", arch, "library", info.library, "precisions", "bf16"));
    }
}

int sluice_devices(char **json, struct sluice_error *error) {
    struct error e = {0};
    struct sys sys;
    if (!check_not_null(json, "json", &e)) return publish_error(&e, error);
    *json = NULL;
    sys_init_machine(&sys);
    struct device *cpu = cpu_open(&sys, 1, &e);
    if (!cpu) return publish_error(&e, error);
    unsigned json_failures = failed_json_allocations();
    json_t *list = json_pack("{s:i, s:[o], s:[]}", "version", 1, "devices", describe_cpu(cpu), "absent");
    if (list) list_cuda(json_object_get(list, "devices"), json_object_get(list, "absent"));
    *json = json_to_text(list, JSON_INDENT(1), json_failures);
    cpu->destroy(cpu);
    if (!*json) error_set(&e, MEMORY, "no memory for a list of devices");
    return publish_error(&e, error);
}
