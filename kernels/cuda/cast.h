/* Type conversion kernels: rounding rows to bf16 or f16 (dequantisation), vectors to f32, group norm
 * parameters per channel, and the epilogue of a library product.
 *
 * All functions queue kernels on a stream and report no error; the caller checks for errors with
 * cuda_launched. Alignment affects only speed. Weights have any type, with their scales. */
#ifndef SLUICE_CUDA_CAST_H
#define SLUICE_CUDA_CAST_H

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/ops.h"

#include <cuda_runtime_api.h>
#include <stdint.h>

/* Converts rows of any weight type (may be strided) to packed rows of `padded` values (a multiple of 8) of
 * type `half`, bf16 or f16, zero-filled, rounding to nearest even. The address `to` is a multiple of 16
 * bytes. */
void cuda_round_rows(void *to, enum dtype half, const struct tensor *from, int32_t padded,
                     cudaStream_t stream);
/* Converts a vector of any weight type to f32, zero-filled to `padded` values; rank 0 gives zeros. */
void cuda_widen_vector(float *to, const struct tensor *from, int32_t padded, cudaStream_t stream);

/* Expands a group norm to per-channel means, factors and biases (workspace.h). `to`: cuda_channel_norm_bytes
 * bytes, a multiple of 16. */
void cuda_channel_norm(float *to, const struct group_norm *norm, int32_t channels, cudaStream_t stream);

struct product_finish {
    const struct tensor *out; /* result [M,N] of a product; columns first to first + columns are written */
    int32_t first, columns;
    const struct epilogue
        *epilogue;        /* epilogue of the product, without the bias, which the product includes */
    const float *product; /* product [M,columns], or NULL if `out` holds the product */
};

/* Queues the epilogue out = residual + gate * act(product). */
void cuda_finish_product(const struct product_finish *finish, cudaStream_t stream);

extern const void *const cuda_cast_kernels[];

#ifdef __cplusplus
}
#endif

#endif
