/* Group norm of images [Y,X,C]: statistics in two kernels, then the norm.
 *
 * A piece of a row is read twice, the second time from the cache: first for the mean, then for the sums of
 * the differences from the mean and of the squared differences. Sums are f32 for at most 16 values, then
 * double. The variance has a relative error of at most 22 2^-24, however far the mean is from zero. Rows are
 * added in order from the top, so an image in bands gives the same bits as the whole image. */
#include "kernels/cuda/group_norm.h"

#include "kernels/cuda/cast.h"
#include "kernels/cuda/row_access.cuh"

struct statistics_call {
    struct rows in; /* the image, one row per pixel */
    double *sums;
    struct statistics_layout l;
    int32_t columns, channels, groups;
};

/* Part of the image that a block sums: pixels first to end, channels from `channel` on in n_columns
 * columns. */
struct piece {
    int64_t first, end;
    int32_t channel, n_columns, n_groups;
    double *to; /* sums and squared sums [n_groups, 2] */
};

__device__ static inline struct piece cuda_piece_of(const struct statistics_call &s) {
    int64_t number = blockIdx.x, tile = number % s.l.tiles;
    int64_t piece = number / s.l.tiles % s.l.pieces, row = number / s.l.tiles / s.l.pieces;
    int64_t left = s.columns - piece * s.l.piece, first_group = tile * s.l.tile;
    int64_t groups = s.groups - first_group < s.l.tile ? s.groups - first_group : s.l.tile;
    struct piece p = {row * s.columns + piece * s.l.piece};
    p.end = p.first + (left < s.l.piece ? left : s.l.piece);
    p.channel = (int32_t)first_group * s.l.group * s.l.width;
    p.n_groups = (int32_t)groups;
    p.n_columns = p.n_groups * s.l.group;
    p.to = s.sums + 2 * ((row * s.l.pieces + piece) * s.groups + first_group);
    return p;
}

/* Loads a column's four channels of one pixel; a column of width 1 has zeros in the rest. */
template <int WIDTH>
__device__ static inline float4 load_column(const struct statistics_call &s, const struct piece &p,
                                            int64_t pixel, int32_t column) {
    int64_t i = p.channel + (int64_t)column * WIDTH;
    if (WIDTH == 4) return rows_load_f32(s.in, pixel, i, s.channels);
    return make_float4(value_at(s.in.data + pixel * s.in.step, DTYPE_F32, i), 0, 0, 0);
}

struct two_sums {
    double sum, squares;
};

/* Sums (value - mean) and its square over the thread's values: f32 within a batch of pixels, double across
 * batches. */
template <int WIDTH>
__device__ static inline struct two_sums sum_about(const struct statistics_call &s, const struct piece &p,
                                                   float mean) {
    enum { BATCH = 16 };
    struct two_sums all = {0, 0};
    int32_t phase = (int32_t)threadIdx.x / s.l.lanes, lane = (int32_t)threadIdx.x % s.l.lanes;
    if (phase >= s.l.phases) return all;
    for (int32_t column = lane; column < p.n_columns; column += s.l.lanes)
        for (int64_t pixel = p.first + phase; pixel < p.end;) {
            float4 sum = all_four(0), squares = all_four(0);
            for (int j = 0; j < BATCH && pixel < p.end; j++, pixel += s.l.phases) {
                float4 v = load_column<WIDTH>(s, p, pixel, column);
                v = make_float4(v.x - mean, v.y - mean, v.z - mean, v.w - mean);
                sum = add_four(sum, v);
                squares = add_four(squares, multiply_four(v, v));
            }
            all.sum += WIDTH == 4 ? (double)((sum.x + sum.y) + (sum.z + sum.w)) : (double)sum.x;
            all.squares +=
                WIDTH == 4 ? (double)((squares.x + squares.y) + (squares.z + squares.w)) : (double)squares.x;
        }
    return all;
}

