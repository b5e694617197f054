/* 2D convolution of an image, in bands of rows, through cudnn.h; conv.h describes the variants.
 *
 * A kernel gathers a band's input with its halo into the workspace: upsampled, normed and activated, channels
 * padded, with zero padding around the image. The library therefore computes one kind of convolution, without
 * padding. `out` may overlap `in` as ops.h allows, because a band is gathered before it is written and bands
 * run in order on one stream. Three launches per band, more if large bands have a residual
 * (conv_finish_rows). Besides the convolution a band moves 12 bytes per input value and 16 per output value,
 * with f16 8 and 14. */
#include "kernels/cuda/conv.h"

#include "kernels/cuda/cast.h"
#include "kernels/cuda/cudnn.h"
#include "kernels/cuda/norm.cuh"

static_assert((int)CONV_LIBRARY_BYTES == (int)CONVOLUTIONS_WORKSPACE, "conv.h and cudnn.h must agree");

struct gather_shape {
    int32_t rows, columns; /* size of the upsampled input, less a cut row or column */
    int32_t in_columns;    /* columns of the input */
    int32_t upsample, left, first;
    int32_t width; /* columns of the gathered band, zero padding included */
    int32_t channels, padded;
    enum activation activation;
};

/* Returns the index of the input pixel that a pixel of the gathered band copies; -1: zero padding. */
__device__ static inline int64_t source_of(const struct gather_shape &s, uint32_t pixel) {
    int32_t y = (int32_t)(pixel / (uint32_t)s.width) + s.first;
    int32_t x = (int32_t)(pixel % (uint32_t)s.width) - s.left;
    int half = s.upsample - 1; /* base-2 logarithm of the upsampling factor */
    bool inside = y >= 0 && y < s.rows && x >= 0 && x < s.columns;
    return inside ? (int64_t)(y >> half) * s.in_columns + (x >> half) : -1;
}

/* Gathers four channels of each pixel of a band: normed and activated; zeros beyond the image and the
 * channels. Grid: rows_grid_of, rows are pixels of the band; no shared memory; 40 registers. Bytes: 8 per
 * value, 6 in f16 (4 of them / upsample^2 if the cache holds a row of `in`); FLOPs: 7. Bound by memory; share
 * of peak: not measured yet. */
static __global__ void __launch_bounds__(ROWS_THREADS, 1)
    gather_pixels(struct rows to, struct rows in, struct rows norm, struct gather_shape s, uint32_t pixels) {
    int64_t i = 4 * first_quad();
    if (i >= s.padded) return;
    for (int64_t pixel = first_row(); pixel < pixels; pixel += next_row()) {
        int64_t source = source_of(s, (uint32_t)pixel);
        float4 v = all_four(0);
        if (source >= 0 && i < s.channels) {
            v = rows_load_f32(in, source, i, s.channels);
            if (norm.data) {
                float4 mean = rows_load_f32(norm, 0, i, s.channels);
                v = make_float4(v.x - mean.x, v.y - mean.y, v.z - mean.z, v.w - mean.w);
                v = add_four(multiply_four(v, rows_load_f32(norm, 1, i, s.channels)),
                             rows_load_f32(norm, 2, i, s.channels));
            }
            v = activate_four(v, s.activation);
        }
        rows_store_kind<ROWS_ANY>(to, pixel, i, s.padded, v);
    }
}

struct normed_call {
    struct rows to, in, factor; /* factor: weight of the norm, may be absent */
    struct gather_shape s;
    struct runs runs; /* the norm runs over `padded` channels of one pixel of the band */
    float eps;
};

__device__ static inline float4 load_source(const struct normed_call &g, int64_t source, int64_t i) {
    return source < 0 ? all_four(0) : rows_load_f32(g.in, source, i, g.s.channels);
}

/* Gathers a pixel of a band with RMS norm over its channels, factors and activation. A team of threads holds
 * the pixel in registers as in rms_norm and reads the pixel once; zeros as in gather_pixels. Grid: one team
 * per pixel (norm_team_of), blocks of 128 threads or one team; shared memory: 128 bytes; 36 registers with
 * one group of four per thread, 48 with four. Bytes and bound as gather_pixels; FLOPs: 8; share of peak: not
 * measured yet. */
