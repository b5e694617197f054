/* Reads safetensors files: 8 bytes of header length, a JSON header, and the data of the tensors without
 * holes. The header is walked twice: the first pass counts members and name bytes, so that limits hold before
 * anything is allocated; the second decodes one entry at a time, so that memory does not grow with a hostile
 * entry. Offsets are relative to the data until the layout has been checked. */
#include "loaders/json.h"
#include "loaders/loaders.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/checked.h"
#include "engine/base/sys.h"
#include "engine/base/text.h"

static const uint64_t header_bytes_max = 100000000;

enum {
    LENGTH_BYTES = 8,
    DEPTH_MAX = 4,
    /* bytes of the longest name as JSON: \u00XX for each byte, and quotes */
    ESCAPED_NAME_MAX = 6 * LOADER_NAME_MAX + 2,
    ENTRY_BYTES_MAX = 1 << 20,
    METADATA_BYTES_MAX = 16 << 20,
    METADATA_VALUES_MAX = 65536,
};

/* Valid element types (safetensors 0.5, Dtype) and their bits. */
static const struct {
    const char *name;
    enum dtype dtype;
    int bits;
} types[] = {
    {"F32", DTYPE_F32, 32},          {"F16", DTYPE_F16, 16},        {"BF16", DTYPE_BF16, 16},
    {"F64", DTYPE_F64, 64},          {"I64", DTYPE_I64, 64},        {"I32", DTYPE_I32, 32},
    {"I16", DTYPE_I16, 16},          {"I8", DTYPE_I8, 8},           {"U64", DTYPE_U64, 64},
    {"U32", DTYPE_U32, 32},          {"U16", DTYPE_U16, 16},        {"U8", DTYPE_U8, 8},
    {"BOOL", DTYPE_BOOL, 8},         {"F8_E4M3", DTYPE_F8_E4M3, 8}, {"F8_E5M2", DTYPE_F8_E5M2, 8},
    {"C64", DTYPE_OTHER, 64},        {"F8_E8M0", DTYPE_OTHER, 8},   {"F8_E4M3FNUZ", DTYPE_OTHER, 8},
    {"F8_E5M2FNUZ", DTYPE_OTHER, 8}, {"F6_E2M3", DTYPE_OTHER, 6},   {"F6_E3M2", DTYPE_OTHER, 6},
    {"F4", DTYPE_OTHER, 4},
};

static enum status check_header_bytes(const char *path, const unsigned char *first, uint64_t header_bytes,
                                      uint64_t file_bytes, struct error *e) {
    if (!header_bytes)
        return error_set(e, JSON,
                         "file begins with zeros, maybe an incomplete download" WHERE "%s, byte 0" EXPECTED
                         "the length of the safetensors header",
                         path);
    if (header_bytes <= header_bytes_max && header_bytes <= file_bytes - LENGTH_BYTES) return OK;
    const char *kind = file_kind_of(first);
    if (kind)
        return error_set(e, BADMAGIC, "not a safetensors file" WHERE "%s, byte 0" FOUND "%s" EXPECTED "%s",
                         path, kind, READABLE_WEIGHTS);
    bool too_long = header_bytes > header_bytes_max;
    return error_set(e, too_long ? LIMIT : BOUNDS,
                     "%s" WHERE "%s, byte 0" FOUND "%" PRIu64 " bytes of header" EXPECTED "at most %" PRIu64,
                     too_long ? "header is too long"
                              : "header extends past the end of the file, maybe an incomplete download",
                     path, header_bytes, too_long ? header_bytes_max : file_bytes - LENGTH_BYTES);
}

/* Reads the header into header->text, which the caller frees with sys->release. */
static enum status read_header(const struct byte_source *source, struct json_text *header, struct error *e) {
    struct sys *sys = source->sys;
    uint64_t file_bytes = (uint64_t)source->identity.bytes, header_bytes = 0;
    unsigned char first[LENGTH_BYTES];
    if (file_bytes < LENGTH_BYTES)
        return error_set(e, TRUNC,
                         "file is too short for a safetensors header, maybe an incomplete download" WHERE
                         "%s, byte 0" FOUND "%" PRIu64 " bytes" EXPECTED "at least %d",
                         source->path, file_bytes, LENGTH_BYTES);
    if (source_read(source, first, LENGTH_BYTES, 0, e) != OK) return e->code;
    for (int i = LENGTH_BYTES - 1; i >= 0; i--) header_bytes = header_bytes << 8 | first[i];
    if (check_header_bytes(source->path, first, header_bytes, file_bytes, e) != OK) return e->code;
    if (header_limit_check(sys, source->path, header_bytes, e) != OK) return e->code;
    char *text = sys_new(sys, header_bytes, 1, "a header", e);
    if (!text) return error_where(e, "%s", source->path);
    *header =
        (struct json_text){.path = source->path, .text = text, .bytes = header_bytes, .offset = LENGTH_BYTES};
    return source_read(source, text, header_bytes, LENGTH_BYTES, e);
}

