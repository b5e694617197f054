/* Weights that kernels can read without conversion. Pure functions. */
#ifndef SLUICE_CUDA_WEIGHTS_H
#define SLUICE_CUDA_WEIGHTS_H

#include "engine/base/tensor.h"

/* True for F32, F16 or BF16 without a scale, which inner loops read directly, and for an absent weight.
 * weights.cuh converts all other types to f32 or bf16 first. */
static inline bool weight_is_plain(const struct tensor *t) {
    return !t->rank || (!dtype_is_quantised(t->dtype) && t->scale == 1);
}

#endif
