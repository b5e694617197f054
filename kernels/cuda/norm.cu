/* Norms: rms_norm, layer_norm, group_statistics, group_range and group_norm.
 *
 * rms_norm and layer_norm read and write memory once; a run of C values is held in registers. Statistics are
 * f32, because double runs at 1/64 of the rate on most GPUs. A value passes at most 15
 * additions (four in sequence and a tree; more only above 8,192 values), always the same ones. The error of a
 * mean of squares is therefore at most 18 2^-24 relative, and of a normed value half of that, 6e-7, in the
 * worst case. layer_norm subtracts the mean rounded to f32 and then the mean of the remainder. No bits are
 * therefore lost if the mean is much larger than the deviation.
 *
 * The statistics of a group norm of images [Y,X,C] take two kernels. A piece of a row is read twice, the
 * second time from the cache: first for the mean, then for the sums of the differences from the mean and of
 * the squared differences. Sums are f32 for at most 16 values, then double. The variance has a relative error
 * of at most 22 2^-24, however far the mean is from zero. Rows are added in order from the top, so an image
 * in bands gives the same bits as the whole image. */
#include "kernels/cuda/norm.h"

#include "kernels/cuda/cast.h"
#include "kernels/cuda/norm.cuh"

/* Computes an RMS norm's vectors: factor = weight (1 + scale); zero_centered: (1 + weight) (1 + scale). gate
 * = tanh(gate). Grid: rows_grid_of one row; no shared memory; 48 registers. Bytes: 8 per channel plus the
 * sources. The launch takes longer than the transfer. CUDA's tanhf is within 2 ulp. */
static __global__ void __launch_bounds__(ROWS_THREADS)
    cuda_rms_vectors(struct rows to_factor, struct rows to_gate, struct rows weight, struct rows scale,
                     struct rows gate, int32_t c, bool zero_centered) {
    int64_t i = 4 * first_quad();
    if (i >= c || first_row() > 0) return;
    float4 factor = weight.data ? rows_load(weight, 0, i, c) : all_four(1);
    if (zero_centered) factor = add_four(all_four(1), factor);
    if (scale.data) factor = multiply_four(factor, add_four(all_four(1), rows_load(scale, 0, i, c)));
    rows_store(to_factor, 0, i, c, factor);
    if (!gate.data) return;
    float4 v = rows_load(gate, 0, i, c);
    rows_store(to_gate, 0, i, c, make_float4(tanhf(v.x), tanhf(v.y), tanhf(v.z), tanhf(v.w)));
}

struct rms_call {
    struct rows out, in, factor, shift, gate, base; /* all but out and in may be absent */
    struct runs runs;
    float eps;
    enum activation activation;
};

/* out = base + gate (in rstd factor + shift). `out` may alias `in` or `base`: a thread reads four values
 * before writing these values. Grid: one team per run (norm_team_of), blocks of 128 threads or one team;
 * shared memory: 128 bytes; 26 registers with one group of four per thread, 46 with four; unaligned rows 30
 * and 48. Bytes: 8 per value, 12 with a base, 2 less for a bf16 result; FLOPs: 4 to 7. Bound by memory; share
 * of peak: not measured yet. */
template <int HELD, enum rows_kind K, bool ACTIVATED>
__device__ static inline void rms_run(const struct rms_call &r, float *parts) {
    struct run run = run_of(r.runs);
    int32_t c = r.runs.c, quads = quads_of<HELD>(r.runs);
    float4 held[HELD ? HELD : 1];
    hold<HELD, K>(held, r.in, r.runs, run);
    float sum = 0;
    for (int j = 0; j < quads; j++) {
        float4 v = quad_of<HELD, K>(held, r.in, run, j, column_of(r.runs, run, j));
        sum += sum_four(multiply_four(v, v));
    }
    float mean = team_sum(sum, r.runs.threads, parts) / (float)c;
    float4 rstd = all_four(1.0f / sqrtf(mean + r.eps));
#pragma unroll HELD ? HELD : 1 /* unrolled, so that held[] stays in registers */
    for (int j = 0; j < quads; j++) {
        int64_t i = column_of(r.runs, run, j);
        float4 v = multiply_four(quad_of<HELD, K>(held, r.in, run, j, i), rstd);
        if (r.factor.data) v = multiply_four(v, rows_load_plain(r.factor, 0, i, c));
        if (r.shift.data) v = add_four(v, rows_load_f32(r.shift, 0, i, c));
        if (ACTIVATED) v = activate_four(v, r.activation);
        if (r.gate.data) v = multiply_four(rows_load_f32(r.gate, 0, i, c), v);
        if (r.base.data) v = add_four(load_quad<K>(r.base, run, i), v);
        store_quad<K>(r.out, run, i, v);
    }
}

