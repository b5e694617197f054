#include "cli/plan_table.h"

#include "cli/fail.h"
#include "cli/fields.h"
#include "cli/messages.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Prints "name value" for every member of the request. Values above 60 bytes are cut at the end of a UTF-8
 * character. */
static void print_request(FILE *to, json_t *request) {
    const char *key, *separator = "request  ";
    json_t *value;
    json_object_foreach(request, key, value) {
        /* print_adapters and print_controls print these */
        bool elsewhere = strcmp(key, "loras") == 0 || strcmp(key, "controls") == 0;
        char *text = json_is_null(value) || elsewhere
                         ? NULL
                         : json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(6));
        int shown = text ? (int)strnlen(text, 60) : 0;
        while (shown > 0 && ((unsigned char)text[shown] & 0xc0) == 0x80) shown--;
        const char *cut = !text || !text[shown] ? "" : json_is_string(value) ? "...\"" : "...";
        if (text) fprintf(to, "%s%s %.*s%s", separator, key, shown, text, cut);
        if (text) separator = ", ";
        free(text);
    }
    fputc('\n', to);
}

static void print_memory(FILE *to, const json_t *plan, const char *title, const char *key, bool bytes) {
    char text[32];
    const json_t *memory = json_object_get(plan, key);
    double ram = field_number(memory, "ram_bytes"), vram = field_number(memory, "vram_bytes");
    fprintf(to, "%-8s RAM %s", title, progress_bytes(ram, text));
    if (bytes) fprintf(to, " (%.0f bytes)", ram);
    if (vram > 0) fprintf(to, ", VRAM %s", progress_bytes(vram, text));
    if (vram > 0 && bytes) fprintf(to, " (%.0f bytes)", vram);
    fputc('\n', to);
}

/* Prints the properties assumed for the GPU of a plan, because this machine lacks it. */
static void print_assumed(FILE *to, const json_t *plan) {
    static const char *const words[][2] = {{"device_bytes", "card memory"},
                                           {"base_bytes", "CUDA's own memory"},
                                           {"rates", "speeds"},
                                           {"budget.vram_bytes", "VRAM budget"}};
    const json_t *assumed = json_object_get(plan, "assumed");
    size_t i;
    json_t *key;
    if (!assumed) return;
    size_t last = json_array_size(assumed) - 1;
    fprintf(to, "assumed  ");
    json_array_foreach(assumed, i, key) {
        const char *name = json_string_value(key);
        for (size_t k = 0; k < sizeof words / sizeof *words; k++)
            if (strcmp(words[k][0], name) == 0) name = words[k][1];
        fprintf(to, "%s%s", i == 0 ? "" : i < last ? ", " : " and ", name);
    }
    fprintf(to, ": no GPU was queried\n");
}

static const json_t *denoise_stage(const json_t *plan) {
    size_t i;
    json_t *stage;
    json_array_foreach(json_object_get(plan, "stages"), i, stage) {
        if (strcmp(field_string(stage, "name"), "denoise") == 0) return stage;
    }
    return NULL;
}

/* Seconds per step; 0 if there are no steps or the time is unknown. */
static double step_seconds(const json_t *plan) {
    const json_t *stage = denoise_stage(plan);
    double evaluations = field_number(stage, "evaluations");
    return evaluations > 0 ? field_number(stage, "seconds") / evaluations * field_number(stage, "groups") : 0;
}

/* Formats a time as progress_duration does; below a second with milliseconds. */
static char *duration(double seconds, char out[32]) {
    if (seconds >= 1) return progress_duration(seconds, out);
    snprintf(out, 32, "%.3f s", seconds);
    return out;
}

