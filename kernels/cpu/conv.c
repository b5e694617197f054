/* Convolution of a picture, in bands of rows.
 *
 * A band's input (with one row and column more on each side for 3x3) is gathered into the workspace:
 * upsampled, normed and activated on the way, zeros around it. So oneDNN sees one kind of convolution,
 * without padding, and the whole picture is never copied. Channels are padded to multiples of 8, because
 * oneDNN leaves its fast code for others below AVX2. Members of the team gather a band's rows, then convolve
 * and finish a few rows of out each, alone. Heights are functions of shapes alone; bands give the bits of the
 * whole picture (measured for direct convolution, all instruction sets: reference/numerics.md). */
#include "kernels/cpu/operators.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/weights.h"

#include <string.h>

enum { CHANNEL_STEP = 8, PIECES = 16 };

struct conv_layout {
    int32_t up, kernel, stride;
    int32_t before;        /* rows and columns of zeros above and to the left */
    int32_t rows, columns; /* of out */
    int32_t band, piece;   /* rows of out at a time: gathered, and convolved by one member */
    int32_t width;         /* columns that are gathered */
    int32_t c, n, n_padded, c_padded;
    bool direct;                                      /* oneDNN writes out itself */
    uint64_t norm, bias, plain, weights, in, scratch; /* offsets; scratch is that of repacking */
    uint64_t members;                                 /* where the first one's part begins */
    uint64_t piece_out, piece_scratch, member_bytes;  /* in a member's part */
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
    l->before = l->stride == 1 ? l->kernel / 2 : op->conv.before;
    l->rows = op->out.dim[0];
    l->columns = op->out.dim[1];
    l->width = gathered(l, l->columns);
    int32_t band = conv_band_rows(l->columns * l->stride);
    band = band < l->rows ? band : l->rows;
    l->piece = (band + PIECES - 1) / PIECES;
    l->band = band / l->piece * l->piece;
    l->n = weight->dim[0];
    l->c = weight->dim[1];
    l->n_padded = pad_channels(l->n);
    l->c_padded = pad_channels(l->c);
    l->direct = l->n == l->n_padded && !op->in[3].rank;
}

/* The repacking of weights, and the convolution of a piece. One shape for all pieces: the last one reaches
 * back into rows that are done, because oneDNN may want the weights in another layout for another height. */
static void conv_keys(const struct conv_layout *l, struct onednn_key keys[2]) {
    keys[0] = conv_key(l, l->piece);
    keys[0].kind = ONEDNN_REPACK;
    keys[1] = conv_key(l, l->piece);
}

static struct conv_layout cpu_conv_layout_of(const struct cpu *cpu, const struct op *op) {
    struct conv_layout l = {0};
    struct onednn_key keys[2];
    conv_shapes(op, &l);
    conv_keys(&l, keys);
    uint64_t used = 0, c = (uint64_t)l.c_padded, n = (uint64_t)l.n_padded;
    uint64_t taps = (uint64_t)(l.kernel * l.kernel);
    uint64_t piece = sizeof(float) * n * (uint64_t)l.piece * (uint64_t)l.columns;
    l.norm = workspace_take(&used, op->conv.norm.statistics.rank ? channel_norm_bytes(l.c) : 0);
    l.bias = workspace_take(&used, sizeof(float) * n);
    l.plain = workspace_take(&used, sizeof(float) * n * c * taps);
    l.weights = workspace_take(&used, onednn_facts(cpu->onednn, &keys[1]).weights_bytes);
    l.in = workspace_take(&used, sizeof(float) * c * (uint64_t)l.width * (uint64_t)gathered(&l, l.band));
    l.scratch = workspace_take(&used, scratch_bytes(cpu, keys, 1));
    l.members = used;
    used = 0;
    l.piece_out = workspace_take(&used, l.direct && l.rows % l.piece == 0 ? 0 : piece);
    l.piece_scratch = workspace_take(&used, scratch_bytes(cpu, keys + 1, 1));
    l.member_bytes = used;
    return l;
}

static void conv_cost(const struct cpu *cpu, const struct op *op, struct op_cost *cost) {
    struct conv_layout l = cpu_conv_layout_of(cpu, op);
    struct onednn_key keys[2];
    conv_keys(&l, keys);
    for (int i = 0; i < 2; i++) cost_add_primitive(cpu, &keys[i], cost);
    cost->workspace_bytes = l.members + l.member_bytes * (uint64_t)cpu_members(cpu, l.band / l.piece);
}

static enum status conv_prepare(struct cpu *cpu, const struct op *op, struct error *e) {
    struct conv_layout l = {0};
    conv_shapes(op, &l);
    struct onednn_key keys[2];
    conv_keys(&l, keys);
    if (onednn_prepare(cpu->onednn, &keys[0], e) == OK) onednn_prepare(cpu->onednn, &keys[1], e);
    return e->code;
}

/* What members of the team share: one operator, and a band of it. */
struct conv_work {
    struct cpu *cpu;
    const struct op *op;
    const struct conv_layout *layout;
    const struct channel_norm *norm; /* NULL: none */
    char *workspace;
    int32_t first, rows, lead; /* of out: the band; rows before it that its only piece reaches back to */
    struct team_error *failed;
};

