/* GGUF metadata: key-value pairs, read in order, then sorted. Array values point to their elements. Short
 * values are also converted to a JSON configuration. */
#include "loaders/gguf/header.h"
#include "loaders/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/text.h"

static const int number_bytes[N_GGUF_KINDS] = {
    [GGUF_U8] = 1,  [GGUF_I8] = 1,   [GGUF_U16] = 2, [GGUF_I16] = 2, [GGUF_U32] = 4, [GGUF_I32] = 4,
    [GGUF_F32] = 4, [GGUF_BOOL] = 1, [GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_F64] = 8,
};

static const char *const kind_names[N_GGUF_KINDS] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                                     "bool", "string", "array", "u64", "i64", "f64"};

static enum status take_kind(struct gguf_place *place, enum gguf_kind *kind, struct error *e) {
    uint64_t number = 0, at = place->at;
    if (gguf_take(place, 4, &number, e) != OK) return e->code;
    if (number < N_GGUF_KINDS) {
        *kind = (enum gguf_kind)number;
        return OK;
    }
    return gguf_fail(e, TYPE, place, at, "unknown value type" FOUND "%" PRIu64 EXPECTED "0 to %d", number,
                     N_GGUF_KINDS - 1);
}

static enum status fail_array_bytes(const struct gguf_place *place, uint64_t at, struct error *e) {
    return gguf_fail(e, LIMIT, place, at, "array is too long" EXPECTED "at most %d bytes",
                     GGUF_ARRAY_BYTES_MAX);
}

/* Reads element type and length of an array; the file size limits the length. */
static enum status take_array(struct gguf_place *place, struct gguf_value *value, struct error *e) {
    value->array = true;
    if (take_kind(place, &value->kind, e) != OK) return e->code;
    if (value->kind == GGUF_ARRAY)
        return gguf_fail(e, UNSUPPORTED, place, place->at, "array of arrays is not supported");
    uint64_t at = place->at, least = value->kind == GGUF_STRING ? 8 : (uint64_t)number_bytes[value->kind];
    if (gguf_take(place, 8, &value->n, e) != OK) return e->code;
    value->at = place->at;
    if (value->n <= gguf_left(place) / least) return OK;
    return gguf_fail(e, BOUNDS, place, at,
                     "array extends past the end of the file" FOUND "%" PRIu64 " elements" EXPECTED
                     "at most %" PRIu64,
                     value->n, gguf_left(place) / least);
}

/* Reads the value of a metadata pair. */
static enum status take_value(struct gguf_place *place, struct gguf_value *value, struct error *e) {
    const struct gguf *header = place->header;
    *value = (struct gguf_value){.n = 1};
    if (take_kind(place, &value->kind, e) != OK) return e->code;
    value->at = place->at;
    if (value->kind == GGUF_ARRAY && take_array(place, value, e) != OK) return e->code;
    if (value->kind == GGUF_STRING) {
        for (uint64_t i = 0; i < value->n; i++) {
            /* Fast path: skips a string that is already in memory and not too long. */
            struct gguf_text text;
            uint64_t left = header->bytes - place->at;
            uint64_t bytes = left < 8 ? UINT64_MAX : gguf_little_endian(header->text + place->at, 8);
            if (left >= 8 && bytes <= left - 8 && bytes <= GGUF_STRING_MAX)
                place->at += 8 + bytes;
            else if (gguf_take_text(place, "string", GGUF_STRING_MAX, &text, e) != OK)
                return e->code;
            if (place->at - value->at > GGUF_ARRAY_BYTES_MAX) return fail_array_bytes(place, value->at, e);
        }
    } else {
        uint64_t bytes = value->n * (uint64_t)number_bytes[value->kind];
        if (bytes > GGUF_ARRAY_BYTES_MAX) return fail_array_bytes(place, value->at, e);
        if (gguf_need(place, bytes, e) != OK) return e->code;
        place->at += bytes;
    }
    value->data = header->text + value->at;
    value->bytes = place->at - value->at;
    for (uint64_t i = 0; i < value->n && value->kind == GGUF_BOOL; i++) {
        if (value->data[i] <= 1) continue;
        return gguf_fail(e, META, place, value->at + i, "a bool is neither 0 nor 1" FOUND "%d",
                         value->data[i]);
    }
    return OK;
}

