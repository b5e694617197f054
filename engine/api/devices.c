/* sluice_devices: lists the machine's devices as JSON for `sluice devices`. */
#include "engine/base/machine_limits.h"
#include "engine/machine/machine.h"
#include "engine/open/public_structs.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cuda/cards.h"
#include "kernels/cuda/cuda.h"
#include "loaders/json.h"

#include <stdio.h>

static json_t *list_precisions(const struct device *device) {
    json_t *precisions = json_array();
    for (int p = 0; p < N_PRECISIONS; p++)
        if (!device->unsupported[p]) json_push(precisions, json_string(precision_name((enum precision)p)));
    return precisions;
}

static json_t *describe_cpu(const struct device *device) {
    char processor[128], library[32];
    machine_processor(processor, sizeof processor);
    cpu_library(library, sizeof library);
    return json_pack("{s:s, s:s, s:I, s:I, s:i, s:i, s:s, s:s, s:o}", "name", "cpu", "processor", processor,
                     "bytes", (json_int_t)machine_memory_bytes(""), "free_bytes",
                     (json_int_t)free_memory_bytes(""), "threads", machine_threads(""), "hardware_threads",
                     machine_hardware_threads(), "instructions", cpu_instructions(), "library", library,
                     "precisions", list_precisions(device));
}

/* Lists GPUs. planned: a planning device; every GPU supports the same precisions. "absent" lists each
 * unusable GPU with the reason, or the reason why there is no GPU. */
static void list_cuda(const struct device *planned, json_t *devices, json_t *absent) {
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
                  json_pack("{s:s, s:s, s:I, s:I, s:s, s:s, s:o, s:s*, s:s*}", "name", name, "processor",
                            info.name, "bytes", (json_int_t)info.bytes, "free_bytes",
                            (json_int_t)info.free_bytes, "instructions", arch, "library", info.library,
                            "precisions", list_precisions(planned), "bus", info.bus[0] ? info.bus : NULL,
                            "outdated", info.outdated[0] ? info.outdated : NULL));
    }
}

int sluice_devices(char **json, struct sluice_error *error) {
    struct error e = {0};
    struct sys sys;
    if (!check_not_null(json, "json", &e)) return publish_error(&e, error);
    *json = NULL;
    sys_init_machine(&sys);
    struct device *cpu = cpu_open(&sys, 1, &e), *cuda = cpu ? cuda_plan_device(&sys, NULL, &e) : NULL;
    if (!cuda) {
        if (cpu) cpu->destroy(cpu);
        return publish_error(&e, error);
    }
    unsigned json_failures = failed_json_allocations();
    json_t *list =
        json_pack("{s:i, s:[o], s:[], s:[]}", "version", 1, "devices", describe_cpu(cpu), "absent", "cards");
    if (list) list_cuda(cuda, json_object_get(list, "devices"), json_object_get(list, "absent"));
    const struct cuda_card *card;
    for (int i = 0; list && (card = cuda_card_at(i)); i++)
        json_push(json_object_get(list, "cards"),
                  json_pack("{s:s, s:s}", "name", card->name, "title", card->words));
    *json = json_to_text(list, JSON_INDENT(1), json_failures);
    cuda->destroy(cuda);
    cpu->destroy(cpu);
    if (!*json) error_set(&e, MEMORY, "no memory for a list of devices");
    return publish_error(&e, error);
}
