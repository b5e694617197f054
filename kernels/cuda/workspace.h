/* Helpers that lay out operators' workspaces. Pure functions; no CUDA headers needed. */
#ifndef SLUICE_CUDA_WORKSPACE_H
#define SLUICE_CUDA_WORKSPACE_H

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/device.h"

/* Reserves bytes at the end of a workspace that has *used bytes so far. Returns the offset, a multiple of
 * 256. */
static inline uint64_t workspace_part(uint64_t *used, uint64_t bytes) {
    uint64_t offset = *used;
    *used += align_up(bytes, ARENA_ALIGN);
    return offset;
}

/* True for F32, F16 or BF16 without a scale, which inner loops read directly, and for an absent weight.
 * weights.cuh converts all other types to f32 or bf16 first. */
static inline bool weight_is_plain(const struct tensor *t) {
    return !t->rank || (!dtype_is_quantised(t->dtype) && t->scale == 1);
}

/* Returns the distance in floats between a group norm's three per-channel vectors (mean, factor, bias). */
static inline int64_t cuda_channel_norm_stride(int32_t channels) {
    return ((int64_t)channels + 63) / 64 * 64;
}

/* Returns the workspace bytes of the per-channel vectors of a group norm. */
static inline uint64_t cuda_channel_norm_bytes(int32_t channels) {
    return 3 * sizeof(float) * (uint64_t)cuda_channel_norm_stride(channels);
}

#ifdef __cplusplus
}
#endif

#endif
