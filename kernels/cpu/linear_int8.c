/* Matrix products in int8 (ops.h, "int8 mode") through oneDNN.
 *
 * The input's rows are rotated and quantised once, threads over rows. Then one thread computes a whole panel
 * of output columns, as in linear.c: it quantises and packs the panel's weights, and multiplies chunks of
 * rows, so that a chunk's sums stay in the core's cache until the epilogue. Sums are exact integers, so
 * panels, chunks and thread count change no bit.
 *
 * oneDNN multiplies unsigned input codes by signed weight codes, as all int8 instructions do. So input codes
 * are stored with 128 added, and the epilogue subtracts 128 times the sum of the weight's codes. Inputs and
 * outputs are padded to multiples of 64 with zero weights. Adapters are an f32 product onto the scaled sums.
 */
#include "kernels/cpu/int8.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/operators.h"
#include "kernels/cpu/weights.h"

#include <string.h>

/* CHUNK_ROWS: a chunk's sums for 128 columns take 64 KiB. ROW_STEP: rows of an AMX tile. The last chunk is
 * padded to a multiple, because other numbers of rows take up to 2 MB of code per primitive. */
enum { CHUNK_ROWS = 128, ROW_STEP = 16 };

struct int8_layout {
    int32_t k, group;      /* inputs, padded; columns of a rotation group */
    int32_t panel, panels; /* output columns per panel, padded; number of panels */
    int32_t rows;          /* rows per chunk */
    int32_t ranks;         /* sum of the adapters' ranks */
    /* Offsets in the workspace. */
    uint64_t in, scales; /* input codes [M,K] and their row scales [M] */
    uint64_t bias, gate; /* vectors of the epilogue in f32 */
    uint64_t members;    /* one part per thread */
    uint64_t row_bytes;  /* size of a part while the input is quantised: one rotated row */
    /* Offsets in a thread's part while panels are computed. */
    uint64_t row, codes, weight;   /* a rotated row; INT8_PACK_ROWS rows of codes; a panel of codes */
    uint64_t sums, weight_scales;  /* per output of the panel: sum of the weight row's codes; its scale */
    uint64_t up, product, scratch; /* adapters' `up` factors; a chunk's sums; oneDNN's scratchpad */
};

/* A oneDNN key's index is a sum of these: INT8_LAST_PANEL for a narrower last panel, INT8_LAST_CHUNK for a
 * shorter last chunk, INT8_ADAPTER for the adapters' product. A key with M = 0 is unused. */
enum { INT8_LAST_PANEL = 1, INT8_LAST_CHUNK = 2, INT8_ADAPTER = 4, INT8_KEYS = 8 };

static int32_t round_up(int32_t n, int32_t step) {
    return (n + step - 1) / step * step;
}

/* Rounds a number of inputs or outputs up to whole blocks of oneDNN's packed weights. */
static int32_t padded(int32_t n) {
    return round_up(n, INT8_BLOCK);
}

static struct int8_layout int8_layout_of(const struct op *op) {
    int32_t m = op->in[0].dim[0], n = op->in[1].dim[0], k = op->in[1].dim[1];
    int32_t columns = k > 4096 ? 64 : 128; /* as in linear.c; wider panels are no faster (bench/LOG.md) */
    struct int8_layout l = {.k = padded(k),
                            .group = int8_group(&op->in[1]),
                            .panel = columns < n ? columns : padded(n),
                            .rows = m < CHUNK_ROWS ? m : CHUNK_ROWS,
                            .ranks = op->down_product.rank ? op->down_product.dim[1] : 0};
    l.panels = (n + l.panel - 1) / l.panel;
    uint64_t used = 0, row = (uint64_t)l.k, panel = (uint64_t)l.panel;
    l.in = workspace_take(&used, row * (uint64_t)round_up(m, ROW_STEP));
    l.scales = workspace_take(&used, sizeof(float) * (uint64_t)m);
    l.bias = workspace_take(&used, sizeof(float) * (uint64_t)n);
    l.gate = workspace_take(&used, op->epilogue.gate.rank ? sizeof(float) * (uint64_t)n : 0);
    l.members = used;
    used = 0;
    l.row = workspace_take(&used, sizeof(float) * (uint64_t)k);
    l.row_bytes = used;
    l.codes = workspace_take(&used, INT8_PACK_ROWS * row);
    l.weight = workspace_take(&used, panel * row);
    l.sums = workspace_take(&used, sizeof(int32_t) * panel);
    l.weight_scales = workspace_take(&used, sizeof(float) * panel);
    l.up = workspace_take(&used, sizeof(float) * (uint64_t)l.ranks * panel);
    l.product = workspace_take(&used, sizeof(float) * panel * (uint64_t)round_up(l.rows, ROW_STEP));
    l.scratch = used;
    return l;
}

