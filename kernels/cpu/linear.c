/* Matrix products with a weight: large ones through oneDNN, conditioning rows by our own dot products.
 *
 * A large product runs in panels of output columns, so that bf16 and f16 weights are widened into a bounded
 * workspace and oneDNN's hidden memory stays small. The panel's width is a function of K alone. What is
 * widened is packed on the way where oneDNN reads that faster: the same bits, 5 to 7 % sooner (bench/LOG.md).
 * Rows are never split: oneDNN's AVX2 path does not promise that a row is independent of its neighbours.
 *
 * linear_few is exact about what R4 asks: each output is one dot product in one order, whatever else is
 * computed. */
#include "kernels/cpu/operators.h"
#include "kernels/cpu/simd.h"

#include <omp.h>
#include <string.h>

/* Up to 1 Mi floats (4 MiB) of weights a panel: it stays in cache after widening, and oneDNN reaches 0.94 to
 * 0.99 of its rate on the whole (2 Mi and 4 Mi: no better; 2 cores with AVX-512, 1024 x 3840 x 3840 and x
 * 10240). At most 512 columns, which bounds what oneDNN packs on AVX2. */
static int32_t panel_columns(int32_t n, int32_t k) {
    enum { PANEL = 1 << 20, LEAST = 64, MOST = 512 };
    int32_t columns = PANEL / k / LEAST * LEAST;
    columns = columns < LEAST ? LEAST : columns > MOST ? MOST : columns;
    return columns < n ? columns : n;
}

struct linear_layout {
    int32_t panel;                                 /* columns */
    bool packs_in, widens, direct;                 /* direct: oneDNN writes out itself */
    enum onednn_kind kind;                         /* of all its products */
    uint64_t in, weight, panel_out, bias, scratch; /* offsets; scratch is last */
};

/* Weights that are f32 already are used where they lie: packing them would cost what it saves. */
static enum onednn_kind product_kind(const struct cpu *cpu, const struct op *op) {
    int32_t m = op->in[0].dim[0], n = op->in[1].dim[0], k = op->in[1].dim[1];
    struct onednn_key packed = {ONEDNN_PRODUCT_PACKED, {m, panel_columns(n, k), k}};
    bool packs = op->in[1].dtype != DTYPE_F32 && n % 64 == 0 && onednn_packs(cpu->onednn, &packed);
    return packs ? ONEDNN_PRODUCT_PACKED : ONEDNN_PRODUCT_T;
}

static struct linear_layout layout_of(const struct cpu *cpu, const struct op *op) {
    const struct tensor *in = &op->in[0], *weight = &op->in[1];
    int32_t n = weight->dim[0], k = weight->dim[1];
    struct linear_layout l = {.panel = panel_columns(n, k)};
    l.packs_in = !tensor_packed(in);
    l.widens = weight->dtype != DTYPE_F32;
    l.kind = product_kind(cpu, op);
    l.direct = l.panel == n && tensor_packed(&op->out) && !op->epilogue.residual.rank;
    uint64_t used = 0;
    l.in = workspace_take(&used, l.packs_in ? (uint64_t)tensor_bytes(in) : 0);
    l.weight = workspace_take(&used, l.widens ? sizeof(float) * (uint64_t)l.panel * (uint64_t)k : 0);
    l.panel_out =
        workspace_take(&used, l.direct ? 0 : sizeof(float) * (uint64_t)l.panel * (uint64_t)in->dim[0]);
    l.bias = workspace_take(&used, sizeof(float) * (uint64_t)n);
    l.scratch = used;
    return l;
}

/* The products of all full panels and of the last, narrower one (M 0: there is none). */
static void product_keys(const struct linear_layout *l, const struct op *op, struct onednn_key keys[2]) {
    int32_t m = op->in[0].dim[0], n = op->in[1].dim[0], k = op->in[1].dim[1];
    keys[0] = (struct onednn_key){l->kind, {m, l->panel, k}};
    keys[1] = (struct onednn_key){l->kind, {n % l->panel ? m : 0, n % l->panel, k}};
}

static void linear_cost(const struct cpu *cpu, const struct op *op, struct op_cost *cost) {
    struct linear_layout l = layout_of(cpu, op);
    struct onednn_key keys[2];
    product_keys(&l, op, keys);
    uint64_t scratch = 0;
    for (int i = 0; i < 2; i++) cost_add_primitive(cpu, &keys[i], cost, &scratch);
    cost->workspace_bytes = l.scratch + scratch;
}

static enum status linear_prepare(struct cpu *cpu, const struct op *op, struct error *e) {
    struct linear_layout l = layout_of(cpu, op);
    struct onednn_key keys[2];
    product_keys(&l, op, keys);
    for (int i = 0; i < 2; i++)
        if (keys[i].number[0] && onednn_prepare(cpu->onednn, &keys[i], e)) return e->code;
    return OK;
}

/* bias and residual may be NULL; residual may be to. */
WIDE static void finish_row(float *to, const float *from, const float *bias, const float *residual,
                            int64_t n) {
    if (bias && residual)
#pragma omp simd
        for (int64_t i = 0; i < n; i++) to[i] = from[i] + bias[i] + residual[i];
    else if (bias)
#pragma omp simd
        for (int64_t i = 0; i < n; i++) to[i] = from[i] + bias[i];
    else if (residual)
#pragma omp simd
        for (int64_t i = 0; i < n; i++) to[i] = from[i] + residual[i];
    else
        memcpy(to, from, (size_t)n * sizeof *to);
}