static void print_time(FILE *to, const json_t *plan) {
    char all[32], step[32], least[32];
    if (!json_is_number(json_object_get(plan, "seconds"))) {
        fprintf(to, "time     unknown\n");
        return;
    }
    double one = step_seconds(plan);
    fprintf(to, "time     %s in total", duration(field_number(plan, "seconds"), all));
    if (one > 0) fprintf(to, ", %s per step", duration(one, step));
    fprintf(to, "; lower bound %s\n", duration(field_number(plan, "floor_seconds"), least));
    const char *bound = field_string(plan, "bound");
    if (strcmp(bound, "compute") == 0) {
        /* Above 1.1 times the lower bound, neither bus nor compute is always busy. */
        bool waits = field_number(plan, "seconds") > 1.1 * field_number(plan, "floor_seconds");
        bound = waits ? "compute, but it waits for weights: too little memory to read them far enough ahead"
                      : "compute: weights arrive in time";
    } else if (strcmp(bound, "bus") == 0) {
        bound = "PCIe: the GPU waits for weights";
    } else if (strcmp(bound, "disk") == 0) {
        bound = "disk: computing waits for weights";
    }
    fprintf(to, "bound    %s\n", bound);
}

/* Prints one advice with the time that it would give: per step if the step becomes faster, else in total.
 * step: seconds per step of this plan. */
static void print_one_advice(FILE *to, const json_t *advice, double step) {
    char text[32], time[64];
    const char *kind = field_string(advice, "kind");
    bool steps = strcmp(field_string(advice, "stage"), "denoise") == 0 &&
                 field_number(advice, "seconds_per_step") < 0.98 * step;
    double factor = field_number(advice, "factor");
    snprintf(time, sizeof time, "%s %s",
             duration(field_number(advice, steps ? "seconds_per_step" : "seconds"), text),
             steps ? "per step" : "in total");
    if (strcmp(kind, "batch") == 0)
        fprintf(to, "advice   batch of %.0f: %s per step and image\n", factor,
                duration(field_number(advice, "seconds_per_step") / factor, text));
    else if (strncmp(kind, "int8", 4) == 0)
        fprintf(to, "advice   --precision int8%s: %s in total, %.2g times as fast; other pixels\n",
                strcmp(kind, "int8") ? " with a transformer converted to int8_convrot" : "",
                duration(field_number(advice, "seconds"), text), factor);
    else if (strcmp(kind, "disk") == 0 || strcmp(kind, "bus") == 0)
        fprintf(to, "advice   %s %.3g times as fast: %s\n", strcmp(kind, "bus") ? "disk" : "PCIe", factor,
                time);
    else
        fprintf(to, "advice   +%s %s: %s\n", progress_bytes(field_number(advice, "extra_bytes"), text),
                strcmp(kind, "vram") ? "RAM" : "VRAM", time);
}

static void print_advice(FILE *to, const json_t *plan) {
    size_t i;
    bool memory = false;
    json_t *advice, *list = json_object_get(plan, "advice");
    if (!list || !json_is_number(json_object_get(plan, "seconds"))) return;
    json_array_foreach(list, i, advice) {
        print_one_advice(to, advice, step_seconds(plan));
        memory = memory || json_object_get(advice, "extra_bytes");
    }
    const json_t *peak = json_object_get(plan, "peak"), *budget = json_object_get(plan, "budget");
    bool fits = field_number(peak, "ram_bytes") <= field_number(budget, "ram_bytes") &&
                field_number(peak, "vram_bytes") <= field_number(budget, "vram_bytes");
    if (!memory && fits) fprintf(to, "advice   more memory would not help\n");
}

static const struct {
    const char *title, *key;
} columns[] = {
    {"weights", "resident_bytes"},
    {"streamed/call", "streamed_bytes_per_evaluation"},
    {"ring", "ring_bytes"},
    {"state", "state_bytes"},
    {"activation", "activation_bytes"},
    {"workspace", "workspace_bytes"},
    {"library", "library_bytes"},
    {"RAM peak", "peak_ram_bytes"},
    {"VRAM peak", "peak_vram_bytes"}, /* the column is printed only for a GPU */
};
enum { N_COLUMNS = sizeof columns / sizeof *columns };

static int column_width(int c) {
    int bytes = (int)strlen(columns[c].title);
    return bytes > 11 ? bytes : 11;
}

