/* Matrix products with a weight: linear through cublaslt.h, linear_few with kernels of its own.
 *
 * Operands are bf16, or f16 in precision f16. The whole input is rounded once, unless it has that type.
 * Weights of other types are dequantised and rounded in panels of output columns; weights whose K is not a
 * multiple of 8 are copied with zero padding. Rows are never split. The library adds bias and residual in
 * f32. Activation and gate are a separate epilogue kernel per panel, because the library supports few
 * activations, with unspecified accuracy. That kernel then also adds the residual, and the product goes
 * through the workspace because the residual may alias out. A 2-byte result is rounded by the library, or by
 * the epilogue kernel.
 *
 * Memory traffic besides the product: 6 bytes per value of an f32 input and of a weight of another type;
 * with activation or gate 8 bytes per output value (6 for 2-byte results), or 12 with a residual.
 *
 * Adapters: the library adds one skinny product per adapter to the panel before the epilogue, 8 bytes per
 * output value that the adapter touches.
 *
 * int8 products (linear_int8.h) quantise the whole input and, panel by panel, weights of unrotated types.
 * Their kernel includes the epilogue. If adapters must be added before activation, gate or rounding, the
 * epilogue is a separate kernel, as above.
 *
 * linear_few computes a few rows in f32. One warp computes an output: lane l accumulates (explicit FMA)
 * values 8l to 8l + 7 of every 256 in turn, then a butterfly adds the lanes. So the order of each output's
 * sum is fixed, whatever else is computed and however many outputs a warp has. */
#include "kernels/cuda/linear.h"

#include "kernels/cuda/cast.h"
#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/linear_int8.h"
#include "kernels/cuda/row_access.cuh"

static_assert((int)LINEAR_LIBRARY_BYTES == (int)PRODUCTS_WORKSPACE, "linear.h and cublaslt.h must agree");

static bool is_aligned_16(const void *address) {
    return reinterpret_cast<uintptr_t>(address) % 16 == 0;
}

/* Returns the key of a panel's cuBLASLt product if out and residual start at multiples of 16 bytes. */
static struct product_key cuda_linear_key_of(const struct op *op, const struct linear_layout *l,
                                             int32_t columns) {
    struct product_key key = {0};
    key.m = op->in[0].dim[0];
    key.n = columns;
    key.k = linear_depth(op);
    key.in_row = l->rounds ? key.k : (int32_t)(op->in[0].row_bytes / 2);
    key.f16 = linear_operand(op) == DTYPE_F16;
    key.rounded = linear_library_rounds(op);
    int64_t element = key.rounded ? 2 : sizeof(float);
    key.bias = op->epilogue.bias.rank > 0;
    key.residual = op->epilogue.residual.rank > 0 && !l->stages;
    key.out_row = l->stages ? columns : op->out.row_bytes / element;
    key.residual_row = key.residual ? op->epilogue.residual.row_bytes / (int64_t)sizeof(float) : 0;
    key.wide = product_rows_wide(&key);
    return key;
}

/* Returns the key of an adapter's cuBLASLt product, which is added to a panel from this column on. */
static struct product_key adapter_key_of(const struct product_key *panel, const struct tensor *up,
                                         int32_t column) {
    struct product_key key = {0};
    key.m = panel->m;
    key.n = up->dim[0];
    key.k = key.in_row = linear_padded(up->dim[1]);
    key.f16 = panel->f16;
    key.residual = 1;
    key.out_row = key.residual_row = panel->out_row;
    key.wide = panel->wide && column % 4 == 0;
    return key;
}

/* Prepares the cuBLASLt product for aligned and for unaligned addresses: addresses are not known yet. */
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
    if (!l.int8 && prepare_both(cuda, key, l.stages, e)) return e->code;
    for (const struct low_rank *a = op->in[1].adapters; a; a = a->next)
        if (linear_adapter_part(op, a, first, columns, &up, &column) &&
            prepare_both(cuda, adapter_key_of(&key, &up, column - first), l.stages, e))
            return e->code;
    return OK;
}