template <int HELD, enum rows_kind K>
static __global__ void __launch_bounds__(512, 1) rms_runs(struct rms_call r) {
    SMEM_ARRAY(float, parts, WARP);
    rms_run<HELD, K, false>(r, parts);
}

/* The kernel rms_runs with an activation. A separate kernel, because an activation needs more registers: 56
 * (sm_80). */
template <int HELD> static __global__ void __launch_bounds__(512, 1) rms_activated(struct rms_call r) {
    SMEM_ARRAY(float, parts, WARP);
    rms_run<HELD, ROWS_ANY, true>(r, parts);
}

static void rms_prepare_vectors(struct cuda *cuda, const struct op *op, const struct rms_layout *l,
                                char *workspace, struct rms_call *call) {
    int32_t c = op->n;
    call->factor = rows_vector(&op->in[1]);
    call->gate = rows_at(NULL, 0, DTYPE_F32);
    if (l->direct) return;
    struct rows weight = call->factor, gate = rows_vector(&op->modulation.gate);
    call->factor = rows_at(workspace + l->factor, 0, DTYPE_F32);
    if (gate.data) call->gate = rows_at(workspace + l->gate, 0, DTYPE_F32);
    struct rows_grid g = rows_grid_of(1, ((int64_t)c + 3) / 4);
    LAUNCH(cuda_rms_vectors, g.grid, g.block, 0, cuda->compute, call->factor, call->gate, weight,
           rows_vector(&op->modulation.scale), gate, c, op->zero_centered);
}

static enum status cuda_rms_run(struct cuda *cuda, const struct op *op, char *workspace, struct error *e) {
    struct rms_layout l = cuda_rms_layout(op);
    struct norm_team team = norm_team_of(op->n);
    struct rms_call call = {};
    call.runs = runs_of(op, op->n, &team);
    call.eps = op->eps;
    call.in = rows_of_runs(&op->in[0], &call.runs);
    call.out = rows_of_runs(&op->out, &call.runs);
    call.base = rows_of_runs(&op->modulation.base, &call.runs);
    call.shift = rows_vector(&op->modulation.shift);
    rms_prepare_vectors(cuda, op, &l, workspace, &call);
    enum rows_kind kind = rows_kind_of(call.out, call.in, call.base, call.runs.c);
    call.activation = op->modulation.activation;
    unsigned blocks = blocks_of(&call.runs, &team);
    if (!call.activation)
        LAUNCH_RUNS(rms_runs, &team, kind, blocks, cuda->compute, call);
    else if (team.held == 1)
        LAUNCH((rms_activated<1>), blocks, team.block, 0, cuda->compute, call);
    else if (team.held == 4)
        LAUNCH((rms_activated<4>), blocks, team.block, 0, cuda->compute, call);
    else
        LAUNCH((rms_activated<0>), blocks, team.block, 0, cuda->compute, call);
    return cuda_launched(op, e);
}

static const void *const rms_kernels[] = {KERNEL(cuda_rms_vectors), RUNS_KERNELS(rms_runs),
                                          KERNEL(rms_activated<0>), KERNEL(rms_activated<1>),
                                          KERNEL(rms_activated<4>), NULL};