template <int HELD> static __global__ void __launch_bounds__(512) gather_normed(const struct normed_call g) {
    SMEM_ARRAY(float, parts, WARP);
    struct run run = run_of(g.runs);
    int32_t channels = g.s.channels, quads = quads_of<HELD>(g.runs);
    int64_t source = source_of(g.s, (uint32_t)run.row);
    float4 held[HELD ? HELD : 1];
    for (int j = 0; j < HELD; j++) held[j] = load_source(g, source, column_of(g.runs, run, j));
    float sum = 0;
    for (int j = 0; j < quads; j++) {
        float4 v = HELD ? held[HELD ? j : 0] : load_source(g, source, column_of(g.runs, run, j));
        sum += sum_four(multiply_four(v, v));
    }
    float mean = team_sum(sum, g.runs.threads, parts) / (float)channels;
    float4 rstd = all_four(source < 0 ? 0 : 1.0f / sqrtf(mean + g.eps));
#pragma unroll HELD ? HELD : 1 /* unrolled, so that held[] stays in registers */
    for (int j = 0; j < quads; j++) {
        int64_t i = column_of(g.runs, run, j);
        float4 v = HELD ? held[HELD ? j : 0] : load_source(g, source, i);
        v = multiply_four(v, rstd);
        if (g.factor.data) v = multiply_four(v, rows_load_f32(g.factor, 0, i, channels));
        rows_store_kind<ROWS_ANY>(g.to, run.row, i, run.end, activate_four(v, g.s.activation));
    }
}

/* Shape of packed weights [phases, N padded, side, side, C padded] and of their source [N, C, k, k]. */
struct packed_shape {
    int32_t outputs, channels, kernel; /* N, C and k */
    int32_t side, n_padded, c_padded;
    bool doubled;
};

/* Returns the first source row (or column) that is summed into row (or column) `tap` of the packed kernel,
 * and sets *end to the one after the last. phase: 0 for even output rows (or columns), 1 for odd ones. */
__device__ static inline int32_t taps_from(const packed_shape &s, int32_t tap, int32_t phase, int32_t *end) {
    *end = !s.doubled ? tap + 1 : tap ? 3 : 1 + phase;
    return !s.doubled ? tap : tap ? 1 + phase : 0;
}

/* Rearranges weights for the library: four input channels of one tap of one output, in f32 or f16. Padding
 * beyond N and C is written as zero without reading. PLAIN: unquantised weights. Grid: rows_grid_of, rows are
 * phases x outputs x taps; no shared memory; 56 registers, quantised weights 60. Bytes: 4 per value (f16: 2)
 * plus the source, which is read with a stride of k k values: caches combine full lines. Bound by memory;
 * share of peak: not measured yet. */
template <bool PLAIN>
static __global__ void __launch_bounds__(ROWS_THREADS, 1)
    cuda_pad_weights(struct rows to, struct rows from, packed_shape s, int64_t rows) {
    int64_t i = 4 * first_quad();
    if (i >= s.c_padded) return;
    uint32_t taps = (uint32_t)(s.side * s.side), n_padded = (uint32_t)s.n_padded;
    for (int64_t row = first_row(); row < rows; row += next_row()) {
        uint32_t output = (uint32_t)row / taps, tap = (uint32_t)row % taps, phase = output / n_padded;
        int32_t n = (int32_t)(output % n_padded), y_end, x_end;
        int32_t y_first = taps_from(s, (int32_t)tap / s.side, (int32_t)phase / 2, &y_end);
        int32_t x_first = taps_from(s, (int32_t)tap % s.side, (int32_t)phase % 2, &x_end);
        float4 v = all_four(0);
        for (int j = 0; j < 4; j++) {
            float sum = 0;
            for (int32_t y = y_first; y < y_end && n < s.outputs && i + j < s.channels; y++)
                for (int32_t x = x_first; x < x_end; x++) {
                    int64_t at = (((int64_t)n * s.channels + i + j) * s.kernel + y) * s.kernel + x;
                    sum += PLAIN ? value_at(from.data, from.dtype, at) : rows_value(from, 0, at);
                }
            /* An array with a variable index would be placed in local memory. */
            v = make_float4(j == 0 ? sum : v.x, j == 1 ? sum : v.y, j == 2 ? sum : v.z, j == 3 ? sum : v.w);
        }
        rows_store_kind<ROWS_ANY>(to, row, i, s.c_padded, v);
    }
}

