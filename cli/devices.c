/* `sluice devices`: what a run can use. */
#include "cli/commands.h"
#include "cli/fail.h"
#include "cli/progress.h"

#include <jansson.h>
#include <stdio.h>

static int print_devices(const char *json, struct sluice_error *e) {
    size_t i;
    char bytes[32];
    json_t *device, *root = json_loads(json, 0, NULL);
    if (!root) return fail(e, SLUICE_INTERNAL, "the library's list of devices is no JSON");
    json_array_foreach(json_object_get(root, "devices"), i, device) {
        const char *name = json_string_value(json_object_get(device, "name"));
        printf("%s: %s, %.0f threads\n", name ? name : "-",
               progress_bytes(json_number_value(json_object_get(device, "bytes")), bytes),
               json_number_value(json_object_get(device, "threads")));
    }
    json_decref(root);
    return SLUICE_OK;
}

int devices_command(const struct args *args, struct sluice_error *e) {
    char *json = NULL;
    int status = sluice_devices(&json, e);
    if (!status && args->json) {
        puts(json);
    } else if (!status) {
        status = print_devices(json, e);
    }
    sluice_free(json);
    return status;
}