const struct cuda_operator cuda_rms_norm = {NULL, cuda_rms_run, rms_kernels};

struct layer_call {
    struct rows out, in;
    struct rows weight, bias, scale, shift; /* vectors of the layer norm, each optional */
    struct runs runs;
    float eps;
};

/* Returns v - mean for a value of the run; 0 beyond the run's n values. */
__device__ static inline float4 centered(float4 v, float mean, int64_t i, int64_t n) {
    return make_float4(i < n ? v.x - mean : 0, i + 1 < n ? v.y - mean : 0, i + 2 < n ? v.z - mean : 0,
                       i + 3 < n ? v.w - mean : 0);
}

/* Applies the vectors of a layer norm that are present: weight and bias, or scale and shift of the
 * modulation. */
__device__ static inline float4 apply_affine(const struct layer_call &r, float4 v, int64_t i) {
    int64_t c = r.runs.c;
    if (r.weight.data) v = multiply_four(v, rows_load_plain(r.weight, 0, i, c));
    if (r.bias.data) v = add_four(v, rows_load_plain(r.bias, 0, i, c));
    if (r.scale.data) v = multiply_four(v, add_four(all_four(1), rows_load_plain(r.scale, 0, i, c)));
    if (r.shift.data) v = add_four(v, rows_load_plain(r.shift, 0, i, c));
    return v;
}

/* out = ((in - mean) rstd weight + bias) (1 + scale) + shift. `out` may alias `in`. Grid as rms_runs; shared
 * memory: 384 bytes; 32 registers, or 53; unaligned rows 38 and 56. Bytes: 8 per value, or 6 for a bf16
 * result; FLOPs: 9 plus one per vector. Bound by memory; share of peak: not measured yet. */
template <int HELD, enum rows_kind K>
static __global__ void __launch_bounds__(512) layer_runs(struct layer_call r) {
    SMEM_ARRAY(float, parts, 3 * WARP);
    struct run run = run_of(r.runs);
    int32_t c = r.runs.c, threads = r.runs.threads, quads = quads_of<HELD>(r.runs);
    float4 held[HELD ? HELD : 1];
    hold<HELD, K>(held, r.in, r.runs, run);
    float sum = 0, rest = 0, squares = 0;
    for (int j = 0; j < quads; j++)
        sum += sum_four(quad_of<HELD, K>(held, r.in, run, j, column_of(r.runs, run, j)));
    float mean = team_sum(sum, threads, parts) / (float)c;
    for (int j = 0; j < quads; j++) {
        int64_t i = column_of(r.runs, run, j);
        float4 d = centered(quad_of<HELD, K>(held, r.in, run, j, i), mean, i, c);
        rest += sum_four(d);
        squares += sum_four(multiply_four(d, d));
    }
    rest = team_sum(rest, threads, parts + WARP) / (float)c;
    float variance = team_sum(squares, threads, parts + 2 * WARP) / (float)c - rest * rest;
    float4 rstd = all_four(1.0f / sqrtf((variance > 0 ? variance : 0) + r.eps));
#pragma unroll HELD ? HELD : 1
    for (int j = 0; j < quads; j++) {
        int64_t i = column_of(r.runs, run, j);
        float4 v = centered(quad_of<HELD, K>(held, r.in, run, j, i), mean, i, c);
        v = multiply_four(centered(v, rest, i, c), rstd);
        store_quad<K>(r.out, run, i, apply_affine(r, v, i));
    }
}

/* Returns layer_norm's vector i, converted to f32 in the workspace if it is quantised or scaled. */
static struct rows layer_vector(const struct cuda *cuda, const struct op *op, int i, char *workspace) {
    const struct tensor *vector = &op->in[1 + i];
    if (weight_is_plain(vector)) return rows_vector(vector);
    float *to = reinterpret_cast<float *>(workspace + cuda_layer_layout(op).vectors[i]);
    cuda_widen_vector(to, vector, tensor_columns(vector), cuda->compute);
    return rows_floats(to, 0);
}