/* NaN stays NaN; fmaxf(x, 0) would return 0. */
__device__ static inline float relu(float x) {
    return x < 0 ? 0 : x;
}

/* NaN stays NaN. */
__device__ static inline float leaky(float x, float slope) {
    return x < 0 ? slope * x : x;
}

/* slopes: of the four channels, read with FINISH_LEAKY_RELU and FINISH_PRELU. */
__device__ static inline float4 finish_four(float4 v, enum finishing finish, float4 slopes) {
    switch (finish) {
    case FINISH_NONE:
        break;
    case FINISH_RELU:
        return make_float4(relu(v.x), relu(v.y), relu(v.z), relu(v.w));
    case FINISH_LEAKY_RELU:
    case FINISH_PRELU:
        return make_float4(leaky(v.x, slopes.x), leaky(v.y, slopes.y), leaky(v.z, slopes.z),
                           leaky(v.w, slopes.w));
    case FINISH_TO_SIGNED:
        return make_float4(2 * v.x - 1, 2 * v.y - 1, 2 * v.z - 1, 2 * v.w - 1);
    }
    return v;
}

struct finish_call {
    struct rows out, from, bias, residual, slopes; /* from: library results [pixel, phase][N padded] */
    int64_t pixels;
    int32_t channels, columns;
    float factor; /* power of two by which values of `from` are multiplied */
    float scale;  /* factor of convolution and bias */
    float slope;  /* factor of negative values without `slopes` */
    bool doubled;
    int32_t row, library_row, library_columns; /* doubled: row of the image and library row of pixel 0 */
    enum finishing finish;
};

/* Returns the row of `from` that holds an output pixel. */
__device__ static inline int64_t result_of(const struct finish_call &f, int64_t pixel) {
    if (!f.doubled) return pixel;
    int32_t y = f.row + (int32_t)((uint32_t)pixel / (uint32_t)f.columns),
            x = (int32_t)((uint32_t)pixel % (uint32_t)f.columns);
    int64_t from_row = (y + 1) / 2 - f.library_row;
    return 4 * (from_row * f.library_columns + (x + 1) / 2) + y % 2 * 2 + x % 2;
}

/* out = finish(scale (factor from + bias) + residual) for four channels of a pixel. Grid: rows_grid_of, rows
 * are pixels; no shared memory; 34 registers. Bytes: 8 per value (6 from f16), 12 with a residual. Bound by
 * memory; share of peak: not measured yet. */
static __global__ void __launch_bounds__(ROWS_THREADS, 1) finish_pixels(const struct finish_call f) {
    int64_t i = 4 * first_quad();
    if (i >= f.channels) return;
    for (int64_t pixel = first_row(); pixel < f.pixels; pixel += next_row()) {
        float4 v = rows_load_plain(f.from, result_of(f, pixel), i, f.channels);
        v = multiply_four(v, all_four(f.factor));
        if (f.bias.data) v = add_four(v, rows_load_f32(f.bias, 0, i, f.channels));
        v = multiply_four(v, all_four(f.scale));
        if (f.residual.data) v = add_four(v, rows_load_f32(f.residual, pixel, i, f.channels));
        float4 slopes = f.slopes.data ? rows_load_f32(f.slopes, 0, i, f.channels) : all_four(f.slope);
        rows_store(f.out, pixel, i, f.channels, finish_four(v, f.finish, slopes));
    }
}

struct call {
    struct cuda *cuda;
    const struct op *op;
    struct conv_layout l;
    const float *norm, *pixel_norm, *bias, *slopes;
    char *workspace;
};

/* Returns row access to values in the workspace, in the type of the library's operands. */
static struct rows rows_values(const struct call *c, uint64_t at, int64_t columns) {
    return rows_at(c->workspace + at, columns * (int64_t)conv_value_bytes(&c->l),
                   c->l.f16 ? DTYPE_F16 : DTYPE_F32);
}

/* Queues the gathering of the input for `rows` rows of out, from row `first` of the operator's rows on, into
 * the workspace [rows, columns, C padded]. */
