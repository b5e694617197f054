/* Descriptions of quantised layers, as JSON in tensors and in metadata: see quantised.h. JSON is decoded in
 * small pieces under limits, so that a hostile description cannot use much memory. Invalid JSON in a
 * description fails with META, because the file's own header is valid. */
#include "loaders/json.h"
#include "loaders/loaders.h"
#include "loaders/quantised.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/text.h"

/* Limits of a description's JSON. Published descriptions have up to 200 bytes and one level of nesting. */
enum { DESCRIPTION_BYTES_MAX = 4096, DESCRIPTION_DEPTH_MAX = 8, METADATA_DEPTH_MAX = 10 };

static const struct quantised_format known[] = {
    {.kind = QUANTISED_SINGLE, .stored = DTYPE_F8_E4M3, .name = "float8_e4m3fn"},
    {.kind = QUANTISED_SINGLE, .stored = DTYPE_F8_E5M2, .name = "float8_e5m2"},
    {.kind = QUANTISED_SINGLE, .stored = DTYPE_I8, .name = "int8_tensorwise"},
    {.kind = QUANTISED_NVFP4, .stored = DTYPE_U8, .name = "nvfp4"},
    {.kind = QUANTISED_MXFP8, .stored = DTYPE_F8_E4M3, .name = "mxfp8"},
    {.kind = QUANTISED_W4A8, .stored = DTYPE_I8, .name = "asym_w4a8_int8"},
};

struct described {
    const char *path, *tensor;
};

/* Sets an error "the quantisation description of 'TENSOR' WHAT". what: printf format, may end in FOUND and
 * EXPECTED parts (error_set). */
#define fail(e, code, at, what, ...)                                                                         \
    error_set(e, code, "the quantisation description of '%s' " what WHERE "%s", (at)->tensor, ##__VA_ARGS__, \
              (at)->path)

/* Reports a JSON error as an error of the quantisation description; MEMORY stays MEMORY. */
static enum status fail_json(const struct described *at, const struct error *inner, struct error *e) {
    if (inner->code == MEMORY) {
        *e = *inner;
        return e->code;
    }
    return fail(e, inner->code == LIMIT ? LIMIT : META, at, "cannot be read" FOUND "%s: %.100s", inner->what,
                *inner->found ? inner->found : status_name(inner->code));
}

/* Finds a setting of a description, which may also be in the object "params"; NULL if absent. */
static const json_t *find_setting(const json_t *json, const char *name) {
    const json_t *value = json_object_get(json, name);
    return value ? value : json_object_get(json_object_get(json, "params"), name);
}

/* Reads an optional positive number; *to stays unchanged if the setting is absent. */
static enum status take_number(const struct described *at, const json_t *json, const char *name, int64_t *to,
                               struct error *e) {
    const json_t *value = find_setting(json, name);
    if (!value) return OK;
    *to = json_integer_value(value);
    if (json_is_integer(value) && *to > 0) return OK;
    return fail(e, META, at, "is invalid" EXPECTED "a positive number for %s", name);
}

static enum status take_rotation(const struct described *at, const json_t *json,
                                 struct quantised_format *form, struct error *e) {
    const json_t *convrot = find_setting(json, "convrot");
    if (convrot && !json_is_boolean(convrot) && !json_is_null(convrot))
        return fail(e, META, at, "is invalid" EXPECTED "true or false for convrot");
    form->rotated = json_is_true(convrot) || form->kind == QUANTISED_W4A8;
    if (!form->rotated) return OK;
    if (form->stored != DTYPE_I8)
        return fail(e, UNSUPPORTED, at,
                    "names an unsupported format" FOUND "%s with convrot" EXPECTED
                    "convrot of int8_tensorwise alone",
                    form->name);
    if (form->kind == QUANTISED_W4A8 && take_number(at, json, "group_size", &form->scaled_values, e) != OK)
        return e->code;
    return take_number(at, json, "convrot_groupsize", &form->group, e);
}

