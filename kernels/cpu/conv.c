/* Convolution of a picture, in bands of rows.
 *
 * A band's input (with one row and column more on each side for 3x3) is gathered into the workspace:
 * upsampled, normed and activated on the way, zeros around it. So oneDNN sees one kind of convolution,
 * without padding, and the whole picture is never copied. Channels are padded to multiples of 8, because
 * oneDNN leaves its fast code for others below AVX2. The band's height is a function of shapes alone; bands
 * give the bits of the whole picture (measured for direct convolution, all instruction sets:
 * reference/numerics.md). */
#include "kernels/cpu/operators.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/weights.h"

#include <string.h>

enum { CHANNEL_STEP = 8 };

struct conv_layout {
    int32_t up, kernel, stride;
    int32_t before;              /* rows and columns of zeros above and to the left */
    int32_t rows, columns, band; /* of out; band: rows of it at a time */
    int32_t width;               /* columns that are gathered */
    int32_t c, n, n_padded, c_padded;
    bool direct;                                                /* oneDNN writes out itself */
    uint64_t norm, bias, plain, weights, in, band_out, scratch; /* offsets; scratch is last */
};

static struct onednn_key conv_key(const struct conv_layout *l, int32_t rows) {
    return (struct onednn_key){ONEDNN_CONV,
                               {rows, l->columns, l->c_padded, l->n_padded, l->kernel, l->stride - 1}};
}

/* Rows (or columns) that so many of out are made of. */
static int32_t gathered(const struct conv_layout *l, int32_t n) {
    return (n - 1) * l->stride + l->kernel;
}

static int32_t pad_channels(int32_t n) {
    return (n + CHANNEL_STEP - 1) / CHANNEL_STEP * CHANNEL_STEP;
}

static void conv_shapes(const struct op *op, struct conv_layout *l) {
    const struct tensor *weight = &op->in[1];
    l->up = op->conv.upsample;
    l->kernel = weight->dim[2];
    l->stride = op->conv.stride == 2 ? 2 : 1;
    l->before = l->stride == 1 ? l->kernel / 2 : 0;
    l->rows = op->out.dim[0];
    l->columns = op->out.dim[1];
    l->width = gathered(l, l->columns);
    int32_t band = conv_band_rows(l->columns * l->stride);
    l->band = band < l->rows ? band : l->rows;
    l->n = weight->dim[0];
    l->c = weight->dim[1];
    l->n_padded = pad_channels(l->n);
    l->c_padded = pad_channels(l->c);
    l->direct = l->n == l->n_padded && !op->in[3].rank;
}

static struct conv_layout cpu_conv_layout_of(const struct cpu *cpu, const struct op *op) {
    struct conv_layout l = {0};
    conv_shapes(op, &l);
    struct onednn_key key = conv_key(&l, l.band);
    uint64_t used = 0, c = (uint64_t)l.c_padded, n = (uint64_t)l.n_padded;
    uint64_t taps = (uint64_t)(l.kernel * l.kernel);
    l.norm = workspace_take(&used, op->conv.norm.statistics.rank ? channel_norm_bytes(l.c) : 0);
    l.bias = workspace_take(&used, sizeof(float) * n);
    l.plain = workspace_take(&used, sizeof(float) * n * c * taps);
    l.weights = workspace_take(&used, onednn_facts(cpu->onednn, &key).weights_bytes);
    l.in = workspace_take(&used, sizeof(float) * c * (uint64_t)l.width * (uint64_t)gathered(&l, l.band));
    l.band_out =
        workspace_take(&used, l.direct ? 0 : sizeof(float) * n * (uint64_t)l.band * (uint64_t)l.columns);
    l.scratch = used;
    return l;
}

/* The repacking of weights, the convolution of full bands, and that of the last, lower one (rows 0: there is
 * none). */
static void conv_keys(const struct conv_layout *l, struct onednn_key keys[3]) {
    keys[0] = conv_key(l, l->band);
    keys[0].kind = ONEDNN_REPACK;
    keys[1] = conv_key(l, l->band);
    keys[2] = conv_key(l, l->rows % l->band);
}

static void conv_cost(const struct cpu *cpu, const struct op *op, struct op_cost *cost) {
    struct conv_layout l = cpu_conv_layout_of(cpu, op);
    struct onednn_key keys[3];
    conv_keys(&l, keys);
    uint64_t scratch = 0;
    for (int i = 0; i < 3; i++) cost_add_primitive(cpu, &keys[i], cost, &scratch);
    cost->workspace_bytes = l.scratch + scratch;
}

static enum status conv_prepare(struct cpu *cpu, const struct op *op, struct error *e) {
    struct conv_layout l = {0};
    conv_shapes(op, &l);
    struct onednn_key keys[3];
    conv_keys(&l, keys);
    for (int i = 0; i < 3; i++)
        if (keys[i].number[0] && onednn_prepare(cpu->onednn, &keys[i], e)) return e->code;
    return OK;
}

/* [N,C,k,k] in any type to f32 with zeros for the channels that only pad. */
static void cpu_pad_weights(const struct cpu *cpu, const struct op *op, const struct conv_layout *l,
                            float *to) {
    const struct tensor *weight = &op->in[1];
    int64_t taps = l->kernel * l->kernel, from_row = l->c * taps, to_row = l->c_padded * taps;
    int64_t rows = (int64_t)l->c * l->kernel;
#pragma omp parallel for num_threads(cpu->threads) schedule(static)
    for (int32_t n = 0; n < l->n_padded; n++) {
        float *row = to + n * to_row;
        int64_t filled = n < l->n ? from_row : 0;
        if (filled) weights_widen(row, weight, n * rows, rows);
        memset(row + filled, 0, (size_t)(to_row - filled) * sizeof *row);
    }
}

