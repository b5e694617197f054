/* `sluice families`: lists the supported models as they are published, with plans at published sizes: memory
 * and predicted time on GPUs and on a CPU. */
#include "cli/commands.h"
#include "cli/fail.h"
#include "cli/fields.h"
#include "cli/generation.h"
#include "cli/messages.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- plans ---- */

#define GIB (1LL << 30)

/* Devices and budgets to plan for. GPUs: nearly all VRAM, and 20 GiB of RAM, which most machines with such a
 * card have free. CPU: two cores and 16 GiB of RAM, the least that WAN's decoder needs. */
static const struct place {
    const char *device;
    int vram_gib, ram_gib;
} places[] = {{"cuda:3060", 11, 20},
              {"cuda:4060ti", 15, 20},
              {"cuda:4090", 22, 20},
              {"cuda:h100", 76, 20},
              {"cpu", 0, 16}};
enum { N_PLACES = sizeof places / sizeof *places, PLACE_THREADS = 2 };

/* True if the model's default is guidance, and only with a negative prompt. */
static bool guides_with_negative(const json_t *family) {
    return field_flag(family, "cfg_needs_negative") && field_number(family, "cfg_scale") != 1;
}

/* Seconds per sampler step, summed over all denoiser stages. */
static double step_seconds(const json_t *plan) {
    double seconds = 0, steps = field_number(json_object_get(plan, "request"), "steps");
    size_t i;
    json_t *stage;
    json_array_foreach(json_object_get(plan, "stages"), i, stage) {
        if (!strncmp(field_string(stage, "name"), "denoise", 7)) seconds += field_number(stage, "seconds");
    }
    return steps > 0 ? seconds / steps : 0;
}

static json_t *outcome_of(const json_t *family, const struct place *place, const char *precision,
                          const json_t *plan) {
    static const char *const keys[] = {"card", "budget", "least", "peak", "seconds", "bound"};
    char command[192];
    int n = snprintf(command, sizeof command, "sluice plan --family %s%s --device %s",
                     field_string(family, "name"), guides_with_negative(family) ? " -n \" \"" : "",
                     place->device);
    n += place->vram_gib > 0
             ? snprintf(command + n, sizeof command - (size_t)n, " --max-vram %dG", place->vram_gib)
             : snprintf(command + n, sizeof command - (size_t)n, " -t %d", PLACE_THREADS);
    n += snprintf(command + n, sizeof command - (size_t)n, " --max-ram %dG --direct-io on", place->ram_gib);
    if (precision) snprintf(command + n, sizeof command - (size_t)n, " --precision %s", precision);
    json_t *outcome = json_object();
    json_object_set_new(outcome, "device", json_string(place->device));
    json_object_set_new(outcome, "command", json_string(command));
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        json_t *value = json_object_get(plan, keys[i]);
        json_object_set(outcome, keys[i], value ? value : json_null());
    }
    json_object_set_new(outcome, "step_seconds", json_real(step_seconds(plan)));
    return outcome;
}

/* Adds the plan of a family for one device and budget, as `sluice plan` computes it. A model whose default
 * guidance needs a negative prompt is planned with one. --direct-io on makes plans independent of this
 * machine's page cache and RAM. */
static int plan_at(json_t *family, const struct place *place, const char *precision, struct sluice_error *e) {
    char blank[] = " ";
    struct args args = {
        .command = command_find("plan"),
        .model = {.struct_size = sizeof args.model, .family = field_string(family, "name")},
        .device = place->device,
        .threads = PLACE_THREADS,
        .max_vram = {place->vram_gib * GIB, 0},
        .max_ram_bytes = place->ram_gib * GIB,
        .precision = precision,
        .direct_io = "on",
        .quiet = true,
    };
    struct generation generation = {.args = &args};
    char *text = NULL;
    bool fits;
    if (guides_with_negative(family)) args.negative_prompt = (struct prompt_text){NULL, blank, 1};
    int status = generation_open(&generation, e);
    if (!status) status = sluice_plan_query(generation.session, &generation.request, NULL, &text, &fits, e);
    json_t *plan = status ? NULL : json_loads(text, 0, NULL);
    if (!status && !plan) status = fail(e, SLUICE_MEMORY, "no memory for a plan");
    if (plan)
        json_array_append_new(json_object_get(family, "plans"), outcome_of(family, place, precision, plan));
    json_decref(plan);
    sluice_free(text);
    generation_close(&generation);
    return status;
}

