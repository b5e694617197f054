/* `sluice families`: which models can be run, as they are published. */
#include "cli/answer.h"
#include "cli/commands.h"
#include "cli/fields.h"
#include "cli/progress.h"

#include <stdio.h>

static void print_family(const json_t *family) {
    char bytes[32], size[32];
    size_t i;
    json_t *pipeline;
    snprintf(size, sizeof size, "%.0fx%.0f", field_number(family, "width"), field_number(family, "height"));
    printf("%-20s %10s %6.0f %9s ", field_string(family, "name"), size, field_number(family, "steps"),
           progress_bytes(field_number(family, "bytes"), bytes));
    json_array_foreach(json_object_get(family, "pipelines"), i, pipeline)
        printf("%s%s", i ? ", " : " ", json_string_value(pipeline));
    printf("\n");
}

static void print_families(json_t *root) {
    size_t i;
    json_t *family;
    printf("%-20s %10s %6s %9s  %s\n", "family", "size", "steps", "in bf16", "pipelines of model_index.json");
    json_array_foreach(json_object_get(root, "families"), i, family) print_family(family);
}

int families_command(const struct args *args, struct sluice_error *e) {
    char *json = NULL;
    int status = sluice_families(&json, e);
    return answer_print(args, status, json, "list of families", print_families, e);
}
