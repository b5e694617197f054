/* Matrix products with a weight, through cublaslt.h.
 *
 * The whole input is rounded to bf16 once, unless it is bf16 already. Weights of other types are dequantised
 * and rounded in panels of output columns; bf16 weights whose K is not a multiple of 8 are copied with zero
 * padding. Rows are never split. The library adds bias and residual in f32. Activation and gate are a
 * separate epilogue kernel per panel, because the library supports few activations, with unspecified
 * accuracy. That kernel then also adds the residual, and the product goes through the workspace because the
 * residual may alias out. A bf16 result is rounded by the library, or by the epilogue kernel.
 *
 * Memory traffic besides the product: 6 bytes per value of an f32 input and of a weight that is not bf16;
 * with activation or gate 8 bytes per output value (6 for bf16), or 12 with a residual.
 *
 * Adapters: the library adds one skinny product per adapter to the panel before the epilogue, 8 bytes per
 * output value that the adapter touches. */
#include "kernels/cuda/linear.h"

#include "kernels/cuda/cast.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/operators.h"
#include "kernels/cuda/cublaslt.h"

static_assert((int)LINEAR_LIBRARY_BYTES == (int)PRODUCTS_WORKSPACE, "linear.h and cublaslt.h must agree");

static bool is_aligned_16(const void *address) {
    return reinterpret_cast<uintptr_t>(address) % 16 == 0;
}

/* Returns the key of a panel's product, assuming that out and residual start at multiples of 16 bytes. */
static struct product_key cuda_linear_key_of(const struct op *op, const struct linear_layout *l,
                                             int32_t columns) {
    struct product_key key = {0};
    key.m = op->in[0].dim[0];
    key.n = columns;
    key.k = linear_depth(op);
    key.in_row = l->rounds ? key.k : (int32_t)(op->in[0].row_bytes / 2);
    key.rounded = linear_library_rounds(op);
    int64_t element = key.rounded ? 2 : sizeof(float);
    key.bias = op->epilogue.bias.rank > 0;
    key.residual = op->epilogue.residual.rank > 0 && !l->stages;
    key.out_row = l->stages ? columns : op->out.row_bytes / element;
    key.residual_row = key.residual ? op->epilogue.residual.row_bytes / (int64_t)sizeof(float) : 0;
    key.wide = product_rows_wide(&key);
    return key;
}

/* Returns the key of an adapter's product that is added to a panel from this column on. */
static struct product_key adapter_key_of(const struct product_key *panel, const struct tensor *up,
                                         int32_t column) {
    struct product_key key = {0};
    key.m = panel->m;
    key.n = up->dim[0];
    key.k = key.in_row = linear_padded(up->dim[1]);
    key.residual = 1;
    key.out_row = key.residual_row = panel->out_row;
    key.wide = panel->wide && column % 4 == 0;
    return key;
}

/* Prepares the product for aligned and for unaligned addresses, because addresses are not known yet. */
static enum status prepare_both(struct cuda *cuda, struct product_key key, bool staged, struct error *e) {
    if (products_prepare(cuda->products, &key, e) || !key.wide || staged) return e->code;
    key.wide = 0;
    return products_prepare(cuda->products, &key, e);
}

static enum status prepare_panel(struct cuda *cuda, const struct op *op, int32_t first, int32_t columns,
                                 struct error *e) {
    struct linear_layout l = cuda_linear_layout(op);
    struct product_key key = cuda_linear_key_of(op, &l, columns);
    struct tensor up;
    int32_t column;
    if (prepare_both(cuda, key, l.stages, e)) return e->code;
    for (const struct low_rank *a = op->in[1].adapters; a; a = a->next)
        if (linear_adapter_part(op, a, first, columns, &up, &column) &&
            prepare_both(cuda, adapter_key_of(&key, &up, column - first), l.stages, e))
            return e->code;
    return OK;
}

static enum status cuda_linear_prepare(struct cuda *cuda, const struct op *op, struct error *e) {
    if (!cuda->products) {
        return error_set(e, DEVICE,
                         "large matrix products need cuBLASLt 12 or 13, which is not installed" FOUND "%s",
                         cuda->cublaslt_missing);
    }
    int32_t panel = linear_panel(op), n = op->in[1].dim[0];
    for (int32_t first = 0; first < n; first += panel)
        if (prepare_panel(cuda, op, first, n - first < panel ? n - first : panel, e)) return e->code;
    return OK;
}

/* Returns the bias in the type that the product needs, f32 or bf16, converted to `to` if necessary. */
static const char *cuda_linear_ready_bias(const struct cuda *cuda, const struct op *op, char *to) {
    const struct tensor *bias = &op->epilogue.bias;
    if (!bias->rank) return NULL;
    if (!linear_moves_bias(op) && is_aligned_16(bias->data)) return static_cast<const char *>(bias->data);
    int32_t n = tensor_columns(bias);
    if (linear_library_rounds(op))
        cuda_round_rows(to, bias, (n + 7) / 8 * 8, cuda->compute);
    else
        cuda_widen_vector(reinterpret_cast<float *>(to), bias, n, cuda->compute);
    return to;
}

struct call {
    struct cuda *cuda;
    const struct op *op;
    struct linear_layout l;
    const char *bias; /* bias [N] in the product's type; NULL: no bias */
    char *workspace;
    bool wide; /* out and residual start at multiples of 16 bytes */
};