static void int8_keys(const struct int8_layout *l, const struct op *op, struct onednn_key keys[INT8_KEYS]) {
    int32_t m = op->in[0].dim[0], n = op->in[1].dim[0];
    for (int i = 0; i < INT8_ADAPTER; i++) {
        int32_t columns = i & INT8_LAST_PANEL ? padded(n % l->panel) % l->panel : l->panel;
        int32_t rows = !columns ? 0 : i & INT8_LAST_CHUNK ? m % l->rows : l->rows;
        keys[i] = (struct onednn_key){ONEDNN_PRODUCT_INT8, {round_up(rows, ROW_STEP), columns, l->k}};
        keys[INT8_ADAPTER + i] =
            (struct onednn_key){ONEDNN_PRODUCT_T_ADDED, {l->ranks ? rows : 0, columns, l->ranks}};
    }
}

static uint64_t member_bytes(const struct cpu *cpu, const struct int8_layout *l,
                             const struct onednn_key keys[INT8_KEYS]) {
    return align_up(l->scratch + scratch_bytes(cpu, keys, INT8_KEYS), ARENA_ALIGN);
}

static void int8_cost(const struct cpu *cpu, const struct op *op, struct op_cost *cost) {
    struct int8_layout l = int8_layout_of(op);
    struct onednn_key keys[INT8_KEYS];
    int8_keys(&l, op, keys);
    for (int i = 0; i < INT8_KEYS; i++) cost_add_primitive(cpu, &keys[i], cost);
    uint64_t rows = l.row_bytes * (uint64_t)cpu_members(cpu, op->in[0].dim[0]);
    uint64_t panels = member_bytes(cpu, &l, keys) * (uint64_t)cpu_members(cpu, l.panels);
    cost->workspace_bytes = l.members + (rows > panels ? rows : panels);
}

static enum status int8_prepare(struct cpu *cpu, const struct op *op, struct error *e) {
    struct int8_layout l = int8_layout_of(op);
    struct onednn_key keys[INT8_KEYS];
    int8_keys(&l, op, keys);
    for (int i = 0; i < INT8_KEYS; i++)
        if (keys[i].number[0] && onednn_prepare(cpu->onednn, &keys[i], e)) return e->code;
    return OK;
}

struct int8_work {
    struct cpu *cpu;
    const struct op *op;
    const struct int8_layout *layout;
    struct onednn_key keys[INT8_KEYS];
    struct finish finish;
    uint8_t *in;
    float *scales;
    char *members;
    uint64_t member_bytes;
    struct thread_pool_error *failed;
};

/* Quantises row i of a tensor [*,K] to l->k codes, padded with `zero`. row: scratch memory for a row in f32.
 * Returns the row's scale. */
static float quantise(uint8_t *codes, const struct tensor *from, int64_t i, const struct int8_layout *l,
                      float *row, uint8_t zero) {
    int64_t k = from->dim[1];
    bool plain = from->dtype == DTYPE_F32 && from->scale == 1;
    if (!plain) weights_widen_part(row, from, i, 0, k);
    memset(codes + k, zero, (size_t)(l->k - k));
    return int8_quantise_row(codes, row, plain ? tensor_row(from, i) : row, k, l->group, zero);
}

static void quantise_in(const void *context, int64_t first, int64_t end, int member) {
    const struct int8_work *w = context;
    float *row = (float *)(void *)(w->members + w->layout->row_bytes * (uint64_t)member);
    for (int64_t i = first; i < end; i++)
        w->scales[i] = quantise(w->in + i * w->layout->k, &w->op->in[0], i, w->layout, row, INT8_ZERO);
}

/* Writes row i of a rotated type as l->k codes, padded with zeros. Returns the row's scale. */
static float copy_codes(uint8_t *codes, const struct tensor *from, int64_t i, const struct int8_layout *l) {
    memset(codes + from->dim[1], 0, (size_t)(l->k - from->dim[1]));
    return weights_int8_row((int8_t *)codes, from, i);
}

/* Writes a panel of weight codes in oneDNN's layout, and each output's scale and sum of codes. */
static void pack_panel(const struct tensor *weight, int32_t columns, const struct int8_layout *l,
                       char *part) {
    bool packs = onednn_packs_int8();
    uint8_t *packed = (uint8_t *)part + l->weight;
    int32_t *sums = (int32_t *)(void *)(part + l->sums);
    float *scales = (float *)(void *)(part + l->weight_scales), *rotated = (float *)(void *)(part + l->row);
    for (int32_t n = 0; n < columns; n += INT8_PACK_ROWS) {
        uint8_t *codes = packs ? (uint8_t *)part + l->codes : packed + (int64_t)n * l->k;
        for (int32_t i = 0; i < INT8_PACK_ROWS; i++) {
            uint8_t *row = codes + (int64_t)i * l->k;
            if (n + i < weight->dim[0]) {
                scales[n + i] = dtype_is_rotated(weight->dtype) ? copy_codes(row, weight, n + i, l)
                                                                : quantise(row, weight, n + i, l, rotated, 0);
            } else { /* padding */
                memset(row, 0, (size_t)l->k);
                scales[n + i] = 0;
            }
            sums[n + i] = int8_sum(row, l->k);
        }
        int32_t inside = n % INT8_BLOCK;
        if (packs) int8_pack_rows(packed + (int64_t)(n - inside) * l->k + 4 * inside, codes, l->k);
    }
}

