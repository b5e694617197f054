/* Workspace and bands of CUDA convolutions (conv.cu). Pure functions of the call; addresses are ignored. */
#ifndef SLUICE_CUDA_CONV_H
#define SLUICE_CUDA_CONV_H

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/cuda/norm.h"
#include "kernels/ops.h"

/* Copy of CONVOLUTIONS_WORKSPACE (cudnn.h), because cudnn.h needs CUDA headers. conv.cu asserts that the two
 * values are equal. */
enum { CONV_LIBRARY_BYTES = 64 << 20 };

/* Tensor cores process 4 TF32 channels at once; cuDNN's TF32 kernels need a multiple of 8 channels. */
static inline int32_t conv_pad_channels(int32_t n) {
    enum { CHANNEL_STEP = 8 };
    return (n + CHANNEL_STEP - 1) / CHANNEL_STEP * CHANNEL_STEP;
}

struct conv_layout {
    int32_t kernel, stride;      /* kernel side, 1 or 3; stride, 1 or 2 */
    int32_t halo;                /* rows of zero padding above the image, and columns to its left */
    int32_t rows, columns, band; /* size of out; rows of out computed per band */
    int32_t n_padded, c_padded;  /* output and input channels, padded (conv_pad_channels) */
    uint64_t norm, bias, weights, in, out, library, end; /* workspace offsets; end: total bytes */
};

/* True if a vector (bias or pixel norm) is not f32, or has a scale, and must be converted first. */
static inline bool conv_widens(const struct tensor *vector) {
    return vector->rank && (vector->dtype != DTYPE_F32 || !weight_is_plain(vector));
}

/* Returns the workspace bytes of the per-channel vectors of a convolution's input norm. */
static inline uint64_t cuda_conv_norm_bytes(const struct op *op) {
    int32_t channels = op->in[0].dim[2];
    if (conv_widens(&op->conv.pixel_norm.weight)) return sizeof(float) * (uint64_t)channels;
    return op->conv.norm.statistics.rank ? cuda_channel_norm_bytes(channels) : 0;
}

/* Returns how many input rows (or columns) of_out output rows (or columns) of a convolution read. */
static inline int32_t conv_reach(const struct conv_layout *l, int32_t of_out) {
    return (of_out - 1) * l->stride + l->kernel;
}

/* Chooses bands and workspace. A band's input and output stay in the L2 cache of larger GPUs (8,192 pixels of
 * 128 channels: 4 MiB). The library's results always go through the workspace: bias and residual need a pass
 * anyway, and the library then always gets the same layout. With stride 2 the band height follows from the
 * columns of `in`, because four times the pixels of out are gathered. */
static inline struct conv_layout cuda_conv_layout(const struct op *op) {
    const struct tensor *weight = &op->in[1];
    struct conv_layout l = {0};
    l.kernel = weight->dim[2];
    l.stride = op->conv.stride == 2 ? 2 : 1;
    l.halo = l.stride == 1 ? l.kernel / 2 : op->conv.pad_before;
    l.rows = op->out.dim[0];
    l.columns = op->out.dim[1];
    int32_t band = conv_band_rows(l.columns * l.stride);
    l.band = band < l.rows ? band : l.rows;
    l.n_padded = conv_pad_channels(weight->dim[0]);
    l.c_padded = conv_pad_channels(weight->dim[1]);
    uint64_t c = (uint64_t)l.c_padded, n = (uint64_t)l.n_padded, taps = (uint64_t)(l.kernel * l.kernel);
    uint64_t band_rows = (uint64_t)l.band, columns = (uint64_t)l.columns;
    uint64_t in_rows = (uint64_t)conv_reach(&l, l.band), in_columns = (uint64_t)conv_reach(&l, l.columns);
    l.norm = workspace_part(&l.end, cuda_conv_norm_bytes(op));
    l.bias = workspace_part(&l.end, conv_widens(&op->in[2]) ? sizeof(float) * n : 0);
    l.weights = workspace_part(&l.end, sizeof(float) * n * c * taps);
    l.in = workspace_part(&l.end, sizeof(float) * c * in_columns * in_rows);
    l.out = workspace_part(&l.end, sizeof(float) * n * columns * band_rows);
    l.library = workspace_part(&l.end, CONV_LIBRARY_BYTES);
    return l;
}

#ifdef __cplusplus
}
#endif

#endif
