/* The tensor: a small descriptor, passed by value, that borrows its memory. Row-major: the last dimension is
 * contiguous; rows may have gaps (row_bytes). Token sequences are [tokens, channels]; images are [height,
 * width, channels]. On the dry device data is NULL or an address that is never accessed. */
#ifndef SLUICE_BASE_TENSOR_H
#define SLUICE_BASE_TENSOR_H

#include <stdbool.h>
#include <stdint.h>

enum { TENSOR_RANK_MAX = 6 };

enum dtype {
    DTYPE_F32,
    DTYPE_F16,
    DTYPE_BF16,
    DTYPE_F64,
    DTYPE_I64,
    DTYPE_I32,
    DTYPE_I16,
    DTYPE_I8,
    DTYPE_U64,
    DTYPE_U32,
    DTYPE_U16,
    DTYPE_U8,
    DTYPE_BOOL,
    DTYPE_F8_E4M3, /* no infinities; 0x7f and 0xff are NaN; largest value 448 */
    DTYPE_F8_E5M2,
    /* Block-quantised types as in GGUF files: blocks of consecutive values in a row share scales. Blocks have
     * byte alignment. */
    DTYPE_Q4_0,
    DTYPE_Q4_1,
    DTYPE_Q5_0,
    DTYPE_Q5_1,
    DTYPE_Q8_0,
    DTYPE_Q2_K,
    DTYPE_Q3_K,
    DTYPE_Q4_K,
    DTYPE_Q5_K,
    DTYPE_Q6_K,
    DTYPE_IQ4_NL,
    DTYPE_IQ4_XS,
    DTYPE_MXFP4,
    DTYPE_NVFP4,
    /* Types of ComfyUI's safetensors files: values in rows; block scales in another tensor (tensor.scales),
     * in tiles of 128 rows by 4 blocks. */
    DTYPE_NVFP4_TILED, /* two E2M1 values a byte, the first in the high half; one E4M3 scale per 16 values */
    DTYPE_MXFP8_TILED, /* E4M3 values; one E8M0 scale per 32 values */
    /* NVFP4_TILED whose columns have BF16 factors (ComfyUI's nvfp4 with AWQ's pre_quant_scale): value =
     * number
     * * block scale * tensor scale * factor of the column. tensor.scales: the factors, then the tiles. */
    DTYPE_NVFP4_AWQ,
    /* I8 of ComfyUI's safetensors files with rotated columns (ConvRot): each group of columns of a row w is
     * stored as w H. H is the Kronecker power of 1/2 [1 1 1 -1; 1 1 -1 1; 1 -1 1 1; -1 1 1 1], its own
     * inverse. A group is one block. */
    DTYPE_I8_ROT16,
    DTYPE_I8_ROT64,
    DTYPE_I8_ROT256,
    /* I8_ROT256 in 4 bits (ComfyUI's w4a8, asym_w4a8_int8): two codes a byte, the first in the low half. The
     * I8 code of a value is level[code] * group scale, rounded to nearest even and limited to -127..127; NaN
     * gives 0. tensor.scales is never NULL: 16 F32 levels, then an F32 scale per row, then an E4M3 scale per
     * 16 values, rows in order. */
    DTYPE_I4_ROT256,
    DTYPE_OTHER, /* an element type that is valid in files but not supported for computation */
    N_DTYPES,
};

/* Bits of one element; 0 for block types and DTYPE_OTHER. */
int dtype_bits(enum dtype dtype);
/* Values and bytes of the smallest independent part of a row: a quantisation block, or one value for types
 * without blocks. Both 0 for DTYPE_OTHER. */
int dtype_block_values(enum dtype dtype);
int dtype_block_bytes(enum dtype dtype);
/* Bytes of n values in one row, without scales in another tensor. n is a multiple of dtype_block_values. */
int64_t dtype_bytes(enum dtype dtype, int64_t n);
bool dtype_is_weight(enum dtype dtype);
/* True if values of this type need scales or blocks to be decoded. */
bool dtype_is_quantised(enum dtype dtype);
/* Number of values that share a block scale in tiles in tensor.scales; 0 if tensor.scales has no block scales
 * for this type. */