/* A chunk of rows of one panel. */
struct chunk {
    int32_t first, columns; /* output columns of the panel */
    int32_t row, rows;
    int key; /* index of the oneDNN key */
};

/* Scales the sums of a chunk, adds the adapters' product and applies the epilogue. Without residual and
 * adapters the scaled sums are written to `out` directly. Otherwise not, as a residual may be `out`. */
static void finish_chunk(const struct int8_work *w, struct chunk c, char *part, struct error *own) {
    const struct int8_layout *l = w->layout;
    const struct op *op = w->op;
    const struct tensor *residual = &op->epilogue.residual;
    const int32_t *sums = (int32_t *)(void *)(part + l->sums);
    const float *scales = (float *)(void *)(part + l->weight_scales);
    float *product = (float *)(void *)(part + l->product);
    int32_t stride = w->keys[c.key].number[1];
    bool added = l->ranks || residual->rank;
    struct finish f = w->finish;
    if (f.bias) f.bias += c.first;
    if (f.gate) f.gate += c.first;
    for (int32_t t = 0; t < c.rows; t++) {
        float *from = product + (int64_t)t * stride, *to = tensor_row(&op->out, c.row + t) + c.first;
        int8_scale_sums(added ? from : to, from, sums, scales, w->scales[c.row + t], c.columns);
        if (!added) linear_finish_row(to, to, &f, NULL, c.columns);
    }
    if (!added) return;
    struct onednn_operands adapters = {.src = (float *)op->down_product.data + (int64_t)c.row * l->ranks,
                                       .weights = part + l->up,
                                       .dst = product,
                                       .scratch = part + l->scratch};
    if (l->ranks && onednn_run(w->cpu->onednn, &w->keys[INT8_ADAPTER + c.key], adapters, own)) return;
    for (int32_t t = c.row; t < c.row + c.rows; t++)
        linear_finish_row(tensor_row(&op->out, t) + c.first, product + (int64_t)(t - c.row) * stride, &f,
                          residual->rank ? tensor_row(residual, t) + c.first : NULL, c.columns);
}

static void run_panel(const struct int8_work *w, int32_t first, char *part) {
    const struct int8_layout *l = w->layout;
    const struct op *op = w->op;
    int32_t left = op->in[1].dim[0] - first, all = op->in[0].dim[0];
    struct chunk c = {.first = first, .columns = left < l->panel ? left : l->panel};
    int last_panel = padded(c.columns) < l->panel ? INT8_LAST_PANEL : 0;
    struct tensor weight = tensor_slice(op->in[1], first, c.columns);
    pack_panel(&weight, padded(c.columns), l, part);
    if (l->ranks) linear_widen_ups((float *)(void *)(part + l->up), &op->in[1], &weight, l->ranks);
    struct error own = {0};
    for (c.row = 0; c.row < all && !own.code; c.row += l->rows) {
        c.rows = all - c.row < l->rows ? all - c.row : l->rows;
        c.key = last_panel + (c.rows < l->rows ? INT8_LAST_CHUNK : 0);
        struct onednn_operands operands = {.src = w->in + (int64_t)c.row * l->k,
                                           .weights = part + l->weight,
                                           .dst = part + l->product,
                                           .scratch = part + l->scratch};
        if (!onednn_run(w->cpu->onednn, &w->keys[c.key], operands, &own)) finish_chunk(w, c, part, &own);
    }
    if (own.code) thread_pool_error_report(w->failed, &own);
}

static void run_panels(const void *context, int64_t first, int64_t end, int member) {
    const struct int8_work *w = context;
    char *part = w->members + w->member_bytes * (uint64_t)member;
    for (int64_t i = first; i < end; i++) run_panel(w, (int32_t)i * w->layout->panel, part);
}

static enum status int8_run(struct cpu *cpu, const struct op *op, char *workspace, struct error *e) {
    struct int8_layout l = int8_layout_of(op);
    struct thread_pool_error failed = {ATOMIC_FLAG_INIT, e};
    struct int8_work work = {.cpu = cpu,
                             .op = op,
                             .layout = &l,
                             .in = (uint8_t *)workspace + l.in,
                             .scales = (float *)(void *)(workspace + l.scales),
                             .members = workspace + l.members,
                             .failed = &failed};
    int8_keys(&l, op, work.keys);
    work.member_bytes = member_bytes(cpu, &l, work.keys);
    work.finish = (struct finish){.bias = weights_vector(&op->epilogue.bias, (float *)(workspace + l.bias)),
                                  .gate = weights_vector(&op->epilogue.gate, (float *)(workspace + l.gate)),
                                  .activation = op->epilogue.activation};
    int64_t m = op->in[0].dim[0];
    memset(work.in + m * l.k, INT8_ZERO, (size_t)((round_up((int32_t)m, ROW_STEP) - m) * l.k));
    thread_pool_run(cpu->thread_pool, m, quantise_in, &work);
    thread_pool_run(cpu->thread_pool, l.panels, run_panels, &work);
    return e->code;
}

const struct cpu_operator cpu_linear_int8 = {.cost = int8_cost, .prepare = int8_prepare, .run = int8_run};