static enum status cuda_layer_run(struct cuda *cuda, const struct op *op, char *workspace, struct error *e) {
    int32_t c = tensor_columns(&op->in[0]);
    struct norm_team team = norm_team_of(c);
    struct layer_call call = {};
    call.runs = runs_of(op, c, &team);
    call.eps = op->eps;
    call.in = rows_of(&op->in[0]);
    call.out = rows_of(&op->out);
    call.weight = layer_vector(cuda, op, 0, workspace);
    call.bias = layer_vector(cuda, op, 1, workspace);
    call.scale = layer_vector(cuda, op, 2, workspace);
    call.shift = layer_vector(cuda, op, 3, workspace);
    enum rows_kind kind = rows_kind_of(call.out, call.in, call.in, c);
    LAUNCH_RUNS(layer_runs, &team, kind, blocks_of(&call.runs, &team), cuda->compute, call);
    return cuda_launched(op, e);
}

static const void *const layer_kernels[] = {RUNS_KERNELS(layer_runs), NULL};

const struct cuda_operator cuda_layer_norm = {NULL, cuda_layer_run, layer_kernels};

struct statistics_call {
    struct rows in; /* the image, with one row per pixel */
    double *sums;
    struct statistics_layout l;
    int32_t columns, channels, groups;
};

/* Part of the image that a thread block sums for group statistics: pixels first to end, channels from
 * `channel` on in n_columns columns. */
struct piece {
    int64_t first, end;
    int32_t channel, n_columns, n_groups;
    double *to; /* results: sum and squared sum of each group, [n_groups, 2] */
};

/* Returns the part of the image that this thread block sums. */
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

/* Loads one pixel's four channels of a column. A column one channel wide gets zeros for the rest. */
template <int WIDTH>
__device__ static inline float4 load_column(const struct statistics_call &s, const struct piece &p,
                                            int64_t pixel, int32_t column) {
    int64_t i = p.channel + (int64_t)column * WIDTH;
    if (WIDTH == 4) return rows_load_f32(s.in, pixel, i, s.channels);
    return make_float4(value_at(s.in.data + pixel * s.in.step, DTYPE_F32, i), 0, 0, 0);
}

/* Sums over some values of a group of the group norm. */
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

/* Adds the sums that all threads have for one group of the tile. */
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
    const double *sums; /* sums and squared sums of each piece, [rows, pieces, groups, 2] */
    double *before;     /* running sums [groups, 2] of the bands above, or NULL */
    float *out;
    int32_t rows, rows_before, pieces, groups;
    double row; /* number of values of a group in one image row */
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

/* Sum, minimum and maximum of values of a group. */
struct range_part {
    double sum;
    float min, max;
};

static_assert((int)sizeof(struct range_part) == (int)RANGE_PART_BYTES, "norm.h and norm.cu must agree");

/* Adds `part` to `to`. NaN changes only the sum, and so the mean. */
__device__ static inline void range_add(struct range_part &to, const struct range_part &part) {
    to.sum += part.sum;
    to.min = part.min < to.min ? part.min : to.min;
    to.max = part.max > to.max ? part.max : to.max;
}

/* Adds the parts of all threads of a block, a power of two, in a fixed tree; thread 0 has the result. */
__device__ static inline struct range_part range_of_block(struct range_part *parts, struct range_part mine) {
    int32_t t = (int32_t)threadIdx.x;
    parts[t] = mine;
    for (int32_t half = (int32_t)blockDim.x / 2; half; half /= 2) {
        __syncthreads();
        if (t < half) range_add(parts[t], parts[t + half]);
    }
    return parts[t];
}

struct range_call {
    struct rows in; /* the image, with one row per pixel */
    struct range_part *parts;
    int64_t piece, pixels;
    int32_t each, groups; /* channels per group */
};

/* Kernel: sum, minimum and maximum of one group over one piece; the sum is f32 within four values, then
 * double. Grid: one block per piece and group; block: 256 threads; shared memory: 4 KiB; 30 registers. Bytes:
 * 4 per value; FLOPs: 3. Bound by memory; share of peak: not measured yet. */