static enum status cuda_linear_prepare(struct cuda *cuda, const struct op *op, struct error *e) {
    if (!linear_library_bytes(op)) return OK;
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

/* Returns the bias in the type that the product needs, f32 or the operand type, converted to `to` if
 * necessary. */
static const char *cuda_linear_ready_bias(const struct cuda *cuda, const struct op *op, char *to) {
    const struct tensor *bias = &op->epilogue.bias;
    if (!bias->rank) return NULL;
    if (!linear_moves_bias(op) && is_aligned_16(bias->data)) return static_cast<const char *>(bias->data);
    int32_t n = tensor_columns(bias);
    if (linear_library_rounds(op))
        cuda_round_rows(to, linear_operand(op), bias, (n + 7) / 8 * 8, cuda->compute);
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
    bool wide;                /* out and residual start at multiples of 16 bytes */
    struct epilogue epilogue; /* int8 products: op's epilogue with unquantised bias and gate */
};

/* Returns the address of column i of a tensor's first row. */
static char *column_at(const struct tensor *t, int32_t i) {
    return static_cast<char *>(t->data) + dtype_bytes(t->dtype, i);
}

/* Returns the operands of a product for the panel from column `first` on; converts the panel's weights. */
static struct product_operands panel_of(const struct call *c, int32_t first, int32_t columns, char *out) {
    const struct op *op = c->op;
    struct tensor weight = tensor_slice(op->in[1], first, columns);
    struct product_operands operands = {0};
    operands.in = c->l.rounds ? c->workspace + c->l.in : op->in[0].data;
    operands.weight = weight.data;
    if (c->l.converts) {
        cuda_round_rows(c->workspace + c->l.weight, linear_operand(op), &weight, linear_depth(op),
                        c->cuda->compute);
        operands.weight = c->workspace + c->l.weight;
    }
    if (c->bias) operands.bias = c->bias + first * (linear_library_rounds(op) ? 2 : sizeof(float));
    operands.out = out;
    if (op->epilogue.residual.rank && !c->l.stages)
        operands.residual = reinterpret_cast<const float *>(column_at(&op->epilogue.residual, first));
    operands.workspace = c->workspace + c->l.products;
    return operands;
}

/* Rounds in . down^T of the adapters to the operand type, each adapter's columns separately. */
static void round_down_product(const struct call *c) {
    char *to = c->workspace + c->l.down;
    int32_t from = 0, column;
    struct tensor up;
    for (const struct low_rank *a = c->op->in[1].adapters; a; a = a->next) {
        if (!linear_adapter_part(c->op, a, 0, c->op->in[1].dim[0], &up, &column)) continue;
        struct tensor part = tensor_slice_columns(c->op->down_product, from, up.dim[1]);
        int32_t depth = linear_padded(up.dim[1]);
        cuda_round_rows(to, linear_operand(c->op), &part, depth, c->cuda->compute);
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
        cuda_round_rows(c->workspace + c->l.up, linear_operand(c->op), &up, key.k, c->cuda->compute);
        operands.weight = c->workspace + c->l.up;
        operands.out = out + column - first;
        operands.residual = out + column - first;
        operands.workspace = c->workspace + c->l.products;
        if (products_run(c->cuda->products, &key, &operands, c->cuda->compute, e)) return e->code;
    }
    return OK;
}

static struct int8_matrix int8_matrix_at(char *codes, char *scales) {
    return {reinterpret_cast<int8_t *>(codes), reinterpret_cast<float *>(scales)};
}

/* Quantises the input of an int8 product, and converts quantised biases and gates to f32 (c->epilogue). */
static void begin_int8(struct call *c) {
    const struct op *op = c->op;
    int32_t n = op->in[1].dim[0];
    c->epilogue = op->epilogue;
    struct {
        bool moves;
        struct tensor *vector;
        uint64_t to;
    } vectors[] = {{linear_moves_bias(op), &c->epilogue.bias, c->l.bias},
                   {linear_moves_gate(op), &c->epilogue.gate, c->l.gate}};
    for (auto &v : vectors) {
        if (!v.moves) continue;
        float *to = reinterpret_cast<float *>(c->workspace + v.to);
        cuda_widen_vector(to, v.vector, n, c->cuda->compute);
        *v.vector = tensor_make(to, DTYPE_F32, 1, &n);
    }
    cuda_quantise_rows(int8_matrix_at(c->workspace + c->l.in, c->workspace + c->l.in_scales), &op->in[0],
                       int8_group(&op->in[1]), c->cuda->compute);
}

/* Queues the int8 product of a panel. The weight's codes are used as stored, or computed in the workspace. */
static enum status multiply_int8_panel(const struct call *c, int32_t first, int32_t columns,
                                       struct error *e) {
    const struct op *op = c->op;
    struct tensor weight = tensor_slice(op->in[1], first, columns);
    char *scales = static_cast<char *>(const_cast<void *>(weight.scales));
    struct int8_product p = {};
    p.in = int8_matrix_at(c->workspace + c->l.in, c->workspace + c->l.in_scales);
    if (scales) scales += tensor_scales_head(&weight) + sizeof(float) * (size_t)weight.scale_row;
    p.weight = int8_matrix_at(static_cast<char *>(weight.data), scales);
    p.weight_scale = weight.scale;
    if (weight.dtype == DTYPE_I4_ROT256) {
        p.weight.codes = reinterpret_cast<int8_t *>(c->workspace + c->l.weight);
        cuda_decode_i4(p.weight.codes, &weight, c->cuda->compute);
    } else if (c->l.converts) {
        p.weight = int8_matrix_at(c->workspace + c->l.weight, c->workspace + c->l.weight_scales);
        p.weight_scale = 1;
        cuda_quantise_rows(p.weight, &weight, int8_group(&op->in[1]), c->cuda->compute);
    }
    p.m = op->in[0].dim[0], p.n = columns, p.k = weight.dim[1], p.first = first;
    p.out = &op->out;
    p.stage = c->l.stages ? reinterpret_cast<float *>(c->workspace + c->l.stage) : NULL;
    p.epilogue = &c->epilogue;
    p.finishes = c->l.finishes;
    return cuda_int8_product(c->cuda, &p, e);
}

static enum status run_panel(const struct call *c, int32_t first, struct error *e) {
    int32_t left = c->op->in[1].dim[0] - first, columns = left < c->l.panel ? left : c->l.panel;
    struct product_key key = cuda_linear_key_of(c->op, &c->l, columns);
    key.wide = key.wide && c->wide;
    char *out = c->l.stages ? c->workspace + c->l.stage : column_at(&c->op->out, first);
    if (c->l.int8) {
        if (multiply_int8_panel(c, first, columns, e)) return e->code;
    } else {
        struct product_operands operands = panel_of(c, first, columns, out);
        if (products_run(c->cuda->products, &key, &operands, c->cuda->compute, e)) return e->code;
    }
    if (c->op->down_product.rank && add_adapters(c, &key, reinterpret_cast<float *>(out), first, e))
        return e->code;
    struct product_finish finish = {&c->op->out, first, columns, &c->op->epilogue};
    if (c->l.stages) finish.product = reinterpret_cast<const float *>(out);
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
    if (c.l.int8)
        begin_int8(&c);
    else
        c.bias = cuda_linear_ready_bias(cuda, op, workspace + c.l.bias);
    if (c.l.rounds && !c.l.int8)
        cuda_round_rows(workspace + c.l.in, linear_operand(op), &op->in[0], linear_depth(op), cuda->compute);
    if (op->down_product.rank) round_down_product(&c);
    for (int32_t first = 0; first < op->in[1].dim[0]; first += c.l.panel)
        if (run_panel(&c, first, e)) return e->code;
    return cuda_launched(op, e);
}

const struct cuda_operator cuda_linear = {
    cuda_linear_prepare, cuda_linear_run, {cuda_cast_kernels, cuda_int8_kernels}};

/* Applies the activation to four input values; zeros beyond K. Grid: rows_grid_of; no shared memory; 37
 * registers. Bytes: 8 per value; FLOPs: 4. The launch takes longer than the memory traffic. */
static __global__ void __launch_bounds__(ROWS_THREADS, 1)
    few_rows(struct rows to, struct rows in, int64_t rows, int64_t k, int64_t columns,
             enum activation activation) {
    int64_t i = 4 * first_quad();
    if (i >= columns) return;
    for (int64_t row = first_row(); row < rows; row += next_row()) {
        float4 v = rows_load_f32(in, row, i, k);
        rows_store(to, row, i, columns, activate_four(v, activation));
    }
}

enum { FEW_WARPS = 4 };

/* Outputs per warp of linear_few. Two outputs keep every multiprocessor busy with one row and halve the reads
 * of the input. Quantised weights: one output, so that the switch over all types in the load is compiled only
 * once. */
template <bool PLAIN> struct few_outputs { static constexpr int n = PLAIN ? 2 : 1; };

struct few_call {
    struct rows out, weight, bias; /* weight.wide: unquantised rows aligned to 16 bytes; bias may be absent */
    const float *in;               /* activated input [rows, columns] */
    int32_t rows, n, k, columns;   /* rows of in and out; outputs; K; K padded to a multiple of FEW_VALUES */
    bool runs_on;                  /* quantisation blocks cross row boundaries: the weight is one long row */
};

/* Loads values i to i + 7 of a row of k unquantised weights; values beyond k are zeros. */
__device__ static inline void load_eight(float *to, const struct rows &weight, int64_t row, int32_t i,
                                         int32_t k) {
    const char *from = weight.data + row * weight.step;
    if (!weight.wide || i + FEW_VALUES > k) {
        for (int j = 0; j < FEW_VALUES; j++) to[j] = i + j < k ? value_at(from, weight.dtype, i + j) : 0;
        return;
    }
    if (weight.dtype == DTYPE_F32) {
        float4 a = four_at(from, DTYPE_F32, true, i, k), b = four_at(from, DTYPE_F32, true, i + 4, k);
        to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w;
        to[4] = b.x, to[5] = b.y, to[6] = b.z, to[7] = b.w;
        return;
    }
    uint4 v = ld128(from + 2 * (int64_t)i);
    uint32_t pair[4] = {v.x, v.y, v.z, v.w};
    for (int j = 0; j < FEW_VALUES; j++) {
        uint16_t half = (uint16_t)(pair[j / 2] >> 16 * (j % 2));
        to[j] = weight.dtype == DTYPE_BF16 ? cuda_bf16_f32(half) : cuda_f16_f32(half);
    }
}

/* Computes a lane's partial sums for few_outputs output columns of ROWS rows. Missing rows and columns repeat
 * the last row or column, and are not stored. */
template <int ROWS, bool PLAIN>
__device__ static inline void few_sums(const struct few_call &f, int32_t first_column, int32_t first_row,
                                       float sum[few_outputs<PLAIN>::n][ROWS]) {
    constexpr int columns = few_outputs<PLAIN>::n;
#pragma unroll
    for (int c = 0; c < columns; c++)
#pragma unroll
        for (int r = 0; r < ROWS; r++) sum[c][r] = 0;
    for (int32_t i = (int32_t)threadIdx.x % WARP * FEW_VALUES; i < f.columns; i += WARP * FEW_VALUES) {
        float weight[columns][FEW_VALUES];
#pragma unroll
        for (int c = 0; c < columns; c++) {
            int32_t row = min(first_column + c, f.n - 1);
            if (PLAIN)
                load_eight(weight[c], f.weight, row, i, f.k);
            else
                weights_load_any<FEW_VALUES>(weight[c], f.weight, f.runs_on ? 0 : row,
                                             f.runs_on ? (int64_t)row * f.k + i : i,
                                             f.runs_on ? (int64_t)f.n * f.k : f.k);
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float *from = f.in + (int64_t)min(first_row + r, f.rows - 1) * f.columns + i;
            float in[FEW_VALUES];
#pragma unroll
            for (int j = 0; j < FEW_VALUES; j += 4) {
                uint4 v = ld128(from + j);
                in[j] = __uint_as_float(v.x), in[j + 1] = __uint_as_float(v.y);
                in[j + 2] = __uint_as_float(v.z), in[j + 3] = __uint_as_float(v.w);
            }
#pragma unroll
            for (int c = 0; c < columns; c++)
#pragma unroll
                for (int j = 0; j < FEW_VALUES; j++) sum[c][r] = fmaf(in[j], weight[c][j], sum[c][r]);
        }
    }
}

/* Computes few_outputs columns of all rows, ROWS rows at a time: weights come from memory once, then from the
 * cache. Grid: one warp per few_outputs columns; block: 4 warps; no shared memory; 64, 107 and 168 registers
 * for 1, 4 and 8 rows; quantised weights 48 and 56 for 1 and 4 rows. Bytes: the weights; FLOPs: 2 T per
 * weight. Bound by memory, from about 8 rows on by f32 arithmetic; share of peak: not measured yet. */
template <int ROWS, bool PLAIN>
static __global__ void __launch_bounds__(FEW_WARPS *WARP, 1) few_columns(struct few_call f) {
    constexpr int columns = few_outputs<PLAIN>::n;
    int32_t warp = (int32_t)(blockIdx.x * FEW_WARPS + threadIdx.x / WARP), column = warp * columns;
    bool writes = threadIdx.x % WARP == 0;
    for (int32_t row = 0; row < f.rows; row += ROWS) {
        float sum[columns][ROWS];
        few_sums<ROWS, PLAIN>(f, column, row, sum);
#pragma unroll
        for (int c = 0; c < columns; c++)
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                float v = sum[c][r];
                for (int o = WARP / 2; o; o /= 2) v += __shfl_xor_sync(~0u, v, o);
                if (!writes || column + c >= f.n || row + r >= f.rows) continue;
                if (f.bias.data) v += value_at(f.bias.data, f.bias.dtype, column + c);
                reinterpret_cast<float *>(f.out.data + (row + r) * f.out.step)[column + c] = v;
            }
    }
}

