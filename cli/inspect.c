/* `sluice inspect`: prints what model and adapter files contain. */
#include "cli/commands.h"
#include "cli/fail.h"
#include "cli/fields.h"
#include "cli/messages.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Prints bytes per type: "Q4_K 3.20 GiB, F32 1.20 MiB, 4.61 bits a weight". */
static void print_stored(const json_t *stored) {
    char bytes[32];
    const char *type;
    json_t *value, *types = json_object_get(stored, "types");
    json_object_foreach(types, type, value) {
        printf("%s %s, ", type, progress_bytes(json_number_value(value), bytes));
    }
    printf("%.2f bits a weight\n", field_number(stored, "bits_per_weight"));
}

/* Prints one value per line: strings without quotes, everything else as JSON. */
static void print_value(const char *indent, const json_t *value) {
    char *text = json_is_string(value)
                     ? NULL
                     : json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(9));
    printf("%s%s\n", indent, text ? text : json_string_value(value));
    free(text);
}

static void print_list(const char *title, const json_t *list) {
    size_t i;
    json_t *value;
    if (json_array_size(list) == 0) return;
    printf("%s (%zu)\n", title, json_array_size(list));
    json_array_foreach(list, i, value) {
        print_value("  ", value);
    }
}

/* Length of the array's name in a metadata key: of "axes_dims" in "axes_dims.2"; 0 for keys without index. */
static size_t array_name_bytes(const char *key) {
    const char *dot = strrchr(key, '.');
    return dot && dot[1] && strspn(dot + 1, "0123456789") == strlen(dot + 1) ? (size_t)(dot - key) : 0;
}

/* Prints "key value, array value value, ..." on lines of about 100 columns. */
static void print_config(const json_t *component) {
    enum { COLUMNS = 100 };
    if (!json_object_size(json_object_get(component, "config"))) return;
    int column = printf("  config (%s):", field_string(component, "config_from"));
    const char *key, *before = "";
    json_t *value, *config = json_object_get(component, "config");
    json_object_foreach(config, key, value) {
        const char *shown = json_string_value(value);
        char *name = strdup(key), *text = NULL;
        if (!shown) text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(9));
        if (!shown) shown = text ? text : "?";
        size_t array = array_name_bytes(key), bytes = array ? array : strlen(key);
        bool continues = array && array_name_bytes(before) == array && strncmp(key, before, array) == 0;
        if (*before && !continues) column += printf(",");
        if (!continues && column + (int)(bytes + strlen(shown)) + 3 > COLUMNS) column = printf("\n   ") - 1;
        if (!continues) column += printf(" %.*s", (int)bytes, name ? sanitize_text(name) : "?");
        if (continues && column + (int)strlen(shown) + 2 > COLUMNS) column = printf("\n     ") - 1;
        column += printf(" %s", shown);
        before = key;
        free(name);
        free(text);
    }
    putchar('\n');
}

static void print_tensors(const json_t *component) {
    size_t i;
    json_t *tensor;
    json_array_foreach(json_object_get(component, "list"), i, tensor) {
        char *shape = json_dumps(json_object_get(tensor, "shape"), JSON_ENCODE_ANY);
        printf("    %-9s %-24s %s\n", field_string(tensor, "type"), shape ? shape : "",
               field_string(tensor, "name"));
        free(shape);
    }
}

/* Prints a control network's denoiser, number of blocks, input, and modes with their numbers. */
static void print_control(const json_t *control) {
    size_t i;
    json_t *mode, *modes = json_object_get(control, "modes");
    if (!control) return;
    printf("  control network for %s, %.0f blocks, reads %s", field_string(control, "denoiser"),
           field_number(control, "blocks"), field_string(control, "input"));
    json_array_foreach(modes, i, mode) {
        const char *name = json_string_value(mode);
        printf("%s%zu%s%s", i ? ", " : "; modes ", i, name ? " " : "", name ? name : "");
    }
    putchar('\n');
}

static void print_component(const json_t *component) {
    char bytes[32];
    size_t i;
    json_t *file, *group, *groups = json_object_get(component, "groups");
    printf("%s: %s, %.0f tensors, %s\n", field_string(component, "name"), field_string(component, "family"),
           field_number(component, "tensors"), progress_bytes(field_number(component, "bytes"), bytes));
    json_array_foreach(json_object_get(component, "files"), i, file) {
        print_value("  ", file);
    }
    print_control(json_object_get(component, "control"));
    printf("  all: ");
    print_stored(component);
    json_array_foreach(groups, i, group) {
        if (json_array_size(groups) < 2) break;
        printf("  %s (%.0f): ", field_string(group, "name"), field_number(group, "tensors"));
        print_stored(group);
    }
    const char *tokenizer = json_string_value(json_object_get(component, "tokenizer"));
    if (tokenizer)
        printf("  reads up to %.0f tokens, tokenizer %s\n", field_number(component, "max_sequence_length"),
               tokenizer);
    print_config(component);
    print_tensors(component);
}

/* Prints values and how often they occur: "rank 16 (132), 8 (4)". */
static void print_counts(const char *title, json_t *counts) {
    const char *key, *between = " ";
    json_t *n;
    printf("%s", title);
    json_object_foreach(counts, key, n) {
        printf("%s%s (%.0f)", between, key, json_number_value(n));
        between = ", ";
    }
}

