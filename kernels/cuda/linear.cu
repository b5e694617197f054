/* Matrix products with a weight, through products.h.
 *
 * in is rounded to bf16 once, whole; weights of another type are dequantised and rounded panel by panel of
 * output columns, and so is bf16 moved whose K is no multiple of 8: zeros fill it up. Rows are never split.
 * Bias and residual are added by the library, in f32. Activation and gate are a kernel's after it, panel by
 * panel: the library knows only some, to no accuracy that it says; a residual is added there then, and the
 * product goes through the workspace, for the residual may be out. What it does beside the product: 6 bytes a
 * value of in, and of a weight that is not bf16; with activation or gate 8 a value of out, or 12. */
#include "kernels/cuda/linear.h"

#include "kernels/cuda/cast.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/operators.h"
#include "kernels/cuda/products.h"

static_assert((int)LINEAR_LIBRARY_BYTES == (int)PRODUCTS_WORKSPACE, "linear.h repeats products.h");

static bool sixteen(const void *address) {
    return reinterpret_cast<uintptr_t>(address) % 16 == 0;
}

/* The product of a panel of these columns, as if out and residual began at multiples of 16. */
static struct product_key cuda_linear_key_of(const struct op *op, const struct linear_layout *l,
                                             int32_t columns) {
    struct product_key key = {0};
    int64_t element = sizeof(float);
    key.m = op->in[0].dim[0];
    key.n = columns;
    key.k = linear_depth(op);
    key.bias = op->epilogue.bias.rank > 0;
    key.residual = op->epilogue.residual.rank > 0 && !l->stages;
    key.out_row = l->stages ? columns : op->out.row_bytes / element;
    key.residual_row = key.residual ? op->epilogue.residual.row_bytes / element : 0;
    key.wide = product_rows_wide(&key);
    return key;
}

/* Also the twin of a wide product that is not, where addresses are not known yet. */
static enum status prepare_panel(struct cuda *cuda, const struct op *op, int32_t columns, struct error *e) {
    struct linear_layout l = cuda_linear_layout(op);
    struct product_key key = cuda_linear_key_of(op, &l, columns);
    if (!columns || products_prepare(cuda->products, &key, e)) return e->code;
    if (!key.wide || l.stages) return OK;
    key.wide = 0;
    return products_prepare(cuda->products, &key, e);
}

static enum status cuda_linear_prepare(struct cuda *cuda, const struct op *op, struct error *e) {
    if (!cuda->products) {
        error_set(e, DEVICE, "large products need cuBLASLt 12 or 13, which is not there");
        return error_found(e, "%s", cuda->lacks_products);
    }
    int32_t panel = linear_panel(op);
    if (prepare_panel(cuda, op, panel, e)) return e->code;
    return prepare_panel(cuda, op, op->in[1].dim[0] % panel, e);
}

static const float *cuda_linear_ready_bias(const struct cuda *cuda, const struct tensor *bias, float *to) {
    if (!bias->rank) return NULL;
    if (bias->dtype == DTYPE_F32 && weight_is_plain(bias) && sixteen(bias->data))
        return static_cast<const float *>(bias->data);
    cuda_widen_vector(to, bias, tensor_columns(bias), cuda->compute);
    return to;
}

/* What is the same for all panels. */
struct call {
    struct cuda *cuda;
    const struct op *op;
    struct linear_layout l;
    const float *bias; /* NULL: there is none */
    char *workspace;
    bool wide; /* what the library writes and adds begins at multiples of 16 */
};

/* Operands of the panel that begins at column first. */
static struct product_operands panel_of(const struct call *c, int32_t first, int32_t columns) {
    const struct op *op = c->op;
    struct tensor weight = tensor_slice(op->in[1], first, columns);
    struct product_operands operands = {0};
    operands.in = c->workspace + c->l.in;
    operands.weight = weight.data;
    if (c->l.converts) {
        cuda_round_rows(c->workspace + c->l.weight, &weight, linear_depth(op), c->cuda->compute);
        operands.weight = c->workspace + c->l.weight;
    }
    operands.bias = c->bias ? c->bias + first : NULL;
    operands.out = static_cast<float *>(op->out.data) + first;
    if (c->l.stages)
        operands.out = reinterpret_cast<float *>(c->workspace + c->l.stage);
    else if (op->epilogue.residual.rank)
        operands.residual = static_cast<const float *>(op->epilogue.residual.data) + first;
    operands.workspace = c->workspace + c->l.products;
    return operands;
}

static enum status run_panel(const struct call *c, int32_t first, struct error *e) {
    int32_t left = c->op->in[1].dim[0] - first, columns = left < c->l.panel ? left : c->l.panel;
    struct product_key key = cuda_linear_key_of(c->op, &c->l, columns);
    key.wide = key.wide && c->wide;
    struct product_operands operands = panel_of(c, first, columns);
    if (products_run(c->cuda->products, &key, &operands, c->cuda->compute, e)) return e->code;
    struct product_finish finish = {&c->op->out, first, columns, &c->op->epilogue};
    if (c->l.stages) finish.product = operands.out;
    if (c->l.finishes) cuda_finish_product(&finish, c->cuda->compute);
    return OK;
}

static enum status cuda_linear_run(struct cuda *cuda, const struct op *op, char *workspace, struct error *e) {
    struct call c = {cuda, op, cuda_linear_layout(op), NULL, workspace};
    if (!c.l.converts && !sixteen(op->in[1].data)) {
        error_set(e, INTERNAL, "operator linear: weight does not begin at a multiple of 16");
        return error_found(e, "%p", op->in[1].data);
    }
    const struct tensor *residual = &op->epilogue.residual;
    c.wide = c.l.stages || (sixteen(op->out.data) && (!residual->rank || sixteen(residual->data)));
    c.bias =
        cuda_linear_ready_bias(cuda, &op->epilogue.bias, reinterpret_cast<float *>(workspace + c.l.bias));
    cuda_round_rows(workspace + c.l.in, &op->in[0], linear_depth(op), cuda->compute);
    for (int32_t first = 0; first < op->in[1].dim[0]; first += c.l.panel)
        if (run_panel(&c, first, e)) return e->code;
    return cuda_launched(op, e);
}

const struct cuda_operator cuda_linear = {cuda_linear_prepare, cuda_linear_run, cuda_cast_kernels};