static enum status take_form(const struct described *at, const json_t *json, struct quantised_format *form,
                             struct error *e) {
    const char *name = json_string_value(json_object_get(json, "format"));
    if (!name) return fail(e, META, at, "is invalid" EXPECTED "an object with the key \"format\"");
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(known[i].name, name)) continue;
        *form = known[i];
        return take_rotation(at, json, form, e);
    }
    return fail(e, UNSUPPORTED, at,
                "names an unsupported format" FOUND "\"%.100s\"" EXPECTED
                "float8_e4m3fn, float8_e5m2, int8_tensorwise, nvfp4, mxfp8 or asym_w4a8_int8",
                name);
}

/* Finds the weight of a layer by tensor prefix and layer name; NULL if absent. */
static struct index_entry *find_weight(const struct tensor_index *index, const char *prefix,
                                       const char *layer, size_t bytes) {
    char name[2 * LOADER_NAME_MAX];
    if (bytes > LOADER_NAME_MAX) return NULL;
    snprintf(name, sizeof name, "%s%.*s.weight", prefix, (int)bytes, layer);
    return index_find(index, name);
}

/* Reads the description in a tensor LAYER.comfy_quant. */
static enum status read_tensor(const struct tensor_index *index, const struct index_entry *entry,
                               struct quantised_format *form, struct error *e) {
    char text[DESCRIPTION_BYTES_MAX];
    struct error inner = {0};
    const struct byte_source *source = &index->sources[entry->source];
    struct described at = {source->path, entry->name};
    json_t *json = NULL;
    size_t layer = strlen(entry->name) - strlen(".comfy_quant");
    const struct index_entry *weight = find_weight(index, "", entry->name, layer);
    if (!weight)
        return fail(e, MISSING, &at, "belongs to no weight" EXPECTED "'%.*s.weight'", (int)layer,
                    entry->name);
    if (entry->dtype != DTYPE_U8) return fail(e, META, &at, "is not text" FOUND "%s", index_type_name(entry));
    if (entry->bytes > DESCRIPTION_BYTES_MAX)
        return fail(e, LIMIT, &at, "is too long" FOUND "%" PRIu64 " bytes" EXPECTED "at most %d",
                    entry->bytes, DESCRIPTION_BYTES_MAX);
    if (source_read(source, text, entry->bytes, entry->offset, e) != OK) return e->code;
    if (json_parse(at.path, text, entry->bytes, DESCRIPTION_DEPTH_MAX, &json, &inner) != OK)
        return fail_json(&at, &inner, e);
    take_form(&at, json, &form[weight - index->entries], e);
    json_decref(json);
    return e->code;
}

/* Reads a layer's description in the metadata. The names of layers there may lack the file's tensor prefix.
 */
static enum status read_layer(const struct tensor_index *index, const struct json_member *member,
                              struct quantised_format *form, struct error *e) {
    static const char *const prefixes[] = {"", "model.diffusion_model.", "diffusion_model.", "model.",
                                           "net."};
    struct error inner = {0};
    struct described at = {member->name.path, "a layer"};
    const struct index_entry *weight = NULL;
    json_t *name = NULL, *json = NULL;
    if (member->name.bytes > 6 * LOADER_NAME_MAX || member->value.bytes > DESCRIPTION_BYTES_MAX)
        return fail(e, LIMIT, &at, "is too long");
    if (json_decode(&member->name, 0, &name, &inner) != OK) return fail_json(&at, &inner, e);
    at.tensor = json_string_value(name);
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes && !weight; i++)
        weight = find_weight(index, prefixes[i], at.tensor, json_string_length(name));
    struct quantised_format *of = weight ? &form[weight - index->entries] : NULL;
    if (of && of->kind)
        fail(e, DUP, &at, "occurs twice in _quantization_metadata");
    else if (json_decode(&member->value, 0, &json, &inner) != OK)
        fail_json(&at, &inner, e);
    else if (of)
        take_form(&at, json, of, e);
    json_decref(json);
    json_decref(name);
    return e->code;
}

