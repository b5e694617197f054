/* Low-rank adapters in products. Functions release scratch on return: devices run operators in call order. */
#include "kernels/low_rank.h"

#include <string.h>

/* Returns an adapter's `down` factor, reshaped so that its rows have the shape of the weight's rows. */
static struct tensor down_of(const struct low_rank *adapter, const struct tensor *weight) {
    int32_t dim[TENSOR_RANK_MAX];
    memcpy(dim, weight->dim, sizeof dim);
    dim[0] = adapter->down.dim[0];
    return tensor_reshape(adapter->down, weight->rank, dim);
}

struct tensor low_rank_product(struct context *x, struct tensor in, struct tensor weight) {
    int32_t ranks = tensor_adapter_ranks(&weight), column = 0, row;
    if (!ranks) return (struct tensor){0};
    struct tensor side = context_tensor(x, DTYPE_F32, 2, (int32_t[]){in.dim[0], ranks}), up;
    for (const struct low_rank *a = weight.adapters; a; a = a->next) {
        if (!tensor_adapted_by(&weight, a, &up, &row)) continue;
        struct tensor part = tensor_slice_columns(side, column, up.dim[1]);
        linear_skinny(x, part, in, down_of(a, &weight));
        column += up.dim[1];
    }
    return side;
}

void low_rank_linear_few(struct context *x, struct tensor out, struct tensor in, struct tensor weight,
                         struct tensor bias, enum activation activation) {
    struct tensor base = weight, none = {0}, up;
    int32_t row;
    base.adapters = NULL;
    op_linear_few(x, out, in, base, bias, activation);
    double before = x->flops;
    for (const struct low_rank *a = weight.adapters; a; a = a->next) {
        if (!tensor_adapted_by(&weight, a, &up, &row)) continue;
        uint64_t used = x->scratch->used;
        struct tensor part = tensor_slice_columns(out, row, up.dim[0]), down = down_of(a, &weight);
        struct tensor inner = context_tensor(x, DTYPE_F32, 2, (int32_t[]){in.dim[0], down.dim[0]});
        struct tensor sum = context_tensor(x, DTYPE_F32, 2, part.dim);
        op_linear_few(x, inner, in, down, none, activation);
        op_linear_few(x, sum, inner, up, none, ACTIVATION_NONE);
        op_add(x, part, part, sum);
        x->scratch->used = used;
    }
    x->adapter_flops += x->flops - before;
}

/* Runs all adapters' `down` convolutions before the main convolution writes `out`, because `out` may overlap
 * `in`. */
void low_rank_conv(struct context *x, const struct conv_call *call, const struct low_rank *adapter) {
    const struct tensor *out = &call->out;
    struct tensor weight = call->weight;
    weight.adapters = NULL;
    if (!adapter) {
        op_conv2d(x, *out, call->in, weight, call->epilogue, call->options);
        return;
    }
    uint64_t used = x->scratch->used;
    int32_t n = out->dim[2], r = adapter->down.dim[0];
    struct tensor inner = context_tensor(x, DTYPE_F32, 3, (int32_t[]){out->dim[0], out->dim[1], r});
    double before = x->flops;
    op_conv2d(x, inner, call->in, down_of(adapter, &weight), (struct epilogue){0}, call->options);
    x->adapter_flops += x->flops - before;
    low_rank_conv(x, call, adapter->next);
    before = x->flops;
    op_conv2d(x, *out, inner, tensor_reshape(adapter->up, 4, (int32_t[]){n, r, 1, 1}),
              (struct epilogue){.residual = *out}, (struct conv_options){.upsample = 1});
    x->adapter_flops += x->flops - before;
    x->scratch->used = used;
}
