/* Helpers for reading tokenizer files of any format: see reading.h. */
#include "loaders/tokenizer/reading.h"

#include <inttypes.h>
#include <string.h>


enum { JSON_DEPTH = 64 };

enum status reading_fail(const struct reading *r, enum status code, const char *object, const char *problem,
                         struct error *e) {
    return error_set(e, code, "tokenizer: %s %s" WHERE "%s", object, problem, r->path);
}

const char *reading_kind(const json_t *value) {
    static const char *const names[] = {"an object", "an array", "a string", "an integer",
                                        "a number",  "true",     "false",    "null"};
    return value ? names[json_typeof(value)] : "nothing";
}

enum status reading_wrong_kind(const struct reading *r, const char *object, const json_t *value,
                               const char *expected, struct error *e) {
    reading_fail(r, META, object, "has the wrong type", e);
    error_found(e, "%s", reading_kind(value));
    return error_expected(e, "%s", expected);
}

enum status reading_unsupported(const struct reading *r, const char *object, const char *found,
                                const char *expected, struct error *e) {
    reading_fail(r, UNSUPPORTED, object, "is not supported", e);
    error_found(e, "\"%s\"", found);
    return error_expected(e, "%s", expected);
}

bool reading_absent(const json_t *value) {
    return !value || json_is_null(value);
}

enum status reading_bool(const struct reading *r, const json_t *object, const char *key, const char *name,
                         bool *out, struct error *e) {
    const json_t *value = json_object_get(object, key);
    if (reading_absent(value)) return OK;
    if (!json_is_boolean(value)) return reading_wrong_kind(r, name, value, "true or false", e);
    *out = json_is_true(value);
    return OK;
}

const char *reading_type(const struct reading *r, const json_t *object, const char *name, struct error *e) {
    const json_t *type = json_object_get(object, "type");
    if (!json_is_object(object))
        reading_wrong_kind(r, name, object, "an object or null", e);
    else if (!json_is_string(type))
        reading_wrong_kind(r, name, type, "a \"type\" that is a string", e);
    return e->code ? NULL : json_string_value(type);
}

enum status reading_check_id(const struct reading *r, const char *token, const json_t *value,
                             struct error *e) {
    if (json_is_integer(value) && json_integer_value(value) >= 0 &&
        json_integer_value(value) <= TOKENIZER_ID_MAX)
        return OK;
    error_set(e, META, "tokenizer: the id of token \"%s\" is invalid" WHERE "%s", token, r->path);
    if (json_is_integer(value))
        error_found(e, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    else
        error_found(e, "%s", reading_kind(value));
    return error_expected(e, "an integer from 0 to %d", TOKENIZER_ID_MAX);
}

bool reading_is_text(const json_t *value, const char *text) {
    if (json_is_object(value)) value = json_object_get(value, "content");
    return json_is_string(value) && !strcmp(json_string_value(value), text);
}

int32_t reading_vocab_id(const struct reading *r, struct span text) {
    if (!r->vocab) return word_table_find(&r->t->words, text);
    const json_t *value = json_object_getn(r->vocab, text.at, text.bytes);
    return value ? (int32_t)json_integer_value(value) : -1;
}

enum status reading_start_ids(struct reading *r, struct error *e) {
    r->taken = sys_new(r->t->sys, TOKENIZER_ID_MAX / 8 + 1, 1, "the set of token ids", e);
    return e->code;
}

bool reading_take_id(struct reading *r, int64_t id) {
    uint8_t bit = (uint8_t)(1u << (id & 7));
    if (r->taken[id >> 3] & bit) return false;
    r->taken[id >> 3] |= bit;
    if (id >= r->t->size) r->t->size = (int)id + 1;
    return true;
}

enum status reading_json_file(struct sys *sys, const char *path, json_t **root, struct error *e) {
    char *text = NULL;
    uint64_t bytes = 0;
    *root = NULL;
    if (file_read_text(sys, path, TOKENIZER_FILE_BYTES, &text, &bytes, e)) return e->code;
    json_parse(path, text, bytes, JSON_DEPTH, root, e);
    sys->release(sys, text);
    return e->code;
}
