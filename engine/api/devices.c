/* `sluice devices`: what a run can use here, and what this build has not. */
#include "engine/api/machine.h"
#include "engine/api/model.h"
#include "engine/base/free_memory.h"
#include "kernels/cpu/cpu.h"
#include "loaders/json.h"

/* What --precision takes there, in the device's own words. */
static json_t *precisions(const struct device *device) {
    json_t *list = json_array();
    for (int p = 0; p < N_PRECISIONS; p++)
        if (!device->lacks[p]) json_array_append_new(list, json_string(precision_name((enum precision)p)));
    return list;
}

static json_t *describe_cpu(const struct device *device) {
    char processor[128], library[32];
    machine_processor(processor, sizeof processor);
    cpu_library(library, sizeof library);
    return json_pack("{s:s, s:s, s:I, s:I, s:i, s:i, s:s, s:s, s:o}", "name", "cpu", "processor", processor,
                     "bytes", (json_int_t)machine_memory_bytes(), "free_bytes",
                     (json_int_t)free_memory_bytes(), "threads", machine_cores(), "hardware_threads",
                     machine_hardware_threads(), "instructions", cpu_instructions(), "library", library,
                     "precisions", precisions(device));
}

int sluice_devices(char **json, struct sluice_error *error) {
    struct error e = {0};
    struct sys sys;
    *json = NULL;
    sys_init_machine(&sys);
    struct device *cpu = cpu_open(&sys, 1, &e);
    if (!cpu) return publish_error(&e, error);
    unsigned losses = json_losses();
    json_t *list = json_pack("{s:i, s:[o], s:[{s:s, s:s}]}", "version", 1, "devices", describe_cpu(cpu),
                             "absent", "name", "cuda", "reason", "not in this build");
    *json = json_hand_out(list, JSON_INDENT(1), losses);
    cpu->destroy(cpu);
    if (!*json) error_set(&e, MEMORY, "no memory for a list of devices");
    return publish_error(&e, error);
}
