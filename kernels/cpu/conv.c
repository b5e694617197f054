/* 2D convolution of an image, in bands of rows.
 *
 * A band's input (3x3: with one more row and column on each side) is gathered into the workspace: upsampled,
 * normed and activated, with zero padding. oneDNN thus computes one kind of convolution, without padding, and
 * the whole image is never copied. Channels are padded to multiples of 8, because below AVX2 oneDNN has no
 * fast code for others. Threads gather a band's rows together; then each thread convolves and finishes a few
 * rows of out. Band heights depend on shapes alone, and bands give the same bits as the whole image (measured
 * for direct convolution with all instruction sets).
 *
 * Small weights are repacked once, before the bands. If weights exceed the caches and pixels are few, that
 * takes longer than multiplying: a UNet's 1280 to 1280 channels at 8 x 8 pixels ran at a third of oneDNN's
 * rate. Then each thread convolves a panel of output channels, as in linear.c, and converts its weights while
 * they stay in the cache (bench/LOG.md). */
#include "kernels/cpu/operators.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/weights.h"

#include <string.h>

enum { CHANNEL_STEP = 8, PIECES = 16 };
/* Weights of at most 9 MiB in f32 (VAEs) are repacked once for all threads. Larger weights are split into
 * panels of 32 output channels (oneDNN's block), or 64 for 1x1 kernels (AVX2: 10 % faster than 32). A thread
 * convolves so many pixels per panel that converting weights takes a twentieth of multiplying. */
enum { SHARED_MOST = 512 * 512 * 9, PANEL = 32, PANEL_1X1 = 64, PANEL_PIXELS = 1024 };

struct conv_layout {
    int32_t up, kernel, stride;       /* upsampling factor, kernel side, stride */
    int32_t before;                   /* rows of zero padding above the image, and columns to its left */
    int32_t rows, columns;            /* size of out */
    int32_t band, piece;              /* rows of out per gathered band; rows of out per convolution call */
    int32_t width;                    /* columns of the gathered input band */
    int32_t c, n, n_padded, c_padded; /* input and output channels; both padded to multiples of 8 */
    int32_t panel;                    /* output channels per convolution call: all channels or one panel */
    bool shared;                      /* weights are repacked once, for all output channels */
    bool keeps;  /* weights are repacked in their stored type, without conversion to f32 */
    bool direct; /* oneDNN writes directly to out, not to the workspace */
    struct conv_weights {
        uint64_t plain, packed,
            scratch; /* workspace offsets of f32 weights, repacked weights and oneDNN's scratch */
    } weights;       /* offsets from the workspace if `shared`, else from a thread's part */
    uint64_t norm, bias, slopes, in; /* workspace offsets of the norm, the bias, PReLU's slopes and the
                                        gathered input */
    uint64_t members;                /* workspace offset of the per-thread parts */
    uint64_t piece_out, piece_scratch, member_bytes; /* offsets within one thread's part; size of one part */
};

/* Returns how many input rows (or columns) n output rows (or columns) of a convolution read. */
static int32_t input_rows(const struct conv_layout *l, int32_t n) {
    return (n - 1) * l->stride + l->kernel;
}

static int32_t pad_channels(int32_t n) {
    return (n + CHANNEL_STEP - 1) / CHANNEL_STEP * CHANNEL_STEP;
}