static void gather_band(const struct call *c, int32_t first, int32_t rows) {
    const struct tensor *in = &c->op->in[0];
    const struct conv_options *o = &c->op->conv;
    const struct conv_layout *l = &c->l;
    struct gather_shape s = {};
    s.upsample = l->doubled ? 1 : o->upsample;
    s.rows = in->dim[0] * s.upsample - o->cut_row;
    s.columns = in->dim[1] * s.upsample - o->cut_column;
    s.in_columns = in->dim[1];
    s.left = l->halo;
    s.first = (l->doubled ? (o->first_row + first) / 2 : (o->first_row + first) * l->stride) - l->halo;
    s.width = conv_reach(l, l->columns);
    s.channels = in->dim[2];
    s.padded = l->c_padded;
    s.activation = o->activation;
    int64_t pixels = (int64_t)conv_reach(l, rows) * s.width;
    cudaStream_t stream = c->cuda->compute;
    if (!conv_norms_pixels(o)) {
        struct rows_grid g = rows_grid_of(pixels, s.padded / 4);
        LAUNCH(gather_pixels, g.grid, g.block, 0, stream, rows_values(c, l->in, s.padded), rows_of(in),
               rows_floats(c->norm, cuda_channel_norm_stride(s.channels)), s, (uint32_t)pixels);
        return;
    }
    struct norm_team team = norm_team_of(s.padded);
    struct normed_call call = {};
    call.s = s;
    call.to = rows_values(c, l->in, s.padded);
    call.in = rows_of(in);
    call.factor = rows_floats(c->pixel_norm, 0);
    call.runs = {pixels, 1, s.padded, team.threads};
    call.eps = o->pixel_norm.eps;
    unsigned blocks = blocks_of(&call.runs, &team);
    if (team.held == 1)
        LAUNCH((gather_normed<1>), blocks, team.block, 0, stream, call);
    else if (team.held == 4)
        LAUNCH((gather_normed<4>), blocks, team.block, 0, stream, call);
    else
        LAUNCH((gather_normed<0>), blocks, team.block, 0, stream, call);
}

/* Returns row access to an image whose first pixel is pixel `first`. */
static struct rows rows_from(const struct tensor *t, int64_t first) {
    return t->rank ? rows_at(static_cast<char *>(t->data) + first * t->row_bytes, t->row_bytes, DTYPE_F32)
                   : rows_of(t);
}

static struct convolution_key cuda_conv_key_of(const struct conv_layout *l, int32_t rows) {
    return {conv_library_size(l, rows),
            conv_library_size(l, l->columns),
            l->c_padded,
            l->n_padded * l->phases,
            l->side,
            l->stride,
            l->f16};
}

/* Queues the pass that adds bias and residual and finishes `rows` rows of out, from row `first` on. band:
 * first row of the band. */
static void finish_rows_of(const struct call *c, int32_t band, int32_t first, int32_t rows) {
    const struct op *op = c->op;
    const struct conv_layout *l = &c->l;
    int64_t pixel = (int64_t)first * l->columns;
    struct finish_call f = {};
    f.pixels = (int64_t)rows * l->columns;
    f.channels = op->out.dim[2];
    f.columns = l->columns;
    f.out = rows_from(&op->out, pixel);
    f.from = rows_values(c, l->out, l->n_padded);
    if (!l->doubled) f.from.data += (int64_t)(first - band) * l->columns * f.from.step;
    f.bias = rows_floats(c->bias, 0);
    f.residual = rows_from(&op->in[3], pixel);
    f.slopes = rows_floats(c->slopes, 0);
    f.factor = l->f16 ? 1 / CONVOLUTION_HALF_SCALE : 1;
    f.scale = op->conv.scale;
    f.slope = op->conv.slope;
    f.doubled = l->doubled;
    f.row = op->conv.first_row + first;
    f.library_row = (op->conv.first_row + band) / 2;
    f.library_columns = conv_library_size(l, l->columns);
    f.finish = op->conv.finish;
    struct rows_grid g = rows_grid_of(f.pixels, ((int64_t)f.channels + 3) / 4);
    LAUNCH(finish_pixels, g.grid, g.block, 0, c->cuda->compute, f);
}

