/* GGUF tensor infos, with checks that their data lies in the file. */
#include "loaders/gguf/header.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/checked.h"
#include "engine/base/text.h"

/* Sources: enum ggml_type of ggml.h and the blocks of ggml-common.h. Unsupported types have names for errors,
 * and sizes so that files with unsupported types are checked completely. */
const struct gguf_type gguf_types[GGUF_TYPES] = {
    [0] = {"F32", DTYPE_F32, 1, 4},
    [1] = {"F16", DTYPE_F16, 1, 2},
    [2] = {"Q4_0", DTYPE_Q4_0, 32, 18},
    [3] = {"Q4_1", DTYPE_Q4_1, 32, 20},
    [6] = {"Q5_0", DTYPE_Q5_0, 32, 22},
    [7] = {"Q5_1", DTYPE_Q5_1, 32, 24},
    [8] = {"Q8_0", DTYPE_Q8_0, 32, 34},
    [9] = {"Q8_1", DTYPE_OTHER, 32, 36},
    [10] = {"Q2_K", DTYPE_Q2_K, 256, 84},
    [11] = {"Q3_K", DTYPE_Q3_K, 256, 110},
    [12] = {"Q4_K", DTYPE_Q4_K, 256, 144},
    [13] = {"Q5_K", DTYPE_Q5_K, 256, 176},
    [14] = {"Q6_K", DTYPE_Q6_K, 256, 210},
    [15] = {"Q8_K", DTYPE_OTHER, 256, 292},
    [16] = {"IQ2_XXS", DTYPE_OTHER, 256, 66},
    [17] = {"IQ2_XS", DTYPE_OTHER, 256, 74},
    [18] = {"IQ3_XXS", DTYPE_OTHER, 256, 98},
    [19] = {"IQ1_S", DTYPE_OTHER, 256, 50},
    [20] = {"IQ4_NL", DTYPE_IQ4_NL, 32, 18},
    [21] = {"IQ3_S", DTYPE_OTHER, 256, 110},
    [22] = {"IQ2_S", DTYPE_OTHER, 256, 82},
    [23] = {"IQ4_XS", DTYPE_IQ4_XS, 256, 136},
    [24] = {"I8", DTYPE_I8, 1, 1},
    [25] = {"I16", DTYPE_I16, 1, 2},
    [26] = {"I32", DTYPE_I32, 1, 4},
    [27] = {"I64", DTYPE_I64, 1, 8},
    [28] = {"F64", DTYPE_F64, 1, 8},
    [29] = {"IQ1_M", DTYPE_OTHER, 256, 56},
    [30] = {"BF16", DTYPE_BF16, 1, 2},
    [34] = {"TQ1_0", DTYPE_OTHER, 256, 54},
    [35] = {"TQ2_0", DTYPE_OTHER, 256, 66},
    [39] = {"MXFP4", DTYPE_MXFP4, 32, 17},
    [40] = {"NVFP4", DTYPE_NVFP4, 64, 36},
    [41] = {"Q1_0", DTYPE_OTHER, 128, 18},
    [42] = {"Q2_0", DTYPE_OTHER, 64, 18},
};

static enum status take_dims(struct gguf_place *place, struct gguf_tensor *tensor, struct error *e) {
    uint64_t at = place->at, rank = 0, dim = 0;
    if (gguf_take(place, 4, &rank, e) != OK) return e->code;
    if (rank > GGUF_RANK_MAX)
        return gguf_fail(e, LIMIT, place, at, "too many dimensions" FOUND "%" PRIu64 EXPECTED "at most %d",
                         rank, GGUF_RANK_MAX);
    tensor->rank = (int)rank;
    for (int i = tensor->rank - 1; i >= 0; i--) {
        at = place->at;
        if (gguf_take(place, 8, &dim, e) != OK) return e->code;
        if (dim > INT32_MAX)
            return gguf_fail(e, LIMIT, place, at,
                             "a dimension is out of range" FOUND "%" PRIu64 EXPECTED "at most %d", dim,
                             INT32_MAX);
        tensor->dim[i] = (int32_t)dim;
    }
    return OK;
}

/* Number of elements; 0 if any dimension is 0, whatever the other dimensions are. False on overflow. */
static bool count_elements(const struct gguf_tensor *tensor, uint64_t *elements) {
    *elements = 1;
    for (int i = 0; i < tensor->rank; i++)
        if (!tensor->dim[i]) *elements = 0;
    for (int i = 0; i < tensor->rank && *elements; i++)
        if (!multiply_u64(*elements, (uint64_t)tensor->dim[i], elements) || *elements > INT64_MAX)
            return false;
    return true;
}

