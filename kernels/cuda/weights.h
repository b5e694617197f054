/* Which weights kernels may read as they lie. Pure functions. */
#ifndef SLUICE_CUDA_WEIGHTS_H
#define SLUICE_CUDA_WEIGHTS_H

#include "engine/base/tensor.h"

/* F32, F16 or BF16, and no scale: what inner loops read themselves. All else is made f32 or bf16 before, by
 * weights.cuh. Also true of an absent one. */
static inline bool weight_is_plain(const struct tensor *t) {
    return !t->rank || (!dtype_is_quantised(t->dtype) && t->scale == 1);
}

#endif