static enum status fail_limit(const struct json_text *at, const char *what, uint64_t most, struct error *e) {
    return error_set(e, LIMIT, "%s" WHERE "%s, byte %" PRIu64 EXPECTED "at most %" PRIu64, what, at->path,
                     at->offset, most);
}

/* First pass over the header. name_bytes is an upper bound: it counts names in escaped form. */
static enum status count_members(const struct json_text *header, int *n_members, uint64_t *name_bytes,
                                 struct error *e) {
    struct json_walk walk;
    struct json_member member;
    *n_members = 0;
    *name_bytes = 0;
    if (json_walk_start(&walk, header, DEPTH_MAX, e) != OK) return e->code;
    while (json_walk_next(&walk, &member, e)) {
        /* The limit is one more than the limit of tensors, because __metadata__ is a member too. */
        if (++*n_members > LOADER_TENSORS_MAX + 1)
            return fail_limit(&member.name, "too many tensors", LOADER_TENSORS_MAX, e);
        if (member.name.bytes > ESCAPED_NAME_MAX)
            return fail_limit(&member.name, "a tensor name is too long", LOADER_NAME_MAX, e);
        *name_bytes += member.name.bytes;
        if (*name_bytes > LOADER_NAMES_BYTES_MAX)
            return fail_limit(&member.name, "the tensor names are too long in total", LOADER_NAMES_BYTES_MAX,
                              e);
    }
    return e->code;
}

struct entry_text {
    const char *name;
    struct json_text value;
};

/* Sets an error "tensor 'NAME': WHAT" with the file and byte of the entry. what: printf format, may end in
 * FOUND and EXPECTED parts (error_set). */
#define fail(e, code, entry, what, ...)                                                                      \
    error_set(e, code, "tensor '%s': " what WHERE "%s, byte %" PRIu64, (entry)->name, ##__VA_ARGS__,         \
              (entry)->value.path, (entry)->value.offset)

static enum status read_dtype(const struct entry_text *at, const json_t *json, struct index_entry *entry,
                              int *bits, struct error *e) {
    const char *name = json_string_value(json_object_get(json, "dtype"));
    if (!name)
        return fail(e, META, at,
                    "dtype is missing or not a string" EXPECTED "the name of a type, such as \"BF16\"");
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (strcmp(types[i].name, name)) continue;
        entry->dtype = types[i].dtype;
        if (types[i].dtype == DTYPE_OTHER) entry->type_name = types[i].name;
        *bits = types[i].bits;
        return OK;
    }
    return fail(e, TYPE, at,
                "unknown dtype" FOUND "\"%s\"" EXPECTED "a type of the safetensors format, such as \"BF16\"",
                name);
}

static enum status read_shape(const struct entry_text *at, const json_t *json, struct index_entry *entry,
                              struct error *e) {
    const json_t *shape = json_object_get(json, "shape");
    if (!json_is_array(shape))
        return fail(e, META, at, "shape is missing or not an array" EXPECTED "an array of integers");
    size_t rank = json_array_size(shape), most = sizeof entry->dim / sizeof *entry->dim;
    if (rank > most)
        return fail(e, LIMIT, at, "too many dimensions" FOUND "%zu" EXPECTED "at most %zu", rank, most);
    entry->rank = (int)rank;
    for (size_t i = 0; i < rank; i++) {
        const json_t *dim = json_array_get(shape, i);
        json_int_t value = json_integer_value(dim);
        if (!json_is_integer(dim))
            return fail(e, META, at, "a dimension is not an integer" EXPECTED "integers in shape");
        if (value < 0 || value > INT32_MAX)
            return fail(e, value < 0 ? SHAPE : LIMIT, at,
                        "a dimension is out of range" FOUND "%" JSON_INTEGER_FORMAT EXPECTED "0 to %d", value,
                        INT32_MAX);
        entry->dim[i] = (int32_t)value;
    }
    return OK;
}

