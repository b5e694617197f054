#include "bench/dev/checkpoint_types.h"

#include "engine/bench/random_weights.h"
#include "loaders/quantised.h"

#include <stdio.h>
#include <string.h>

enum scales { NO_SCALES, ONE_SCALE, ROW_SCALES, TILES };
enum files { ANY_FILE, SAFETENSORS, GGUF };

struct stored_type {
    const char *name;
    enum dtype dtype;
    enum files files;
    enum scales scales;
    bool described; /* the file has a comfy_quant tensor for the weight */
};

static const struct stored_type known[] = {
    {"bf16", DTYPE_BF16, ANY_FILE, NO_SCALES, false},
    {"f16", DTYPE_F16, ANY_FILE, NO_SCALES, false},
    {"f32", DTYPE_F32, ANY_FILE, NO_SCALES, false},
    {"f8_e4m3", DTYPE_F8_E4M3, SAFETENSORS, NO_SCALES, false},
    {"f8_e5m2", DTYPE_F8_E5M2, SAFETENSORS, NO_SCALES, false},
    {"f8_e4m3_scaled", DTYPE_F8_E4M3, SAFETENSORS, ONE_SCALE, false},
    {"f8_e5m2_scaled", DTYPE_F8_E5M2, SAFETENSORS, ONE_SCALE, true},
    {"f8_e4m3_rows", DTYPE_F8_E4M3, SAFETENSORS, ROW_SCALES, true},
    {"i8", DTYPE_I8, SAFETENSORS, ONE_SCALE, true},
    {"i8_rows", DTYPE_I8, SAFETENSORS, ROW_SCALES, true},
    {"i8_rot16", DTYPE_I8_ROT16, SAFETENSORS, ONE_SCALE, true},
    {"i8_rot64", DTYPE_I8_ROT64, SAFETENSORS, ROW_SCALES, true},
    {"i8_rot256", DTYPE_I8_ROT256, SAFETENSORS, ROW_SCALES, true},
    {"nvfp4_tiled", DTYPE_NVFP4_TILED, SAFETENSORS, TILES, true},
    {"mxfp8_tiled", DTYPE_MXFP8_TILED, SAFETENSORS, TILES, true},
    {"q4_0", DTYPE_Q4_0, GGUF, NO_SCALES, false},
    {"q4_1", DTYPE_Q4_1, GGUF, NO_SCALES, false},
    {"q5_0", DTYPE_Q5_0, GGUF, NO_SCALES, false},
    {"q5_1", DTYPE_Q5_1, GGUF, NO_SCALES, false},
    {"q8_0", DTYPE_Q8_0, GGUF, NO_SCALES, false},
    {"q2_k", DTYPE_Q2_K, GGUF, NO_SCALES, false},
    {"q3_k", DTYPE_Q3_K, GGUF, NO_SCALES, false},
    {"q4_k", DTYPE_Q4_K, GGUF, NO_SCALES, false},
    {"q5_k", DTYPE_Q5_K, GGUF, NO_SCALES, false},
    {"q6_k", DTYPE_Q6_K, GGUF, NO_SCALES, false},
    {"iq4_nl", DTYPE_IQ4_NL, GGUF, NO_SCALES, false},
    {"iq4_xs", DTYPE_IQ4_XS, GGUF, NO_SCALES, false},
    {"mxfp4", DTYPE_MXFP4, GGUF, NO_SCALES, false},
    {"nvfp4", DTYPE_NVFP4, GGUF, NO_SCALES, false},
};

static const struct stored_type *stored_type_find(const char *name, size_t length) {
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strlen(known[i].name) == length && !strncmp(known[i].name, name, length)) return &known[i];
    return NULL;
}

/* Returns the first table entry with this type, or the entry of bf16 if no entry has this type. */
static const struct stored_type *stored_type_of(enum dtype dtype) {
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].dtype == dtype) return &known[i];
    return &known[0];
}

static enum status stored_type_fail(const char *name, size_t length, const char *what, struct error *e) {
    char names[400] = "";
    size_t n = 0;
    for (size_t i = 0; i < sizeof known / sizeof *known && n < sizeof names; i++)
        n += (size_t)snprintf(names + n, sizeof names - n, " %s", known[i].name);
    return error_set(e, USAGE, "%s" WHERE "supported:%s" FOUND "'%.*s'", what, names, (int)length, name);
}

static bool any_in(const struct stored_types *types, enum files files) {
    for (int i = 0; i < types->n; i++)
        if (types->type[i]->files == files) return true;
    return false;
}

bool stored_types_are_gguf(const struct stored_types *types) {
    return any_in(types, GGUF);
}

bool stored_types_are_plain(const struct stored_types *types) {
    return types->n == 1 && types->type[0]->files == ANY_FILE;
}

enum dtype stored_types_plain(const struct stored_types *types) {
    return types->type[0]->dtype;
}

enum status stored_types_read(const char *text, size_t length, struct stored_types *types, struct error *e) {
    *types = (struct stored_types){0};
    for (size_t at = 0; at <= length && types->n < STORED_TYPES_MAX;) {
        const char *slash = memchr(text + at, '/', length - at);
        size_t n = slash ? (size_t)(slash - text) - at : length - at;
        const struct stored_type *type = stored_type_find(text + at, n);
        if (!type) return stored_type_fail(text + at, n, "unknown dtype", e);
        types->type[types->n++] = type;
        at += n + 1;
        if (at <= length && types->n == STORED_TYPES_MAX)
            return stored_type_fail(text, length, "too many dtypes in rotation", e);
    }
    if (!stored_types_are_gguf(types) || !any_in(types, SAFETENSORS)) return OK;
    return stored_type_fail(text, length,
                            "one file cannot hold these dtypes: some are of GGUF, others of safetensors", e);
}

