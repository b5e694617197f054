/* Matrix products with a weight: large products through oneDNN, products of a few rows (linear_few) as dot
 * products in C.
 *
 * A large product is split into panels of output columns. One thread computes a whole panel: it converts the
 * panel's weights into its own workspace if necessary, calls oneDNN on this thread alone, and applies the
 * epilogue. Threads therefore wait only at the end of the product, converted weights stay in the core's
 * cache, and no bit depends on the number of threads. The panel width depends on K alone. Rows are not split,
 * because oneDNN's AVX2 path does not guarantee that a row is independent of the others. Exception: skinny
 * products are one panel and are cut into runs of rows that depend on the shape alone.
 *
 * In bf16 the input is rounded once; bf16 weights are used in place. Converted weights are written in
 * oneDNN's packed layout where that is faster: same bits, 5 to 7 % less time (bench/LOG.md). Adapters are a
 * second, skinny product onto the panel before the epilogue, in f32 for any operand type.
 *
 * linear_few computes each output as one dot product in a fixed order, whatever else is computed. */
#include "kernels/cpu/linear.h"

#include "kernels/cpu/operators.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/weights.h"

#include <string.h>

struct linear_layout {
    int32_t panel;                    /* output columns per panel */
    enum dtype dtype;                 /* operand type of the product, f32 or bf16 */
    enum onednn_kind kind;            /* oneDNN product kind that all products of the call have */
    bool packs_in, converts, direct;  /* direct: oneDNN writes into `out`, not into the workspace */
    uint64_t in, bias, gate, members; /* workspace offsets of input, bias, gate and the per-thread parts */
    uint64_t weight, up, panel_out, scratch; /* offsets within one thread's part of the workspace */
    int32_t panels, ranks;                   /* number of panels; sum of the adapters' ranks */
    int32_t rows, runs;                      /* rows per run of a skinny product, and runs per panel */
};

/* Rows per run of a skinny product (few output columns): its rows are split among threads in runs. Each run
 * converts the weights again, which takes a fifth of the time of multiplying. */
enum { RUN_ROWS = 128 };

/* Indices of oneDNN keys: the products of a full panel and of the last, narrower panel; then the adapters'
 * products for these two panels. A skinny product has its last run of rows there instead. M 0: unused key. */
enum { LINEAR_KEYS = 4, LINEAR_ADAPTER = 2, LINEAR_LAST_RUN = 2 };

static struct linear_layout cpu_linear_layout_of(const struct cpu *cpu, const struct op *op) {
    const struct tensor *in = &op->in[0], *weight = &op->in[1];
    int32_t n = weight->dim[0], k = weight->dim[1];
    /* Panels have about 2 MiB of f32 weights: a panel fits a core's cache, there are enough panels for many
     * threads, and oneDNN reaches 0.97 to 1 of its full rate. Measured with 64, 128, 256 and 512 columns of
     * 3840 and 10240 inputs: no difference beyond noise with AVX-512; 64 is 3 % slower with AVX2
     * (bench/LOG.md). */
    int32_t columns = k > 4096 ? 64 : 128;
    struct linear_layout l = {
        .panel = columns < n ? columns : n, .dtype = DTYPE_F32, .kind = ONEDNN_PRODUCT_T};
    struct onednn_key packed = {ONEDNN_PRODUCT_PACKED, {in->dim[0], l.panel, k}};
    if (op->precision == PRECISION_BF16) {
        l.dtype = DTYPE_BF16;
        l.kind = ONEDNN_PRODUCT_T_BF16;
    } else if (!weights_are(weight, DTYPE_F32) && n % 64 == 0 && onednn_packs(cpu->onednn, &packed)) {
        l.kind =
            ONEDNN_PRODUCT_PACKED; /* f32 weights are used in place: packing them takes as long as it saves */
    }
    l.packs_in = !weights_are(in, l.dtype);
    l.converts = !weights_are(weight, l.dtype);
    l.direct = l.panel == n && tensor_packed(&op->out) && !op->epilogue.residual.rank;
    l.rows = op->skinny && in->dim[0] > RUN_ROWS ? RUN_ROWS : in->dim[0];
    l.runs = (in->dim[0] + l.rows - 1) / l.rows;
    uint64_t used = 0, row = (uint64_t)k * (uint64_t)dtype_bits(l.dtype) / 8;
    l.in = workspace_take(&used, l.packs_in ? row * (uint64_t)in->dim[0] : 0);
    l.bias = workspace_take(&used, sizeof(float) * (uint64_t)n);
    l.gate = workspace_take(&used, op->epilogue.gate.rank ? sizeof(float) * (uint64_t)n : 0);
    l.members = used;
    used = 0;
    l.ranks = op->down_product.rank ? op->down_product.dim[1] : 0;
    l.weight = workspace_take(&used, l.converts ? row * (uint64_t)l.panel : 0);
    l.up = workspace_take(&used, sizeof(float) * (uint64_t)l.ranks * (uint64_t)l.panel);
    l.panel_out = workspace_take(&used, l.direct ? 0 : sizeof(float) * (uint64_t)l.panel * (uint64_t)l.rows);
    l.scratch = used;
    l.panels = (n + l.panel - 1) / l.panel;
    return l;
}