/* Reads the range of the data and compares its size with shape and element type. A dimension of 0 gives 0
 * bytes, whatever the other dimensions are. Wrong size and data beyond the end of the file: BOUNDS. Right
 * size and data beyond the end: no error here, because check_layout reports the truncated file. */
static enum status read_extent(const struct entry_text *at, const json_t *json, int bits, uint64_t data_bytes,
                               struct index_entry *entry, struct error *e) {
    const json_t *offsets = json_object_get(json, "data_offsets");
    const json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end))
        return fail(e, META, at,
                    "data_offsets are missing or not two integers" EXPECTED "an array of two integers");
    json_int_t from = json_integer_value(begin), to = json_integer_value(end);
    if (from < 0 || to < from)
        return fail(e, BOUNDS, at,
                    "data_offsets are not a valid range" FOUND "[%" JSON_INTEGER_FORMAT
                    ", %" JSON_INTEGER_FORMAT "]",
                    from, to);
    entry->offset = (uint64_t)from;
    entry->bytes = (uint64_t)(to - from);
    uint64_t all_bits = (uint64_t)bits;
    for (int i = 0; i < entry->rank; i++)
        if (!entry->dim[i]) all_bits = 0;
    for (int i = 0; i < entry->rank && all_bits; i++)
        if (!multiply_u64(all_bits, (uint64_t)entry->dim[i], &all_bits))
            return fail(e, OVERFLOW, at, "the product of the dimensions exceeds 64 bits");
    if (all_bits % 8)
        return fail(e, SHAPE, at, "the elements do not fill whole bytes" FOUND "%" PRIu64 " bits", all_bits);
    if (all_bits / 8 == entry->bytes) return OK;
    if ((uint64_t)to > data_bytes)
        return fail(e, BOUNDS, at,
                    "the data extends past the end of the file" FOUND "data byte %" PRIu64 EXPECTED
                    "at most %" PRIu64,
                    (uint64_t)to, data_bytes);
    return fail(e, SHAPE, at,
                "the size of the data does not match shape and dtype" FOUND "%" PRIu64 " bytes" EXPECTED
                "%" PRIu64,
                entry->bytes, all_bits / 8);
}

static bool any_beyond_63_bits(const json_t *numbers) {
    for (size_t i = 0; i < json_array_size(numbers); i++)
        if (json_number_value(json_array_get(numbers, i)) >= 0x1p63) return true;
    return false;
}

static enum status read_entry(const struct entry_text *at, uint64_t data_bytes, struct index_entry *entry,
                              struct error *e) {
    struct error failure = {0}, ignored = {0};
    json_t *json;
    int bits = 0;
    if (at->value.bytes > ENTRY_BYTES_MAX)
        return fail_limit(&at->value, "the header entry is too long", ENTRY_BYTES_MAX, e);
    if (json_decode(&at->value, 0, &json, &failure) != OK) {
        /* If the number that the parser rejected as too large is a data offset, the error becomes BOUNDS,
         * because no file is so long. */
        bool beyond = false;
        if (failure.code == LIMIT &&
            json_decode(&at->value, JSON_DECODE_INT_AS_REAL, &json, &ignored) == OK) {
            beyond = any_beyond_63_bits(json_object_get(json, "data_offsets")) &&
                     !any_beyond_63_bits(json_object_get(json, "shape"));
            json_decref(json);
        }
        if (beyond) return fail(e, BOUNDS, at, "data_offsets exceed 63 bits");
        *e = failure;
        return error_expected(e, "the entry of tensor '%s'", at->name);
    }
    if (!json_is_object(json))
        fail(e, META, at, "the header entry is not an object");
    else if (read_dtype(at, json, entry, &bits, e) == OK && read_shape(at, json, entry, e) == OK)
        read_extent(at, json, bits, data_bytes, entry, e);
    json_decref(json);
    return e->code;
}

