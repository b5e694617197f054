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
    DTYPE_F8_E4M3,
    DTYPE_F8_E5M2,
    DTYPE_OTHER, /* a legal element type that nothing here computes with */
    N_DTYPES,
};

/* Bits of one element; 0 for DTYPE_OTHER, whose size only its file format knows. */
int dtype_bits(enum dtype dtype);
/* Upper-case name as in safetensors ("BF16"). */
const char *dtype_name(enum dtype dtype);

enum space { SPACE_HOST, SPACE_DEVICE };

struct tensor {
    void *data;
    const void *scales; /* row or block scales of quantised types, or NULL */
    float scale;        /* one scale for all, 1 if none */
    enum dtype dtype;
    enum space space;
    int rank;
    int32_t dim[TENSOR_RANK_MAX];
    int64_t row_bytes; /* from one row to the next, a row being all but the last dimension's step */
};

/* A densely packed host tensor over data. */
struct tensor tensor_make(void *data, enum dtype dtype, int rank, const int32_t *dim);
/* Product of all dimensions. */
int64_t tensor_elements(const struct tensor *t);
/* Product of all but the last dimension. */
int64_t tensor_rows(const struct tensor *t);
/* Length of the last dimension (1 for rank 0). */
int32_t tensor_columns(const struct tensor *t);
/* Bytes from first to last element if packed. */
int64_t tensor_bytes(const struct tensor *t);
/* True if rows follow each other without gaps. */
bool tensor_packed(const struct tensor *t);
/* Rows [first, first + n) of the outermost dimension. Works with data == NULL. */
struct tensor tensor_slice(struct tensor t, int32_t first, int32_t n);
/* The same packed elements under other dimensions. */
struct tensor tensor_reshape(struct tensor t, int rank, const int32_t *dim);

#endif