static int compare_keys(const void *a, const void *b) {
    return gguf_compare_texts(((const struct gguf_pair *)a)->key, ((const struct gguf_pair *)b)->key);
}

static enum status sort_pairs(struct gguf_place *place, struct error *e) {
    struct gguf *header = place->header;
    int twice = sort_find_duplicate(header->pairs, header->n_pairs, sizeof *header->pairs, compare_keys);
    if (!twice) return OK;
    const struct gguf_pair *one = &header->pairs[twice - 1], *other = &header->pairs[twice];
    place->kind = "key";
    place->name = one->key;
    uint64_t at = gguf_at(place, one->key), later = gguf_at(place, other->key);
    return gguf_fail(e, DUP, place, at < later ? later : at, "occurs twice" FOUND "also at byte %" PRIu64,
                     at < later ? at : later);
}

/* Reads the alignment of the tensor data, which also determines the offset of the first tensor. */
static enum status read_alignment(struct gguf_place *place, uint64_t *alignment, struct error *e) {
    struct gguf_value value;
    *alignment = GGUF_ALIGNMENT;
    if (!gguf_find(place->header, "general.alignment", &value)) return OK;
    if (value.kind != GGUF_U32 || value.array)
        return gguf_fail(e, META, place, value.at, "general.alignment must be u32" FOUND "%s%s",
                         value.array ? "an array of " : "", kind_names[value.kind]);
    *alignment = gguf_little_endian(value.data, 4);
    if (*alignment && *alignment <= GGUF_ALIGNMENT_MAX && !(*alignment & (*alignment - 1))) return OK;
    return gguf_fail(e, ALIGN, place, value.at,
                     "general.alignment is invalid" FOUND "%" PRIu64 EXPECTED "a power of two up to %d",
                     *alignment, GGUF_ALIGNMENT_MAX);
}

static enum status read_architecture(struct gguf_place *place, struct error *e) {
    struct gguf *header = place->header;
    struct gguf_value value = {.array = true};
    struct gguf_text text = {"", 0};
    uint64_t begin = 0;
    bool found = gguf_find(header, "general.architecture", &value);
    if (found && (value.kind != GGUF_STRING || value.array))
        return gguf_fail(e, META, place, value.at, "general.architecture must be a string" FOUND "%s%s",
                         value.array ? "an array of " : "", kind_names[value.kind]);
    if (found) gguf_next_text(&value, &begin, &text);
    if (text.bytes > LOADER_NAME_MAX)
        return gguf_fail(e, LIMIT, place, value.at, "general.architecture is too long");
    if (utf8_valid_bytes(text.text, text.bytes) < text.bytes)
        return gguf_fail(e, UTF8, place, value.at, "general.architecture is not valid UTF-8");
    if (text.bytes && memchr(text.text, 0, text.bytes))
        return gguf_fail(e, META, place, value.at, "general.architecture contains a NUL byte");
    header->architecture = copy_text(header->sys, text.text, text.bytes, e);
    return e->code;
}

static enum status check_block_count(struct gguf_place *place, struct error *e) {
    struct gguf_value value;
    int64_t n = 0;
    char key[LOADER_NAME_MAX + 16];
    snprintf(key, sizeof key, "%s.block_count", place->header->architecture);
    if (!gguf_find(place->header, key, &value)) return OK;
    if (!value.array && gguf_integer(&value, 0, &n) && n >= 1 && n <= GGUF_BLOCKS_MAX) return OK;
    place->kind = "key";
    place->name = (struct gguf_text){key, strlen(key)};
    char number[32];
    snprintf(number, sizeof number, "%.17g", gguf_number(&value, 0));
    gguf_fail(e, META, place, value.at,
              "invalid number of blocks" FOUND "%s%s" EXPECTED "an integer from 1 to %d",
              value.array ? "an array of " : "",
              value.array || value.kind == GGUF_STRING ? kind_names[value.kind] : number, GGUF_BLOCKS_MAX);
    place->kind = NULL;
    return e->code;
}