/* Checks limits and value types of __metadata__ before anything is built from it. */
static enum status check_metadata_values(const struct entry_text *at, struct error *e) {
    struct json_walk walk;
    struct json_member member;
    if (at->value.bytes > METADATA_BYTES_MAX)
        return fail_limit(&at->value, "__metadata__ is too long", METADATA_BYTES_MAX, e);
    if (json_walk_start(&walk, &at->value, DEPTH_MAX - 1, e) != OK) return e->code;
    for (int n = 0; json_walk_next(&walk, &member, e); n++) {
        if (n == METADATA_VALUES_MAX)
            return fail_limit(&member.name, "__metadata__ has too many values", METADATA_VALUES_MAX, e);
        if (json_first_char(&member.value) == '"') continue;
        struct entry_text value = {.name = at->name, .value = member.value};
        return fail(e, META, &value, "a value is not a string");
    }
    return e->code;
}

/* Copies a string of the metadata. NULL if the string is absent, or with MEMORY in *e. */
static char *copy_string(struct tensor_index *index, const json_t *string, struct error *e) {
    uint64_t bytes = json_string_length(string);
    char *copy = string ? copy_text(index->sys, json_string_value(string), bytes, e) : NULL;
    if (copy) index->host_bytes += bytes + 1;
    return copy;
}

/* Reads __metadata__: an object of strings, or null, and copies the entries that the engine uses to the
 * index. An invalid value makes the whole header invalid. A configuration above the size limit is ignored. */
static enum status read_metadata(const struct json_text *text, struct tensor_index *index, struct error *e) {
    struct entry_text at = {.name = "__metadata__", .value = *text};
    char kind = json_first_char(text);
    json_t *json;
    if (kind != '{' && kind != 'n')
        return fail(e, META, &at, "the metadata is not an object" EXPECTED "an object of strings");
    if (kind == '{' && check_metadata_values(&at, e) != OK) return e->code;
    if (header_limit_check(index->sys, text->path, text->bytes, e) != OK) return e->code;
    if (json_decode(text, 0, &json, e) != OK) return e->code;
    const json_t *config = json_object_get(json, "config");
    const json_t *adapter = json_object_get(json, "lora_adapter_metadata");
    const json_t *quantisation = json_object_get(json, "_quantization_metadata");
    const char *predicts = json_string_value(json_object_get(json, "modelspec.prediction_type"));
    index->quantised = json_object_get(json, "quantization_config") != NULL;
    index->predicts_v = predicts && (!strcmp(predicts, "v") || !strcmp(predicts, "v_prediction"));
    index->quantisation = copy_string(index, quantisation, e);
    if (index->quantisation) index->quantisation_bytes = json_string_length(quantisation) + 1;
    if (json_string_length(config) < LOADER_CONFIG_BYTES_MAX) index->config = copy_string(index, config, e);
    if (json_string_length(adapter) < LOADER_CONFIG_BYTES_MAX)
        index->adapter = copy_string(index, adapter, e);
    json_decref(json);
    return e->code;
}

/* Decodes a tensor name from JSON to *to and advances *to past the name's NUL. The buffer must have space for
 * the name's escaped form. */
static enum status read_name(const struct json_text *text, char **to, struct error *e) {
    json_t *name;
    if (json_decode(text, 0, &name, e) != OK) return error_expected(e, "the name of a tensor");
    size_t bytes = json_string_length(name);
    if (!bytes) {
        error_set(e, META, "a tensor name is empty" WHERE "%s, byte %" PRIu64, text->path, text->offset);
    } else if (bytes > LOADER_NAME_MAX) {
        fail_limit(text, "a tensor name is too long", LOADER_NAME_MAX, e);
    } else {
        memcpy(*to, json_string_value(name), bytes + 1);
        *to += bytes + 1;
    }
    json_decref(name);
    return e->code;
}

/* Second pass over the header: fills the arrays that were allocated with the counts of the first pass. */
static enum status read_members(const struct json_text *header, uint64_t data_bytes,
                                struct tensor_index *index, struct error *e) {
    struct json_walk walk;
    struct json_member member;
    bool metadata_seen = false;
    char *to = index->names;
    if (json_walk_start(&walk, header, DEPTH_MAX, e) != OK) return e->code;
    while (json_walk_next(&walk, &member, e)) {
        struct entry_text at = {.name = to, .value = member.value};
        if (read_name(&member.name, &to, e) != OK) return e->code;
        if (!strcmp(at.name, "__metadata__")) {
            if (metadata_seen) return fail(e, DUP, &at, "occurs twice");
            metadata_seen = true;
            if (read_metadata(&at.value, index, e) != OK) return e->code;
            continue;
        }
        if (index->n_entries == LOADER_TENSORS_MAX)
            return fail_limit(&member.name, "too many tensors", LOADER_TENSORS_MAX, e);
        struct index_entry *entry = &index->entries[index->n_entries++];
        entry->name = at.name;
        entry->scale = 1;
        if (read_entry(&at, data_bytes, entry, e) != OK) return e->code;
    }
    return e->code;
}

