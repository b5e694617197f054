/* Workspace of CUDA linear_few. Pure functions. */
#ifndef SLUICE_CUDA_LINEAR_FEW_H
#define SLUICE_CUDA_LINEAR_FEW_H

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/cuda/costs.h"
#include "kernels/cuda/weights.h"
#include "kernels/ops.h"

/* Weights that a thread reads at once: 16 bytes of bf16 or f16. */
enum { FEW_VALUES = 8 };

/* Workspace: activated input f32 [T, columns], rows zero-padded to a multiple of FEW_VALUES; and the bias as
 * f32 if the bias must be converted. */
struct few_layout {
    int32_t columns;
    uint64_t in, bias, end;
};

static inline struct few_layout cuda_few_layout(const struct op *op) {
    int32_t k = op->in[1].dim[1];
    struct few_layout l = {(k - 1) / FEW_VALUES * FEW_VALUES + FEW_VALUES, 0, 0, 0};
    l.in = workspace_part(&l.end, sizeof(float) * (uint64_t)op->in[0].dim[0] * (uint64_t)l.columns);
    l.bias = workspace_part(
        &l.end, weight_is_plain(&op->in[2]) ? 0 : sizeof(float) * (uint64_t)tensor_columns(&op->in[2]));
    return l;
}

#ifdef __cplusplus
}
#endif

#endif
