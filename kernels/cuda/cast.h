/* Operands made ready for other kernels: rounded, widened, spread over channels. And a library's product made
 * into what its operator gives.
 *
 * These queue kernels on a stream and tell of no error: the caller's cuda_launched reads it. Nothing here
 * depends on alignment but speed. Weights are of any type, with their scales. */
#ifndef SLUICE_CUDA_CAST_H
#define SLUICE_CUDA_CAST_H

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/cuda/channels.h"
#include "kernels/ops.h"

#include <cuda_runtime_api.h>
#include <stdint.h>

/* Rows of any weight type, which may be strided, to packed rows of bf16, to nearest even, and zeros after
 * each up to padded values, a multiple of 8. to is a multiple of 16. */
void cuda_round_rows(void *to, const struct tensor *from, int32_t padded, cudaStream_t stream);
/* A vector of any weight type to f32, and zeros after it up to padded values; from of rank 0 gives zeros
 * alone. */
void cuda_widen_vector(float *to, const struct tensor *from, int32_t padded, cudaStream_t stream);

/* A group norm spread over channels (channels.h): means, factors, biases. to: cuda_channel_norm_bytes, a
 * multiple of 16. */
void cuda_channel_norm(float *to, const struct group_norm *norm, int32_t channels, cudaStream_t stream);

struct product_finish {
    const struct tensor *out; /* [M,N]; of it columns first to first + columns */
    int32_t first, columns;
    const struct epilogue *epilogue; /* whose bias is in the product already */
    const float *product;            /* [M,columns], or NULL: it lies in out */
};

/* out = residual + gate * act(product). */
void cuda_finish_product(const struct product_finish *finish, cudaStream_t stream);

/* All of these, NULL last. */
extern const void *const cuda_cast_kernels[];

#ifdef __cplusplus
}
#endif

#endif
