/* Products with a weight that has adapters, of the operators that there are: what ops.c's wrappers do then.
 *
 * A large product takes in . down^T as an operand (op.side) and adds its part of out while that is still in
 * the cache; the others are few rows, or end in nothing but a sum, and get it added by calls of their own. */
#ifndef SLUICE_KERNELS_ADAPTED_H
#define SLUICE_KERNELS_ADAPTED_H

#include "kernels/ops.h"

/* op.side in the visit's scratch, computed; absent without adapters that concern the weight. */
struct tensor adapted_side(struct context *x, struct tensor in, struct tensor weight);
/* in . down^T: op_linear of so few outputs that its rows may be computed in runs. */
void linear_thin(struct context *x, struct tensor out, struct tensor in, struct tensor down);
/* op_linear_few of a weight with adapters. */
void adapted_few(struct context *x, struct tensor out, struct tensor in, struct tensor weight,
                 struct tensor bias, enum activation activation);

struct conv_call {
    struct tensor out, in, weight;
    struct epilogue epilogue;
    struct conv_options options;
};

/* op_conv2d, with the adapters from this one on. */
void adapted_conv(struct context *x, const struct conv_call *call, const struct low_rank *adapter);

#endif
