/* Workspace and column panels of the CUDA matrix products linear and linear_few, computed from the operator
 * call; addresses are ignored. */
#ifndef SLUICE_CUDA_LINEAR_H
#define SLUICE_CUDA_LINEAR_H

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/cuda/workspace.h"
#include "kernels/ops.h"

/* Copy of PRODUCTS_WORKSPACE (cublaslt.h), because cublaslt.h needs CUDA headers. linear.cu asserts that the
 * two values are equal. */
enum { LINEAR_LIBRARY_BYTES = 32 << 20 };

/* Type of both operands of the product, bf16 or f16; also of a rounded result. */
static inline enum dtype linear_operand(const struct op *op) {
    return op->precision == PRECISION_F16 ? DTYPE_F16 : DTYPE_BF16;
}

struct linear_layout {
    int32_t panel; /* output columns per panel */
    bool int8;     /* operands are quantised to int8; below, "operand type" then means int8 codes */
    bool rounds;   /* the whole input is converted to the operand type or repacked */
    bool converts; /* the weight is converted to the operand type or repacked, panel by panel */
    bool finishes; /* an epilogue kernel follows the library's product */
    bool stages;   /* the product is written as f32 to the workspace instead of out */
    uint64_t in, weight, bias, stage, products, end; /* workspace offsets; end: total bytes */
    uint64_t in_scales, weight_scales, gate;         /* workspace offsets of an int8 product */
    uint64_t down, up; /* workspace offsets of the adapters' factors, rounded to the operand type */
};

/* Returns K padded so that zero-filled rows start at multiples of 16 bytes: fast cuBLASLt kernels need this
 * alignment, and for odd K perhaps all kernels do. */
static inline int32_t linear_padded(int32_t k) {
    return (k - 1) / 8 * 8 + 8;
}

/* Returns the number of inputs K of a weight, padded to the next multiple of 8. */
static inline int32_t linear_depth(const struct op *op) {
    return linear_padded(op->in[1].dim[1]);
}

/* Returns the part of an adapter in columns [first, first + columns) of out: the adapter's rows of `up`, and
 * the column of out where these rows start. False: the adapter does not touch these columns. */
static inline bool linear_adapter_part(const struct op *op, const struct low_rank *adapter, int32_t first,
                                       int32_t columns, struct tensor *up, int32_t *column) {
    struct tensor panel = tensor_slice(op->in[1], first, columns);
    bool adds = op->down_product.rank && tensor_adapted_by(&panel, adapter, up, column);
    if (adds) *column += first;
    return adds;
}

/* Returns the padded rank of the weight's adapters. all: sum over the adapters; false: largest rank. */
static inline int32_t linear_adapter_depth(const struct op *op, bool all) {
    struct tensor up;
    int32_t column, depth = 0;
    for (const struct low_rank *a = op->in[1].adapters; a; a = a->next) {
        if (!linear_adapter_part(op, a, 0, op->in[1].dim[0], &up, &column)) continue;
        int32_t padded = linear_padded(up.dim[1]);
        depth = all ? depth + padded : padded > depth ? padded : depth;
    }
    return depth;
}

/* True if the weight must be converted or repacked for the product. Weights of the operand type are used in
 * place if K needs no padding. int8 products use the 8-bit codes of rotated types in place. Weights and
 * slices of their rows always start at multiples of 16 bytes. */
static inline bool linear_converts(const struct op *op) {
    const struct tensor *weight = &op->in[1];
    if (op->precision == PRECISION_INT8)
        return !dtype_is_rotated(weight->dtype) || weight->dtype == DTYPE_I4_ROT256;
    return weight->dtype != linear_operand(op) || !weight_is_plain(weight) ||
           weight->dim[1] != linear_depth(op);
}

/* True if the product's input must be converted or repacked. An input of the operand type is used in place if
 * K needs no padding and rows start at multiples of 16 bytes. */
static inline bool linear_rounds(const struct op *op) {
    const struct tensor *in = &op->in[0];
    return op->precision == PRECISION_INT8 || in->dtype != linear_operand(op) ||
           in->dim[1] != linear_depth(op) || in->row_bytes % 16;
}

/* True if an epilogue kernel is needed. The library adds bias, residual and adapters; activation and gate
 * come after. To a 2-byte result the library can add only a bias of the same type. The kernel of int8
 * products includes the epilogue, unless adapters must be added before activation, gate or rounding. */
