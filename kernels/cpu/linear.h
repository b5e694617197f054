/* Epilogue and adapters of a panel of output columns: shared by the matrix products in f32, bf16 and int8. */
#ifndef SLUICE_CPU_LINEAR_H
#define SLUICE_CPU_LINEAR_H

#include "kernels/ops.h"

/* Vectors and activation of an epilogue; the vectors begin at the panel's first column. NULL: absent. */
struct finish {
    const float *bias, *gate;
    enum activation activation;
};

/* Writes act(from + bias) * gate + residual to `to`: n values of one row of a panel. residual: NULL if
 * absent; may alias `to`. Overwrites `from`, which may be `to`. */
void linear_finish_row(float *to, float *from, const struct finish *f, const float *residual, int64_t n);

/* Writes the `up` factors [N,ranks] of all adapters for a panel, side by side in the order of down_product's
 * columns; zeros where an adapter does not cover the panel's outputs. */
void linear_widen_ups(float *to, const struct tensor *whole, const struct tensor *panel, int32_t ranks);

#endif