static __global__ void __launch_bounds__(RANGE_THREADS, 1) range_piece(struct range_call r) {
    SMEM_ARRAY(struct range_part, parts, RANGE_THREADS);
    uint32_t group = blockIdx.x % (uint32_t)r.groups, quads = ((uint32_t)r.each + 3) / 4;
    int64_t first = (int64_t)(blockIdx.x / (uint32_t)r.groups) * r.piece, left = r.pixels - first;
    uint32_t n = (uint32_t)(left < r.piece ? left : r.piece) * quads;
    int64_t start = (int64_t)group * r.each, end = start + r.each;
    struct range_part mine = {0, INFINITY, -INFINITY};
    for (uint32_t k = threadIdx.x; k < n; k += RANGE_THREADS) {
        int64_t i = start + 4 * (int64_t)(k % quads);
        float4 v = rows_load_f32(r.in, first + k / quads, i, end);
        struct range_part part = {(double)((v.x + v.y) + (v.z + v.w)), v.x, v.x};
        /* Values beyond the group are loaded as zeros: minimum and maximum skip them. */
        if (i + 1 < end) range_add(part, {0, v.y, v.y});
        if (i + 2 < end) range_add(part, {0, v.z, v.z});
        if (i + 3 < end) range_add(part, {0, v.w, v.w});
        range_add(mine, part);
    }
    mine = range_of_block(parts, mine);
    if (threadIdx.x == 0) r.parts[blockIdx.x] = mine;
}

/* Kernel: adds the pieces of a group and computes mean and scale / (max - min + eps). Grid: one block per
 * group; block: 256 threads; shared memory: 4 KiB; 80 registers. Bytes: 16 per piece. Bound by the launch,
 * which takes longer than the transfer. */
static __global__ void __launch_bounds__(RANGE_THREADS, 1)
    finish_range(float *out, const struct range_part *from, int64_t pieces, double count, float scale,
                 float eps) {
    SMEM_ARRAY(struct range_part, parts, RANGE_THREADS);
    struct range_part mine = {0, INFINITY, -INFINITY};
    for (int64_t piece = threadIdx.x; piece < pieces; piece += RANGE_THREADS)
        range_add(mine, from[piece * gridDim.x + blockIdx.x]);
    mine = range_of_block(parts, mine);
    if (threadIdx.x) return;
    out[2 * blockIdx.x] = (float)(mine.sum / count);
    out[2 * blockIdx.x + 1] = scale / (mine.max - mine.min + eps);
}

static enum status cuda_range_run(struct cuda *cuda, const struct op *op, char *workspace, struct error *e) {
    struct range_layout l = cuda_range_layout(op);
    const struct tensor *in = &op->in[0];
    struct range_part *parts = reinterpret_cast<struct range_part *>(workspace + l.parts);
    struct range_call call = {rows_of(in), parts, l.piece, tensor_rows(in), in->dim[2] / op->n, op->n};
    call.in.wide = call.in.wide && (call.each % 4 == 0 || op->n == 1);
    LAUNCH(range_piece, (unsigned)(l.pieces * op->n), RANGE_THREADS, 0, cuda->compute, call);
    LAUNCH(finish_range, (unsigned)op->n, RANGE_THREADS, 0, cuda->compute, static_cast<float *>(op->out.data),
           parts, l.pieces, (double)call.pixels * call.each, op->scale, op->eps);
    return cuda_launched(op, e);
}

static const void *const range_kernels[] = {KERNEL(range_piece), KERNEL(finish_range), NULL};

const struct cuda_operator cuda_group_range = {NULL, cuda_range_run, range_kernels};

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

/* The group norm also launches channel_norm of cast.cu; the kernel list of cuda_linear has it for loading. */
static const void *const group_kernels[] = {KERNEL(norm_channels), NULL};

const struct cuda_operator cuda_group_norm = {NULL, cuda_group_run, group_kernels};