__device__ static inline double sum_group(const struct statistics_layout &l, const double *of_threads,
                                          int32_t group) {
    double sum = 0;
    int32_t lanes = l.group < l.lanes ? l.group : l.lanes;
    for (int32_t phase = 0; phase < l.phases; phase++)
        for (int32_t i = 0; i < lanes; i++) sum += of_threads[phase * l.lanes + group * l.group + i];
    return sum;
}

/* Computes sums and squared sums of the groups of one piece. With d = x - mean: sum x = sum d + n mean and
 * sum x^2 = sum d^2 + 2 mean sum d + n mean^2, in double. Grid: one block per row, piece and tile; block: 256
 * threads; shared memory: 5 KiB; 48 registers. Bytes: 4 per value; FLOPs: 6. Bound by memory; share of peak:
 * not measured yet. */
template <int WIDTH>
static __global__ void __launch_bounds__(STATISTICS_THREADS, 1) sum_piece(struct statistics_call s) {
    SMEM_ARRAY(double, sums, STATISTICS_THREADS);
    SMEM_ARRAY(double, squares, STATISTICS_THREADS);
    SMEM_ARRAY(float, means, STATISTICS_THREADS);
    struct piece p = cuda_piece_of(s);
    int32_t t = (int32_t)threadIdx.x, group = t % s.l.lanes / s.l.group;
    double n = (double)(p.end - p.first) * s.l.group * WIDTH;
    sums[t] = sum_about<WIDTH>(s, p, 0).sum;
    __syncthreads();
    if (t < p.n_groups) means[t] = (float)(sum_group(s.l, sums, t) / n);
    __syncthreads();
    struct two_sums mine = sum_about<WIDTH>(s, p, group < p.n_groups ? means[group] : 0);
    sums[t] = mine.sum;
    squares[t] = mine.squares;
    __syncthreads();
    if (t >= p.n_groups) return;
    double mean = means[t], rest = sum_group(s.l, sums, t);
    p.to[2 * t] = rest + n * mean;
    p.to[2 * t + 1] = sum_group(s.l, squares, t) + 2 * mean * rest + n * mean * mean;
}

enum { ROWS_AT_ONCE = 128 };

struct finish_call {
    const double *sums; /* sums and squared sums [rows, pieces, groups, 2] */
    double *before;     /* running sums [groups, 2] of earlier bands, or NULL */
    float *out;
    int32_t rows, rows_before, pieces, groups;
    double row; /* values per group in an image row */
    float eps;
};

/* Computes mean and 1/sqrt(var + eps) of a group: each thread adds the pieces of one row, then two threads
 * add the rows. Grid: one block per group; block: 128 threads; shared memory: 2 KiB; 48 registers. Bytes: 16
 * per piece. Bound by the latency of the two threads' chain of 2 Y additions. */
static __global__ void __launch_bounds__(ROWS_AT_ONCE, 1) finish_statistics(struct finish_call f) {
    SMEM_ARRAY(double, of_rows, 2 * ROWS_AT_ONCE);
    int32_t group = (int32_t)blockIdx.x, t = (int32_t)threadIdx.x;
    double total = f.rows_before && t < 2 ? f.before[2 * group + t] : 0;
    for (int64_t first = 0; first < f.rows; first += ROWS_AT_ONCE) {
        double sum = 0, squares = 0;
        for (int32_t piece = 0; piece < f.pieces && first + t < f.rows; piece++) {
            const double *from = f.sums + 2 * (((first + t) * f.pieces + piece) * f.groups + group);
            sum += from[0];
            squares += from[1];
        }
        of_rows[2 * t] = sum;
        of_rows[2 * t + 1] = squares;
        __syncthreads();
        int64_t left = f.rows - first, n = left < ROWS_AT_ONCE ? left : (int64_t)ROWS_AT_ONCE;
        for (int64_t i = 0; i < n && t < 2; i++) total += of_rows[2 * i + t];
        __syncthreads();
    }
    if (t < 2) of_rows[t] = total;
    if (t < 2 && f.before) f.before[2 * group + t] = total;
    __syncthreads();
    if (t) return;
    double count = f.row * ((double)f.rows_before + f.rows), mean = of_rows[0] / count;
    double variance = of_rows[1] / count - mean * mean;
    f.out[2 * group] = (float)mean;
    f.out[2 * group + 1] = (float)(1 / sqrt((variance > 0 ? variance : 0) + (double)f.eps));
}