/* Fills the sizes and decisions of a convolution's layout, but no workspace offsets. */
static void conv_shapes(const struct op *op, struct conv_layout *l) {
    const struct tensor *weight = &op->in[1];
    l->up = op->conv.upsample;
    l->kernel = weight->dim[2];
    l->stride = op->conv.stride == 2 ? 2 : 1;
    l->before = l->stride == 1 ? l->kernel / 2 : op->conv.pad_before;
    l->rows = op->out.dim[0];
    l->columns = op->out.dim[1];
    l->width = input_rows(l, l->columns);
    int32_t band = conv_band_rows(l->columns * l->stride);
    band = band < l->rows ? band : l->rows;
    l->n = weight->dim[0];
    l->c = weight->dim[1];
    l->n_padded = pad_channels(l->n);
    l->c_padded = pad_channels(l->c);
    int32_t panel = l->kernel == 1 ? PANEL_1X1 : PANEL, pixels = PANEL_PIXELS + l->columns - 1;
    l->shared = tensor_elements(weight) <= SHARED_MOST || l->n % panel;
    l->panel = l->shared ? l->n_padded : panel;
    l->piece = l->shared ? (band + PIECES - 1) / PIECES : pixels / l->columns;
    if (l->piece > band) l->piece = band;
    l->keeps = !l->shared && weights_are(weight, DTYPE_F32) && l->c == l->c_padded;
    l->direct = l->shared && l->n == l->n_padded && !op->in[3].rank && op->conv.scale == 1 &&
                op->conv.finish != FINISH_PRELU && tensor_packed(&op->out);
    l->band = band / l->piece * l->piece;
}

/* oneDNN keys for repacking weights and for convolving a piece (some rows of a band). All pieces have one
 * shape: the last piece repeats finished rows, because oneDNN may need another weight layout for another
 * height. */
static void conv_keys(const struct conv_layout *l, struct onednn_key keys[2]) {
    keys[1] = (struct onednn_key){ONEDNN_CONV,
                                  {l->piece, l->columns, l->c_padded, l->panel, l->kernel, l->stride - 1}};
    keys[0] = keys[1];
    keys[0].kind = ONEDNN_REPACK;
}

static struct conv_weights weights_layout(const struct cpu *cpu, const struct conv_layout *l,
                                          const struct onednn_key keys[2], uint64_t *used) {
    uint64_t values = (uint64_t)l->panel * (uint64_t)l->c_padded * (uint64_t)(l->kernel * l->kernel);
    struct conv_weights w = {.plain = workspace_take(used, l->keeps ? 0 : sizeof(float) * values)};
    w.packed = workspace_take(used, onednn_facts(cpu->onednn, &keys[1]).weights_bytes);
    w.scratch = workspace_take(used, scratch_bytes(cpu, keys, 1));
    return w;
}

static struct conv_layout cpu_conv_layout_of(const struct cpu *cpu, const struct op *op) {
    struct conv_layout l = {0};
    struct onednn_key keys[2];
    conv_shapes(op, &l);
    conv_keys(&l, keys);
    uint64_t used = 0, row = sizeof(float) * (uint64_t)l.c_padded * (uint64_t)l.width;
    uint64_t piece = sizeof(float) * (uint64_t)l.panel * (uint64_t)l.piece * (uint64_t)l.columns;
    uint64_t groups = op->conv.norm.statistics.rank ? channel_norm_bytes(l.c) : 0;
    l.norm = workspace_take(&used, op->conv.pixel_norm.weight.rank ? sizeof(float) * (uint64_t)l.c : groups);
    l.bias = workspace_take(&used, sizeof(float) * (uint64_t)l.n_padded);
    l.slopes = workspace_take(&used, op->conv.slopes.rank ? sizeof(float) * (uint64_t)l.n : 0);
    l.in = workspace_take(&used, row * (uint64_t)input_rows(&l, l.band));
    if (l.shared) l.weights = weights_layout(cpu, &l, keys, &used);
    l.members = used;
    used = 0;
    if (!l.shared) l.weights = weights_layout(cpu, &l, keys, &used);
    l.piece_out = workspace_take(&used, l.direct && l.rows % l.piece == 0 ? 0 : piece);
    l.piece_scratch = workspace_take(&used, scratch_bytes(cpu, keys + 1, 1));
    l.member_bytes = used;
    return l;
}

/* Number of work items of a band (pieces times panels). Pieces of a panel are consecutive, so a thread that
 * takes several pieces converts the weights once. */
static int64_t conv_items(const struct conv_layout *l, int32_t rows) {
    return (int64_t)((rows + l->piece - 1) / l->piece) * (l->n_padded / l->panel);
}

