/* Converts short GGUF metadata values to a JSON configuration. */
#include "loaders/gguf/header.h"
#include "loaders/json.h"
#include "loaders/alloc_array.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Limits of values in the configuration. Some files store a UNet's 2 KB configuration as one string. */
enum { ARRAY_MAX = 64, TEXT_MAX = 8191, KEY_MAX = 240, NUMBER_BYTES = 26 };

static const char shapes[] = "comfy.gguf.orig_shape."; /* not copied to the configuration */

static bool gguf_json_belongs(const struct gguf_pair *pair) {
    const struct gguf_value *value = &pair->value;
    if (pair->key.bytes > KEY_MAX) return false;
    if (pair->key.bytes > strlen(shapes) && !memcmp(pair->key.text, shapes, strlen(shapes))) return false;
    if (value->array) return value->kind != GGUF_STRING && value->n <= ARRAY_MAX;
    return value->kind != GGUF_STRING || value->bytes <= 8 + TEXT_MAX;
}

static uint64_t bytes_of(const struct gguf_pair *pair) {
    const struct gguf_value *value = &pair->value;
    return pair->key.bytes + 6 + (value->kind == GGUF_STRING ? value->bytes : value->n * NUMBER_BYTES);
}

/* Rounds an f32 to the fewest decimals that reproduce it: 1e-6, not 9.99999997475e-07. */
static double shortest_decimals(double number) {
    char text[40];
    for (int digits = 6; digits < 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, number);
        if ((float)strtod(text, NULL) == (float)number) break;
        snprintf(text, sizeof text, "%.9g", number);
    }
    return strtod(text, NULL);
}

static json_t *gguf_json_number_of(const struct gguf_value *value, uint64_t i) {
    int64_t integer;
    double number = gguf_number(value, i);
    if (value->kind == GGUF_BOOL) return json_boolean(number != 0);
    if (gguf_integer(value, i, &integer)) return json_integer(integer);
    if (!isfinite(number)) return json_null();
    return json_real(value->kind == GGUF_F32 ? shortest_decimals(number) : number);
}

static json_t *json_of(const struct gguf_value *value) {
    uint64_t place = 0;
    struct gguf_text text;
    if (!value->array && value->kind != GGUF_STRING) return gguf_json_number_of(value, 0);
    if (!value->array)
        return gguf_next_text(value, &place, &text) ? json_stringn(text.text, text.bytes) : NULL;
    json_t *array = json_array();
    for (uint64_t i = 0; i < value->n; i++) json_push(array, gguf_json_number_of(value, i));
    return array;
}

/* False for values that a configuration cannot hold: strings with NUL or invalid UTF-8, infinities, NaN. */
static bool gguf_json_is_plain(const struct gguf_value *value) {
    uint64_t place = 0;
    struct gguf_text text;
    if (value->kind != GGUF_STRING) return value->array || isfinite(gguf_number(value, 0));
    if (!gguf_next_text(value, &place, &text)) return true;
    return !memchr(text.text, 0, text.bytes) && utf8_valid_bytes(text.text, text.bytes) == text.bytes;
}

char *gguf_to_json(const struct gguf *header, const char *path, struct error *e) {
    uint64_t bytes = 2;
    for (int i = 0; i < header->n_pairs; i++)
        if (gguf_json_belongs(&header->pairs[i])) bytes += bytes_of(&header->pairs[i]);
    if (bytes > LOADER_CONFIG_BYTES_MAX) return NULL;
    unsigned json_failures = failed_json_allocations();
    json_t *root = json_object();
    for (int i = 0; i < header->n_pairs; i++) {
        const struct gguf_pair *pair = &header->pairs[i];
        if (!gguf_json_belongs(pair) || !gguf_json_is_plain(&pair->value)) continue;
        json_count_failure(
            json_object_setn_new(root, pair->key.text, pair->key.bytes, json_of(&pair->value)));
    }
    char *text = json_to_text(root, JSON_COMPACT, json_failures), *copy = NULL;
    if (text)
        copy = copy_text(header->sys, text, strlen(text), e);
    else
        error_set(e, MEMORY, "no memory to read the configuration from the metadata");
    if (e->code != OK) error_where(e, "%s", path);
    free(text);
    return copy;
}