/* [N,C,k,k] in any type to f32 with zeros for the channels that only pad. */
static void cpu_pad_weights(const void *context, int64_t first, int64_t end, int member) {
    (void)member;
    const struct conv_work *w = context;
    const struct conv_layout *l = w->layout;
    const struct tensor *weight = &w->op->in[1];
    float *to = (float *)(w->workspace + l->plain);
    int64_t taps = l->kernel * l->kernel, from_row = l->c * taps, to_row = l->c_padded * taps;
    int64_t rows = (int64_t)l->c * l->kernel;
    for (int64_t n = first; n < end; n++) {
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
    int32_t rows = in->dim[0] * l->up - op->conv.cut_row, columns = in->dim[1] * l->up - op->conv.cut_column;
    int64_t pixel = l->c_padded, edge = pixel * l->before;
    if (y < 0 || y >= rows) {
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

/* Rows of what the band is made of. */
static void gather_rows(const void *context, int64_t first, int64_t end, int member) {
    (void)member;
    const struct conv_work *w = context;
    const struct conv_layout *l = w->layout;
    int64_t row = (int64_t)l->c_padded * l->width;
    int32_t above = (w->op->conv.first_row + w->first - w->lead) * l->stride - l->before;
    for (int64_t y = first; y < end; y++)
        gather_row(w->op, l, w->norm, above + (int32_t)y, (float *)(w->workspace + l->in) + y * row);
}

/* residual may be NULL or to. */
WIDE static void finish_pixel(float *to, const float *from, const float *residual, int64_t n) {
    if (!residual)
        memcpy(to, from, (size_t)n * sizeof *to);
    else
#pragma omp simd
        for (int64_t i = 0; i < n; i++) to[i] = from[i] + residual[i];
}

static void finish_piece(const struct op *op, const struct conv_layout *l, int32_t first, int32_t rows,
                         const float *from) {
    const struct tensor *residual = &op->in[3];
    int64_t start = (int64_t)first * l->columns, n = (int64_t)rows * l->columns;
    for (int64_t i = 0; i < n; i++)
        finish_pixel(tensor_row(&op->out, start + i), from + i * l->n_padded,
                     residual->rank ? tensor_row(residual, start + i) : NULL, l->n);
}

/* Rows of out from `first` of the band on, by one member. */
static enum status convolve_piece(const struct conv_work *w, int32_t first, char *part, struct error *e) {
    const struct conv_layout *l = w->layout;
    int32_t left = w->rows - first, rows = left < l->piece ? left : l->piece, done = l->piece - rows;
    int64_t before = (int64_t)l->c_padded * l->width * (w->lead + first - done) * l->stride;
    float *out = (float *)(part + l->piece_out);
    bool direct = l->direct && !done;
    if (direct) out = tensor_row(&w->op->out, (int64_t)(w->first + first) * l->columns);
    struct onednn_key key = conv_key(l, l->piece);
    struct onednn_operands operands = {.src = (const float *)(w->workspace + l->in) + before,
                                       .weights = w->workspace + l->weights,
                                       .bias = w->workspace + l->bias,
                                       .dst = out,
                                       .scratch = part + l->piece_scratch};
    if (onednn_run(w->cpu->onednn, &key, operands, e)) return e->code;
    out += (int64_t)done * l->columns * l->n_padded;
    if (!direct) finish_piece(w->op, l, w->first + first, rows, out);
    return OK;
}

static void convolve_pieces(const void *context, int64_t first, int64_t end, int member) {
    const struct conv_work *w = context;
    char *part = w->workspace + w->layout->members + w->layout->member_bytes * (uint64_t)member;
    for (int64_t i = first; i < end; i++) {
        struct error own = {0};
        if (convolve_piece(w, (int32_t)i * w->layout->piece, part, &own)) team_error_report(w->failed, &own);
    }
}

static enum status conv_run(struct cpu *cpu, const struct op *op, char *workspace, struct error *e) {
    struct conv_layout l = cpu_conv_layout_of(cpu, op);
    struct onednn_key keys[2];
    conv_keys(&l, keys);
    struct channel_norm norm = {0};
    bool normed = op->conv.norm.statistics.rank > 0;
    if (normed) norm = channel_norm(&op->conv.norm, l.c, workspace + l.norm);
    struct team_error failed = {ATOMIC_FLAG_INIT, e};
    struct conv_work work = {cpu, op, &l, normed ? &norm : NULL, workspace, .failed = &failed};
    pad_bias(&op->in[2], &l, (float *)(workspace + l.bias));
    team_run(cpu->team, l.n_padded, cpu_pad_weights, &work);
    struct onednn_operands repack = {
        .src = workspace + l.plain, .dst = workspace + l.weights, .scratch = workspace + l.scratch};
    if (onednn_run(cpu->onednn, &keys[0], repack, e)) return e->code;
    for (; work.first < l.rows && !e->code; work.first += l.band) {
        work.rows = l.rows - work.first < l.band ? l.rows - work.first : l.band;
        work.lead = work.rows < l.piece ? l.piece - work.rows : 0;
        team_run(cpu->team, gathered(&l, work.rows + work.lead), gather_rows, &work);
        team_run(cpu->team, (work.rows + l.piece - 1) / l.piece, convolve_pieces, &work);
    }
    return e->code;
}

const struct cpu_operator cpu_conv2d = {conv_cost, conv_prepare, conv_run};