static enum status cuda_statistics_run(struct cuda *cuda, const struct op *op, char *workspace,
                                       struct error *e) {
    struct statistics_layout l = cuda_statistics_layout(op);
    const struct tensor *in = &op->in[0];
    double *sums = reinterpret_cast<double *>(workspace + l.sums);
    struct statistics_call call = {rows_of(in), sums, l, in->dim[1], in->dim[2], op->n};
    unsigned blocks = (unsigned)((int64_t)in->dim[0] * l.pieces * l.tiles);
    if (l.width == 4)
        LAUNCH((sum_piece<4>), blocks, STATISTICS_THREADS, 0, cuda->compute, call);
    else
        LAUNCH((sum_piece<1>), blocks, STATISTICS_THREADS, 0, cuda->compute, call);
    struct finish_call finish = {sums};
    finish.before = op->in[1].rank ? static_cast<double *>(op->in[1].data) : NULL;
    finish.out = static_cast<float *>(op->out.data);
    finish.rows = in->dim[0];
    finish.rows_before = op->rows_before;
    finish.pieces = l.pieces;
    finish.groups = op->n;
    finish.row = (double)in->dim[1] * in->dim[2] / op->n;
    finish.eps = op->eps;
    LAUNCH(finish_statistics, (unsigned)op->n, ROWS_AT_ONCE, 0, cuda->compute, finish);
    return cuda_launched(op, e);
}

static const void *const statistics_kernels[] = {KERNEL(sum_piece<1>), KERNEL(sum_piece<4>),
                                                 KERNEL(finish_statistics), NULL};

const struct cuda_operator cuda_group_statistics = {NULL, cuda_statistics_run, statistics_kernels};

/* out = (in - mean) factor + bias, with per-channel vectors in norm; `out` may alias `in`. Grid:
 * rows_grid_of; no shared memory; 40 registers. Bytes: 8 per value; FLOPs: 3. Bound by memory; share of peak:
 * not measured yet. */
static __global__ void __launch_bounds__(ROWS_THREADS, 1)
    norm_channels(struct rows out, struct rows in, struct rows norm, int64_t rows, int32_t channels) {
    int64_t i = 4 * first_quad();
    if (i >= channels) return;
    float4 mean = rows_load_f32(norm, 0, i, channels), factor = rows_load_f32(norm, 1, i, channels);
    float4 bias = rows_load_f32(norm, 2, i, channels);
    for (int64_t row = first_row(); row < rows; row += next_row()) {
        float4 v = rows_load_f32(in, row, i, channels);
        v = make_float4(v.x - mean.x, v.y - mean.y, v.z - mean.z, v.w - mean.w);
        rows_store(out, row, i, channels, add_four(multiply_four(v, factor), bias));
    }
}

static enum status cuda_group_run(struct cuda *cuda, const struct op *op, char *workspace, struct error *e) {
    int32_t channels = tensor_columns(&op->in[0]);
    int64_t rows = tensor_rows(&op->in[0]);
    float *norm = reinterpret_cast<float *>(workspace);
    cuda_channel_norm(norm, &op->group_norm, channels, cuda->compute);
    struct rows_grid g = rows_grid_of(rows, ((int64_t)channels + 3) / 4);
    LAUNCH(norm_channels, g.grid, g.block, 0, cuda->compute, rows_of(&op->out), rows_of(&op->in[0]),
           rows_floats(norm, cuda_channel_norm_stride(channels)), rows, channels);
    return cuda_launched(op, e);
}

/* The operator also launches channel_norm of cast.cu, whose code cuda_linear lists for loading. */
static const void *const group_kernels[] = {KERNEL(norm_channels), NULL};

const struct cuda_operator cuda_group_norm = {NULL, cuda_group_run, group_kernels};
