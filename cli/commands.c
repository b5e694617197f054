/* The commands that only print JSON of the library (devices, tokenize), and the printing that all commands of
 * this kind share: see commands.h. */
#include "cli/commands.h"

#include "cli/fail.h"
#include "cli/fields.h"
#include "cli/messages.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int answer_show(const struct args *args, const char *json, const char *what, void (*print)(json_t *root),
                struct sluice_error *e) {
    if (args->json) {
        sanitize_print_json(stdout, json);
        return SLUICE_OK;
    }
    json_t *root = json_loads(json, 0, NULL);
    if (!root) return fail(e, SLUICE_INTERNAL, "the library's %s is not JSON", what);
    sanitize_json(root);
    print(root);
    json_decref(root);
    return SLUICE_OK;
}

int answer_print(const struct args *args, int status, char *json, const char *what,
                 void (*print)(json_t *root), struct sluice_error *e) {
    if (!status) status = answer_show(args, json, what, print, e);
    sluice_free(json);
    return status;
}

/* ---- sluice devices ---- */

static void print_devices(json_t *root) {
    char all[32], unused[32];
    size_t i, k;
    json_t *device, *precision;
    json_array_foreach(json_object_get(root, "devices"), i, device) {
        printf("%s: %s\n", field_string(device, "name"), field_string(device, "processor"));
        printf("  memory        %s, %s free\n", progress_bytes(field_number(device, "bytes"), all),
               progress_bytes(field_number(device, "free_bytes"), unused));
        if (json_object_get(device, "threads"))
            printf("  threads       %.0f of %.0f hardware threads\n", field_number(device, "threads"),
                   field_number(device, "hardware_threads"));
        printf("  instructions  %s (%s)\n", field_string(device, "instructions"),
               field_string(device, "library"));
        if (json_object_get(device, "bus"))
            printf("  PCI bus       %s (nvidia-smi -i %s)\n", field_string(device, "bus"),
                   field_string(device, "bus"));
        printf("  precisions   ");
        json_array_foreach(json_object_get(device, "precisions"), k, precision)
            printf(" %s", json_string_value(precision));
        printf("\n");
        if (json_object_get(device, "outdated"))
            printf("  outdated      %s\n", field_string(device, "outdated"));
    }
    json_array_foreach(json_object_get(root, "absent"), i, device)
        printf("%s: %s\n", field_string(device, "name"), field_string(device, "reason"));
    printf("GPU models for `sluice plan --device cuda:CARD`:");
    json_array_foreach(json_object_get(root, "cards"), i, device) printf(" %s", field_string(device, "name"));
    printf("\n");
}

/* Prints a note if an environment variable that cuDNN reads slows convolutions. */
static void note_tf32(void) {
    const char *tf32 = getenv("NVIDIA_TF32_OVERRIDE");
    if (tf32 && strcmp(tf32, "0") == 0)
        message_note(
            "NVIDIA_TF32_OVERRIDE=0 is set: convolutions on the GPU are several times slower and round "
            "differently; unset it for the usual speed and images");
}

/* Prints a note with the reason if no GPU can be used. Returns true if a GPU can be used. */
static bool note_cpu(void) {
    char *json = NULL;
    struct sluice_error ignored;
    size_t i;
    json_t *device;
    const char *reason = "none was found";
    if (sluice_devices(&json, &ignored)) return false;
    json_t *root = json_loads(json, 0, NULL);
    json_array_foreach(json_object_get(root, "devices"), i, device) {
        if (strncmp(field_string(device, "name"), "cuda", 4) == 0) reason = NULL;
    }
    json_array_foreach(json_object_get(root, "absent"), i, device) {
        if (reason && strcmp(field_string(device, "name"), "cuda") == 0)
            reason = field_string(device, "reason");
    }
    bool found = !reason;
    if (reason) message_note("running on the CPU, without a GPU: %s", reason);
    json_decref(root);
    sluice_free(json);
    return found;
}

void devices_note(const char *device) {
    if (device ? strncmp(device, "cuda", 4) == 0 : note_cpu()) note_tf32();
}

int devices_command(const struct args *args, struct sluice_error *e) {
    char *json = NULL;
    int status = sluice_devices(&json, e);
    if (!args->quiet) note_tf32();
    return answer_print(args, status, json, "list of devices", print_devices, e);
}

/* ---- sluice tokenize ---- */

static void print_ids(const json_t *ids) {
    size_t i;
    json_t *id;
    json_array_foreach(ids, i, id) {
        printf("%s%" JSON_INTEGER_FORMAT, i ? " " : "", json_integer_value(id));
    }
    putchar('\n');
}

/* Prints a list of ids, or the encoders with their ids and prompt weights. */
static void print_tokens(json_t *root) {
    size_t i, k;
    json_t *encoder, *weight;
    if (json_is_array(root)) print_ids(root);
    json_array_foreach(json_object_get(root, "encoders"), i, encoder) {
        const json_t *ids = json_object_get(encoder, "ids"), *weights = json_object_get(encoder, "weights");
        const char *name = json_string_value(json_object_get(encoder, "name"));
        json_int_t window = json_integer_value(json_object_get(encoder, "window"));
        printf("%s: %zu tokens", name ? name : "encoder", json_array_size(ids));
        if (window) printf(" in windows of %" JSON_INTEGER_FORMAT, window);
        printf("%s\n", field_flag(encoder, "truncated") ? ", truncated" : "");
        print_ids(ids);
        json_array_foreach(weights, k, weight) printf("%s%g", k ? " " : "weights ", json_real_value(weight));
        if (weights) putchar('\n');
    }
}

int tokenize_command(const struct args *args, struct sluice_error *e) {
    bool model = args->model.model || args->model.n_parts || args->model.tokenizer;
    char *json = NULL;
    if (!model || !args->prompt.text)
        return fail(e, SLUICE_USAGE, "%s" WHERE "sluice tokenize" EXPECTED "%s",
                    model ? "no prompt is given" : "no model or tokenizer is given",
                    model ? "-p TEXT or -p @FILE" : "-m DIR or --tokenizer PATH");
    int status = sluice_tokenize(&args->model, args->prompt.text, args->prompt.bytes, &json, e);
    return answer_print(args, status, json, "list of ids", print_tokens, e);
}