/* A panel's results, packed at from, go to columns [first, first + columns) of out. */
static void finish_panel(const struct cpu *cpu, const struct op *op, const float *from, const float *bias,
                         int32_t first, int32_t columns) {
    const struct tensor *residual = &op->epilogue.residual;
#pragma omp parallel for num_threads(cpu->threads) schedule(static)
    for (int32_t t = 0; t < op->out.dim[0]; t++)
        finish_row(tensor_row(&op->out, t) + first, from + (int64_t)t * columns, bias ? bias + first : NULL,
                   residual->rank ? tensor_row(residual, t) + first : NULL, columns);
}

static const float *pack_in(const struct cpu *cpu, const struct tensor *in, float *to) {
    int64_t columns = in->dim[1];
#pragma omp parallel for num_threads(cpu->threads) schedule(static)
    for (int32_t t = 0; t < in->dim[0]; t++)
        memcpy(to + t * columns, tensor_row(in, t), (size_t)columns * sizeof *to);
    return to;
}

static const float *widen_panel(const struct cpu *cpu, const struct linear_layout *l,
                                const struct tensor *weight, float *to) {
    if (l->kind == ONEDNN_PRODUCT_PACKED)
        simd_widen_packed(to, weight, cpu->threads);
    else
        simd_widen_all(to, weight, cpu->threads);
    return to;
}

static enum status linear_run(struct cpu *cpu, const struct op *op, char *workspace, struct error *e) {
    struct linear_layout l = layout_of(cpu, op);
    struct onednn_key keys[2];
    product_keys(&l, op, keys);
    const float *bias = simd_vector(&op->epilogue.bias, (float *)(workspace + l.bias));
    const float *in = op->in[0].data;
    if (l.packs_in) in = pack_in(cpu, &op->in[0], (float *)(workspace + l.in));
    int32_t n = op->in[1].dim[0];
    for (int32_t first = 0; first < n; first += l.panel) {
        int32_t columns = n - first < l.panel ? n - first : l.panel;
        struct tensor weight = tensor_slice(op->in[1], first, columns);
        const float *panel = weight.data;
        if (l.widens) panel = widen_panel(cpu, &l, &weight, (float *)(workspace + l.weight));
        float *to = l.direct ? op->out.data : (void *)(workspace + l.panel_out);
        struct onednn_operands operands = {
            .src = in, .weights = panel, .dst = to, .scratch = workspace + l.scratch};
        if (onednn_run(cpu->onednn, &keys[columns < l.panel], operands, e)) return e->code;
        if (!l.direct || bias) finish_panel(cpu, op, to, bias, first, columns);
    }
    return OK;
}

const struct cpu_operator cpu_linear = {linear_cost, linear_prepare, linear_run};

/* --- a few rows --- */

struct few_layout {
    uint64_t in, weight, bias, end; /* weight: one row for each thread */
};

static struct few_layout few_layout_of(const struct cpu *cpu, const struct op *op) {
    struct few_layout l = {0};
    uint64_t row_bytes = align_up(sizeof(float) * (uint64_t)op->in[1].dim[1], ARENA_ALIGN);
    l.in = workspace_take(&l.end, (uint64_t)tensor_bytes(&op->in[0]));
    l.weight = workspace_take(&l.end, row_bytes * (uint64_t)cpu->threads);
    l.bias = workspace_take(&l.end, sizeof(float) * (uint64_t)op->in[1].dim[0]);
    return l;
}

static void few_cost(const struct cpu *cpu, const struct op *op, struct op_cost *cost) {
    cost->workspace_bytes = few_layout_of(cpu, op).end;
}

/* One column of out: the same weight row with every row of in. */
static void few_column(const struct op *op, const float *in, const float *weight, float bias,
                       int32_t column) {
    int64_t k = op->in[1].dim[1];
    for (int32_t t = 0; t < op->out.dim[0]; t++)
        tensor_row(&op->out, t)[column] = simd_dot(in + t * k, weight, k) + bias;
}

static enum status few_run(struct cpu *cpu, const struct op *op, char *workspace, struct error *e) {
    (void)e;
    struct few_layout l = few_layout_of(cpu, op);
    const struct tensor *weight = &op->in[1];
    int64_t k = weight->dim[1];
    uint64_t row_bytes = align_up(sizeof(float) * (uint64_t)k, ARENA_ALIGN);
    const float *in = pack_in(cpu, &op->in[0], (float *)(workspace + l.in));
    if (op->activation == ACTIVATION_SILU)
        simd_silu((float *)(workspace + l.in), in, tensor_elements(&op->in[0]));
    const float *bias = simd_vector(&op->in[2], (float *)(workspace + l.bias));
#pragma omp parallel for num_threads(cpu->threads) schedule(static)
    for (int32_t n = 0; n < weight->dim[0]; n++) {
        const void *stored = (const char *)weight->data + n * weight->row_bytes;
        float *row = (float *)(workspace + l.weight + row_bytes * (uint64_t)omp_get_thread_num());
        if (weight->dtype != DTYPE_F32) simd_widen(row, stored, weight->dtype, k);
        few_column(op, in, weight->dtype == DTYPE_F32 ? stored : row, bias ? bias[n] : 0, n);
    }
    return OK;
}

const struct cpu_operator cpu_linear_few = {few_cost, NULL, few_run};