int dtype_tiled_values(enum dtype dtype);
/* True if a matrix of this type can have an f32 scale per row in tensor.scales. */
bool dtype_scales_rows(enum dtype dtype);
/* True if the type stores groups of dtype_block_values columns rotated (ConvRot). */
bool dtype_is_rotated(enum dtype dtype);
/* Upper-case type name as in safetensors, such as "BF16". */
const char *dtype_name(enum dtype dtype);

struct low_rank;
struct tensor {
    void *data;
    /* F32 scale per row (F8, I8, I8_ROT), tiles of block scales (tiled types), or several sections
     * (NVFP4_AWQ, I4_ROT256); else NULL. */
    const void *scales;
    int32_t scale_row;  /* row of `scales` that belongs to row 0 of the tensor */
    int32_t scale_rows; /* number of rows that `scales` holds: I4_ROT256 needs it to find the group scales */
    float scale;        /* factor of the whole tensor, multiplied with block, row or tile scales */
    enum dtype dtype;
    int rank;
    int32_t dim[TENSOR_RANK_MAX];
    int64_t row_bytes; /* bytes from one row to the next; a row is one index of all but the last dimension */
    /* For weights and their slices: offset in the packed block of the end of the weight's bytes and scales. 0
     * for all other tensors. */
    uint64_t weight_end;
    /* For weights: a borrowed chain of low-rank adapters, which only matrix products with the weight add. */
    const struct low_rank *adapters;
    int32_t adapter_row; /* for a slice of a weight: row of the whole weight at which the slice starts */
};

/* A low-rank adapter of a weight [N, ...]: matrix products use rows [row, row + n) of the weight plus the
 * product of `up` and `down`. n < N: part of a fused weight. up.scale holds the strength. */
struct low_rank {
    struct tensor down; /* factor `down`: [r, ...] with rank r, rows as long as the weight's */
    struct tensor up;   /* factor `up`: [n, r], for n rows of the weight */
    int32_t row;
    const struct low_rank *next;
};

struct tensor tensor_make(void *data, enum dtype dtype, int rank, const int32_t *dim);
int64_t tensor_elements(const struct tensor *t);
int64_t tensor_rows(const struct tensor *t);
int32_t tensor_columns(const struct tensor *t);
/* Bytes of a tensor's elements without gaps between rows. */
int64_t tensor_bytes(const struct tensor *t);
/* Bytes of `scales` up to the last scale that this tensor uses; 0 if there are none. */
int64_t tensor_scales_bytes(const struct tensor *t);
/* Bytes of `scales` before the scales of rows or tiles: the factors of NVFP4_AWQ's columns, the levels of
 * I4_ROT256; else 0. */
int64_t tensor_scales_head(const struct tensor *t);
/* True if quantisation blocks continue across rows; the tensor is then packed. Reasons: rows of convolution
 * kernels have 3 values, and some files flatten matrices before quantising. */
bool tensor_runs_on(const struct tensor *t);
bool tensor_packed(const struct tensor *t);
/* Rows [first, first + n) of the outermost dimension; data may be NULL. `scales` stays the same and scale_row
 * advances. A vector of a block type is cut at whole blocks. */
struct tensor tensor_slice(struct tensor t, int32_t first, int32_t n);
/* Columns [first, first + n) of an unquantised matrix; the result is not packed. data may be NULL. */
struct tensor tensor_slice_columns(struct tensor t, int32_t first, int32_t n);
/* Returns a tensor with other dimensions over the same packed elements. If the tensor has adapters, the first
 * dimension must stay. */
struct tensor tensor_reshape(struct tensor t, int rank, const int32_t *dim);
/* Finds the rows of an adapter that apply to a weight or a slice of it: *up gets these rows of adapter->up;
 * *row gets the first row of the weight that the adapter changes. False if the adapter changes no row. */
bool tensor_adapted_by(const struct tensor *weight, const struct low_rank *adapter, struct tensor *up,
                       int32_t *row);
/* Sum of the ranks of all adapters that apply to the weight; 0 if there are none. */
int32_t tensor_adapter_ranks(const struct tensor *weight);

#endif