static enum status read_layers(const struct tensor_index *index, const struct json_text *layers,
                               struct quantised_format *form, struct error *e) {
    struct json_walk walk;
    struct json_member member;
    struct error inner = {0};
    struct described at = {layers->path, "_quantization_metadata"};
    if (json_walk_start(&walk, layers, METADATA_DEPTH_MAX - 1, &inner) != OK)
        return fail_json(&at, &inner, e);
    for (int n = 0; e->code == OK && json_walk_next(&walk, &member, &inner); n++)
        if (n == LOADER_TENSORS_MAX)
            fail(e, LIMIT, &at, "lists too many layers");
        else
            read_layer(index, &member, form, e);
    return inner.code == OK ? e->code : fail_json(&at, &inner, e);
}

/* Reads the layers' quantisation, {"layers": {...}, ...}, from the metadata. */
static enum status read_metadata(const struct tensor_index *index, const struct json_text *text,
                                 struct quantised_format *form, struct error *e) {
    static const char layers[] = "\"layers\"";
    struct json_walk walk;
    struct json_member member;
    struct error inner = {0};
    struct described at = {text->path, "_quantization_metadata"};
    bool has_layers = false;
    if (json_walk_start(&walk, text, METADATA_DEPTH_MAX, &inner) != OK) return fail_json(&at, &inner, e);
    while (e->code == OK && json_walk_next(&walk, &member, &inner)) {
        if (member.name.bytes != strlen(layers) || memcmp(member.name.text, layers, strlen(layers))) continue;
        if (has_layers) return fail(e, DUP, &at, "has the key \"layers\" twice");
        has_layers = true;
        read_layers(index, &member.value, form, e);
    }
    if (inner.code != OK) return fail_json(&at, &inner, e);
    if (e->code != OK || has_layers) return e->code;
    return fail(e, META, &at, "is invalid" EXPECTED "an object with the key \"layers\"");
}

enum status quantised_read_formats(const struct tensor_index *index, struct quantised_format *form,
                                   struct error *e) {
    for (uint64_t at = 0; at < index->quantisation_bytes && e->code == OK;) {
        const char *text = index->quantisation + at;
        struct json_text json = {.path = index->sources[0].path, .text = text, .bytes = strlen(text)};
        read_metadata(index, &json, form, e);
        at += json.bytes + 1;
    }
    for (int i = 0; i < index->n_entries && e->code == OK; i++)
        if (strlen(index->entries[i].name) > strlen(".comfy_quant") &&
            ends_with(index->entries[i].name, ".comfy_quant"))
            read_tensor(index, &index->entries[i], form, e);
    return e->code;
}

#define INT8_FORM           "{\"format\": \"int8_tensorwise\""
#define ROTATED_FORM(group) INT8_FORM ", \"convrot\": true, \"convrot_groupsize\": " group "}"

const char *quantised_format_text(enum dtype dtype) {
    static const char *const texts[N_DTYPES] = {
        [DTYPE_F8_E4M3] = "{\"format\": \"float8_e4m3fn\"}",
        [DTYPE_F8_E5M2] = "{\"format\": \"float8_e5m2\"}",
        [DTYPE_I8] = INT8_FORM "}",
        [DTYPE_NVFP4_TILED] = "{\"format\": \"nvfp4\"}",
        [DTYPE_MXFP8_TILED] = "{\"format\": \"mxfp8\"}",
        [DTYPE_NVFP4_AWQ] = "{\"format\": \"nvfp4\"}",
        [DTYPE_I4_ROT256] =
            "{\"format\": \"asym_w4a8_int8\", \"group_size\": 16, \"convrot_groupsize\": 256}",
        [DTYPE_I8_ROT16] = ROTATED_FORM("16"),
        [DTYPE_I8_ROT64] = ROTATED_FORM("64"),
        [DTYPE_I8_ROT256] = ROTATED_FORM("256"),
    };
    return texts[dtype];
}
