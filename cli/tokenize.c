/* `sluice tokenize`: prints token ids, one line per text encoder. */
#include "cli/answer.h"
#include "cli/commands.h"
#include "cli/fail.h"
#include "cli/fields.h"

#include <stdio.h>

static void print_ids(const json_t *ids) {
    size_t i;
    json_t *id;
    json_array_foreach(ids, i, id) {
        printf("%s%" JSON_INTEGER_FORMAT, i ? " " : "", json_integer_value(id));
    }
    putchar('\n');
}

static void print_weights(const json_t *weights) {
    size_t i;
    json_t *weight;
    json_array_foreach(weights, i, weight) {
        printf("%s%g", i ? " " : "weights ", json_real_value(weight));
    }
    putchar('\n');
}

static void print_encoder(const json_t *encoder) {
    const json_t *ids = json_object_get(encoder, "ids");
    const char *name = json_string_value(json_object_get(encoder, "name"));
    bool cut = field_flag(encoder, "truncated");
    const json_t *weights = json_object_get(encoder, "weights");
    json_int_t window = json_integer_value(json_object_get(encoder, "window"));
    printf("%s: %zu tokens", name ? name : "encoder", json_array_size(ids));
    if (window) printf(" in windows of %" JSON_INTEGER_FORMAT, window);
    printf("%s\n", cut ? ", truncated" : "");
    print_ids(ids);
    if (weights) print_weights(weights);
}

static void print_tokens(json_t *root) {
    size_t i;
    json_t *encoder;
    if (json_is_array(root)) print_ids(root);
    json_array_foreach(json_object_get(root, "encoders"), i, encoder) {
        print_encoder(encoder);
    }
}

static int tokenize_check_flags(const struct args *args, struct sluice_error *e) {
    bool model = args->model.model || args->model.n_parts || args->model.tokenizer;
    if (model && args->prompt.text) return SLUICE_OK;
    return fail(e, SLUICE_USAGE, "%s" WHERE "sluice tokenize" EXPECTED "%s",
                model ? "no prompt is given" : "no model or tokenizer is given",
                model ? "-p TEXT or -p @FILE" : "-m DIR or --tokenizer PATH");
}

int tokenize_command(const struct args *args, struct sluice_error *e) {
    char *json = NULL;
    int status = tokenize_check_flags(args, e);
    if (!status) status = sluice_tokenize(&args->model, args->prompt.text, args->prompt.bytes, &json, e);
    return answer_print(args, status, json, "list of ids", print_tokens, e);
}