static void cpu_linear_product_keys(const struct linear_layout *l, const struct op *op,
                                    struct onednn_key keys[LINEAR_KEYS]) {
    int32_t m = op->in[0].dim[0], n = op->in[1].dim[0], k = op->in[1].dim[1], last = n % l->panel;
    int32_t side = l->ranks ? m : 0, run = m % l->rows;
    keys[0] = (struct onednn_key){l->kind, {l->rows, l->panel, k}};
    keys[1] = (struct onednn_key){l->kind, {last ? l->rows : 0, last, k}};
    if (l->runs > 1) {
        keys[2] = (struct onednn_key){l->kind, {run, l->panel, k}};
        keys[3] = (struct onednn_key){l->kind, {last ? run : 0, last, k}};
        return;
    }
    keys[2] = (struct onednn_key){ONEDNN_PRODUCT_T_ADDED, {side, l->panel, l->ranks}};
    keys[3] = (struct onednn_key){ONEDNN_PRODUCT_T_ADDED, {last ? side : 0, last, l->ranks}};
}

static uint64_t member_bytes(const struct cpu *cpu, const struct linear_layout *l,
                             const struct onednn_key keys[LINEAR_KEYS]) {
    return align_up(l->scratch + scratch_bytes(cpu, keys, LINEAR_KEYS), ARENA_ALIGN);
}

static void linear_cost(const struct cpu *cpu, const struct op *op, struct op_cost *cost) {
    struct linear_layout l = cpu_linear_layout_of(cpu, op);
    struct onednn_key keys[LINEAR_KEYS];
    cpu_linear_product_keys(&l, op, keys);
    for (int i = 0; i < LINEAR_KEYS; i++) cost_add_primitive(cpu, &keys[i], cost);
    cost->workspace_bytes =
        l.members + member_bytes(cpu, &l, keys) * (uint64_t)cpu_members(cpu, (int64_t)l.panels * l.runs);
}

static enum status linear_prepare(struct cpu *cpu, const struct op *op, struct error *e) {
    struct linear_layout l = cpu_linear_layout_of(cpu, op);
    struct onednn_key keys[LINEAR_KEYS];
    cpu_linear_product_keys(&l, op, keys);
    for (int i = 0; i < LINEAR_KEYS; i++)
        if (keys[i].number[0] && onednn_prepare(cpu->onednn, &keys[i], e)) return e->code;
    return OK;
}

