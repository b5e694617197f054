/* Padding and layout of per-channel data for convolutions and group norm. Pure functions. */
#ifndef SLUICE_CUDA_CHANNELS_H
#define SLUICE_CUDA_CHANNELS_H

#include <stdint.h>

/* Tensor cores process 4 TF32 channels at once; cuDNN's TF32 kernels need a multiple of 8 channels. */
enum { CHANNEL_STEP = 8 };

static inline int32_t conv_pad_channels(int32_t n) {
    return (n + CHANNEL_STEP - 1) / CHANNEL_STEP * CHANNEL_STEP;
}

/* Returns the distance in floats between a group norm's per-channel vectors: mean, factor and bias. */
static inline int64_t cuda_channel_norm_stride(int32_t channels) {
    return ((int64_t)channels + 63) / 64 * 64;
}

static inline uint64_t cuda_channel_norm_bytes(int32_t channels) {
    return 3 * sizeof(float) * (uint64_t)cuda_channel_norm_stride(channels);
}

#endif