static void conv_cost(const struct cpu *cpu, const struct op *op, struct op_cost *cost) {
    struct conv_layout l = cpu_conv_layout_of(cpu, op);
    struct onednn_key keys[2];
    conv_keys(&l, keys);
    for (int i = 0; i < 2; i++) cost_add_primitive(cpu, &keys[i], cost);
    cost->workspace_bytes = l.members + l.member_bytes * (uint64_t)cpu_members(cpu, conv_items(&l, l.band));
}

static enum status conv_prepare(struct cpu *cpu, const struct op *op, struct error *e) {
    struct conv_layout l = {0};
    conv_shapes(op, &l);
    struct onednn_key keys[2];
    conv_keys(&l, keys);
    if (onednn_prepare(cpu->onednn, &keys[0], e) == OK) onednn_prepare(cpu->onednn, &keys[1], e);
    return e->code;
}

/* Norm applied to a convolution's input pixels: group norm, RMS norm, or none. */
struct conv_norm {
    bool groups, pixels;          /* a group norm; an RMS norm of each pixel */
    struct channel_norm channels; /* vectors of the group norm */
    const float *factor;          /* weight of the RMS norm; NULL: 1 */
    float eps;
};

/* State shared by the threads of one convolution while they compute one band of rows. */
struct conv_work {
    struct cpu *cpu;
    const struct op *op;
    const struct conv_layout *layout;
    const struct conv_norm *norm;
    const float *slopes; /* slopes of FINISH_PRELU; NULL: none */
    char *workspace;
    int32_t first, rows, lead; /* rows of out in this band; lead: finished rows above, computed again if one
                                  piece exceeds the band */
    struct thread_pool_error *failed;
};

/* Converts output channels [first, end) of [N,C,k,k] to f32, with zeros for padding channels. */
static void cpu_pad_weights(const struct conv_work *w, int64_t first, int64_t end, float *to) {
    const struct conv_layout *l = w->layout;
    int64_t taps = l->kernel * l->kernel, from_row = l->c * taps, to_row = l->c_padded * taps;
    int64_t rows = (int64_t)l->c * l->kernel;
    for (int64_t n = first; n < end; n++, to += to_row) {
        int64_t filled = n < l->n ? from_row : 0;
        if (filled) weights_widen(to, &w->op->in[1], n * rows, rows);
        memset(to + filled, 0, (size_t)(to_row - filled) * sizeof *to);
    }
}

static void pad_shared_weights(const void *context, int64_t first, int64_t end, int member) {
    (void)member;
    const struct conv_work *w = context;
    const struct conv_layout *l = w->layout;
    int64_t row = (int64_t)l->c_padded * l->kernel * l->kernel;
    cpu_pad_weights(w, first, end, (float *)(w->workspace + l->weights.plain) + first * row);
}

/* Repacks weights for oneDNN. part: base address of the layout's weight offsets. */
static enum status repack(const struct conv_work *w, const float *plain, char *part, struct error *e) {
    struct onednn_key keys[2];
    conv_keys(w->layout, keys);
    struct onednn_operands operands = {
        .src = plain, .dst = part + w->layout->weights.packed, .scratch = part + w->layout->weights.scratch};
    return onednn_run(w->cpu->onednn, &keys[0], operands, e);
}

static void gather_pixel(const struct conv_layout *l, const float *from, const struct conv_norm *norm,
                         enum activation activation, float *to) {
    if (norm->groups)
        channel_norm_apply(&norm->channels, to, from, l->c);
    else if (norm->pixels)
        rms_norm_run(to, from, norm->factor, norm->eps, l->c);
    else
        memcpy(to, from, (size_t)l->c * sizeof *to);
    simd_activate(activation, to, to, l->c);
    memset(to + l->c, 0, (size_t)(l->c_padded - l->c) * sizeof *to);
}

/* Gathers row y of the upsampled input of a convolution, with zero padding left and right. Rows outside the
 * image are zero. Every row of the image can be read, even if `out` holds only a band of the result. */