/* Adds to every family of the library's list: "plans":[{"device","card" (null: a CPU),"command" (prints this
 * plan),"budget":{...},"least":{...},"peak":{...},"seconds","step_seconds" (per sampler step),"bound"}]. Only
 * the RAM of oneDNN, some MiB, depends on this machine. args: the command's --precision and --quiet. */
static int add_plans(json_t *families, const struct args *args, struct sluice_error *e) {
    size_t i;
    json_t *family;
    int status = SLUICE_OK;
    bool live = !args->quiet && message_on_terminal();
    json_array_foreach(families, i, family) {
        char line[80];
        snprintf(line, sizeof line, "plan %d of %d: %s", (int)i + 1, (int)json_array_size(families),
                 field_string(family, "name"));
        if (live) message_live(line);
        json_object_set_new(family, "plans", json_array());
        for (int k = 0; k < N_PLACES && !status; k++)
            status = plan_at(family, &places[k], args->precision, e);
    }
    if (live) message_live("");
    return status;
}

/* ---- cells ---- */

enum { CELL = 128 };

/* Formats a time in one unit: "0.18 s", "3.1 s", "246 s", "25 min", "19 h", "18 days". */
static char *brief(double seconds, char out[CELL]) {
    static const struct {
        double seconds, most;
        const char *name;
    } units[] = {{1, 600, "s"}, {60, 180, "min"}, {3600, 72, "h"}, {86400, 0, "days"}};
    int u = 0;
    while (units[u].most > 0 && seconds / units[u].seconds >= units[u].most) u++;
    double n = seconds / units[u].seconds;
    snprintf(out, CELL, "%.*f %s", u || n >= 9.95 ? 0 : n >= 0.995 ? 1 : 2, n, units[u].name);
    return out;
}

static double gib(const json_t *plan, const char *memory, const char *kind) {
    return field_number(json_object_get(plan, memory), kind) / (1 << 30);
}

static bool fits(const json_t *plan) {
    return gib(plan, "least", "vram_bytes") <= gib(plan, "budget", "vram_bytes") &&
           gib(plan, "least", "ram_bytes") <= gib(plan, "budget", "ram_bytes");
}

static bool on_card(const json_t *plan) {
    return gib(plan, "budget", "vram_bytes") > 0;
}

static char *least_of(const json_t *plan, char out[CELL]) {
    int n = on_card(plan) ? snprintf(out, CELL, "%.1f + ", gib(plan, "least", "vram_bytes")) : 0;
    snprintf(out + n, CELL - (size_t)n, "%.1f", gib(plan, "least", "ram_bytes"));
    return out;
}

static char *times_of(const json_t *plan, char out[CELL]) {
    char step[CELL], all[CELL];
    snprintf(out, CELL, "%.40s, %.40s", brief(field_number(plan, "step_seconds"), step),
             brief(field_number(plan, "seconds"), all));
    if (!fits(plan)) snprintf(out, CELL, "-");
    return out;
}

static char *card(const json_t *plan, char out[CELL]) {
    const char *name = field_string(plan, "card");
    if (!strncmp(name, "GeForce ", 8)) name += 8;
    if (on_card(plan))
        snprintf(out, CELL, "%.*s", (int)strcspn(name, ","), name);
    else
        snprintf(out, CELL, "2 cores");
    return out;
}

/* ---- tables ---- */

static void print_plans_row(const json_t *family, bool heads) {
    char cell[CELL] = "steps";
    size_t i;
    json_t *plan;
    if (!heads) snprintf(cell, sizeof cell, "%.0f", field_number(family, "steps"));
    printf("%-21s %5s", heads ? "family" : field_string(family, "name"), cell);
    json_array_foreach(json_object_get(family, "plans"), i, plan) {
        if (!i || !on_card(plan)) printf("  %-9s", heads ? "min GiB" : least_of(plan, cell));
        printf("  %-14s", heads ? card(plan, cell) : times_of(plan, cell));
    }
    printf("\n");
}