/* Epilogue of a product without gate and activation: adds bias and residual. */
WIDE static void finish_plain(float *to, const float *from, const float *bias, const float *residual,
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

WIDE static void finish_gated(float *to, const float *from, const float *gate, const float *residual,
                              int64_t n) {
    if (residual)
#pragma omp simd
        for (int64_t i = 0; i < n; i++) to[i] = residual[i] + gate[i] * from[i];
    else
#pragma omp simd
        for (int64_t i = 0; i < n; i++) to[i] = gate[i] * from[i];
}

/* Applies the activation in the product's own buffer, because the residual may alias `to`. */
void linear_finish_row(float *to, float *from, const struct finish *f, const float *residual, int64_t n) {
    const float *bias = f->bias;
    if (bias && (f->gate || f->activation)) {
        finish_plain(from, from, bias, NULL, n);
        bias = NULL;
    }
    if (f->activation) simd_activate(f->activation, from, from, n);
    if (f->gate)
        finish_gated(to, from, f->gate, residual, n);
    else if (to != from || bias)
        finish_plain(to, from, bias, residual, n);
}

static void convert(void *to, enum dtype dtype, const struct tensor *from, int64_t first, int64_t n) {
    if (dtype == DTYPE_BF16)
        weights_round(to, from, first, n);
    else
        weights_widen(to, from, first, n);
}

struct convert_work {
    const struct tensor *from;
    enum dtype dtype;
    char *to;
};

static void convert_rows(const void *context, int64_t first, int64_t end, int member) {
    (void)member;
    const struct convert_work *w = context;
    int64_t row = dtype_bytes(w->dtype, w->from->dim[1]);
    convert(w->to + first * row, w->dtype, w->from, first, end - first);
}

static const void *cpu_convert_in(const struct cpu *cpu, const struct op *op, enum dtype dtype, char *to) {
    struct convert_work work = {&op->in[0], dtype, to};
    thread_pool_run(cpu->thread_pool, op->in[0].dim[0], convert_rows, &work);
    return to;
}

struct linear_work {
    struct cpu *cpu;
    const struct op *op;
    const struct linear_layout *layout;
    struct onednn_key keys[LINEAR_KEYS];
    struct finish finish;
    const void *in;
    char *members;
    uint64_t member_bytes;
    struct thread_pool_error *failed;
};

void linear_widen_ups(float *to, const struct tensor *whole, const struct tensor *panel, int32_t ranks) {
    struct tensor up;
    int32_t column = 0, row;
    memset(to, 0, sizeof *to * (size_t)panel->dim[0] * (size_t)ranks);
    for (const struct low_rank *a = whole->adapters; a; a = a->next) {
        if (!tensor_adapted_by(whole, a, &up, &row)) continue;
        if (tensor_adapted_by(panel, a, &up, &row))
            for (int32_t i = 0; i < up.dim[0]; i++)
                weights_widen(to + (int64_t)(row + i) * ranks + column, &up, i, 1);
        column += up.dim[1];
    }
}

/* Computes rows [row, row + rows) of the panel whose first output column is `first`. A skinny product
 * computes one run of rows per call, other products all rows. */
static void run_panel(const struct linear_work *w, int32_t first, int32_t row, int32_t rows, char *part) {
    const struct linear_layout *l = w->layout;
    const struct op *op = w->op;
    int32_t left = op->in[1].dim[0] - first, columns = left < l->panel ? left : l->panel;
    bool last = columns < l->panel;
    struct tensor weight = tensor_slice(op->in[1], first, columns), out = tensor_slice(op->out, row, rows);
    const void *panel = l->converts ? part + l->weight : weight.data;
    if (l->converts && l->kind == ONEDNN_PRODUCT_PACKED)
        weights_widen_packed((float *)(part + l->weight), &weight);
    else if (l->converts)
        convert(part + l->weight, l->dtype, &weight, 0, columns);
    float *to = l->direct ? out.data : (void *)(part + l->panel_out);
    struct onednn_operands operands = {.src = (const char *)w->in +
                                              row * dtype_bytes(l->dtype, op->in[1].dim[1]),
                                       .weights = panel,
                                       .dst = to,
                                       .scratch = part + l->scratch};
    struct error own = {0};
    onednn_run(w->cpu->onednn, &w->keys[last + (rows < l->rows ? LINEAR_LAST_RUN : 0)], operands, &own);
    if (l->ranks && !own.code) {
        float *up = (float *)(part + l->up);
        linear_widen_ups(up, &op->in[1], &weight, l->ranks);
        operands.src = op->down_product.data;
        operands.weights = up;
        onednn_run(w->cpu->onednn, &w->keys[LINEAR_ADAPTER + last], operands, &own);
    }
    if (own.code) thread_pool_error_report(w->failed, &own);
    struct finish f = w->finish;
    if (own.code || (l->direct && !f.bias && !f.gate && !f.activation)) return;
    if (f.bias) f.bias += first;
    if (f.gate) f.gate += first;
    const struct tensor *residual = &op->epilogue.residual;
    for (int32_t t = 0; t < rows; t++)
        linear_finish_row(tensor_row(&out, t) + first, to + (int64_t)t * columns, &f,
                          residual->rank ? tensor_row(residual, row + t) + first : NULL, columns);
}

static void run_panels(const void *context, int64_t first, int64_t end, int member) {
    const struct linear_work *w = context;
    int32_t runs = w->layout->runs, rows = w->layout->rows, all = w->op->in[0].dim[0];
    char *part = w->members + w->member_bytes * (uint64_t)member;
    for (int64_t i = first; i < end; i++) {
        int32_t row = (int32_t)i % runs * rows;
        run_panel(w, (int32_t)i / runs * w->layout->panel, row, all - row < rows ? all - row : rows, part);
    }
}

static enum status linear_run(struct cpu *cpu, const struct op *op, char *workspace, struct error *e) {
    struct linear_layout l = cpu_linear_layout_of(cpu, op);
    struct thread_pool_error failed = {ATOMIC_FLAG_INIT, e};
    struct linear_work work = {.cpu = cpu, .op = op, .layout = &l, .in = op->in[0].data, .failed = &failed};
    cpu_linear_product_keys(&l, op, work.keys);
    work.members = workspace + l.members;
    work.member_bytes = member_bytes(cpu, &l, work.keys);
    work.finish = (struct finish){.bias = weights_vector(&op->epilogue.bias, (float *)(workspace + l.bias)),
                                  .gate = weights_vector(&op->epilogue.gate, (float *)(workspace + l.gate)),
                                  .activation = op->epilogue.activation};
    if (l.packs_in) work.in = cpu_convert_in(cpu, op, l.dtype, workspace + l.in);
    thread_pool_run(cpu->thread_pool, (int64_t)l.panels * l.runs, run_panels, &work);
    return e->code;
}

const struct cpu_operator cpu_linear = {.cost = linear_cost, .prepare = linear_prepare, .run = linear_run};

struct few_layout {
    uint64_t in, weight, bias,
        end; /* workspace offsets of activated input, one f32 weight row per thread, and bias */
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

struct few_work {
    const struct op *op;
    const float *in, *bias;
    char *converted;
};

static void few_columns(const void *context, int64_t first, int64_t end, int member) {
    const struct few_work *w = context;
    const struct tensor *weight = &w->op->in[1];
    uint64_t row_bytes = align_up(sizeof(float) * (uint64_t)weight->dim[1], ARENA_ALIGN);
    float *converted = (float *)(w->converted + row_bytes * (uint64_t)member);
    bool plain = weights_are(weight, DTYPE_F32);
    int64_t k = weight->dim[1];
    for (int64_t n = first; n < end; n++) {
        if (!plain) weights_widen(converted, weight, n, 1);
        const float *row = plain ? tensor_row(weight, n) : converted;
        float bias = w->bias ? w->bias[n] : 0;
        for (int32_t t = 0; t < w->op->out.dim[0]; t++)
            tensor_row(&w->op->out, t)[n] = simd_dot(w->in + t * k, row, k) + bias;
    }
}

static enum status cpu_few_run(struct cpu *cpu, const struct op *op, char *workspace, struct error *e) {
    (void)e;
    struct few_layout l = few_layout_of(cpu, op);
    float *in = (float *)(workspace + l.in);
    cpu_convert_in(cpu, op, DTYPE_F32, workspace + l.in);
    simd_activate(op->activation, in, in, tensor_elements(&op->in[0]));
    const float *bias = weights_vector(&op->in[2], (float *)(workspace + l.bias));
    struct few_work work = {op, in, bias, workspace + l.weight};
    thread_pool_run(cpu->thread_pool, op->in[1].dim[0], few_columns, &work);
    return OK;
}

const struct cpu_operator cpu_linear_few = {.cost = few_cost, .run = cpu_few_run};