static void print_stages(FILE *to, const json_t *plan) {
    size_t i, k;
    json_t *stage, *block, *stages = json_object_get(plan, "stages");
    bool vram = field_number(json_object_get(plan, "peak"), "vram_bytes") > 0;
    int n_columns = vram ? N_COLUMNS : N_COLUMNS - 1;
    fprintf(to, "\n%-12s %-16s %5s %5s %9s", "stage", "family", "calls", "batch", "resident");
    for (int c = 0; c < n_columns; c++) fprintf(to, " %*s", column_width(c), columns[c].title);
    fprintf(to, json_is_number(json_object_get(plan, "seconds")) ? " %9s bound\n" : "\n", "time");
    json_array_foreach(stages, i, stage) {
        char text[32], blocks[32];
        size_t n_resident = 0;
        const json_t *all = json_object_get(stage, "blocks");
        json_array_foreach(all, k, block) n_resident += field_flag(block, "resident");
        snprintf(blocks, sizeof blocks, "%zu/%zu", n_resident, json_array_size(all));
        fprintf(to, "%-12s %-16s %5.0f %5.0f %9s", field_string(stage, "name"), field_string(stage, "family"),
                field_number(stage, "evaluations"), field_number(stage, "lanes"), blocks);
        for (int c = 0; c < n_columns; c++)
            fprintf(to, " %*s", column_width(c), progress_bytes(field_number(stage, columns[c].key), text));
        if (json_is_number(json_object_get(stage, "seconds")))
            fprintf(to, " %9s %s", duration(field_number(stage, "seconds"), text),
                    field_string(stage, "bound"));
        fputc('\n', to);
    }
}

/* Prints the limit of pinned memory, and how many bytes of the weights in RAM exceed the limit. */
static void print_pins(FILE *to, const json_t *plan) {
    size_t i;
    double most = 0;
    char limit[32], rest[32];
    const json_t *stage, *known = json_object_get(plan, "pin_limit_bytes");
    if (!known) return;
    json_array_foreach(json_object_get(plan, "stages"), i, stage) {
        double windowed = field_number(stage, "pool_bytes") - field_number(stage, "pinned_bytes");
        if (windowed > most) most = windowed;
    }
    fprintf(to, "pinned   at most %s of RAM", progress_bytes(json_number_value(known), limit));
    if (most > 0)
        fprintf(to, "; %s of weights in RAM are copied through a staging buffer", progress_bytes(most, rest));
    fputc('\n', to);
}

/* Prints the LoRAs with their weights and computation in the stage where their weights are largest. */
static void print_adapters(FILE *to, const json_t *plan) {
    enum { SHOWN_PERCENT = 5 };
    size_t i, k;
    double most = 0, work = 0, weights = 0;
    char text[32];
    const json_t *of, *block, *loras = json_object_get(json_object_get(plan, "request"), "loras");
    json_array_foreach(json_object_get(plan, "stages"), i, of) {
        double bytes = field_number(of, "adapter_bytes"), flops = field_number(of, "adapter_flops");
        if (bytes <= most) continue;
        double all = 0;
        json_array_foreach(json_object_get(of, "blocks"), k, block) all += field_number(block, "bytes");
        most = bytes;
        work = 100 * flops / (field_number(of, "flops") - flops);
        weights = 100 * bytes / (all - bytes);
    }
    if (!json_array_size(loras)) return;
    fprintf(to, "LoRAs    ");
    json_array_foreach(loras, i, of) {
        fprintf(to, "%s%s:%.9g", i ? ", " : "", field_string(of, "name"), field_number(of, "strength"));
    }
    fprintf(to, ": +%s of weights, +%.1f %% computation", progress_bytes(most, text), work);
    if (work > SHOWN_PERCENT || weights > SHOWN_PERCENT)
        fprintf(to, "; `sluice convert --lora` merges them into the weights");
    fputc('\n', to);
}

/* Sums the weights of all control networks: all bytes, and the bytes that are streamed in one evaluation.
 * Their blocks are named "control.NAME", "control_2.NAME", ... */