static int compare_places(const void *a, const void *b) {
    const struct index_entry *x = a, *y = b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* Checks that every data byte belongs to exactly one tensor. */
static enum status check_layout(const struct json_text *header, uint64_t data_bytes,
                                struct tensor_index *index, struct error *e) {
    uint64_t at = 0, data_start = header->offset + header->bytes;
    qsort(index->entries, (size_t)index->n_entries, sizeof *index->entries, compare_places);
    for (int i = 0; i < index->n_entries; i++) {
        const struct index_entry *entry = &index->entries[i];
        if (entry->offset != at)
            return error_set(e, entry->offset > at ? BOUNDS : OVERLAP,
                             "%s" WHERE "%s, byte %" PRIu64 FOUND "tensor '%s' at data byte %" PRIu64 EXPECTED
                             "data byte %" PRIu64,
                             entry->offset > at ? "bytes that belong to no tensor" : "tensors overlap",
                             header->path, data_start + at, entry->name, entry->offset, at);
        at += entry->bytes;
    }
    if (at == data_bytes) return OK;
    bool short_file = at > data_bytes;
    return error_set(e, short_file ? TRUNC : BOUNDS,
                     "%s" WHERE "%s, byte %" PRIu64 FOUND "%" PRIu64 " bytes of data" EXPECTED "%" PRIu64,
                     short_file ? "file ends too early, maybe an incomplete download"
                                : "bytes after the last tensor belong to no tensor",
                     header->path, data_start + (short_file ? data_bytes : at), data_bytes, at);
}

static enum status read_index(const struct json_text *header, uint64_t data_bytes, struct tensor_index *index,
                              struct error *e) {
    struct sys *sys = index->sys;
    int n_members = 0;
    uint64_t name_bytes = 0;
    if (count_members(header, &n_members, &name_bytes, e) != OK) return e->code;
    uint64_t entry_bytes = (uint64_t)n_members * sizeof *index->entries;
    if (header_limit_check(sys, header->path, entry_bytes + name_bytes, e) != OK) return e->code;
    index->entries = sys_new(sys, (size_t)n_members, sizeof *index->entries, "a tensor index", e);
    index->names = sys_new(sys, name_bytes, 1, "the tensor names", e);
    if (e->code != OK) return error_where(e, "%s", header->path);
    index->host_bytes += entry_bytes + name_bytes;
    if (read_members(header, data_bytes, index, e) != OK) return e->code;
    /* Duplicate tensor names are reported before overlapping data, because files with duplicate names usually
     * have overlaps too. */
    int twice =
        sort_find_duplicate(index->entries, index->n_entries, sizeof *index->entries, index_compare_names);
    if (twice)
        return error_set(
            e, DUP, "two tensors have the same name" WHERE "%s, header of %" PRIu64 " bytes" FOUND "'%s'",
            header->path, header->bytes, index->entries[twice].name);
    if (check_layout(header, data_bytes, index, e) != OK) return e->code;
    sort_find_duplicate(index->entries, index->n_entries, sizeof *index->entries, index_compare_names);
    for (int i = 0; i < index->n_entries; i++) index->entries[i].offset += header->offset + header->bytes;
    return OK;
}

enum status safetensors_open(struct sys *sys, const char *path, struct tensor_index *index, struct error *e) {
    struct json_text header = {0};
    *index = (struct tensor_index){.sys = sys};
    index->sources = sys_new(sys, 1, sizeof *index->sources, "an index", e);
    if (!index->sources) return e->code;
    if (source_open(sys, path, &index->sources[0], e) != OK) goto out;
    index->n_sources = 1;
    index->host_bytes = sizeof *index->sources + strlen(path) + 1;
    if (read_header(&index->sources[0], &header, e) != OK) goto out;
    uint64_t data_bytes = (uint64_t)index->sources[0].identity.bytes - LENGTH_BYTES - header.bytes;
    read_index(&header, data_bytes, index, e);
out:
    sys->release(sys, (void *)header.text);
    if (header.bytes > JSON_LARGE_BYTES) sys->trim(sys);
    if (e->code != OK) index_destroy(index);
    return e->code;
}
