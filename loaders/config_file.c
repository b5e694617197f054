/* Configuration files: flattens a JSON document into struct config. See config.h and loaders.h. The document
 * is traversed twice without recursion: once to count the values, once to copy them. A flat key contains the
 * names of all enclosing objects, so the length of keys is limited: 1 MB of JSON could otherwise need
 * gigabytes of keys. */
#include "loaders/json.h"
#include "loaders/loaders.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/text.h"

enum { CONFIG_DEPTH_MAX = 64, CONFIG_VALUES_MAX = 65536, CONFIG_KEY_MAX = 255 };

struct frame {
    json_t *node;
    void *member; /* iteration state of an object: its next member */
    size_t place; /* iteration state of an array: its next index */
    size_t key_bytes;
};

struct flattening {
    struct config *config; /* configuration being filled; values NULL: first pass, which only counts */
    int n_values;
    int depth;
    struct frame frames[CONFIG_DEPTH_MAX];
    char key[CONFIG_KEY_MAX + 1];
};

/* Sets an error of the file. what: printf format, may end in FOUND and EXPECTED parts (error_set). */
#define config_file_fail(e, code, f, what, ...)                                                              \
    error_set(e, code, what WHERE "%s", ##__VA_ARGS__, (f)->config->path)

static enum status copy_leaf(struct flattening *f, const json_t *leaf, struct error *e) {
    struct sys *sys = f->config->sys;
    struct config_value *value = &f->config->values[f->n_values];
    f->config->n_values = f->n_values + 1;
    value->kind = json_is_number(leaf)    ? CONFIG_NUMBER
                  : json_is_boolean(leaf) ? CONFIG_BOOL
                  : json_is_string(leaf)  ? CONFIG_STRING
                  : json_is_array(leaf)   ? CONFIG_EMPTY
                                          : CONFIG_NULL;
    value->number = json_is_true(leaf) ? 1 : json_number_value(leaf);
    value->integer = json_is_integer(leaf);
    value->key = copy_text(sys, f->key, strlen(f->key), e);
    if (json_is_string(leaf))
        value->string = copy_text(sys, json_string_value(leaf), strlen(json_string_value(leaf)), e);
    return e->code;
}

static void push(struct flattening *f, json_t *node) {
    f->frames[f->depth++] =
        (struct frame){.node = node, .member = json_object_iter(node), .key_bytes = strlen(f->key)};
}

static enum status write_key(struct flattening *f, const struct frame *frame, struct error *e) {
    char *end = f->key + frame->key_bytes;
    size_t room = sizeof f->key - frame->key_bytes;
    const char *dot = frame->key_bytes ? "." : "";
    int n = json_is_object(frame->node)
                ? snprintf(end, room, "%s%s", dot, json_object_iter_key(frame->member))
                : snprintf(end, room, "%s%zu", dot, frame->place);
    if (n >= 0 && (size_t)n < room) return OK;
    return config_file_fail(e, LIMIT, f,
                            "a configuration key is too long" FOUND "%s" EXPECTED
                            "at most %d bytes including the names of enclosing objects",
                            f->key, CONFIG_KEY_MAX);
}

static enum status visit(struct flattening *f, json_t *root, struct error *e) {
    f->n_values = 0;
    f->key[0] = 0;
    push(f, root);
    while (f->depth) {
        struct frame *frame = &f->frames[f->depth - 1];
        bool object = json_is_object(frame->node);
        if (object ? !frame->member : frame->place == json_array_size(frame->node)) {
            f->depth--;
            continue;
        }
        if (write_key(f, frame, e) != OK) return e->code;
        json_t *child =
            object ? json_object_iter_value(frame->member) : json_array_get(frame->node, frame->place++);
        if (object) frame->member = json_object_iter_next(frame->node, frame->member);
        if (json_is_object(child) || json_array_size(child)) {
            push(f, child);
            continue;
        }
        if (f->n_values == CONFIG_VALUES_MAX)
            return config_file_fail(e, LIMIT, f,
                                    "the configuration has too many values" EXPECTED "at most %d",
                                    CONFIG_VALUES_MAX);
        if (f->config->values && copy_leaf(f, child, e) != OK) return e->code;
        f->n_values++;
    }
    return OK;
}

static int compare_keys(const void *a, const void *b) {
    return strcmp(((const struct config_value *)a)->key, ((const struct config_value *)b)->key);
}

enum status config_parse(struct sys *sys, const char *path, const char *text, const char *member,
                         struct config *config, struct error *e) {
    json_t *root = NULL;
    *config = (struct config){.sys = sys};
    if (json_parse(path, text, strlen(text), CONFIG_DEPTH_MAX, &root, e) != OK) return e->code;
    json_t *object = member ? json_object_get(root, member) : root;
    if (member && !json_is_object(object)) goto out;
    struct flattening f = {.config = config};
    config->path = copy_text(sys, path, strlen(path), e);
    if (!config->path) goto out;
    if (!json_is_object(object)) {
        config_file_fail(e, JSON, &f, "the configuration is not a JSON object");
        goto out;
    }
    if (visit(&f, object, e) != OK) goto out;
    config->values = sys_new(sys, (size_t)f.n_values, sizeof *config->values, "a configuration", e);
    if (!config->values || visit(&f, object, e) != OK) goto out;
    /* Flattening can create duplicates: {"a.b": 1, "a": {"b": 2}} has no duplicate keys as JSON. */
    int twice = sort_find_duplicate(config->values, config->n_values, sizeof *config->values, compare_keys);
    if (twice) {
        config_file_fail(e, DUP, &f, "a configuration key occurs twice" FOUND "%s",
                         config->values[twice].key);
    }
out:
    json_decref(root);
    if (e->code != OK) config_destroy(config);
    return e->code;
}

/* Replaces -Infinity by null: Python writes -Infinity, which is not JSON, for an absent lower bound
 * (diffusers' DPMSolverMultistepScheduler). Infinity and NaN remain errors. */
static void replace_negative_infinity(char *text) {
    static const char infinity[] = "-Infinity", null[] = "null     ";
    bool quoted = false;
    for (char *c = text; *c; c++) {
        if (quoted && *c == '\\' && c[1])
            c++;
        else if (*c == '"')
            quoted = !quoted;
        else if (!quoted && !strncmp(c, infinity, sizeof infinity - 1))
            memcpy(c, null, sizeof null - 1);
    }
}

enum status config_read(struct sys *sys, const char *path, struct config *config, struct error *e) {
    return config_read_member(sys, path, NULL, config, e);
}

enum status config_read_member(struct sys *sys, const char *path, const char *member, struct config *config,
                               struct error *e) {
    char *text = NULL;
    uint64_t bytes = 0;
    *config = (struct config){.sys = sys};
    if (file_read_text(sys, path, LOADER_CONFIG_BYTES_MAX, &text, &bytes, e) != OK) return e->code;
    replace_negative_infinity(text);
    if (strlen(text) == bytes)
        config_parse(sys, path, text, member, config, e);
    else
        error_where((error_set(e, JSON, "the configuration contains a NUL byte"), e), "%s", path);
    sys->release(sys, text);
    return e->code;
}

json_t *config_json(const struct config *config) {
    json_t *json = json_object();
    for (int i = 0; i < config->n_values; i++) {
        const struct config_value *v = &config->values[i];
        json_t *value = v->kind == CONFIG_STRING  ? json_string(v->string)
                        : v->kind == CONFIG_BOOL  ? json_boolean(v->number != 0)
                        : v->kind == CONFIG_NULL  ? json_null()
                        : v->kind == CONFIG_EMPTY ? json_array()
                        : v->integer              ? json_integer((json_int_t)v->number)
                                                  : json_real(v->number);
        json_put(json, v->key, value);
    }
    return json;
}