static char *column_at(const struct tensor *t, int32_t i) {
    return static_cast<char *>(t->data) + dtype_bytes(t->dtype, i);
}

/* Returns the operands of the panel that starts at column `first`; converts the panel's weights. */
static struct product_operands panel_of(const struct call *c, int32_t first, int32_t columns) {
    const struct op *op = c->op;
    struct tensor weight = tensor_slice(op->in[1], first, columns);
    struct product_operands operands = {0};
    operands.in = c->l.rounds ? c->workspace + c->l.in : op->in[0].data;
    operands.weight = weight.data;
    if (c->l.converts) {
        cuda_round_rows(c->workspace + c->l.weight, &weight, linear_depth(op), c->cuda->compute);
        operands.weight = c->workspace + c->l.weight;
    }
    if (c->bias) operands.bias = c->bias + first * (linear_library_rounds(op) ? 2 : sizeof(float));
    operands.out = c->l.stages ? c->workspace + c->l.stage : column_at(&op->out, first);
    if (op->epilogue.residual.rank && !c->l.stages)
        operands.residual = reinterpret_cast<const float *>(column_at(&op->epilogue.residual, first));
    operands.workspace = c->workspace + c->l.products;
    return operands;
}

/* Rounds the down product to bf16, each adapter's columns separately. */
static void round_down_product(const struct call *c) {
    char *to = c->workspace + c->l.down;
    int32_t from = 0, column;
    struct tensor up;
    for (const struct low_rank *a = c->op->in[1].adapters; a; a = a->next) {
        if (!linear_adapter_part(c->op, a, 0, c->op->in[1].dim[0], &up, &column)) continue;
        struct tensor part = tensor_slice_columns(c->op->down_product, from, up.dim[1]);
        int32_t depth = linear_padded(up.dim[1]);
        cuda_round_rows(to, &part, depth, c->cuda->compute);
        to += 2 * (int64_t)part.dim[0] * depth;
        from += up.dim[1];
    }
}

static enum status add_adapters(const struct call *c, const struct product_key *panel, float *out,
                                int32_t first, struct error *e) {
    const char *factors = c->workspace + c->l.down;
    struct tensor up;
    int32_t column;
    for (const struct low_rank *a = c->op->in[1].adapters; a; a = a->next) {
        if (!linear_adapter_part(c->op, a, 0, c->op->in[1].dim[0], &up, &column)) continue;
        struct product_operands operands = {0};
        operands.in = factors;
        factors += 2 * (int64_t)panel->m * linear_padded(up.dim[1]);
        if (!linear_adapter_part(c->op, a, first, panel->n, &up, &column)) continue;
        struct product_key key = adapter_key_of(panel, &up, column - first);
        cuda_round_rows(c->workspace + c->l.up, &up, key.k, c->cuda->compute);
        operands.weight = c->workspace + c->l.up;
        operands.out = out + column - first;
        operands.residual = out + column - first;
        operands.workspace = c->workspace + c->l.products;
        if (products_run(c->cuda->products, &key, &operands, c->cuda->compute, e)) return e->code;
    }
    return OK;
}

static enum status run_panel(const struct call *c, int32_t first, struct error *e) {
    int32_t left = c->op->in[1].dim[0] - first, columns = left < c->l.panel ? left : c->l.panel;
    struct product_key key = cuda_linear_key_of(c->op, &c->l, columns);
    key.wide = key.wide && c->wide;
    struct product_operands operands = panel_of(c, first, columns);
    if (products_run(c->cuda->products, &key, &operands, c->cuda->compute, e)) return e->code;
    if (c->op->down_product.rank && add_adapters(c, &key, static_cast<float *>(operands.out), first, e))
        return e->code;
    struct product_finish finish = {&c->op->out, first, columns, &c->op->epilogue};
    if (c->l.stages) finish.product = static_cast<const float *>(operands.out);
    if (c->l.finishes) cuda_finish_product(&finish, c->cuda->compute);
    return OK;
}

static enum status cuda_linear_run(struct cuda *cuda, const struct op *op, char *workspace, struct error *e) {
    struct call c = {cuda, op, cuda_linear_layout(op), NULL, workspace};
    if (!c.l.converts && !is_aligned_16(op->in[1].data)) {
        return error_set(e, INTERNAL,
                         "operator linear: the weight's address is not a multiple of 16" FOUND "%p",
                         op->in[1].data);
    }
    const struct tensor *residual = &op->epilogue.residual;
    c.wide =
        c.l.stages || (is_aligned_16(op->out.data) && (!residual->rank || is_aligned_16(residual->data)));
    c.bias = cuda_linear_ready_bias(cuda, op, workspace + c.l.bias);
    if (c.l.rounds) cuda_round_rows(workspace + c.l.in, &op->in[0], linear_depth(op), cuda->compute);
    if (op->down_product.rank) round_down_product(&c);
    for (int32_t first = 0; first < op->in[1].dim[0]; first += c.l.panel)
        if (run_panel(&c, first, e)) return e->code;
    return cuda_launched(op, e);
}

const struct cuda_operator cuda_linear = {cuda_linear_prepare, cuda_linear_run, cuda_cast_kernels};
