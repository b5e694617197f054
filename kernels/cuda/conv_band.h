/* Kernels around a convolution of one band of an image. They gather input and weights in the library's layout
 * (channels last, zero-padded to multiples of CHANNEL_STEP, zero padding around the image) and write the
 * output.
 *
 * All functions queue kernels on a stream and report no error; the caller checks for errors with
 * cuda_launched. Alignment affects only speed; buffers for the library start at multiples of 16 bytes. */
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
    const struct tensor *in;    /* input image [Y,X,C] */
    const float *norm;          /* group norm from cuda_channel_norm, or NULL */
    const float *pixel_norm;    /* weight [C] of an RMS norm of each pixel, instead of norm; or NULL */
    float eps;                  /* epsilon of pixel_norm */
    enum activation activation; /* activation after the norm */
    int32_t upsample;           /* nearest-neighbour upsampling, 1 or 2 */
    bool cut_row, cut_column;   /* the last row or column of the upsampled image is zero */
    /* Region of the upsampled image: rows from `first`, columns from -left; zero outside the image. */
    int32_t first, rows, left, columns;
};

/* Gathers a band of the input into `to` [rows, columns, C padded]. */
void cuda_conv_gather(float *to, const struct conv_gather *gather, cudaStream_t stream);

/* Rearranges packed weight [N,C,k,k] to [N padded, k, k, C padded]. */
void cuda_conv_pad_weights(float *to, const struct tensor *weight, cudaStream_t stream);

struct conv_finish {
    const struct tensor *out, *residual; /* result [Y,X,N]; residual: absent (rank 0), or may alias out */
    int64_t first, pixels;               /* first pixel of out, number of pixels */
    const float *from;                   /* convolution result [pixels, N padded] */
    const float *bias;                   /* bias [N], or NULL: already added */
    enum finishing finish;
};

/* Queues out = finish(from + bias + residual), in this order. `from` may alias out if N is not padded. */
void cuda_conv_finish(const struct conv_finish *finish, cudaStream_t stream);

extern const void *const cuda_conv_band_kernels[];

#ifdef __cplusplus
}
#endif

#endif