static inline bool linear_finishes(const struct op *op) {
    const struct epilogue *e = &op->epilogue;
    bool bias = e->bias.rank && (e->bias.dtype != linear_operand(op) || !weight_is_plain(&e->bias));
    if (op->precision == PRECISION_INT8)
        return op->down_product.rank &&
               (e->activation != ACTIVATION_NONE || e->gate.rank > 0 || op->out.dtype != DTYPE_F32);
    return e->activation != ACTIVATION_NONE || e->gate.rank > 0 ||
           (op->out.dtype != DTYPE_F32 && (bias || e->residual.rank || op->down_product.rank));
}

/* True if cuBLASLt rounds the product's result to the operand type. */
static inline bool linear_library_rounds(const struct op *op) {
    return op->precision != PRECISION_INT8 && op->out.dtype != DTYPE_F32 && !linear_finishes(op);
}

/* True if the product's bias must be converted. A bias of the result's type is used in place; int8 products
 * read any unquantised bias. */
static inline bool linear_moves_bias(const struct op *op) {
    const struct tensor *bias = &op->epilogue.bias;
    if (op->precision == PRECISION_INT8) return !weight_is_plain(bias);
    enum dtype dtype = linear_library_rounds(op) ? linear_operand(op) : DTYPE_F32;
    return bias->rank && (bias->dtype != dtype || !weight_is_plain(bias));
}

/* True if the gate must be converted to f32: the kernel of int8 products reads only unquantised gates. */
static inline bool linear_moves_gate(const struct op *op) {
    return op->precision == PRECISION_INT8 && !linear_finishes(op) && !weight_is_plain(&op->epilogue.gate);
}

/* Returns the bytes of the library's workspace; 0 for an int8 product without adapters, which needs no
 * library. */
static inline uint64_t linear_library_bytes(const struct op *op) {
    return op->precision == PRECISION_INT8 && !op->down_product.rank ? 0 : LINEAR_LIBRARY_BYTES;
}

/* Output columns per panel. If weights are converted: about 64 MiB of 2-byte values or codes (2-byte: 4,096
 * columns at K = 8,192, which fill every GPU from a few hundred rows on). If an epilogue kernel runs: about
 * 32 MiB of f32 results, which fit the L2 cache of larger GPUs. Panels are equal up to multiples of 64.
 * Otherwise one panel. */
static inline int32_t linear_panel(const struct op *op) {
    int64_t weights_most = (int64_t)(op->precision == PRECISION_INT8 ? 64 : 32) << 20;
    int64_t results_most = (int64_t)8 << 20, step = 64, panels = 1;
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
    l.int8 = op->precision == PRECISION_INT8;
    uint64_t scale = l.int8 ? sizeof(float) : 0, value = l.int8 ? 1 : 2;
    l.panel = linear_panel(op);
    l.rounds = linear_rounds(op);
    l.converts = linear_converts(op);
    l.finishes = linear_finishes(op);
    /* Products pass through the workspace if the epilogue kernel adds a residual (which may alias out) or
     * rounds. */
    l.stages = l.finishes && (op->epilogue.residual.rank || op->out.dtype != DTYPE_F32);
    l.in = workspace_part(&l.end, l.rounds ? value * m * k : 0);
    l.in_scales = workspace_part(&l.end, scale * m);
    l.weight = workspace_part(&l.end, l.converts ? value * (uint64_t)l.panel * k : 0);
    l.weight_scales = workspace_part(&l.end, l.converts ? scale * (uint64_t)l.panel : 0);
    l.gate = workspace_part(&l.end, linear_moves_gate(op) ? sizeof(float) * n : 0);
    /* The bias part of the workspace stays unused if the bias is not converted. */
    l.bias = workspace_part(&l.end, op->epilogue.bias.rank ? sizeof(float) * n : 0);
    l.stage = workspace_part(&l.end, l.stages ? sizeof(float) * m * (uint64_t)l.panel : 0);
    l.down = workspace_part(&l.end, 2 * m * (uint64_t)linear_adapter_depth(op, true));
    l.up = workspace_part(&l.end, 2 * (uint64_t)l.panel * (uint64_t)linear_adapter_depth(op, false));
    l.products = workspace_part(&l.end, linear_library_bytes(op));
    return l;
}

/* Weights that a thread of linear_few loads at once: 16 bytes of bf16 or f16. */
enum { FEW_VALUES = 8 };

/* Workspace of linear_few: the activated input as f32 [T, columns], rows zero-padded to a multiple of
 * FEW_VALUES, and the bias as f32 if it must be converted. */
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
