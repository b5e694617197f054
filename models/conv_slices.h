/* Weights of convolutions over time and space [N, C, 3, k, k], as the kernels [N, C, k, k] of three 2D
 * convolutions, one per input frame. Their sum is the convolution. Shared by the video VAEs and LTX-2's
 * latent upscaler. */
#ifndef SLUICE_CONV_SLICES_H
#define SLUICE_CONV_SLICES_H

#include "engine/run/weights.h"

enum { CONV_SLICES = 3 };

struct sliced_conv_weights {
    struct tensor weight[CONV_SLICES], bias; /* kernels from the earliest input frame to the latest */
};

/* Weight rows of a struct sliced_conv_weights. prefix: the member and a dot, or empty; tail: end of the names
 * before ".weight" and ".bias"; frames, side: dims of the kernel's size in time and space. */
#define ROW_CONV_SLICE(S, member, i, tail, out, in, frames, side, ...)                                       \
    WEIGHT_ROW(S, member,                                                                                    \
               (.rank = 4, .dim = {out, in, side, side}, .slices = frames,                                   \
                .before_last = CONV_SLICES - 1 - (i), .init_scale = 1),                                      \
               tail ".weight", __VA_ARGS__)
#define ROW_CONV_BIAS(S, member, tail, out, in, frames, side, ...)                                           \
    WEIGHT_ROW(S, member, SHAPED(1, out), tail ".bias", __VA_ARGS__)
#define ROWS_SLICED_CONV(S, prefix, tail, ...)                                                               \
    ROW_CONV_SLICE(S, prefix weight[0], 0, tail, __VA_ARGS__)                                                \
    ROW_CONV_SLICE(S, prefix weight[1], 1, tail, __VA_ARGS__)                                                \
    ROW_CONV_SLICE(S, prefix weight[2], 2, tail, __VA_ARGS__)                                                \
    ROW_CONV_BIAS(S, prefix bias, tail, __VA_ARGS__)

#endif
