/* `sluice devices`: lists the devices. Also prints the note that a run uses the CPU. */
#include "cli/answer.h"
#include "cli/commands.h"
#include "cli/fields.h"
#include "cli/messages.h"

#include <stdio.h>
#include <string.h>

static void print_device(const json_t *device) {
    char all[32], unused[32];
    size_t i;
    json_t *precision;
    printf("%s: %s\n", field_string(device, "name"), field_string(device, "processor"));
    printf("  memory        %s, %s free\n", progress_bytes(field_number(device, "bytes"), all),
           progress_bytes(field_number(device, "free_bytes"), unused));
    if (json_object_get(device, "threads"))
        printf("  threads       %.0f of %.0f hardware threads\n", field_number(device, "threads"),
               field_number(device, "hardware_threads"));
    printf("  instructions  %s (%s)\n", field_string(device, "instructions"),
           field_string(device, "library"));
    printf("  precisions   ");
    json_array_foreach(json_object_get(device, "precisions"), i, precision)
        printf(" %s", json_string_value(precision));
    printf("\n");
}

static void print_devices(json_t *root) {
    size_t i;
    json_t *device;
    json_array_foreach(json_object_get(root, "devices"), i, device) print_device(device);
    json_array_foreach(json_object_get(root, "absent"), i, device)
        printf("%s: %s\n", field_string(device, "name"), field_string(device, "reason"));
}

void devices_note_cpu(void) {
    char *json = NULL;
    struct sluice_error ignored;
    size_t i;
    json_t *device;
    const char *reason = "none was found";
    if (sluice_devices(&json, &ignored)) return;
    json_t *root = json_loads(json, 0, NULL);
    json_array_foreach(json_object_get(root, "devices"), i, device) {
        if (strncmp(field_string(device, "name"), "cuda", 4) == 0) reason = NULL;
    }
    json_array_foreach(json_object_get(root, "absent"), i, device) {
        if (reason && strcmp(field_string(device, "name"), "cuda") == 0)
            reason = field_string(device, "reason");
    }
    if (reason) message_note("running on the CPU, without a GPU: %s", reason);
    json_decref(root);
    sluice_free(json);
}

int devices_command(const struct args *args, struct sluice_error *e) {
    char *json = NULL;
    int status = sluice_devices(&json, e);
    return answer_print(args, status, json, "list of devices", print_devices, e);
}