static const struct stored_type *stored_type_choose(struct stored_types *types, const struct block_kind *kind,
                                                    const struct tensor *shape) {
    struct index_entry entry = {.dtype = DTYPE_BF16, .rank = shape->rank};
    const struct stored_type *type = types->type[types->next];
    if (stored_types_are_plain(types)) return type;
    memcpy(entry.dim, shape->dim, (size_t)shape->rank * sizeof *shape->dim);
    enum dtype dtype = block_stored_type(kind, &entry, type->dtype);
    bool unchanged = block_stored_type(kind, &entry, DTYPE_F32) == entry.dtype;
    if (unchanged || (type->scales == TILES && shape->dim[0] % 16)) return &known[0];
    types->next = (types->next + 1) % types->n;
    return dtype == type->dtype ? type : stored_type_of(dtype);
}

static void stored_type_add(struct weight_tensors *out, int *n, const char *end, struct tensor tensor,
                            struct synthetic_tensor made) {
    out->end[*n] = end;
    out->tensor[*n] = tensor;
    out->made[(*n)++] = made;
}

static struct tensor file_tensor(enum dtype dtype, int rank, int32_t rows, int32_t columns) {
    return tensor_make(NULL, dtype, rank, (int32_t[]){rows, columns});
}

/* Returns the element type and shape that a file's header declares for the bytes of a weight. */
static struct tensor file_values(const struct tensor *values) {
    int32_t rows = values->dim[0], columns = values->dim[1];
    if (values->dtype == DTYPE_NVFP4_TILED) return file_tensor(DTYPE_U8, 2, rows, columns / 2);
    if (values->dtype == DTYPE_MXFP8_TILED) return file_tensor(DTYPE_F8_E4M3, 2, rows, columns);
    if (dtype_is_rotated(values->dtype)) return file_tensor(DTYPE_I8, 2, rows, columns);
    return *values;
}

static struct tensor file_tiles(const struct tensor *values) {
    int32_t blocks = values->dim[1] / dtype_tiled_values(values->dtype);
    enum dtype dtype = values->dtype == DTYPE_NVFP4_TILED ? DTYPE_F8_E4M3 : DTYPE_U8;
    return file_tensor(dtype, 2, (values->dim[0] + 127) / 128 * 128, (blocks + 3) / 4 * 4);
}

static int add_scales(const struct stored_type *type, struct synthetic_tensor made,
                      struct weight_tensors *out, int n) {
    const struct tensor *values = &made.values;
    if (type->scales == ROW_SCALES || type->scales == TILES) {
        made.what = SYNTHETIC_SCALES;
        stored_type_add(
            out, &n, ".weight_scale",
            type->scales == TILES ? file_tiles(values) : file_tensor(DTYPE_F32, 2, values->dim[0], 1), made);
    }
    if (type->scales == ONE_SCALE || values->dtype == DTYPE_NVFP4_TILED) {
        made.what = SYNTHETIC_SCALE;
        stored_type_add(out, &n, type->scales == ONE_SCALE ? ".weight_scale" : ".weight_scale_2",
                        file_tensor(DTYPE_F32, 0, 0, 0), made);
    }
    if (type->described) {
        made.what = SYNTHETIC_DESCRIPTION;
        made.description = quantised_format_text(type->dtype);
        stored_type_add(out, &n, ".comfy_quant",
                        file_tensor(DTYPE_U8, 1, (int32_t)strlen(made.description), 0), made);
    }
    return n;
}

int stored_types_divide(struct stored_types *types, const struct block_kind *kind,
                        const struct weight_spec *spec, const int32_t *dims, struct weight_tensors *out) {
    int32_t dim[WEIGHT_FILE_RANK_MAX];
    int n = 0, rank = block_published_shape(spec, spec->names[0], dims, dim);
    struct synthetic_tensor made = {.values = tensor_make(NULL, DTYPE_BF16, rank, dim),
                                    .init_scale = spec->init_scale};
    const struct stored_type *type = stored_type_choose(types, kind, &made.values);
    made.values = tensor_make(NULL, type->dtype, rank, dim);
    if (type->scales) made.values.scale = random_weights_scale(&made.values, spec->init_scale);
    stored_type_add(out, &n, NULL, file_values(&made.values), made);
    return add_scales(type, made, out, n);
}

void synthetic_tensor_fill(uint64_t *random, const struct synthetic_tensor *made, void *to, uint64_t bytes) {
    switch (made->what) {
    case SYNTHETIC_VALUES:
        random_weights_fill(random, &made->values, made->init_scale, to, bytes);
        break;
    case SYNTHETIC_SCALES:
        random_weights_fill_scales(random, &made->values, made->init_scale, to, bytes);
        break;
    case SYNTHETIC_SCALE:
        memcpy(to, &made->values.scale, bytes);
        break;
    case SYNTHETIC_DESCRIPTION:
        memcpy(to, made->description, bytes);
    }
}