enum status gguf_read_pairs(struct gguf_place *place, uint64_t n, uint64_t *alignment, struct error *e) {
    struct gguf *header = place->header;
    /* Lower bound of a metadata pair's size in bytes: a key of one byte and a value of one byte. */
    if (gguf_check_count(place, n, 8 + 1 + 4 + 1, "keys", e) != OK) return e->code;
    header->pairs = sys_new(header->sys, n, sizeof *header->pairs, "the metadata of a GGUF file", e);
    if (!header->pairs) return e->code;
    for (uint64_t i = 0; i < n; i++) {
        struct gguf_pair *pair = &header->pairs[header->n_pairs];
        place->kind = NULL;
        if (gguf_take_name(place, "key", GGUF_KEY_MAX, &pair->key, e) != OK) return e->code;
        place->kind = "key";
        place->name = pair->key;
        if (take_value(place, &pair->value, e) != OK) return e->code;
        header->n_pairs++;
    }
    place->kind = NULL;
    if (sort_pairs(place, e) != OK) return e->code;
    if (read_alignment(place, alignment, e) != OK) return e->code;
    if (read_architecture(place, e) != OK) return e->code;
    return check_block_count(place, e);
}

static int lower_bound(const struct gguf *header, struct gguf_text key) {
    int low = 0, high = header->n_pairs;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (gguf_compare_texts(header->pairs[middle].key, key) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

bool gguf_find(const struct gguf *header, const char *key, struct gguf_value *value) {
    struct gguf_text text = {key, strlen(key)};
    int i = lower_bound(header, text);
    if (i == header->n_pairs || gguf_compare_texts(header->pairs[i].key, text)) return false;
    *value = header->pairs[i].value;
    return true;
}

bool gguf_pair_at(const struct gguf *header, int i, struct gguf_text *key, struct gguf_value *value) {
    if (i < 0 || i >= header->n_pairs) return false;
    *key = header->pairs[i].key;
    *value = header->pairs[i].value;
    return true;
}

int gguf_with_prefix(const struct gguf *header, const char *prefix, const struct gguf_pair **first) {
    struct gguf_text text = {prefix, strlen(prefix)};
    int i = lower_bound(header, text), n = 0;
    *first = &header->pairs[i];
    while (i + n < header->n_pairs && header->pairs[i + n].key.bytes >= text.bytes &&
           !memcmp(header->pairs[i + n].key.text, prefix, text.bytes))
        n++;
    return n;
}

static uint64_t bits_of(const struct gguf_value *value, uint64_t i) {
    int bytes = number_bytes[value->kind], unused = 64 - 8 * bytes;
    uint64_t bits = gguf_little_endian(value->data + i * (uint64_t)bytes, bytes);
    bool is_signed = value->kind == GGUF_I8 || value->kind == GGUF_I16 || value->kind == GGUF_I32;
    return is_signed ? (uint64_t)((int64_t)(bits << unused) >> unused) : bits;
}

double gguf_number(const struct gguf_value *value, uint64_t i) {
    if (value->kind == GGUF_STRING || i >= value->n) return 0;
    uint64_t bits = bits_of(value, i);
    uint32_t low = (uint32_t)bits;
    float f32;
    double f64;
    memcpy(&f32, &low, sizeof f32);
    memcpy(&f64, &bits, sizeof f64);
    switch (value->kind) {
    case GGUF_F32:
        return (double)f32;
    case GGUF_F64:
        return f64;
    case GGUF_U64:
        return (double)bits;
    default:
        return (double)(int64_t)bits;
    }
}

bool gguf_integer(const struct gguf_value *value, uint64_t i, int64_t *number) {
    bool real = value->kind == GGUF_F32 || value->kind == GGUF_F64 || value->kind == GGUF_BOOL;
    if (real || value->kind == GGUF_STRING || i >= value->n) return false;
    *number = (int64_t)bits_of(value, i);
    return value->kind != GGUF_U64 || *number >= 0;
}

bool gguf_next_text(const struct gguf_value *value, uint64_t *place, struct gguf_text *text) {
    if (value->kind != GGUF_STRING) return false;
    /* No check of string lengths is needed here: the lengths were checked when the header was read. */
    if (*place >= value->bytes) return false;
    text->bytes = gguf_little_endian(value->data + *place, 8);
    text->text = (const char *)value->data + *place + 8;
    *place += 8 + text->bytes;
    return true;
}

const char *gguf_architecture(const struct gguf *header) {
    return header->architecture;
}

/* Limits of metadata values that are copied to the configuration. Some files store a UNet's 2 KB
 * configuration as one string. */
enum { ARRAY_MAX = 64, TEXT_MAX = 8191, KEY_MAX = 240, NUMBER_BYTES = 26 };

/* metadata keys with this prefix are not copied to the configuration */
static const char shapes[] = "comfy.gguf.orig_shape.";

/* True if a metadata pair is copied to the configuration. */
static bool belongs(const struct gguf_pair *pair) {
    const struct gguf_value *value = &pair->value;
    if (pair->key.bytes > KEY_MAX) return false;
    if (pair->key.bytes > strlen(shapes) && !memcmp(pair->key.text, shapes, strlen(shapes))) return false;
    if (value->array) return value->kind != GGUF_STRING && value->n <= ARRAY_MAX;
    return value->kind != GGUF_STRING || value->bytes <= 8 + TEXT_MAX;
}

static json_t *json_number_of(const struct gguf_value *value, uint64_t i) {
    int64_t integer;
    double number = gguf_number(value, i);
    char text[40];
    if (value->kind == GGUF_BOOL) return json_boolean(number != 0);
    if (gguf_integer(value, i, &integer)) return json_integer(integer);
    if (!isfinite(number)) return json_null();
    if (value->kind != GGUF_F32) return json_real(number);
    /* An f32 gets the fewest decimals that reproduce it: 1e-6, not 9.99999997475e-07. */
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, number);
        if ((float)strtod(text, NULL) == (float)number) break;
    }
    return json_real(strtod(text, NULL));
}