static void print_adapter(const json_t *adapter) {
    char bytes[32];
    const char *type;
    size_t i;
    json_t *value, *part, *recipes = json_object_get(adapter, "recipes");
    print_counts("adapter:", json_object_get(adapter, "forms"));
    printf(", %.0f tensors, %s\n", field_number(adapter, "tensors"),
           progress_bytes(field_number(adapter, "bytes"), bytes));
    print_value("  ", json_object_get(adapter, "file"));
    printf("  all:");
    json_object_foreach(json_object_get(adapter, "types"), type, value) {
        printf(" %s %s,", type, progress_bytes(json_number_value(value), bytes));
    }
    print_counts(" keys of", json_object_get(adapter, "dialects"));
    puts("");
    json_array_foreach(json_object_get(adapter, "parts"), i, part) {
        printf("  %s: %.0f modules", field_string(part, "name"), field_number(part, "modules"));
        print_counts(", rank", json_object_get(part, "ranks"));
        print_counts(", alpha", json_object_get(part, "alphas"));
        puts("");
    }
    printf("  fits");
    json_array_foreach(recipes, i, value) printf("%s %s", i ? "," : "", json_string_value(value));
    puts(json_array_size(recipes) ? "" : " no published model");
    print_tensors(adapter);
}

/* True for the name of a missing part; false for an error message, which has spaces. */
static bool is_part_name(const json_t *missing) {
    return json_is_string(missing) && !strchr(json_string_value(missing), ' ');
}

/* Prints "complete: all parts of zimage are there" or "incomplete: vae is missing". */
static void print_completeness(const json_t *root) {
    size_t i;
    json_t *part;
    const json_t *missing = json_object_get(root, "missing");
    const char *recipe = json_string_value(json_object_get(root, "recipe"));
    if (field_flag(root, "complete")) {
        printf("complete: all parts%s%s are there\n", recipe ? " of " : "", recipe ? recipe : "");
        return;
    }
    printf("incomplete: ");
    json_array_foreach(missing, i, part) {
        const char *text = json_string_value(part);
        printf("%s%s%s", i ? "; " : "", text ? text : "?", is_part_name(part) ? " is missing" : "");
    }
    putchar('\n');
}

static void print_inspection(json_t *root) {
    size_t i;
    json_t *component;
    const json_t *adapter = json_object_get(root, "adapter");
    if (adapter) {
        print_adapter(adapter);
        print_list("unknown", json_object_get(root, "unknown"));
        return;
    }
    print_completeness(root);
    const char *pipeline = json_string_value(json_object_get(root, "pipeline"));
    if (pipeline) printf("pipeline: %s\n", pipeline);
    const char *recipe = json_string_value(json_object_get(root, "recipe"));
    if (recipe) printf("recipe: %s\n", recipe);
    json_array_foreach(json_object_get(root, "components"), i, component) {
        print_component(component);
    }
    print_list("unknown", json_object_get(root, "unknown"));
    print_list("missing", json_object_get(root, "missing"));
    print_list("notes", json_object_get(root, "notes"));
    printf("schedule: %s\n", field_string(root, "schedule"));
}

/* Fails for an incomplete model; the error names the first damaged file, or else the first missing part. A
 * single part may lack the other parts, but must not be damaged. */
static int check_complete(const char *path, const char *json, struct sluice_error *e) {
    json_t *root = json_loads(json, 0, NULL), *entry;
    bool is_single = json_is_null(json_object_get(root, "pipeline")) &&
                     json_array_size(json_object_get(root, "components")) == 1;
    const char *missing = NULL, *damaged = NULL;
    size_t i;
    json_array_foreach(json_object_get(root, "missing"), i, entry) {
        const char **first = is_part_name(entry) ? &missing : &damaged;
        if (!*first) *first = json_string_value(entry);
    }
    if (!path) path = "the given components";
    if (damaged)
        fail(e, SLUICE_MISSING, "a part of the model cannot be read" WHERE "%s" FOUND "%s", path, damaged);
    else if (missing && !is_single)
        fail(e, SLUICE_MISSING, "the model is incomplete" WHERE "%s" FOUND "no %s" EXPECTED "all parts", path,
             missing);
    json_decref(root);
    return damaged || (missing && !is_single) ? SLUICE_MISSING : SLUICE_OK;
}

int inspect_command(const struct args *args, struct sluice_error *e) {
    struct sluice_model_options options = args->model;
    bool parts = options.model || options.n_parts || options.tokenizer;
    bool twice = options.model && args->n_operands;
    char *json = NULL;
    if (twice || (!parts && !args->n_operands))
        return fail(e, SLUICE_USAGE, "%s" WHERE "sluice inspect" EXPECTED "sluice inspect PATH, or -m PATH",
                    twice ? "two models are given" : "no model is given");
    if (args->n_operands) options.model = args->operands[0];
    int status = sluice_inspect(&options, args->tensors, &json, e);
    if (!status) status = answer_show(args, json, "description", print_inspection, e);
    if (!status) status = check_complete(options.model, json, e);
    sluice_free(json);
    return status;
}