static void count_networks(const json_t *plan, double *bytes, double *streamed) {
    size_t i, k;
    const json_t *stage, *block;
    json_array_foreach(json_object_get(plan, "stages"), i, stage)
        json_array_foreach(json_object_get(stage, "blocks"), k, block) {
        const char *name = field_string(block, "name"), *rest = strchr(name, '.');
        bool network = !strncmp(name, "control", 7) && rest && (name[7] == '.' || name[7] == '_');
        if (!network) continue;
        const json_t *loads = json_object_get(block, "loads_per_evaluation");
        bool once = field_flag(block, "hoisted") || field_flag(block, "resident");
        *bytes += field_number(block, "bytes");
        if (!once) *streamed += field_number(block, "bytes") * (loads ? json_number_value(loads) : 1);
    }
}

/* Prints a line of all control images (network, strength, mode, and range of steps if they are not all), then
 * the bytes of the networks' weights. */
static void print_controls(FILE *to, const json_t *plan) {
    size_t i;
    double bytes = 0, streamed = 0;
    char text[2][32];
    const json_t *of, *controls = json_object_get(json_object_get(plan, "request"), "controls");
    json_array_foreach(controls, i, of) {
        double start = field_number(of, "start"), end = field_number(of, "end");
        fprintf(to, "%s%s:%.9g", i ? ", " : "control  ", field_string(of, "name"),
                field_number(of, "strength"));
        if (json_object_get(of, "mode")) fprintf(to, " %s", field_string(of, "mode"));
        if (field_flag(of, "canny")) fputs(" canny", to);
        if (field_flag(of, "inpaint")) fputs(" inpainting", to);
        if (start > 0 || end < 1) fprintf(to, " (%g to %g of the steps)", start, end);
    }
    count_networks(plan, &bytes, &streamed);
    if (bytes > 0)
        fprintf(to, "; networks of %s, %s streamed/call", progress_bytes(bytes, text[0]),
                progress_bytes(streamed, text[1]));
    if (json_array_size(controls)) fputc('\n', to);
}

int plan_table_print(FILE *to, const char *json, bool bytes, struct sluice_error *e) {
    json_t *plan = json_loads(json, 0, NULL);
    if (!plan) return fail(e, SLUICE_INTERNAL, "the library's plan is not JSON");
    sanitize_json(plan);
    const json_t *card = json_object_get(plan, "card");
    fprintf(to, "plan     %s on %s in %s\n", field_string(plan, "hash"),
            field_string(plan, card ? "card" : "device"), field_string(plan, "precision"));
    print_request(to, json_object_get(plan, "request"));
    print_memory(to, plan, "budget", "budget", bytes);
    print_memory(to, plan, "peak", "peak", bytes);
    print_memory(to, plan, "minimum", "least", bytes);
    print_assumed(to, plan);
    print_pins(to, plan);
    print_adapters(to, plan);
    print_controls(to, plan);
    char text[32];
    const json_t *previews = json_object_get(json_object_get(plan, "request"), "preview");
    if (previews) {
        double ram = field_number(previews, "ram_bytes"), vram = field_number(previews, "vram_bytes");
        fprintf(to, "previews %.0f, %s", field_number(previews, "pictures"), field_string(previews, "how"));
        if (ram > 0) fprintf(to, "; each needs %s RAM during the steps", progress_bytes(ram, text));
        if (vram > 0) fprintf(to, " and %s VRAM", progress_bytes(vram, text));
        fputc('\n', to);
    }
    double bounce = field_number(plan, "bounce_bytes");
    if (bounce > 0)
        fprintf(to, "reads    with O_DIRECT, through buffers of %s\n", progress_bytes(bounce, text));
    double groups = field_number(denoise_stage(plan), "groups");
    if (groups > 1) /* the batch does not fit in memory as a whole */
        fprintf(to, "images   %.0f in %.0f groups, computed one after another in each step\n",
                field_number(json_object_get(plan, "request"), "batch"), groups);
    print_time(to, plan);
    print_advice(to, plan);
    const char *rates = field_string(plan, "rates");
    if (strcmp(rates, "default") == 0)
        rates = "assumed; `sluice bench bus --save FILE` and `sluice bench ops --save FILE` measure them, "
                "--rates FILE reads them";
    else if (strcmp(rates, "card") == 0)
        rates = "from the card's data sheet; --rates FILE reads measured ones";
    fprintf(to, "rates    %s\n", rates);
    print_stages(to, plan);
    json_decref(plan);
    return SLUICE_OK;
}