static enum status set_bytes(struct gguf_place *place, struct gguf_tensor *tensor, struct error *e) {
    const struct gguf_type *type = &gguf_types[tensor->type];
    uint64_t elements, values = (uint64_t)type->values;
    int32_t columns = tensor->rank ? tensor->dim[tensor->rank - 1] : 1;
    if (!count_elements(tensor, &elements) ||
        !multiply_u64(elements / values, (uint64_t)type->bytes, &tensor->bytes) || tensor->bytes > INT64_MAX)
        return gguf_fail(e, OVERFLOW, place, gguf_at(place, tensor->name),
                         "the product of the dimensions exceeds 63 bits");
    if (columns % type->values == 0) return OK;
    return gguf_fail(e, SHAPE, place, gguf_at(place, tensor->name),
                     "the row length is not a multiple of the block size %d" FOUND "rows of %" PRId32
                     " of type %s",
                     type->values, columns, type->name);
}

/* Reads one tensor info from the GGUF header. */
static enum status take_tensor(struct gguf_place *place, uint64_t alignment, struct gguf_tensor *tensor,
                               struct error *e) {
    uint64_t type = 0;
    place->kind = NULL;
    if (gguf_take_name(place, "name of a tensor", LOADER_NAME_MAX, &tensor->name, e) != OK) return e->code;
    place->kind = "tensor";
    place->name = tensor->name;
    if (take_dims(place, tensor, e) != OK) return e->code;
    uint64_t at = place->at;
    if (gguf_take(place, 4, &type, e) != OK) return e->code;
    if (type >= GGUF_TYPES || !gguf_types[type].name)
        return gguf_fail(e, TYPE, place, at,
                         "%s" FOUND "type %" PRIu64 EXPECTED "a type of the GGUF format, 0 to %d",
                         type < GGUF_TYPES ? "the type was removed from the GGUF format" : "unknown type",
                         type, GGUF_TYPES - 1);
    tensor->type = (int)type;
    if (set_bytes(place, tensor, e) != OK) return e->code;
    at = place->at;
    if (gguf_take(place, 8, &tensor->offset, e) != OK) return e->code;
    if (tensor->offset % alignment == 0) return OK;
    return gguf_fail(e, ALIGN, place, at,
                     "the data offset is not aligned" FOUND "%" PRIu64 EXPECTED "a multiple of %" PRIu64,
                     tensor->offset, alignment);
}

