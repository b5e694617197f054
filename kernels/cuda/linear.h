/* Workspace and panels of linear.cu. Pure functions of the call, addresses left out. */
#ifndef SLUICE_CUDA_LINEAR_H
#define SLUICE_CUDA_LINEAR_H

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/cuda/costs.h"
#include "kernels/cuda/weights.h"
#include "kernels/ops.h"

/* PRODUCTS_WORKSPACE of products.h, which needs CUDA's headers; linear.cu checks that they agree. */
enum { LINEAR_LIBRARY_BYTES = 32 << 20 };

struct linear_layout {
    int32_t panel;                                   /* columns of out at a time */
    bool rounds;                                     /* in is rounded or moved, whole */
    bool converts;                                   /* the weight is rounded or moved, panel by panel */
    bool finishes;                                   /* a kernel comes after the library's */
    bool stages;                                     /* the library writes to the workspace, in f32 */
    uint64_t in, weight, bias, stage, products, end; /* offsets; end: bytes of all */
    uint64_t side, up; /* likewise: factors of adapters, as products want them */
};

/* K as products see it: rows that begin at multiples of 16 bytes, which the library's kernels ask for (fast
 * ones, and for odd K perhaps all of them). What is added to either operand is zeros. */
static inline int32_t linear_padded(int32_t k) {
    return (k - 1) / 8 * 8 + 8;
}

static inline int32_t linear_depth(const struct op *op) {
    return linear_padded(op->in[1].dim[1]);
}

/* What an adapter adds to columns [first, first + columns) of out: up's rows for them, and the column of out
 * at which it begins. False: nothing. */
static inline bool linear_side_of(const struct op *op, const struct low_rank *adapter, int32_t first,
                                  int32_t columns, struct tensor *up, int32_t *column) {
    struct tensor panel = tensor_slice(op->in[1], first, columns);
    bool adds = op->side.rank && tensor_adapted_by(&panel, adapter, up, column);
    if (adds) *column += first;
    return adds;
}

/* Values of a row of `up`, or of the side in all its parts, padded, of the adapters that concern the weight.
 */
static inline int32_t linear_side_depth(const struct op *op, bool all) {
    struct tensor up;
    int32_t column, depth = 0;
    for (const struct low_rank *a = op->in[1].adapters; a; a = a->next) {
        if (!linear_side_of(op, a, 0, op->in[1].dim[0], &up, &column)) continue;
        int32_t padded = linear_padded(up.dim[1]);
        depth = all ? depth + padded : padded > depth ? padded : depth;
    }
    return depth;
}

/* bf16 is used where it lies, if K is what products see; weights begin at multiples of 16 themselves, and
 * what is sliced off them does too, by rows. */
static inline bool linear_converts(const struct op *op) {
    const struct tensor *weight = &op->in[1];
    return weight->dtype != DTYPE_BF16 || !weight_is_plain(weight) || weight->dim[1] != linear_depth(op);
}

/* bf16 is used where it lies, if K is what products see and rows begin at multiples of 16. */
static inline bool linear_rounds(const struct op *op) {
    const struct tensor *in = &op->in[0];
    return in->dtype != DTYPE_BF16 || in->dim[1] != linear_depth(op) || in->row_bytes % 16;
}

/* The library adds bias, residual and side; activation and gate come after it. What it rounds to bf16 it adds
 * no f32 to: of that only a bias that is bf16. */
static inline bool linear_finishes(const struct op *op) {
    const struct epilogue *e = &op->epilogue;
    bool bias = e->bias.rank && (e->bias.dtype != DTYPE_BF16 || !weight_is_plain(&e->bias));
    return e->activation != ACTIVATION_NONE || e->gate.rank > 0 ||
           (op->out.dtype == DTYPE_BF16 && (bias || e->residual.rank || op->side.rank));
}

/* Does the library itself round the result to bf16? */
static inline bool linear_library_rounds(const struct op *op) {
    return op->out.dtype == DTYPE_BF16 && !linear_finishes(op);
}

/* Of the type of what it is added to, the bias is used where it lies. */
static inline bool linear_moves_bias(const struct op *op) {
    const struct tensor *bias = &op->epilogue.bias;
    enum dtype dtype = linear_library_rounds(op) ? DTYPE_BF16 : DTYPE_F32;
    return bias->rank && (bias->dtype != dtype || !weight_is_plain(bias));
}

/* Panels of about 64 MiB of bf16, as equal as whole 64s let them be: some 4,096 columns where K is 8,192,
 * which keeps every GPU busy from a few hundred rows on. What another kernel finishes comes in panels of
 * about 32 MiB of f32, which the caches of larger GPUs hold. Of a weight that needs no other bytes and has
 * nothing after it there is one panel. */
static inline int32_t linear_panel(const struct op *op) {
    int64_t weights_most = (int64_t)32 << 20, results_most = (int64_t)8 << 20, step = 64, panels = 1;
    int64_t m = op->in[0].dim[0], n = op->in[1].dim[0], k = linear_depth(op);
    if (linear_converts(op)) panels = (n * k + weights_most - 1) / weights_most;
    if (linear_finishes(op) && panels * results_most < m * n)
        panels = (m * n + results_most - 1) / results_most;
    int64_t columns = ((n + panels - 1) / panels + step - 1) / step * step;
    return (int32_t)(columns < n ? columns : n);
}

static inline struct linear_layout cuda_linear_layout(const struct op *op) {
    uint64_t m = (uint64_t)op->in[0].dim[0], n = (uint64_t)op->in[1].dim[0], k = (uint64_t)linear_depth(op);
    struct linear_layout l = {0};
    l.panel = linear_panel(op);
    l.rounds = linear_rounds(op);
    l.converts = linear_converts(op);
    l.finishes = linear_finishes(op);
    /* The residual may be out; nothing is rounded before it is finished. */
    l.stages = l.finishes && (op->epilogue.residual.rank || op->out.dtype == DTYPE_BF16);
    l.in = workspace_part(&l.end, l.rounds ? 2 * m * k : 0);
    l.weight = workspace_part(&l.end, l.converts ? 2 * (uint64_t)l.panel * k : 0);
    l.bias = workspace_part(&l.end, op->epilogue.bias.rank ? sizeof(float) * n : 0); /* if it is moved */
    l.stage = workspace_part(&l.end, l.stages ? sizeof(float) * m * (uint64_t)l.panel : 0);
    l.side = workspace_part(&l.end, 2 * m * (uint64_t)linear_side_depth(op, true));
    l.up = workspace_part(&l.end, 2 * (uint64_t)l.panel * (uint64_t)linear_side_depth(op, false));
    l.products = workspace_part(&l.end, LINEAR_LIBRARY_BYTES);
    return l;
}

#ifdef __cplusplus
}
#endif

#endif
