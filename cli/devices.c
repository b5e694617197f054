/* `sluice devices`: what a run can use. */
#include "cli/answer.h"
#include "cli/commands.h"
#include "cli/fields.h"
#include "cli/progress.h"

#include <stdio.h>

static void print_device(const json_t *device) {
    char all[32], unused[32];
    size_t i;
    json_t *precision;
    printf("%s: %s\n", field_string(device, "name"), field_string(device, "processor"));
    printf("  memory        %s, %s free\n", progress_bytes(field_number(device, "bytes"), all),
           progress_bytes(field_number(device, "free_bytes"), unused));
    if (json_object_get(device, "threads"))
        printf("  threads       %.0f, of %.0f that the hardware has\n", field_number(device, "threads"),
               field_number(device, "hardware_threads"));
    printf("  instructions  %s (%s)\n", field_string(device, "instructions"),
           field_string(device, "library"));
    printf("  computes in  ");
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

int devices_command(const struct args *args, struct sluice_error *e) {
    char *json = NULL;
    int status = sluice_devices(&json, e);
    return answer_print(args, status, json, "list of devices", print_devices, e);
}
