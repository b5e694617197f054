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

/* cuDNN's TF32 and f16 kernels need a multiple of 8 channels. */
static inline int32_t conv_pad_channels(int32_t n) {
    enum { CHANNEL_STEP = 8 };
    return (n + CHANNEL_STEP - 1) / CHANNEL_STEP * CHANNEL_STEP;
}

/* How the library computes a convolution, one band of rows per call.
 *
 * f16: chosen if f16 cannot overflow, because the caller bounds the input (`bounded`) or the input is normed,
 * or in precision f16. Input and weights are rounded to f16, which has the 11 significant bits of TF32, twice
 * the rate and half the bytes. All other convolutions use TF32.
 *
 * doubled: a 3x3 convolution of an image upsampled by 2 with nearest neighbour reads each input pixel several
 * times. Output pixels have four phases: even or odd row, even or odd column. Each phase equals a 2x2
 * convolution of the image before upsampling, whose weights are sums of the 3x3 weights. One library call
 * computes all phases as output channels. This takes 16 instead of 36 multiplications, and gathers a quarter
 * of the pixels. */
struct conv_layout {
    int32_t kernel, stride; /* kernel side of the weight, 1 or 3; stride, 1 or 2 */
    bool f16, doubled;
    int32_t side, phases;        /* kernel side of the library's convolution, 1 to 3; 4 if doubled, else 1 */
    int32_t halo;                /* rows of zero padding above the image, and columns to its left */
    int32_t rows, columns, band; /* size of out; rows of out computed per band */
    int32_t n_padded, c_padded;  /* output and input channels, padded (conv_pad_channels) */
    uint64_t norm, bias, slopes, weights, in, out, library, end; /* workspace offsets; end: total bytes */
};

/* True if a vector (bias, slopes or pixel norm) is not f32, or has a scale, and must be converted first. */
static inline bool conv_widens(const struct tensor *vector) {
    return vector->rank && (vector->dtype != DTYPE_F32 || !weight_is_plain(vector));
}

/* Returns the workspace bytes of the per-channel vectors of a convolution's input norm. */
static inline uint64_t cuda_conv_norm_bytes(const struct op *op) {
    int32_t channels = op->in[0].dim[2];
    if (conv_widens(&op->conv.pixel_norm.weight)) return sizeof(float) * (uint64_t)channels;
    return op->conv.norm.statistics.rank ? cuda_channel_norm_bytes(channels) : 0;
}

/* Returns the bytes of a gathered value, a packed weight or a library result. */
static inline uint64_t conv_value_bytes(const struct conv_layout *l) {
    return l->f16 ? 2 : sizeof(float);
}

/* Returns how many rows (or columns) the library computes for of_out rows (or columns) of out. Doubled: half
 * and one more, because out uses only one phase of the first and of the last. */
static inline int32_t conv_library_size(const struct conv_layout *l, int32_t of_out) {
    return l->doubled ? (of_out + 1) / 2 + 1 : of_out;
}

/* Returns how many gathered rows (or columns) the library reads for of_out rows (or columns) of out. */
static inline int32_t conv_reach(const struct conv_layout *l, int32_t of_out) {
    return (conv_library_size(l, of_out) - 1) * l->stride + l->side;
}

/* Rows of out per band. A band has about 8 Mi values, input or output: 65,536 pixels of 128 channels. That is
 * 512 tiles of 128 x 128, four for each multiprocessor of a large GPU, and 16 MiB in f16. The aliasing rules
 * of ops.h assume smaller bands, but a band is gathered before it is written, which allows any size. */
static inline int32_t conv_band(const struct conv_layout *l) {
    enum { VALUES = 8 << 20, CHANNELS_LEAST = 128, ROWS_LEAST = 4 };
    int32_t channels = l->n_padded > l->c_padded ? l->n_padded : l->c_padded;
    if (channels < CHANNELS_LEAST) channels = CHANNELS_LEAST;
    int64_t rows = VALUES / ((int64_t)channels * l->columns * l->stride * l->stride) / 2 * 2;
    if (rows < ROWS_LEAST) rows = ROWS_LEAST;
    return (int32_t)(rows < l->rows ? rows : l->rows);
}

/* Chooses bands and workspace. The library's results always go through the workspace: bias and residual need
 * a pass anyway, and the library then always gets the same layout. */
static inline struct conv_layout cuda_conv_layout(const struct op *op) {
    const struct tensor *weight = &op->in[1];
    const struct conv_options *o = &op->conv;
    struct conv_layout l = {0};
    l.kernel = weight->dim[2];
    l.stride = o->stride == 2 ? 2 : 1;
    l.f16 = o->bounded || o->norm.statistics.rank || conv_norms_pixels(o) || op->precision == PRECISION_F16;
    l.doubled = o->upsample == 2 && l.kernel == 3 && !o->cut_row && !o->cut_column;
    l.side = l.doubled ? 2 : l.kernel;
    l.phases = l.doubled ? 4 : 1;
    l.halo = l.stride == 1 ? l.kernel / 2 : o->pad_before;
    l.rows = op->out.dim[0];
    l.columns = op->out.dim[1];
    l.n_padded = conv_pad_channels(weight->dim[0]);
    l.c_padded = conv_pad_channels(weight->dim[1]);
    l.band = conv_band(&l);
    uint64_t c = (uint64_t)l.c_padded, n = (uint64_t)(l.n_padded * l.phases),
             taps = (uint64_t)(l.side * l.side);
    uint64_t rows = (uint64_t)conv_library_size(&l, l.band),
             columns = (uint64_t)conv_library_size(&l, l.columns);
    uint64_t in_rows = (uint64_t)conv_reach(&l, l.band), in_columns = (uint64_t)conv_reach(&l, l.columns);
    uint64_t each = conv_value_bytes(&l);
    l.norm = workspace_part(&l.end, cuda_conv_norm_bytes(op));
    l.bias = workspace_part(&l.end, conv_widens(&op->in[2]) ? sizeof(float) * (uint64_t)l.n_padded : 0);
    l.slopes = workspace_part(&l.end, conv_widens(&o->slopes) ? sizeof(float) * (uint64_t)l.n_padded : 0);
    l.weights = workspace_part(&l.end, each * n * c * taps);
    l.in = workspace_part(&l.end, each * c * in_columns * in_rows);
    l.out = workspace_part(&l.end, each * n * columns * rows);
    l.library = workspace_part(&l.end, CONV_LIBRARY_BYTES);
    return l;
}

/* Returns the rows of out to which one launch adds bias and residual. Residual and out may overlap as ops.h
 * allows for bands of conv_band_rows rows, so a launch with a residual has no more rows. */
static inline int32_t conv_finish_rows(const struct op *op, const struct conv_layout *l) {
    int32_t rows = op->in[3].rank ? conv_band_rows(l->columns) : l->band;
    return rows < l->band ? rows : l->band;
}

#ifdef __cplusplus
}
#endif

#endif
