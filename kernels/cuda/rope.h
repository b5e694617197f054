/* Workspace of CUDA rope. Pure functions. */
#ifndef SLUICE_CUDA_ROPE_H
#define SLUICE_CUDA_ROPE_H

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/cuda/costs.h"
#include "kernels/cuda/weights.h"
#include "kernels/ops.h"

/* Returns the bytes of the head norm's weight converted to f32; 0 if the weight is plain. */
static inline uint64_t cuda_rope_bytes(const struct op *op) {
    const struct tensor *norm = &op->in[2];
    uint64_t end = 0;
    workspace_part(&end, weight_is_plain(norm) ? 0 : sizeof(float) * (uint64_t)tensor_columns(norm));
    return end;
}

#ifdef __cplusplus
}
#endif

#endif