static int compare_places(const void *a, const void *b) {
    const struct gguf_tensor *x = a, *y = b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static int compare_names(const void *a, const void *b) {
    return gguf_compare_texts(((const struct gguf_tensor *)a)->name, ((const struct gguf_tensor *)b)->name);
}

/* Calls gguf_fail with a tensor's name and the name's byte offset. */
#define fail_layout(e, code, place, tensor, what, ...)                                                       \
    ((place)->kind = "tensor", (place)->name = (tensor)->name,                                               \
     gguf_fail(e, code, place, gguf_at(place, (tensor)->name), what, ##__VA_ARGS__))

/* Checks that the data of the tensors, sorted by offset, lies in the file and does not overlap. Only padding
 * may lie between the data of two tensors. Offsets become offsets in the file. */
static enum status check_layout(struct gguf_place *place, uint64_t alignment, uint64_t data_start,
                                struct error *e) {
    uint64_t file = (uint64_t)place->source->identity.bytes, end = 0;
    uint64_t data_bytes = file > data_start ? file - data_start : 0;
    for (int i = 0; i < place->header->n_tensors; i++) {
        struct gguf_tensor *tensor = &place->header->tensors[i];
        if (tensor->bytes || tensor->offset > data_bytes) {
            bool overlaps = tensor->offset < end;
            if (overlaps || tensor->offset - end >= alignment)
                return fail_layout(e, overlaps ? OVERLAP : BOUNDS, place, tensor,
                                   "%s" FOUND "data byte %" PRIu64 EXPECTED "%" PRIu64,
                                   overlaps ? "the data overlaps another tensor"
                                   : tensor->offset > data_bytes
                                       ? "the data starts past the end of the file"
                                       : "the bytes before its data belong to no tensor",
                                   tensor->offset, align_up(end, alignment));
            /* No overflow: `end` lies in the file, and no tensor has more than 2^63 bytes. */
            end = tensor->offset + tensor->bytes;
        }
        if (end > data_bytes)
            return fail_layout(e, TRUNC, place, tensor,
                               "the file ends before the tensor does, maybe an incomplete download" FOUND
                               "a file of %" PRIu64 " bytes" EXPECTED "at least %" PRIu64,
                               file, data_start + end);
        tensor->offset += data_start;
    }
    return OK;
}

static const char shape_prefix[] = "comfy.gguf.orig_shape.";

/* Applies a shape from the metadata to a tensor with the same number of elements. True also if the tensor is
 * missing, because it may be in another part of a split file. */
static bool reshape(struct gguf_tensor *tensor, const struct gguf_value *shape) {
    struct gguf_tensor reshaped = {.rank = (int)shape->n};
    uint64_t before, after;
    for (int i = 0; i < reshaped.rank; i++) {
        int64_t dim;
        if (!gguf_integer(shape, (uint64_t)i, &dim) || dim < 0 || dim > INT32_MAX) return false;
        reshaped.dim[i] = (int32_t)dim;
    }
    if (!tensor) return true;
    if (!count_elements(&reshaped, &after) || !count_elements(tensor, &before) || before != after)
        return false;
    tensor->rank = reshaped.rank;
    memcpy(tensor->dim, reshaped.dim, sizeof tensor->dim);
    return true;
}

static enum status reshape_all(struct gguf_place *place, struct error *e) {
    const struct gguf *header = place->header;
    const struct gguf_pair *pair;
    size_t prefix = strlen(shape_prefix);
    for (int n = gguf_with_prefix(header, shape_prefix, &pair); n; n--, pair++) {
        const struct gguf_value *shape = &pair->value;
        struct gguf_tensor like = {.name = {pair->key.text + prefix, pair->key.bytes - prefix}};
        struct gguf_tensor *tensor =
            header->n_tensors
                ? bsearch(&like, header->tensors, (size_t)header->n_tensors, sizeof like, compare_names)
                : NULL;
        if (shape->array && shape->n <= GGUF_RANK_MAX && reshape(tensor, shape)) continue;
        place->kind = "key";
        place->name = pair->key;
        return gguf_fail(e, META, place, shape->at,
                         "the shape does not match its tensor" EXPECTED
                         "an array of at most %d integers with the tensor's number of elements",
                         GGUF_RANK_MAX);
    }
    return OK;
}

enum status gguf_read_tensors(struct gguf_place *place, uint64_t n, uint64_t alignment, struct error *e) {
    struct gguf *header = place->header;
    struct error layout = {0};
    /* Lower bound of a tensor info's size in bytes: a scalar with a name of one byte. */
    if (gguf_check_count(place, n, 8 + 1 + 4 + 4 + 8, "tensors", e) != OK) return e->code;
    struct gguf_tensor *tensors = header->tensors =
        sys_new(header->sys, n, sizeof *tensors, "the tensors of a GGUF file", e);
    if (!tensors) return e->code;
    for (uint64_t i = 0; i < n; i++) {
        if (take_tensor(place, alignment, &tensors[i], e) != OK) return e->code;
        header->n_tensors++;
        header->name_bytes += tensors[i].name.bytes + 1;
        if (header->name_bytes <= LOADER_NAMES_BYTES_MAX) continue;
        return gguf_fail(e, LIMIT, place, gguf_at(place, tensors[i].name),
                         "the tensor names are too long in total" EXPECTED "at most %d bytes",
                         LOADER_NAMES_BYTES_MAX);
    }
    place->kind = NULL;
    /* Writers usually store tensor infos in the order of their data already. */
    int sorted = 1;
    while (sorted < header->n_tensors && compare_places(&tensors[sorted - 1], &tensors[sorted]) <= 0)
        sorted++;
    if (sorted < header->n_tensors) qsort(tensors, n, sizeof *tensors, compare_places);
    check_layout(place, alignment, align_up(place->at, alignment), &layout);
    /* Duplicate tensor names are reported before overlapping data, because files with duplicate names usually
     * have overlaps too. */
    int twice = sort_find_duplicate(tensors, header->n_tensors, sizeof *tensors, compare_names);
    if (twice) {
        const struct gguf_tensor *one = &tensors[twice - 1], *other = &tensors[twice];
        bool later = one->name.text < other->name.text;
        return fail_layout(e, DUP, place, later ? other : one, "occurs twice" FOUND "also at byte %" PRIu64,
                           gguf_at(place, (later ? one : other)->name));
    }
    if (layout.code != OK) {
        *e = layout;
        return e->code;
    }
    return reshape_all(place, e);
}