static void print_plans_table(json_t *root) {
    const json_t *families = json_object_get(root, "families");
    size_t i;
    json_t *family;
    print_plans_row(json_array_get(families, 0), true);
    json_array_foreach(families, i, family) print_plans_row(family, false);
    printf(
        "min GiB: minimum VRAM + RAM; on 2 cores only RAM. Other columns: predicted time per step, total.\n");
}

static void print_strings(const char *separator, const json_t *list) {
    size_t i;
    json_t *string;
    json_array_foreach(list, i, string) printf("%s%s", i ? separator : "", json_string_value(string));
}

/* Prints the rows of one kind of network. */
static void print_networks(const json_t *root, const char *kind, const char *heading) {
    size_t i;
    json_t *network;
    bool fits_all = !strcmp(kind, "upscaler"); /* its "of" is empty */
    printf("\n%-20s %9s  %s\n", heading, "in bf16", fits_all ? "name" : "models");
    json_array_foreach(json_object_get(root, "networks"), i, network) {
        char bytes[32];
        if (strcmp(field_string(network, "kind"), kind) != 0) continue;
        printf("%-20s %9s  ", field_string(network, "name"),
               progress_bytes(field_number(network, "bytes"), bytes));
        print_strings(", ", json_object_get(network, "of"));
        printf("%s\n", fits_all ? field_string(network, "title") : "");
    }
}

static void print_families(json_t *root) {
    size_t i;
    json_t *family;
    printf("%-20s %10s %6s %9s  %s\n", "family", "size", "steps", "in bf16", "model_index.json");
    json_array_foreach(json_object_get(root, "families"), i, family) {
        char bytes[32], size[32];
        snprintf(size, sizeof size, "%.0fx%.0f", field_number(family, "width"),
                 field_number(family, "height"));
        printf("%-20s %10s %6.0f %9s  ", field_string(family, "name"), size, field_number(family, "steps"),
               progress_bytes(field_number(family, "bytes"), bytes));
        print_strings(", ", json_object_get(family, "pipelines"));
        printf("\n");
    }
    print_networks(root, "control", "control network");
    print_networks(root, "upscaler", "upscaler");
    print_networks(root, "latent upscaler", "latent upscaler");
}

/* Prints the files of a model or network on Hugging Face. */
static void print_sources(const json_t *family) {
    size_t i;
    json_t *row;
    printf("files     on Hugging Face, GB\n");
    json_array_foreach(json_object_get(family, "sources"), i, row) {
        const char *flag = json_string_value(json_object_get(row, "flag"));
        const char *files = json_string_value(json_object_get(row, "files"));
        double megabytes = field_number(row, "megabytes");
        printf("  %-28s %s: %.80s", flag ? flag : "-m", field_string(row, "repository"),
               files ? files : "the folder");
        if (megabytes > 0) printf(", %.3g", megabytes / 1000);
        printf("\n");
    }
}

/* Prints a model's inputs, its parts, and its files on Hugging Face. */
static void print_contents(const json_t *family) {
    size_t i;
    json_t *row;
    char bytes[32];
    if (json_array_size(json_object_get(family, "takes"))) printf("inputs    besides the prompt\n");
    json_array_foreach(json_object_get(family, "takes"), i, row)
        printf("  %-28s %s%s\n", field_string(row, "flag"), field_string(row, "what"),
               field_flag(row, "needed") ? ", required" : "");
    printf("parts     size in bf16\n");
    json_array_foreach(json_object_get(family, "parts"), i, row) printf(
        "  %-28s %9s  %s%s\n", field_string(row, "flag"), progress_bytes(field_number(row, "bytes"), bytes),
        field_string(row, "name"), field_flag(row, "optional") ? ", optional" : "");
    print_sources(family);
}

