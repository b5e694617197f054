/* Shared by the matrix products in f32, bf16 and int8: epilogue and adapters of a panel. */
#ifndef SLUICE_CPU_LINEAR_H
#define SLUICE_CPU_LINEAR_H

#include "kernels/ops.h"

/* Epilogue of a product, for one row of a panel. An absent vector is NULL; the residual may alias `to`. */
struct finish {
    const float *bias, *gate, *residual;
    enum activation activation;
};

/* Writes act(from + bias) * gate + residual, n values, to `to`. Overwrites `from`; `to` may equal `from`. */
void linear_finish_row(float *to, float *from, struct finish f, int64_t n);

/* Writes the `up` factors [N,ranks] of all adapters for a panel, side by side in the order of down_product's
 * columns; zeros where an adapter does not cover the panel's outputs. */
void linear_widen_ups(float *to, const struct tensor *whole, const struct tensor *panel, int32_t ranks);

#endif
