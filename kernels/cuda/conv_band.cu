#include "kernels/cuda/conv_band.h"

#include "kernels/cuda/cast.h"
#include "kernels/cuda/norm.cuh"

struct gather_shape {
    int32_t rows, columns; /* size of the upsampled input, without a cut last row or column */
    int32_t in_columns;    /* columns of the input */
    int32_t upsample, left, first;
    int32_t width; /* columns of the band, with zero padding */
    int32_t channels, padded;
    enum activation activation;
};

/* Returns the input pixel of a band's pixel; -1: zero padding. */
__device__ static inline int64_t source_of(const struct gather_shape &s, uint32_t pixel) {
    int32_t y = (int32_t)(pixel / (uint32_t)s.width) + s.first;
    int32_t x = (int32_t)(pixel % (uint32_t)s.width) - s.left;
    int half = s.upsample - 1; /* base-2 logarithm of the upsampling factor */
    bool inside = y >= 0 && y < s.rows && x >= 0 && x < s.columns;
    return inside ? (int64_t)(y >> half) * s.in_columns + (x >> half) : -1;
}

/* Gathers four channels of each pixel of a band: normed and activated; zeros beyond the image and the
 * channels. Grid: rows_grid_of, rows are pixels of the band; no shared memory; 39 registers. Bytes: 8 per
 * value (4 + 4 / upsample^2 if the cache holds a row of `in`); FLOPs: 7. Bound by memory; share of peak: not
 * measured yet. */
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
        rows_store(to, pixel, i, s.padded, v);
    }
}

struct normed_call {
    struct rows to, in, factor;
    struct gather_shape s;
    struct runs runs; /* one run of `padded` channels per pixel of the band */
    float eps;
};

__device__ static inline float4 load_source(const struct normed_call &g, int64_t source, int64_t i) {
    return source < 0 ? all_four(0) : rows_load_f32(g.in, source, i, g.s.channels);
}

/* Gathers a pixel of a band with RMS norm over its channels, factors and activation. A team of threads holds
 * the pixel in registers as in rms_norm and reads the pixel once; zeros as in gather_pixels. Grid: one team
 * per pixel (norm_team_of), blocks of 128 threads or one team; shared memory: 128 bytes; 30 registers with
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
        v = multiply_four(multiply_four(v, rstd), rows_load_f32(g.factor, 0, i, channels));
        rows_store(g.to, run.row, i, run.end, activate_four(v, g.s.activation));
    }
}

static void gather_normed_pixels(float *to, const struct conv_gather *gather, const struct gather_shape *s,
                                 cudaStream_t stream) {
    struct norm_team team = norm_team_of(s->padded);
    struct normed_call call = {};
    call.s = *s;
    call.to = rows_floats(to, s->padded);
    call.in = rows_of(gather->in);
    call.factor = rows_floats(gather->pixel_norm, 0);
    call.runs = {(int64_t)gather->rows * s->width, 1, s->padded, team.threads};
    call.eps = gather->eps;
    unsigned blocks = blocks_of(&call.runs, &team);
    if (team.held == 1)
        LAUNCH((gather_normed<1>), blocks, team.block, 0, stream, call);
    else if (team.held == 4)
        LAUNCH((gather_normed<4>), blocks, team.block, 0, stream, call);
    else
        LAUNCH((gather_normed<0>), blocks, team.block, 0, stream, call);
}

void cuda_conv_gather(float *to, const struct conv_gather *gather, cudaStream_t stream) {
    const struct tensor *in = gather->in;
    struct gather_shape s = {.in_columns = in->dim[1], .upsample = gather->upsample};
    s.rows = in->dim[0] * s.upsample - gather->cut_row;
    s.columns = in->dim[1] * s.upsample - gather->cut_column;
    s.left = gather->left;
    s.first = gather->first;
    s.width = gather->columns;
    s.channels = in->dim[2];
    s.padded = conv_pad_channels(s.channels);
    s.activation = gather->activation;
    if (gather->pixel_norm) {
        gather_normed_pixels(to, gather, &s, stream);
        return;
    }
    int64_t pixels = (int64_t)gather->rows * s.width;
    struct rows_grid g = rows_grid_of(pixels, s.padded / 4);
    LAUNCH(gather_pixels, g.grid, g.block, 0, stream, rows_floats(to, s.padded), rows_of(in),
           rows_floats(gather->norm, cuda_channel_norm_stride(s.channels)), s, (uint32_t)pixels);
}

/* Rearranges four input channels of one tap of one output. Padding beyond N and C is written as zero without
 * reading. Grid: rows_grid_of, rows are outputs x taps; no shared memory; 40 registers. Bytes: 4 per value
 * plus the source, which is read with a stride of k k values: caches combine full lines. Bound by memory;
 * share of peak: not measured yet. */
