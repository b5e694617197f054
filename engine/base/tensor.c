/* Tensor descriptors: see tensor.h. Element values are never accessed. */
#include "engine/base/tensor.h"

#include <assert.h>
#include <stddef.h>

enum { GROUP_VALUES = 16 }; /* values that share a group scale of I4_ROT256 */
enum { WEIGHT = 1, QUANTISED = 2, ROW_SCALES = 4, ROTATED = 8 };

/* Values and bytes per quantisation block of each type. Sources: ggml-common.h of ggml, OCP Microscaling 1.0,
 * safetensors. */
static const struct {
    const char *name;
    int values, bytes, is, tiled;
} dtypes[N_DTYPES] = {
    [DTYPE_F32] = {"F32", 1, 4, WEIGHT, 0},
    [DTYPE_F16] = {"F16", 1, 2, WEIGHT, 0},
    [DTYPE_BF16] = {"BF16", 1, 2, WEIGHT, 0},
    [DTYPE_F64] = {"F64", 1, 8, 0, 0},
    [DTYPE_I64] = {"I64", 1, 8, 0, 0},
    [DTYPE_I32] = {"I32", 1, 4, 0, 0},
    [DTYPE_I16] = {"I16", 1, 2, 0, 0},
    [DTYPE_I8] = {"I8", 1, 1, WEIGHT | QUANTISED | ROW_SCALES, 0},
    [DTYPE_U64] = {"U64", 1, 8, 0, 0},
    [DTYPE_U32] = {"U32", 1, 4, 0, 0},
    [DTYPE_U16] = {"U16", 1, 2, 0, 0},
    [DTYPE_U8] = {"U8", 1, 1, 0, 0},
    [DTYPE_BOOL] = {"BOOL", 1, 1, 0, 0},
    [DTYPE_F8_E4M3] = {"F8_E4M3", 1, 1, WEIGHT | QUANTISED | ROW_SCALES, 0},
    [DTYPE_F8_E5M2] = {"F8_E5M2", 1, 1, WEIGHT | QUANTISED | ROW_SCALES, 0},
    [DTYPE_Q4_0] = {"Q4_0", 32, 18, WEIGHT | QUANTISED, 0},
    [DTYPE_Q4_1] = {"Q4_1", 32, 20, WEIGHT | QUANTISED, 0},
    [DTYPE_Q5_0] = {"Q5_0", 32, 22, WEIGHT | QUANTISED, 0},
    [DTYPE_Q5_1] = {"Q5_1", 32, 24, WEIGHT | QUANTISED, 0},
    [DTYPE_Q8_0] = {"Q8_0", 32, 34, WEIGHT | QUANTISED, 0},
    [DTYPE_Q2_K] = {"Q2_K", 256, 84, WEIGHT | QUANTISED, 0},
    [DTYPE_Q3_K] = {"Q3_K", 256, 110, WEIGHT | QUANTISED, 0},
    [DTYPE_Q4_K] = {"Q4_K", 256, 144, WEIGHT | QUANTISED, 0},
    [DTYPE_Q5_K] = {"Q5_K", 256, 176, WEIGHT | QUANTISED, 0},
    [DTYPE_Q6_K] = {"Q6_K", 256, 210, WEIGHT | QUANTISED, 0},
    [DTYPE_IQ4_NL] = {"IQ4_NL", 32, 18, WEIGHT | QUANTISED, 0},
    [DTYPE_IQ4_XS] = {"IQ4_XS", 256, 136, WEIGHT | QUANTISED, 0},
    [DTYPE_MXFP4] = {"MXFP4", 32, 17, WEIGHT | QUANTISED, 0},
    [DTYPE_NVFP4] = {"NVFP4", 64, 36, WEIGHT | QUANTISED, 0},
    [DTYPE_NVFP4_TILED] = {"NVFP4_TILED", 16, 8, WEIGHT | QUANTISED, 16},
    [DTYPE_MXFP8_TILED] = {"MXFP8_TILED", 32, 32, WEIGHT | QUANTISED, 32},
    [DTYPE_NVFP4_AWQ] = {"NVFP4_AWQ", 16, 8, WEIGHT | QUANTISED, 16},
    [DTYPE_I8_ROT16] = {"I8_ROT16", 16, 16, WEIGHT | QUANTISED | ROW_SCALES | ROTATED, 0},
    [DTYPE_I8_ROT64] = {"I8_ROT64", 64, 64, WEIGHT | QUANTISED | ROW_SCALES | ROTATED, 0},
    [DTYPE_I8_ROT256] = {"I8_ROT256", 256, 256, WEIGHT | QUANTISED | ROW_SCALES | ROTATED, 0},
    [DTYPE_I4_ROT256] = {"I4_ROT256", 256, 128, WEIGHT | QUANTISED | ROW_SCALES | ROTATED, 0},
    [DTYPE_OTHER] = {"OTHER", 0, 0, 0, 0},
};

int dtype_bits(enum dtype dtype) {
    return dtypes[dtype].values == 1 ? 8 * dtypes[dtype].bytes : 0;
}

int dtype_block_values(enum dtype dtype) {
    return dtypes[dtype].values;
}

int dtype_block_bytes(enum dtype dtype) {
    return dtypes[dtype].bytes;
}

