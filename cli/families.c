/* `sluice families`: lists the supported models as they are published. */
#include "cli/answer.h"
#include "cli/commands.h"
#include "cli/fail.h"
#include "cli/families_plans.h"
#include "cli/families_tables.h"
#include "cli/fields.h"
#include "cli/messages.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_strings(const char *separator, const json_t *list) {
    size_t i;
    json_t *string;
    json_array_foreach(list, i, string) printf("%s%s", i ? separator : "", json_string_value(string));
}

static void print_row(const json_t *family) {
    char bytes[32], size[32];
    snprintf(size, sizeof size, "%.0fx%.0f", field_number(family, "width"), field_number(family, "height"));
    printf("%-20s %10s %6.0f %9s  ", field_string(family, "name"), size, field_number(family, "steps"),
           progress_bytes(field_number(family, "bytes"), bytes));
    print_strings(", ", json_object_get(family, "pipelines"));
    printf("\n");
}

static void print_families(json_t *root) {
    size_t i;
    json_t *family;
    printf("%-20s %10s %6s %9s  %s\n", "family", "size", "steps", "in bf16", "model_index.json");
    json_array_foreach(json_object_get(root, "families"), i, family) print_row(family);
}

static void print_parts(const json_t *parts) {
    size_t i;
    json_t *part;
    char bytes[32];
    printf("parts     size in bf16\n");
    json_array_foreach(parts, i, part) printf(
        "  %-28s %9s  %s%s\n", field_string(part, "flag"), progress_bytes(field_number(part, "bytes"), bytes),
        field_string(part, "name"), field_flag(part, "optional") ? ", optional" : "");
}

static void print_sources(const json_t *sources) {
    size_t i;
    json_t *source;
    char files[FAMILIES_CELL];
    printf("files     on Hugging Face, GB\n");
    json_array_foreach(sources, i, source) {
        const char *flag = json_string_value(json_object_get(source, "flag"));
        printf("  %-28s %s: %s\n", flag ? flag : "-m", field_string(source, "repository"),
               families_files(source, "", files));
    }
}

static void print_takes(const json_t *takes) {
    size_t i;
    json_t *take;
    if (json_array_size(takes)) printf("inputs    besides the prompt\n");
    json_array_foreach(takes, i, take)
        printf("  %-28s %s%s\n", field_string(take, "flag"), field_string(take, "what"),
               field_flag(take, "needed") ? ", required" : "");
}

static void print_compared(const json_t *family) {
    const char *reference = json_string_value(json_object_get(family, "reference"));
    if (reference)
        printf("tested    against %s, as a whole pipeline\n", reference);
    else
        printf("tested    part by part: the parts are those of %s\n", field_string(family, "like"));
}

static void print_plans(const json_t *plans) {
    size_t i;
    json_t *plan;
    char least[FAMILIES_CELL], times[FAMILIES_CELL];
    printf("plans     minimum of VRAM + RAM (CPU: RAM), GiB; predicted time per step, total\n");
    json_array_foreach(plans, i, plan) {
        printf("  %-28s %s; %s\n", field_string(plan, "device"), families_least(plan, least),
               families_times(plan, times));
        printf("  %-28s %s\n", "", field_string(plan, "command"));
    }
}

static void print_family(json_t *root) {
    const json_t *family = json_array_get(json_object_get(root, "families"), 0);
    printf("%s: %s\n", field_string(family, "name"), field_string(family, "title"));
    printf("default   %.0fx%.0f", field_number(family, "width"), field_number(family, "height"));
    if (field_number(family, "frames") > 1) printf(", %.0f frames", field_number(family, "frames"));
    printf(", %.0f steps", field_number(family, "steps"));
    if (field_number(family, "cfg_scale") != 1) printf(", cfg scale %g", field_number(family, "cfg_scale"));
    printf("%s\n", field_flag(family, "guides_if_negative") ? " with a negative prompt" : "");
    printf("formats   ");
    print_strings(", ", json_object_get(family, "layouts"));
    printf("\npipelines ");
    print_strings(", ", json_object_get(family, "pipelines"));
    printf("\n");
    print_compared(family);
    print_takes(json_object_get(family, "takes"));
    print_parts(json_object_get(family, "parts"));
    print_sources(json_object_get(family, "sources"));
    print_plans(json_object_get(family, "plans"));
}

static int keep_named(json_t *families, const char *name, struct sluice_error *e) {
    for (size_t i = json_array_size(families); i--;)
        if (strcmp(field_string(json_array_get(families, i), "name"), name) != 0)
            json_array_remove(families, i);
    if (json_array_size(families)) return SLUICE_OK;
    return fail(e, SLUICE_USAGE, "unknown family" FOUND "%s" EXPECTED "one that `sluice families` lists",
                name);
}

/* Selects the families that were asked for, adds plans if needed, and converts the list to text. */
static int chosen_families(const struct args *args, json_t *root, char **json, struct sluice_error *e) {
    json_t *families = json_object_get(root, "families");
    const char *name = args->operands[0];
    if (name && keep_named(families, name, e)) return e->code;
    bool plans = args->plans || args->markdown || name;
    if (plans && families_plans_add(families, !args->quiet, e)) return e->code;
    *json = json_dumps(root, JSON_INDENT(1));
    return *json ? SLUICE_OK : fail(e, SLUICE_MEMORY, "no memory for a list of families");
}

static int check_forms(const struct args *args, struct sluice_error *e) {
    return args->json && args->markdown ? fail_value(e, "--markdown", "--json too", "one of the two")
                                        : SLUICE_OK;
}

int families_command(const struct args *args, struct sluice_error *e) {
    char *all = NULL, *json = NULL;
    int status = check_forms(args, e);
    if (!status) status = sluice_families(&all, e);
    if (status) return status;
    json_t *root = json_loads(all, 0, NULL);
    status = root ? chosen_families(args, root, &json, e)
                  : fail(e, SLUICE_INTERNAL, "the library's list of families is not JSON");
    void (*print)(json_t *) = args->markdown      ? families_markdown
                              : args->operands[0] ? print_family
                              : args->plans       ? families_print_plans
                                                  : print_families;
    if (!status) status = answer_show(args, json, "list of families", print, e);
    json_decref(root);
    free(json);
    sluice_free(all);
    return status;
}