static void gather_row(const struct op *op, const struct conv_layout *l, const struct conv_norm *norm,
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

static void gather_rows(const void *context, int64_t first, int64_t end, int member) {
    (void)member;
    const struct conv_work *w = context;
    const struct conv_layout *l = w->layout;
    int64_t row = (int64_t)l->c_padded * l->width;
    int32_t above = (w->op->conv.first_row + w->first - w->lead) * l->stride - l->before;
    for (int64_t y = first; y < end; y++)
        gather_row(w->op, l, w->norm, above + (int32_t)y, (float *)(w->workspace + l->in) + y * row);
}

/* Writes scale * from + residual to `to`; residual may be NULL or alias `to`. */
WIDE static void finish_pixel(float *to, const float *from, float scale, const float *residual, int64_t n) {
    if (!residual)
#pragma omp simd
        for (int64_t i = 0; i < n; i++) to[i] = scale * from[i];
    else
#pragma omp simd
        for (int64_t i = 0; i < n; i++) to[i] = scale * from[i] + residual[i];
}

/* Computes ReLU as (x + |x|) / 2: comparisons would keep gcc from vectorising. NaN stays NaN. */
WIDE static void finish_relu(float *values, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        union float_bits size = {.value = values[i]};
        size.bits &= 0x7fffffffu;
        values[i] = 0.5f * (values[i] + size.value);
    }
}

/* Returns v, or slope * v if v is negative, without a comparison. NaN stays NaN. */
static inline float leaky(float v, float slope) {
    union float_bits whole = {.value = v}, scaled = {.value = slope * v};
    uint32_t negative = 0u - (whole.bits >> 31);
    whole.bits = (whole.bits & ~negative) | (scaled.bits & negative);
    return whole.value;
}

WIDE static void finish_leaky(float *values, float slope, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) values[i] = leaky(values[i], slope);
}

WIDE static void finish_prelu(float *values, const float *slopes, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) values[i] = leaky(values[i], slopes[i]);
}

WIDE static void finish_to_signed(float *values, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) values[i] = 2 * values[i] - 1;
}

/* slopes: of the first value's channel; read with FINISH_PRELU. */
static void finish_values(const struct conv_options *o, float *values, const float *slopes, int64_t n) {
    if (o->finish == FINISH_RELU) finish_relu(values, n);
    if (o->finish == FINISH_LEAKY_RELU) finish_leaky(values, o->slope, n);
    if (o->finish == FINISH_PRELU) finish_prelu(values, slopes, n);
    if (o->finish == FINISH_TO_SIGNED) finish_to_signed(values, n);
}

/* Result of one oneDNN convolution call: some rows of out, one panel of output channels. */
struct piece {
    int32_t row, rows, output; /* first row of out, number of new rows, first output channel */
    const float *result;       /* oneDNN's packed result */
};

static void finish_piece(const struct conv_work *w, struct piece p) {
    const struct op *op = w->op;
    const struct conv_layout *l = w->layout;
    const struct tensor *residual = &op->in[3];
    int64_t start = (int64_t)p.row * l->columns, n = (int64_t)p.rows * l->columns;
    int64_t outputs = l->shared ? l->n : l->panel;
    for (int64_t i = 0; i < n; i++) {
        float *to = tensor_row(&op->out, start + i) + p.output;
        finish_pixel(to, p.result + i * l->panel, op->conv.scale,
                     residual->rank ? tensor_row(residual, start + i) + p.output : NULL, outputs);
        finish_values(&op->conv, to, w->slopes ? w->slopes + p.output : NULL, outputs);
    }
}

