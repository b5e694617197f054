/* The tensor: a small descriptor passed by value, which borrows its memory.
 *
 * Row-major: the last dimension is contiguous, rows may be further apart than they are long (row_bytes).
 * Tokens are rows; pictures are rows x columns x channels. Under the dry device data is NULL or
 * an address that is nobody's. */
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
    DTYPE_F8_E4M3, /* no infinities, 0x7f and 0xff are NaN, at most 448 */
    DTYPE_F8_E5M2,
    /* Blocks of values that follow each other in a row, with what they share in front or behind, as GGUF
     * files have them. Blocks need no alignment beyond a byte. */
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
    /* As safetensors files of ComfyUI have them: the values in rows, what blocks of them share in another
     * tensor (tensor.scales), whose bytes lie in tiles of 128 rows by 4 blocks. */
    DTYPE_NVFP4_TILED, /* two E2M1 a byte, the first in the high half; an E4M3 scale for 16 */
    DTYPE_MXFP8_TILED, /* E4M3; an E8M0 scale for 32 */
    /* I8 of safetensors files of ComfyUI (ConvRot): every so many columns of a row w are stored as w H, where
     * H is the Kronecker power of 1/2 [1 1 1 -1; 1 1 -1 1; 1 -1 1 1; -1 1 1 1], its own inverse. A group is a
     * block: its values are the stored ones times H. */
    DTYPE_I8_ROT16,
    DTYPE_I8_ROT64,
    DTYPE_I8_ROT256,
    DTYPE_OTHER, /* a legal element type that nothing here computes with */
    N_DTYPES,
};

/* Bits of one element; 0 where several share a block, and for DTYPE_OTHER, whose size only its file format
 * knows. */
int dtype_bits(enum dtype dtype);
/* Values and bytes of the smallest part of a row that stands by itself: 1 and its size, or a block. Both 0
 * for DTYPE_OTHER. */
int dtype_block_values(enum dtype dtype);
int dtype_block_bytes(enum dtype dtype);
/* Bytes of n values in one row, n a multiple of dtype_block_values; without scales of another tensor. */
int64_t dtype_bytes(enum dtype dtype, int64_t n);
/* Can weights be of this type? */
bool dtype_is_weight(enum dtype dtype);
/* Is a tensor of this type numbers as they are, or does it take blocks or scales to tell? */
bool dtype_is_quantised(enum dtype dtype);
/* Values of a row that one of its scales in tensor.scales is for: 0 where there are none but a whole row's.
 */
int dtype_tiled_values(enum dtype dtype);
/* Can a matrix of this type have an f32 for each row in tensor.scales? */
bool dtype_scales_rows(enum dtype dtype);
/* Is a group of columns stored rotated? Its size is dtype_block_values. */
bool dtype_is_rotated(enum dtype dtype);
/* Upper-case name as in safetensors ("BF16"). */
const char *dtype_name(enum dtype dtype);

/* What a weight stands for: the value that its type encodes, times what its block shares, times the scale of
 * its row (or of its tile) if there is one, times `scale`. */
struct low_rank;
struct tensor {
    void *data;
    const void *scales; /* F8, I8, rotated or not: an f32 a row. The tiled types: their tiles. Else NULL */
    int32_t scale_row;  /* the row of `scales` that row 0 has */
    float scale;        /* one scale for all, 1 if none */
    enum dtype dtype;
    int rank;
    int32_t dim[TENSOR_RANK_MAX];
    int64_t row_bytes; /* from one row to the next, a row being all but the last dimension's step */
    /* Of a weight and of what is cut out of it: where its last byte, or that of its scales, ends in its
     * packed block. Of everything else 0. */
    uint64_t weight_end;
    /* Of a weight, what is added to it: a chain, borrowed. Products with the weight have it in them, nothing
     * else does. */
    const struct low_rank *adapters;
    int32_t adapter_row; /* of the weight that they are for, the row that row 0 is */
};

/* What an adapter adds to a weight [N, ...] without changing it: up . down to rows [row, row + n) of it, and
 * nothing to the others (a fused weight, one part of which is adapted). Its strength is in up.scale. */
struct low_rank {
    struct tensor down; /* [r, ...], as many values a row as the weight */
    struct tensor up;   /* [n, r] */
    int32_t row;
    const struct low_rank *next;
};

/* A densely packed tensor over data. */
struct tensor tensor_make(void *data, enum dtype dtype, int rank, const int32_t *dim);
/* Product of all dimensions. */
int64_t tensor_elements(const struct tensor *t);
/* Product of all but the last dimension. */
int64_t tensor_rows(const struct tensor *t);
/* Length of the last dimension (1 for rank 0). */
int32_t tensor_columns(const struct tensor *t);
/* Bytes from first to last element if packed. */
int64_t tensor_bytes(const struct tensor *t);
/* Bytes of `scales` up to the last that this tensor needs; 0 without. */
int64_t tensor_scales_bytes(const struct tensor *t);
/* Do blocks of its type run on from row to row, because its rows do not fill them? It is packed then, and all
 * of it fills blocks: a convolution's kernel is a row of 3, and some files flatten matrices before they are
 * quantised. */
bool tensor_runs_on(const struct tensor *t);
/* True if rows follow each other without gaps. */
bool tensor_packed(const struct tensor *t);
/* Rows [first, first + n) of the outermost dimension. Works with data == NULL. Scales stay where they are:
 * scale_row moves on. Of a vector of blocks whole blocks. */
struct tensor tensor_slice(struct tensor t, int32_t first, int32_t n);
/* Columns [first, first + n) of all rows of a matrix of numbers, which then is not packed. Works with data ==
 * NULL. */
struct tensor tensor_slice_columns(struct tensor t, int32_t first, int32_t n);
/* The same packed elements under other dimensions; of a weight with adapters the first one stays. */
struct tensor tensor_reshape(struct tensor t, int rank, const int32_t *dim);
/* What of an adapter concerns a weight, or rows sliced off it: the rows of `up` for them, row 0 of which is
 * for row *row of the weight. False: nothing does. */
bool tensor_adapted_by(const struct tensor *weight, const struct low_rank *adapter, struct tensor *up,
                       int32_t *row);
/* Sum of the ranks of all adapters that concern it; 0 without. */
int32_t tensor_adapter_ranks(const struct tensor *weight);

#endif