static enum status cuda_run_band(const struct call *c, int32_t first, struct error *e) {
    const struct conv_layout *l = &c->l;
    int32_t rows = l->rows - first < l->band ? l->rows - first : l->band, each = conv_finish_rows(c->op, l);
    gather_band(c, first, rows);
    struct convolution_key key = cuda_conv_key_of(l, rows);
    struct convolution_operands operands = {c->workspace + l->in, c->workspace + l->weights,
                                            c->workspace + l->out, c->workspace + l->library};
    if (convolutions_run(c->cuda->convolutions, &key, &operands, c->cuda->compute, e)) return e->code;
    for (int32_t row = first; row < first + rows; row += each)
        finish_rows_of(c, first, row, first + rows - row < each ? first + rows - row : each);
    return OK;
}

/* Returns a bias, slopes or norm vector as f32, converted to `to` if needed; NULL if absent. */
static const float *cuda_conv_ready(const struct cuda *cuda, const struct tensor *vector, float *to) {
    if (!vector->rank) return NULL;
    if (!conv_widens(vector)) return static_cast<const float *>(vector->data);
    cuda_widen_vector(to, vector, tensor_columns(vector), cuda->compute);
    return to;
}

static enum status cuda_conv_run(struct cuda *cuda, const struct op *op, char *workspace, struct error *e) {
    struct call c = {cuda, op, cuda_conv_layout(op), NULL, NULL, NULL, NULL, workspace};
    const struct tensor *weight = &op->in[1];
    float *norm = reinterpret_cast<float *>(workspace + c.l.norm);
    c.pixel_norm = cuda_conv_ready(cuda, &op->conv.pixel_norm.weight, norm);
    if (op->conv.norm.statistics.rank) {
        cuda_channel_norm(norm, &op->conv.norm, op->in[0].dim[2], cuda->compute);
        c.norm = norm;
    }
    c.bias = cuda_conv_ready(cuda, &op->in[2], reinterpret_cast<float *>(workspace + c.l.bias));
    c.slopes = cuda_conv_ready(cuda, &op->conv.slopes, reinterpret_cast<float *>(workspace + c.l.slopes));
    struct packed_shape packed = {weight->dim[0], weight->dim[1], c.l.kernel, c.l.side,
                                  c.l.n_padded,   c.l.c_padded,   c.l.doubled};
    int64_t rows = (int64_t)c.l.phases * c.l.n_padded * c.l.side * c.l.side;
    struct rows_grid g = rows_grid_of(rows, c.l.c_padded / 4);
    struct rows to = rows_values(&c, c.l.weights, c.l.c_padded);
    if (weight_is_plain(weight))
        LAUNCH((cuda_pad_weights<true>), g.grid, g.block, 0, cuda->compute, to, rows_vector(weight), packed,
               rows);
    else
        LAUNCH((cuda_pad_weights<false>), g.grid, g.block, 0, cuda->compute, to, rows_vector(weight), packed,
               rows);
    for (int32_t first = 0; first < c.l.rows; first += c.l.band)
        if (cuda_run_band(&c, first, e)) return e->code;
    return cuda_launched(op, e);
}

static enum status cuda_conv_prepare(struct cuda *cuda, const struct op *op, struct error *e) {
    if (!cuda->convolutions)
        return error_set(e, DEVICE, "convolutions need cuDNN 9, which is not installed" FOUND "%s",
                         cuda->cudnn_missing);
    struct conv_layout l = cuda_conv_layout(op);
    struct convolution_key key = cuda_conv_key_of(&l, l.band), last = cuda_conv_key_of(&l, l.rows % l.band);
    if (convolutions_prepare(cuda->convolutions, &key, e)) return e->code;
    return l.rows % l.band ? convolutions_prepare(cuda->convolutions, &last, e) : OK;
}

/* The convolution also launches kernels of cast.cu; the kernel list of cuda_linear has them for loading. */
static const void *const kernels[] = {KERNEL(gather_pixels),          KERNEL(gather_normed<0>),
                                      KERNEL(gather_normed<1>),       KERNEL(gather_normed<4>),
                                      KERNEL(cuda_pad_weights<true>), KERNEL(cuda_pad_weights<false>),
                                      KERNEL(finish_pixels),          NULL};

const struct cuda_operator cuda_conv2d = {cuda_conv_prepare, cuda_conv_run, kernels};