/* Convolves one piece: rows of a band from row `first` on, one panel of output channels. */
static enum status convolve_piece(const struct conv_work *w, int32_t first, int32_t output, char *part,
                                  struct error *e) {
    const struct conv_layout *l = w->layout;
    int32_t left = w->rows - first, rows = left < l->piece ? left : l->piece, done = l->piece - rows;
    int64_t before = (int64_t)l->c_padded * l->width * (w->lead + first - done) * l->stride;
    float *out = (float *)(part + l->piece_out);
    bool direct = l->direct && !done;
    if (direct) out = tensor_row(&w->op->out, (int64_t)(w->first + first) * l->columns);
    struct onednn_key keys[2];
    conv_keys(l, keys);
    struct onednn_operands operands = {.src = (const float *)(w->workspace + l->in) + before,
                                       .weights = (l->shared ? w->workspace : part) + l->weights.packed,
                                       .bias = (const float *)(w->workspace + l->bias) + output,
                                       .dst = out,
                                       .scratch = part + l->piece_scratch};
    if (onednn_run(w->cpu->onednn, &keys[1], operands, e)) return e->code;
    if (direct) {
        finish_values(&w->op->conv, out, NULL, (int64_t)rows * l->columns * l->n);
        return OK;
    }
    out += (int64_t)done * l->columns * l->panel;
    finish_piece(w, (struct piece){w->first + first, rows, output, out});
    return OK;
}

static void convolve_pieces(const void *context, int64_t first, int64_t end, int member) {
    const struct conv_work *w = context;
    const struct conv_layout *l = w->layout;
    char *part = w->workspace + l->members + l->member_bytes * (uint64_t)member;
    int32_t pieces = (w->rows + l->piece - 1) / l->piece, packed = -1;
    struct error own = {0};
    for (int64_t i = first; i < end && !own.code; i++) {
        int32_t panel = (int32_t)(i / pieces), output = panel * l->panel;
        if (!l->shared && panel != packed) {
            float *plain = (float *)(part + l->weights.plain);
            if (l->keeps)
                plain = tensor_row(&w->op->in[1], (int64_t)output * l->c * l->kernel);
            else
                cpu_pad_weights(w, output, output + l->panel, plain);
            repack(w, plain, part, &own);
        }
        packed = panel;
        if (!own.code) convolve_piece(w, (int32_t)(i % pieces) * l->piece, output, part, &own);
    }
    if (own.code) thread_pool_error_report(w->failed, &own);
}

static enum status conv_run(struct cpu *cpu, const struct op *op, char *workspace, struct error *e) {
    struct conv_layout l = cpu_conv_layout_of(cpu, op);
    const struct pixel_norm *pixel = &op->conv.pixel_norm;
    struct conv_norm norm = {.groups = op->conv.norm.statistics.rank > 0,
                             .pixels = conv_norms_pixels(&op->conv),
                             .eps = pixel->eps};
    if (norm.groups) norm.channels = channel_norm(&op->conv.norm, l.c, workspace + l.norm);
    norm.factor = weights_vector(&pixel->weight, (float *)(workspace + l.norm));
    float *bias = (float *)(workspace + l.bias), *plain = (float *)(workspace + l.weights.plain);
    memset(bias, 0, (size_t)l.n_padded * sizeof *bias);
    if (op->in[2].rank) weights_widen(bias, &op->in[2], 0, 1);
    struct thread_pool_error failed = {ATOMIC_FLAG_INIT, e};
    const float *slopes = weights_vector(&op->conv.slopes, (float *)(workspace + l.slopes));
    struct conv_work work = {cpu, op, &l, &norm, slopes, workspace, .failed = &failed};
    if (l.shared) {
        thread_pool_run(cpu->thread_pool, l.n_padded, pad_shared_weights, &work);
        if (repack(&work, plain, workspace, e)) return e->code;
    }
    for (; work.first < l.rows && !e->code; work.first += l.band) {
        work.rows = l.rows - work.first < l.band ? l.rows - work.first : l.band;
        work.lead = work.rows < l.piece ? l.piece - work.rows : 0;
        thread_pool_run(cpu->thread_pool, input_rows(&l, work.rows + work.lead), gather_rows, &work);
        thread_pool_run(cpu->thread_pool, conv_items(&l, work.rows), convolve_pieces, &work);
    }
    return e->code;
}

const struct cpu_operator cpu_conv2d = {.cost = conv_cost, .prepare = conv_prepare, .run = conv_run};