static void print_network(const json_t *network) {
    char bytes[32];
    bool fits_all = !strcmp(field_string(network, "kind"), "upscaler");
    const char *size_for = json_string_value(json_object_get(network, "bytes_for"));
    printf("%s: %s\n", field_string(network, "name"), field_string(network, "title"));
    printf("size      %s in bf16%s%s\n", progress_bytes(field_number(network, "bytes"), bytes),
           size_for ? ", for " : "", size_for ? size_for : "");
    printf("flag      %s FILE; with `plan --family`, %s %s\n", field_string(network, "flag"),
           field_string(network, "flag"), field_string(network, "name"));
    printf("models    ");
    print_strings(", ", json_object_get(network, "of"));
    printf(fits_all ? "all; also `sluice upscale`, and between passes --hires-upscaler\n" : "\n");
    if (json_array_size(json_object_get(network, "modes"))) {
        printf("modes     ");
        print_strings(", ", json_object_get(network, "modes"));
        printf("\n");
    }
    if (json_array_size(json_object_get(network, "sources"))) print_sources(network);
}

static void print_family(json_t *root) {
    const json_t *family = json_array_get(json_object_get(root, "families"), 0);
    if (!family) return print_network(json_array_get(json_object_get(root, "networks"), 0));
    printf("%s: %s\n", field_string(family, "name"), field_string(family, "title"));
    printf("default   %.0fx%.0f", field_number(family, "width"), field_number(family, "height"));
    if (field_number(family, "frames") > 1) printf(", %.0f frames", field_number(family, "frames"));
    printf(", %.0f steps", field_number(family, "steps"));
    if (field_number(family, "cfg_scale") != 1) printf(", cfg scale %g", field_number(family, "cfg_scale"));
    bool needs_negative = field_flag(family, "cfg_needs_negative");
    printf("%s\n", guides_with_negative(family) ? " with a negative prompt"
                   : needs_negative             ? ", without guidance"
                                                : "");
    printf("formats   ");
    print_strings(", ", json_object_get(family, "layouts"));
    printf("\npipelines ");
    print_strings(", ", json_object_get(family, "pipelines"));
    printf("\n");
    const char *reference = json_string_value(json_object_get(family, "reference"));
    if (reference)
        printf("tested    against %s, as a whole pipeline\n", reference);
    else
        printf("tested    part by part: the parts are those of %s\n", field_string(family, "like"));
    print_contents(family);
    size_t i;
    json_t *plan;
    char least[CELL], times[CELL];
    printf("plans     minimum of VRAM + RAM (CPU: RAM), GiB; predicted time per step, total\n");
    json_array_foreach(json_object_get(family, "plans"), i, plan) {
        printf("  %-28s %s; %s\n", field_string(plan, "device"), least_of(plan, least),
               times_of(plan, times));
        printf("  %-28s %s\n", "", field_string(plan, "command"));
    }
}

/* ---- the command ---- */

/* Prints the list of families or its JSON: all, or the family named on the command line. Adds plans if
 * needed. */
static int show_families(const struct args *args, json_t *root, struct sluice_error *e) {
    json_t *families = json_object_get(root, "families"), *networks = json_object_get(root, "networks");
    json_t *lists[] = {families, networks};
    const char *name = args->operands[0];
    char nearest[64] = "";
    int best = 100;
    for (int list = 0; list < 2 && name; list++)
        for (size_t i = json_array_size(lists[list]); i--;) {
            const char *other = field_string(json_array_get(lists[list], i), "name");
            if (name_nearer(name, other, &best))
                snprintf(nearest, sizeof nearest, ", did you mean %s?", other);
            if (strcmp(other, name) != 0) json_array_remove(lists[list], i);
        }
    if (name && !json_array_size(families) && !json_array_size(networks))
        return fail(e, SLUICE_USAGE,
                    "unknown family%s" FOUND "%s" EXPECTED "one that `sluice families` lists", nearest, name);
    if ((args->plans || name) && add_plans(families, args, e)) return e->code;
    char *json = json_dumps(root, JSON_INDENT(1));
    if (!json) return fail(e, SLUICE_MEMORY, "no memory for a list of families");
    void (*print)(json_t *) = name ? print_family : args->plans ? print_plans_table : print_families;
    int status = answer_show(args, json, "list of families", print, e);
    free(json);
    return status;
}

int families_command(const struct args *args, struct sluice_error *e) {
    char *all = NULL;
    int status = sluice_families(&all, e);
    if (status) return status;
    json_t *root = json_loads(all, 0, NULL);
    status = root ? show_families(args, root, e)
                  : fail(e, SLUICE_INTERNAL, "the library's list of families is not JSON");
    json_decref(root);
    sluice_free(all);
    return status;
}
