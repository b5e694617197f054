/* Around a convolution of a band of a picture: its input and weights as the library wants them (channels
 * last, padded with zeros to whole multiples of CHANNEL_STEP, zeros around the picture), its output as out
 * wants it.
 *
 * These queue kernels on a stream and tell of no error: the caller's cuda_launched reads it. Nothing here
 * depends on alignment but speed; what is written for the library lies at multiples of 16. */
#ifndef SLUICE_CUDA_CONV_BAND_H
#define SLUICE_CUDA_CONV_BAND_H

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/cuda/channels.h"
#include "kernels/ops.h"

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

struct conv_gather {
    const struct tensor *in;    /* [Y,X,C] */
    const float *norm;          /* what cuda_channel_norm wrote, or NULL */
    const float *pixel_norm;    /* [C], or NULL: a pixel's norm instead of it */
    float eps;                  /* the latter's */
    enum activation activation; /* after the norm */
    int32_t upsample;           /* 1 or 2 */
    bool cut_row, cut_column;   /* the last one of the upsampled picture is zeros */
    /* Of the upsampled picture, from row first and column -left on; what lies outside of it is zeros. */
    int32_t first, rows, left, columns;
};

/* to [rows, columns, C padded]. */
void cuda_conv_gather(float *to, const struct conv_gather *gather, cudaStream_t stream);

/* weight [N,C,k,k], packed, to [N padded, k, k, C padded]. */
void cuda_conv_pad_weights(float *to, const struct tensor *weight, cudaStream_t stream);

struct conv_finish {
    const struct tensor *out, *residual; /* [Y,X,N]; residual of rank 0: none; may be out */
    int64_t first, pixels;               /* of out */
    const float *from;                   /* [pixels, N padded] */
    const float *bias;                   /* [N], or NULL: from has it */
    enum finishing finish;
};

/* out = finish(from + bias + residual), in this order. from may be out itself where nothing is padded. */
void cuda_conv_finish(const struct conv_finish *finish, cudaStream_t stream);

/* All of these, NULL last. */
extern const void *const cuda_conv_band_kernels[];

#ifdef __cplusplus
}
#endif

#endif