static __global__ void __launch_bounds__(ROWS_THREADS, 1)
    cuda_pad_weights(struct rows to, struct rows from, int32_t outputs, int32_t channels, int32_t taps,
                     int64_t rows, int32_t padded) {
    int64_t i = 4 * first_quad();
    if (i >= padded) return;
    for (int64_t row = first_row(); row < rows; row += next_row()) {
        int32_t n = (int32_t)((uint32_t)row / (uint32_t)taps),
                tap = (int32_t)((uint32_t)row % (uint32_t)taps);
        float v[4];
        for (int j = 0; j < 4; j++)
            v[j] = n < outputs && i + j < channels
                       ? rows_value(from, 0, ((int64_t)n * channels + i + j) * taps + tap)
                       : 0;
        rows_store(to, row, i, padded, make_float4(v[0], v[1], v[2], v[3]));
    }
}

void cuda_conv_pad_weights(float *to, const struct tensor *weight, cudaStream_t stream) {
    int32_t n = weight->dim[0], c = weight->dim[1], taps = weight->dim[2] * weight->dim[3];
    int32_t padded = conv_pad_channels(c);
    int64_t rows = (int64_t)conv_pad_channels(n) * taps;
    struct rows_grid g = rows_grid_of(rows, padded / 4);
    LAUNCH(cuda_pad_weights, g.grid, g.block, 0, stream, rows_floats(to, padded), rows_vector(weight), n, c,
           taps, rows, padded);
}

/* NaN stays NaN; fmaxf(x, 0) would return 0. */
__device__ static inline float relu(float x) {
    return x < 0 ? 0 : x;
}

__device__ static inline float4 finish_four(float4 v, enum finishing finish) {
    switch (finish) {
    case FINISH_NONE:
        break;
    case FINISH_RELU:
        return make_float4(relu(v.x), relu(v.y), relu(v.z), relu(v.w));
    case FINISH_TO_SIGNED:
        return make_float4(2 * v.x - 1, 2 * v.y - 1, 2 * v.z - 1, 2 * v.w - 1);
    }
    return v;
}

/* out = finish(from + bias + residual) for four channels of a pixel. Grid: rows_grid_of, rows are pixels; no
 * shared memory; 26 registers. Bytes: 8 per value, 12 with a residual. Bound by memory; share of peak: not
 * measured yet. */
static __global__ void __launch_bounds__(ROWS_THREADS, 1)
    finish_pixels(struct rows out, struct rows from, struct rows bias, struct rows residual, int64_t pixels,
                  int32_t channels, enum finishing finish) {
    int64_t i = 4 * first_quad();
    if (i >= channels) return;
    for (int64_t pixel = first_row(); pixel < pixels; pixel += next_row()) {
        float4 v = rows_load_f32(from, pixel, i, channels);
        if (bias.data) v = add_four(v, rows_load_f32(bias, 0, i, channels));
        if (residual.data) v = add_four(v, rows_load_f32(residual, pixel, i, channels));
        rows_store(out, pixel, i, channels, finish_four(v, finish));
    }
}

static struct rows rows_from(const struct tensor *t, int64_t first) {
    return t->rank ? rows_at(static_cast<char *>(t->data) + first * t->row_bytes, t->row_bytes, DTYPE_F32)
                   : rows_of(t);
}

void cuda_conv_finish(const struct conv_finish *finish, cudaStream_t stream) {
    int32_t channels = finish->out->dim[2];
    struct rows_grid g = rows_grid_of(finish->pixels, ((int64_t)channels + 3) / 4);
    LAUNCH(finish_pixels, g.grid, g.block, 0, stream, rows_from(finish->out, finish->first),
           rows_floats(finish->from, conv_pad_channels(channels)), rows_floats(finish->bias, 0),
           rows_from(finish->residual, finish->first), finish->pixels, channels, finish->finish);
}

const void *const cuda_conv_band_kernels[] = {KERNEL(gather_pixels),
                                              KERNEL(gather_normed<0>),
                                              KERNEL(gather_normed<1>),
                                              KERNEL(gather_normed<4>),
                                              KERNEL(cuda_pad_weights),
                                              KERNEL(finish_pixels),
                                              NULL};