template <int ROWS, bool PLAIN> static void few_launch(const struct few_call &call, cudaStream_t stream) {
    unsigned blocks = (unsigned)((call.n - 1) / (few_outputs<PLAIN>::n * FEW_WARPS) + 1);
    LAUNCH((few_columns<ROWS, PLAIN>), blocks, FEW_WARPS * WARP, 0, stream, call);
}

static enum status cuda_few_run(struct cuda *cuda, const struct op *op, char *workspace, struct error *e) {
    struct few_layout l = cuda_few_layout(op);
    const struct tensor *in = &op->in[0], *weight = &op->in[1], *bias = &op->in[2];
    float *rows = reinterpret_cast<float *>(workspace + l.in);
    struct rows_grid g = rows_grid_of(in->dim[0], l.columns / 4);
    LAUNCH(few_rows, g.grid, g.block, 0, cuda->compute, rows_floats(rows, l.columns), rows_of(in),
           (int64_t)in->dim[0], (int64_t)in->dim[1], (int64_t)l.columns, op->activation);
    struct few_call call = {rows_of(&op->out), rows_of(weight), rows_vector(bias), rows};
    if (!weight_is_plain(bias)) {
        float *to = reinterpret_cast<float *>(workspace + l.bias);
        cuda_widen_vector(to, bias, tensor_columns(bias), cuda->compute);
        call.bias = rows_floats(to, 0);
    }
    call.runs_on = tensor_runs_on(weight);
    call.rows = in->dim[0];
    call.n = weight->dim[0];
    call.k = weight->dim[1];
    call.columns = l.columns;
    if (!weight_is_plain(weight)) {
        if (call.rows == 1)
            few_launch<1, false>(call, cuda->compute);
        else
            few_launch<4, false>(call, cuda->compute);
        return cuda_launched(op, e);
    }
    call.weight.wide = ((uintptr_t)weight->data | (uintptr_t)weight->row_bytes) % 16 == 0;
    if (call.rows == 1)
        few_launch<1, true>(call, cuda->compute);
    else if (call.rows <= 4)
        few_launch<4, true>(call, cuda->compute);
    else
        few_launch<8, true>(call, cuda->compute);
    return cuda_launched(op, e);
}

static const void *const few_kernels[] = {KERNEL(few_rows),
                                          KERNEL(few_columns<1, true>),
                                          KERNEL(few_columns<4, true>),
                                          KERNEL(few_columns<8, true>),
                                          KERNEL(few_columns<1, false>),
                                          KERNEL(few_columns<4, false>),
                                          NULL};

const struct cuda_operator cuda_linear_few = {NULL, cuda_few_run, few_kernels};