int64_t dtype_bytes(enum dtype dtype, int64_t n) {
    return dtypes[dtype].values ? n / dtypes[dtype].values * dtypes[dtype].bytes : 0;
}

bool dtype_is_weight(enum dtype dtype) {
    return dtypes[dtype].is & WEIGHT;
}

bool dtype_is_quantised(enum dtype dtype) {
    return dtypes[dtype].is & QUANTISED;
}

int dtype_tiled_values(enum dtype dtype) {
    return dtypes[dtype].tiled;
}

bool dtype_scales_rows(enum dtype dtype) {
    return dtypes[dtype].is & ROW_SCALES;
}

bool dtype_is_rotated(enum dtype dtype) {
    return dtypes[dtype].is & ROTATED;
}

const char *dtype_name(enum dtype dtype) {
    return dtypes[dtype].name;
}

struct tensor tensor_make(void *data, enum dtype dtype, int rank, const int32_t *dim) {
    struct tensor t = {.data = data, .scale = 1, .dtype = dtype, .rank = rank};
    for (int i = 0; i < rank; i++) t.dim[i] = dim[i];
    t.row_bytes = dtype_bytes(dtype, tensor_columns(&t));
    t.scale_rows = (int32_t)tensor_rows(&t);
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
    return dtype_bytes(t->dtype, tensor_elements(t));
}

int64_t tensor_scales_head(const struct tensor *t) {
    enum { LEVELS = 16, FACTOR_BYTES = 2 };
    if (t->dtype == DTYPE_I4_ROT256) return LEVELS * (int64_t)sizeof(float);
    return t->dtype == DTYPE_NVFP4_AWQ ? FACTOR_BYTES * (int64_t)tensor_columns(t) : 0;
}

int64_t tensor_scales_bytes(const struct tensor *t) {
    int64_t rows = t->scale_row + tensor_rows(t), head = tensor_scales_head(t);
    if (!t->scales) return 0;
    if (t->dtype == DTYPE_I4_ROT256)
        return head + t->scale_rows * (int64_t)sizeof(float) + rows * (tensor_columns(t) / GROUP_VALUES);
    if (!dtypes[t->dtype].tiled) return rows * (int64_t)sizeof(float);
    int64_t blocks = (tensor_columns(t) + dtypes[t->dtype].tiled - 1) / dtypes[t->dtype].tiled;
    return head + (rows + 127) / 128 * 128 * ((blocks + 3) / 4 * 4);
}

bool tensor_runs_on(const struct tensor *t) {
    int values = dtypes[t->dtype].values;
    return values > 1 && tensor_columns(t) % values != 0;
}

bool tensor_packed(const struct tensor *t) {
    return t->row_bytes == dtype_bytes(t->dtype, tensor_columns(t));
}

struct tensor tensor_slice(struct tensor t, int32_t first, int32_t n) {
    assert(t.rank >= 1 && first >= 0 && n >= 0 && first + n <= t.dim[0]);
    int64_t rows_each = 1;
    for (int i = 1; i + 1 < t.rank; i++) rows_each *= t.dim[i];
    int64_t before = t.rank == 1 ? dtype_bytes(t.dtype, first) : first * rows_each * t.row_bytes;
    if (tensor_runs_on(&t)) before = dtype_bytes(t.dtype, first * rows_each * tensor_columns(&t));
    if (t.data) t.data = (char *)t.data + before;
    t.dim[0] = n;
    if (t.rank == 1)
        t.row_bytes = dtype_bytes(t.dtype, n);
    else
        t.scale_row += (int32_t)(first * rows_each);
    t.adapter_row += first;
    return t;
}

struct tensor tensor_slice_columns(struct tensor t, int32_t first, int32_t n) {
    assert(t.rank == 2 && first >= 0 && n >= 0 && first + n <= t.dim[1] && !t.adapters);
    if (t.data) t.data = (char *)t.data + dtype_bytes(t.dtype, first);
    t.dim[1] = n;
    return t;
}

struct tensor tensor_reshape(struct tensor t, int rank, const int32_t *dim) {
    assert(tensor_packed(&t));
    struct tensor r = tensor_make(t.data, t.dtype, rank, dim);
    assert(tensor_elements(&r) == tensor_elements(&t) && (!t.adapters || dim[0] == t.dim[0]));
    r.weight_end = t.weight_end;
    r.scale = t.scale;
    r.scales = t.scales;
    r.scale_row = t.scale_row;
    r.scale_rows = t.scale_rows;
    r.adapters = t.adapters;
    r.adapter_row = t.adapter_row;
    return r;
}

bool tensor_adapted_by(const struct tensor *weight, const struct low_rank *adapter, struct tensor *up,
                       int32_t *row) {
    int32_t first = adapter->row - weight->adapter_row, end = first + adapter->up.dim[0];
    int32_t from = first > 0 ? first : 0, to = end < weight->dim[0] ? end : weight->dim[0];
    if (from >= to) return false;
    *up = tensor_slice(adapter->up, from - first, to - from);
    *row = from;
    return true;
}

int32_t tensor_adapter_ranks(const struct tensor *weight) {
    struct tensor up;
    int32_t ranks = 0, row;
    for (const struct low_rank *a = weight->adapters; a; a = a->next)
        if (tensor_adapted_by(weight, a, &up, &row)) ranks += up.dim[1];
    return ranks;
}
