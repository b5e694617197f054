/* `sluice convert`: writes the weights of one model part in other types, as one file. */
#include "cli/commands.h"
#include "cli/fail.h"
#include "cli/fields.h"
#include "cli/outfile.h"
#include "cli/messages.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct converting {
    const struct args *args;
    double began;
    int shown; /* last printed progress: in 0.1 s on a terminal, in tenths of the conversion in a log */
};

/* Callback of the library: prints the progress. False cancels the conversion. */
static bool on_progress(void *user, double fraction, const char *what) {
    struct converting *converting = user;
    const struct args *args = converting->args;
    char line[320], spent[32], left[32];
    double seconds = progress_clock() - converting->began;
    int now = message_on_terminal() ? (int)(10 * seconds) + 1 : (int)(10 * fraction);
    if (args->quiet || args->no_progress || now == converting->shown) return !interrupt_pending();
    converting->shown = now;
    bool known = fraction > 0.01 && seconds > 1;
    snprintf(line, sizeof line, "converting %.0f %%  %s%s%s%s  %s", 100 * fraction,
             progress_duration(seconds, spent), known ? ", " : "",
             known ? progress_duration(seconds / fraction - seconds, left) : "", known ? " left" : "", what);
    message_on_terminal() ? message_live(line) : message_note("%s", line);
    return !interrupt_pending();
}

static void print_summary(const char *output, const json_t *summary) {
    char bytes[32], from[32];
    const char *type;
    json_t *value;
    char *name = strdup(output);
    printf("wrote %s: %s, %.0f tensors, %s of %s\n", name ? sanitize_text(name) : "?",
           field_string(summary, "family"), field_number(summary, "tensors"),
           progress_bytes(field_number(summary, "bytes"), bytes),
           progress_bytes(field_number(summary, "from_bytes"), from));
    free(name);
    if (field_number(summary, "merged") > 0)
        printf("  LoRAs are merged into %.0f of them\n", field_number(summary, "merged"));
    json_object_foreach(json_object_get(summary, "types"), type, value) {
        printf("  %-10s %s\n", type, progress_bytes(json_number_value(value), bytes));
    }
}

int convert_command(const struct args *args, struct sluice_error *e) {
    struct converting converting = {.args = args, .began = progress_clock()};
    struct sluice_convert_options options = {
        .struct_size = sizeof options,
        .inputs = args->operands,
        .n_inputs = args->n_operands,
        .part = args->part,
        .output = args->output,
        .type = args->type,
        .rules = args->rules.at,
        .n_rules = args->rules.n,
        .loras = args->loras.at,
        .n_loras = args->loras.n,
        .lora_partial = args->lora_partial,
        .on_progress = on_progress,
        .user = &converting,
    };
    char *json = NULL;
    if (!args->output) {
        return fail(e, SLUICE_USAGE,
                    "no output is given" WHERE "sluice convert" EXPECTED
                    "--output FILE.gguf or FILE.safetensors");
    }
    interrupt_gracefully();
    outfile_set_library_path(args->output);
    int status = sluice_convert(&options, &json, e);
    outfile_set_library_path(NULL);
    message_live_end();
    if (!status && args->json) {
        sanitize_print_json(stdout, json);
    } else if (!status && !args->quiet) {
        json_t *summary = json_loads(json, 0, NULL);
        if (summary)
            print_summary(args->output, summary);
        else
            status = fail(e, SLUICE_INTERNAL, "the library's summary is not JSON");
        json_decref(summary);
    }
    sluice_free(json);
    return status;
}
