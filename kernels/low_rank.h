/* Low-rank adapters (LoRA) in products: called by the wrappers in ops.c, built from existing operators.
 *
 * OP_LINEAR gets in . down^T as an operand (op.down_product) and adds the adapter's part to each output panel
 * while the panel is in cache. OP_LINEAR_FEW and OP_CONV2D add the adapter's part in separate calls. */
#ifndef SLUICE_KERNELS_LOW_RANK_H
#define SLUICE_KERNELS_LOW_RANK_H

#include "kernels/ops.h"

/* Computes in . down^T of all adapters of the weight (op.down_product) in scratch; rank 0 without
 * adapters. */
struct tensor low_rank_product(struct context *x, struct tensor in, struct tensor weight);
/* Computes in . down^T: op_linear with few outputs; a device may split the rows among threads. */
void linear_skinny(struct context *x, struct tensor out, struct tensor in, struct tensor down);
/* Computes op_linear_few for a weight that has adapters. */
void low_rank_linear_few(struct context *x, struct tensor out, struct tensor in, struct tensor weight,
                         struct tensor bias, enum activation activation);

/* Arguments of op_conv2d. */
struct conv_call {
    struct tensor out, in, weight;
    struct epilogue epilogue;
    struct conv_options options;
};

/* op_conv2d plus the contributions of this adapter and of all later adapters in the list. */
void low_rank_conv(struct context *x, const struct conv_call *call, const struct low_rank *adapter);

#endif