char *gguf_to_json(const struct gguf *header, const char *path, struct error *e) {
    uint64_t bytes = 2;
    for (int i = 0; i < header->n_pairs; i++) {
        const struct gguf_value *value = &header->pairs[i].value;
        if (belongs(&header->pairs[i]))
            bytes += header->pairs[i].key.bytes + 6 +
                     (value->kind == GGUF_STRING ? value->bytes : value->n * NUMBER_BYTES);
    }
    if (bytes > LOADER_CONFIG_BYTES_MAX) return NULL;
    unsigned json_failures = failed_json_allocations();
    json_t *root = json_object();
    for (int i = 0; i < header->n_pairs; i++) {
        const struct gguf_pair *pair = &header->pairs[i];
        const struct gguf_value *value = &pair->value;
        struct gguf_text text = {"", 0};
        uint64_t place = 0;
        json_t *json;
        if (!belongs(pair)) continue;
        if (value->kind == GGUF_STRING) {
            gguf_next_text(value, &place, &text);
            /* A configuration cannot hold strings with NUL or invalid UTF-8, infinities and NaN. */
            if (memchr(text.text, 0, text.bytes) || utf8_valid_bytes(text.text, text.bytes) < text.bytes)
                continue;
            json = json_stringn(text.text, text.bytes);
        } else if (value->array) {
            json = json_array();
            for (uint64_t k = 0; k < value->n; k++) json_push(json, json_number_of(value, k));
        } else {
            if (!isfinite(gguf_number(value, 0))) continue;
            json = json_number_of(value, 0);
        }
        json_count_failure(json_object_setn_new(root, pair->key.text, pair->key.bytes, json));
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