static void pad_bias(const struct tensor *bias, const struct conv_layout *l, float *to) {
    memset(to, 0, (size_t)l->n_padded * sizeof *to);
    if (bias->rank) weights_widen(to, bias, 0, 1);
}

static void gather_pixel(const struct conv_layout *l, const float *from, const struct channel_norm *norm,
                         enum activation activation, float *to) {
    if (norm)
        channel_norm_apply(norm, to, from, l->c);
    else
        memcpy(to, from, (size_t)l->c * sizeof *to);
    simd_activate(activation, to, to, l->c);
    memset(to + l->c, 0, (size_t)(l->c_padded - l->c) * sizeof *to);
}

/* Row y of the upsampled input, with zeros around it; rows outside the picture are zero, those outside of out
 * are not. */
static void gather_row(const struct op *op, const struct conv_layout *l, const struct channel_norm *norm,
                       int32_t y, float *to) {
    const struct tensor *in = &op->in[0];
    int32_t columns = in->dim[1] * l->up;
    int64_t pixel = l->c_padded, edge = pixel * l->before;
    if (y < 0 || y >= in->dim[0] * l->up) {
        memset(to, 0, (size_t)(pixel * l->width) * sizeof *to);
        return;
    }
    memset(to, 0, (size_t)edge * sizeof *to);
    to += edge;
    for (int32_t x = 0; x < columns; x++, to += pixel) {
        int64_t source = (int64_t)(y / l->up) * in->dim[1] + x / l->up;
        if (x % l->up)
            memcpy(to, to - pixel, (size_t)pixel * sizeof *to);
        else
            gather_pixel(l, tensor_row(in, source), norm, op->conv.activation, to);
    }
    memset(to, 0, (size_t)(pixel * (l->width - l->before - columns)) * sizeof *to);
}

/* For the rows of out from first on. */
static void gather_band(const struct cpu *cpu, const struct op *op, const struct conv_layout *l,
                        const struct channel_norm *norm, int32_t first, int32_t rows, float *to) {
    int64_t row = (int64_t)l->c_padded * l->width;
#pragma omp parallel for num_threads(cpu->threads) schedule(static)
    for (int32_t y = 0; y < gathered(l, rows); y++)
        gather_row(op, l, norm, first * l->stride + y - l->before, to + y * row);
}

/* residual may be NULL or to. */
WIDE static void finish_pixel(float *to, const float *from, const float *residual, int64_t n) {
    if (!residual)
        memcpy(to, from, (size_t)n * sizeof *to);
    else
#pragma omp simd
        for (int64_t i = 0; i < n; i++) to[i] = from[i] + residual[i];
}

static void finish_band(const struct cpu *cpu, const struct op *op, const struct conv_layout *l,
                        int32_t first, int32_t rows, const float *from) {
    const struct tensor *residual = &op->in[3];
    int64_t start = (int64_t)first * l->columns, n = (int64_t)rows * l->columns;
#pragma omp parallel for num_threads(cpu->threads) schedule(static)
    for (int64_t i = 0; i < n; i++)
        finish_pixel(tensor_row(&op->out, start + i), from + i * l->n_padded,
                     residual->rank ? tensor_row(residual, start + i) : NULL, l->n);
}

static enum status cpu_run_band(struct cpu *cpu, const struct op *op, const struct conv_layout *l,
                                const struct channel_norm *norm, int32_t first, char *workspace,
                                struct error *e) {
    int32_t rows = l->rows - first < l->band ? l->rows - first : l->band;
    float *in = (float *)(workspace + l->in), *out = (float *)(workspace + l->band_out);
    if (l->direct) out = tensor_row(&op->out, (int64_t)first * l->columns);
    gather_band(cpu, op, l, norm, op->conv.first_row + first, rows, in);
    struct onednn_key key = conv_key(l, rows);
    struct onednn_operands operands = {.src = in,
                                       .weights = workspace + l->weights,
                                       .bias = workspace + l->bias,
                                       .dst = out,
                                       .scratch = workspace + l->scratch};
    if (onednn_run(cpu->onednn, &key, operands, e)) return e->code;
    if (!l->direct) finish_band(cpu, op, l, first, rows, out);
    return OK;
}

static enum status conv_run(struct cpu *cpu, const struct op *op, char *workspace, struct error *e) {
    struct conv_layout l = cpu_conv_layout_of(cpu, op);
    struct onednn_key keys[3];
    conv_keys(&l, keys);
    struct channel_norm norm = {0};
    bool normed = op->conv.norm.statistics.rank > 0;
    if (normed) norm = channel_norm(&op->conv.norm, l.c, workspace + l.norm);
    pad_bias(&op->in[2], &l, (float *)(workspace + l.bias));
    cpu_pad_weights(cpu, op, &l, (float *)(workspace + l.plain));
    struct onednn_operands repack = {
        .src = workspace + l.plain, .dst = workspace + l.weights, .scratch = workspace + l.scratch};
    if (onednn_run(cpu->onednn, &keys[0], repack, e)) return e->code;
    for (int32_t first = 0; first < l.rows; first += l.band)
        if (cpu_run_band(cpu, op, &l, normed ? &norm : NULL, first, workspace, e)) return e->code;
    return OK;
}

const struct cpu_operator cpu_conv2d = {conv_cost, conv_prepare, conv_run};
