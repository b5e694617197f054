/* Kernels of int8 products (ops.h, "int8 mode"): rotating and quantising rows, and the product with its
 * epilogue. linear.h lays out their workspace, linear.cu calls them. All functions queue kernels on the
 * compute stream. */
#ifndef SLUICE_CUDA_LINEAR_INT8_H
#define SLUICE_CUDA_LINEAR_INT8_H

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/cuda/operators.h"

/* A matrix of codes: rows of k bytes without gaps, starting at a multiple of 16 bytes. value = code * scale.
 */
struct int8_matrix {
    int8_t *codes;
    float *scales; /* one per row; NULL: all are 1 */
};

/* Rotates and quantises the rows of a matrix of any unrotated weight type (rows may be strided). group:
 * int8_group of the product; k is a multiple of it. The caller checks for errors with cuda_launched. */
void cuda_quantise_rows(struct int8_matrix to, const struct tensor *from, int32_t group, cudaStream_t stream);

/* Decodes a weight of type I4_ROT256 to 8-bit codes. The row scales are those of the weight. */
void cuda_decode_i4(int8_t *to, const struct tensor *from, cudaStream_t stream);

struct int8_product {
    struct int8_matrix in, weight; /* in [m, k]; weight [n, k]: rows of the weight for n columns of out */
    float weight_scale;            /* factor of all row scales of the weight */
    int32_t m, n, k, first;        /* first: first column in out, bias, gate and residual */
    const struct tensor *out;
    float *stage; /* [m, n]: written instead of `out`, for another kernel to finish; NULL: writes `out` */
    const struct epilogue *epilogue; /* bias and gate are plain (weight_is_plain) */
    bool finishes;                   /* another kernel applies activation, gate and residual */
};

/* Queues the product and its epilogue. `residual` may alias `out`. */
enum status cuda_int8_product(struct cuda *cuda, const struct int8_product *product, struct error *e);

extern const void *const cuda_int8_kernels[];

#ifdef __cplusplus
}
#endif

#endif
