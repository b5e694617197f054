/* Tensor descriptors: see tensor.h. Nothing here touches elements. */
#include "engine/base/tensor.h"

#include <assert.h>
#include <stddef.h>

static const struct {
    const char *name;
    int bits;
} dtypes[N_DTYPES] = {
    [DTYPE_F32] = {"F32", 32},    [DTYPE_F16] = {"F16", 16},        [DTYPE_BF16] = {"BF16", 16},
    [DTYPE_F64] = {"F64", 64},    [DTYPE_I64] = {"I64", 64},        [DTYPE_I32] = {"I32", 32},
    [DTYPE_I16] = {"I16", 16},    [DTYPE_I8] = {"I8", 8},           [DTYPE_U64] = {"U64", 64},
    [DTYPE_U32] = {"U32", 32},    [DTYPE_U16] = {"U16", 16},        [DTYPE_U8] = {"U8", 8},
    [DTYPE_BOOL] = {"BOOL", 8},   [DTYPE_F8_E4M3] = {"F8_E4M3", 8}, [DTYPE_F8_E5M2] = {"F8_E5M2", 8},
    [DTYPE_OTHER] = {"OTHER", 0},
};

int dtype_bits(enum dtype dtype) {
    return dtypes[dtype].bits;
}

const char *dtype_name(enum dtype dtype) {
    return dtypes[dtype].name;
}

struct tensor tensor_make(void *data, enum dtype dtype, int rank, const int32_t *dim) {
    struct tensor t = {.data = data, .scale = 1, .dtype = dtype, .space = SPACE_HOST, .rank = rank};
    for (int i = 0; i < rank; i++) t.dim[i] = dim[i];
    t.row_bytes = (int64_t)tensor_columns(&t) * dtype_bits(dtype) / 8;
    return t;
}

int64_t tensor_elements(const struct tensor *t) {
    int64_t n = 1;
    for (int i = 0; i < t->rank; i++) n *= t->dim[i];
    return n;
}

int64_t tensor_rows(const struct tensor *t) {
    int64_t n = 1;
    for (int i = 0; i + 1 < t->rank; i++) n *= t->dim[i];
    return n;
}

int32_t tensor_columns(const struct tensor *t) {
    return t->rank ? t->dim[t->rank - 1] : 1;
}

int64_t tensor_bytes(const struct tensor *t) {
    return tensor_elements(t) * dtype_bits(t->dtype) / 8;
}

bool tensor_packed(const struct tensor *t) {
    return t->row_bytes == (int64_t)tensor_columns(t) * dtype_bits(t->dtype) / 8;
}

struct tensor tensor_slice(struct tensor t, int32_t first, int32_t n) {
    assert(t.rank >= 1 && first >= 0 && n >= 0 && first + n <= t.dim[0]);
    int64_t rows_each = 1;
    for (int i = 1; i + 1 < t.rank; i++) rows_each *= t.dim[i];
    int64_t step = t.rank == 1 ? dtype_bits(t.dtype) / 8 : rows_each * t.row_bytes;
    if (t.data) t.data = (char *)t.data + first * step;
    t.dim[0] = n;
    if (t.rank == 1) t.row_bytes = n * step;
    return t;
}

struct tensor tensor_reshape(struct tensor t, int rank, const int32_t *dim) {
    assert(tensor_packed(&t));
    struct tensor r = tensor_make(t.data, t.dtype, rank, dim);
    assert(tensor_elements(&r) == tensor_elements(&t));
    r.space = t.space;
    r.scale = t.scale;
    r.scales = t.scales;
    return r;
}
