/* Operators on positions: RoPE tables, rotation of heads, timestep embedding, T5's relative position bias.
 * Frequencies, timestep values and distance buckets are computed once on the host, as on the CPU, and passed
 * as kernel arguments. */
#include "kernels/cuda/rope.h"

#include "kernels/cuda/cast.h"
#include "kernels/cuda/token_coords.cuh"
#include "kernels/cuda/norm.cuh"

#include <math.h>

struct table_part {
    struct rope_options rope;
    double frequency[ROPE_PAIRS_AT_ONCE];
    unsigned char axis[ROPE_PAIRS_AT_ONCE]; /* axis whose position multiplies the frequency */
    int32_t first, n; /* number of this launch's first pair; number of pairs of this launch */
    int32_t pairs;    /* pairs per token of the whole table */
};

/* Cosine and sine of an angle up to 2^31 with an error below 2^-50, rounded to f32: the nearest float except
 * for ties, as on the CPU. CUDA's double functions would need local memory for larger angles. Subtracting
 * multiples of pi/2 (in 106 bits) is exact up to one rounding; then Taylor's series, whose omitted terms are
 * below 2^-58 at pi/4. */
__device__ static inline float2 cos_sin(double angle) {
    const double quarter = 0x1.921fb54442d18p+0, rest = 0x1.1a62633145c07p-54;
    double quarters = rint(angle * 0x1.45f306dc9c883p-1);
    double r = fma(-quarters, rest, fma(-quarters, quarter, angle)), square = r * r;
    double c = 1, s = 1;
    for (int k = 8; k > 0; k--) {
        c = 1 - square * (1.0 / (2 * k * (2 * k - 1))) * c;
        s = 1 - square * (1.0 / (2 * k * (2 * k + 1))) * s;
    }
    s *= r;
    long long quadrant = (long long)quarters & 3;
    double x = quadrant & 1 ? s : c, y = quadrant & 1 ? c : s;
    return make_float2((float)(quadrant == 1 || quadrant == 2 ? -x : x), (float)(quadrant >= 2 ? -y : y));
}

__device__ static inline int64_t grid_tokens(const struct rope_options &rope, const struct rope_grid &grid) {
    int64_t tokens = grid.extent[0];
    for (int a = 1; a < rope.n_axes && !grid.diagonal; a++) tokens *= grid.extent[a];
    return tokens;
}

__device__ static inline int32_t position_of(const struct rope_options &rope, int64_t token, int axis) {
    int g = 0, last = rope.n_axes - 1;
    for (; g < rope.n_grids - 1; g++) {
        int64_t tokens = grid_tokens(rope, rope.grid[g]);
        if (token < tokens) break;
        token -= tokens;
    }
    const struct rope_grid &grid = rope.grid[g];
    if (grid.diagonal || !last) return grid.start[axis] + (axis < grid.fixed_axes ? 0 : (int32_t)token);
    int32_t rows = grid.extent[last - 1], columns = grid.extent[last];
    int64_t picture = (int64_t)rows * columns;
    if (axis < last - 1) {
        int64_t inner = picture; /* tokens per position on this axis */
        for (int a = last - 2; a > axis; a--) inner *= grid.extent[a];
        return grid.start[axis] + (int32_t)(token / inner % grid.extent[axis]);
    }
    struct token_coords place =
        cuda_token_coords_at(grid.token_order, rows, columns, (uint32_t)(token % picture));
    return grid.start[axis] + (axis < last ? place.row : place.column);
}

/* Computes cosine and sine of position * frequency for one pair of one token; the double product is rounded
 * to f32 unless f64_angles. Grid: rows_grid_of, rows are tokens, pairs take the place of column groups; no
 * shared memory; 30 registers. Bytes: 8 per pair; FLOPs: 60 in double, once per table. Bound by double
 * arithmetic; share of peak: not measured yet. */
static __global__ void __launch_bounds__(ROWS_THREADS)
    table_pairs(float *out, const struct table_part part, int64_t tokens) {
    int64_t pair = first_quad();
    if (pair >= part.n) return;
    int axis = part.axis[pair];
    for (int64_t token = first_row(); token < tokens; token += next_row()) {
        int32_t position = position_of(part.rope, token, axis);
        double angle = position * part.frequency[pair];
        float2 v = cos_sin(part.rope.f64_angles ? angle : (double)(float)angle);
        float *to = out + 2 * (token * part.pairs + part.first + pair);
        to[0] = v.x;
        to[1] = v.y;
    }
}

static enum status cuda_table_run(struct cuda *cuda, const struct op *op, char *workspace, struct error *e) {
    (void)workspace;
    int64_t tokens = op->out.dim[0];
    struct table_part part = {op->rope};
    part.pairs = op->out.dim[1];
    for (part.first = 0; part.first < part.pairs; part.first += ROPE_PAIRS_AT_ONCE) {
        int32_t left = part.pairs - part.first;
        part.n = left < ROPE_PAIRS_AT_ONCE ? left : ROPE_PAIRS_AT_ONCE;
        for (int32_t i = 0; i < part.n; i++) {
            part.frequency[i] = rope_frequency(&op->rope, part.first + i);
            part.axis[i] = (unsigned char)rope_pair_axis(&op->rope, part.first + i);
        }
        struct rows_grid g = rows_grid_of(tokens, part.n);
        LAUNCH(table_pairs, g.grid, g.block, 0, cuda->compute, static_cast<float *>(op->out.data), part,
               tokens);
    }
    return cuda_launched(op, e);
}

static const void *const table_kernels[] = {KERNEL(table_pairs), NULL};

const struct cuda_operator cuda_rope_table = {NULL, cuda_table_run, table_kernels};

struct axis_part {
    struct rope_axis axis;
    float frequency[AXIS_PAIRS_AT_ONCE];
    int32_t first, n; /* number of this launch's first frequency; number of frequencies of this launch */
    int32_t pairs;    /* frequencies of the whole table */
};

/* Returns c(k) of struct rope_axis, with the roundings of axis_coordinate (positions.c). */
__device__ static inline float cuda_axis_coordinate(const struct rope_axis &axis, int32_t k) {
    int32_t place = axis.step * k + axis.first;
    return __fdiv_rn(__fmul_rn((float)(place > 0 ? place : 0), axis.numerator), axis.denominator);
}

/* Kernel: cosine and sine of position * frequency for one frequency of a rope axis. Grid: rows_grid_of, rows
 * are positions, frequencies take the place of column groups; no shared memory; 32 registers. Bytes: 8 per
 * pair; FLOPs: 60 per pair, in double. Bound by double arithmetic; share of peak: not measured yet. */
static __global__ void __launch_bounds__(ROWS_THREADS)
    axis_pairs(float *out, const struct axis_part part, int32_t positions) {
    int64_t pair = first_quad();
    if (pair >= part.n) return;
    for (int64_t k = first_row(); k < positions; k += next_row()) {
        float p = cuda_axis_coordinate(part.axis, (int32_t)k);
        if (!part.axis.corner)
            p = __fmul_rn(__fadd_rn(p, cuda_axis_coordinate(part.axis, (int32_t)k + 1)), 0.5f);
        p = __fadd_rn(__fmul_rn(__fdiv_rn(p, part.axis.size), 2), -1);
        float2 v = cos_sin((double)__fmul_rn(p, part.frequency[pair]));
        float *to = out + 2 * (k * part.pairs + part.first + pair);
        to[0] = v.x;
        to[1] = v.y;
    }
}

static enum status cuda_axis_run(struct cuda *cuda, const struct op *op, char *workspace, struct error *e) {
    (void)workspace;
    struct axis_part part = {op->axis};
    part.pairs = op->out.dim[1];
    for (part.first = 0; part.first < part.pairs; part.first += AXIS_PAIRS_AT_ONCE) {
        int32_t left = part.pairs - part.first;
        part.n = left < AXIS_PAIRS_AT_ONCE ? left : AXIS_PAIRS_AT_ONCE;
        for (int32_t i = 0; i < part.n; i++)
            part.frequency[i] = rope_axis_frequency(&op->axis, part.first + i, part.pairs);
        struct rows_grid g = rows_grid_of(op->out.dim[0], part.n);
        LAUNCH(axis_pairs, g.grid, g.block, 0, cuda->compute, static_cast<float *>(op->out.data), part,
               op->out.dim[0]);
    }
    return cuda_launched(op, e);
}

static const void *const axis_kernels[] = {KERNEL(axis_pairs), NULL};

const struct cuda_operator cuda_rope_axis = {NULL, cuda_axis_run, axis_kernels};

struct rope_call {
    struct rows out, in, table, norm; /* norm: weight of the RMS norm of each head; may be absent */
    struct rope_axes axes;            /* for rope_by_axes */
    int32_t frequencies;              /* pairs of a table row, for rope_by_axes */
    struct runs runs;                 /* runs of the RMS norm: one run per head */
    float eps;
    bool zero_centered; /* the norm is multiplied by 1 + weight */
    bool halves;        /* true: pairs to rotate are (i, i + D / 2); false: (2i, 2i + 1) */
};

__device__ static inline float2 rotate_pair(float a, float b, float c, float s) {
    return make_float2(a * c - b * s, a * s + b * c);
}

/* Rotates two adjacent pairs of a head by RoPE; t: cosines and sines of the two pairs. */
__device__ static inline float4 rotate_adjacent(float4 v, float4 t) {
    float2 x = rotate_pair(v.x, v.y, t.x, t.y), y = rotate_pair(v.z, v.w, t.z, t.w);
    return make_float4(x.x, x.y, y.x, y.y);
}

/* Rotates column i of a head by RoPE; the head is in shared memory. */
__device__ static inline float rotate_half_split(const struct rope_call &r, const float *head, int64_t row,
                                                 int64_t i) {
    int32_t half = r.runs.c / 2;
    int64_t pair = i < half ? i : i - half;
    const float *t = reinterpret_cast<const float *>(r.table.data + row * r.table.step) + 2 * pair;
    float2 both = rotate_pair(head[pair], head[pair + half], t[0], t[1]);
    return i < half ? both.x : both.y;
}

/* Rotates four columns of a head by RoPE, from i on; values beyond the head are undefined. If half the head
 * is a multiple of 4, the four columns have the same offset in both halves. */
__device__ static inline float4 rotate_halves(const struct rope_call &r, const float *head, int64_t row,
                                              int64_t i) {
    int32_t c = r.runs.c, half = c / 2;
    float v[4];
    if (half % 4 || !r.table.wide) {
#pragma unroll
        for (int j = 0; j < 4; j++) v[j] = i + j < c ? rotate_half_split(r, head, row, i + j) : 0;
        return make_float4(v[0], v[1], v[2], v[3]);
    }
    int64_t pair = i < half ? i : i - half;
    float4 a = four_at(reinterpret_cast<const char *>(head), DTYPE_F32, true, pair, c);
    float4 b = four_at(reinterpret_cast<const char *>(head), DTYPE_F32, true, pair + half, c);
    float4 t = rows_load_f32(r.table, row, 2 * pair, c), u = rows_load_f32(r.table, row, 2 * pair + 4, c);
    float2 x = rotate_pair(a.x, b.x, t.x, t.y), y = rotate_pair(a.y, b.y, t.z, t.w);
    float2 z = rotate_pair(a.z, b.z, u.x, u.y), w = rotate_pair(a.w, b.w, u.z, u.w);
    return i < half ? make_float4(x.x, y.x, z.x, w.x) : make_float4(x.y, y.y, z.y, w.y);
}

/* Table rows of a token's positions on the axes. */
struct axis_rows {
    uint32_t row[TOKEN_AXES_MAX];
};

__device__ static inline struct axis_rows axis_rows_of(const struct rope_axes &axes, int64_t token) {
    struct axis_rows place = {};
    uint32_t rest = (uint32_t)token + (uint32_t)axes.first_token, before = 0;
#pragma unroll
    for (int a = 0; a < TOKEN_AXES_MAX; a++) before += a < axes.n_axes ? (uint32_t)axes.extent[a] : 0;
#pragma unroll /* so that the array stays in registers */
    for (int a = TOKEN_AXES_MAX - 1; a >= 0; a--) {
        uint32_t extent = axes.extent[a] ? (uint32_t)axes.extent[a] : 1;
        if (a >= axes.n_axes) {
            rest /= extent;
            continue;
        }
        before -= extent;
        place.row[a] = before + rest % extent;
        rest /= extent;
    }
    return place;
}

/* Returns cosine and sine of a token's pair; pairs are counted over all heads. */
__device__ static inline float2 axis_cos_sin(const struct rope_call &r, const struct axis_rows &place,
                                             int64_t pair) {
    int32_t rotated = (int32_t)pair - r.axes.n_unrotated;
    if (rotated < 0) return make_float2(1, 0);
    uint32_t n = (uint32_t)r.axes.n_axes, i = (uint32_t)rotated / n, axis = (uint32_t)rotated - i * n;
    int64_t row = axis == 0 ? place.row[0] : axis == 1 ? place.row[1] : place.row[2];
    const float *at = reinterpret_cast<const float *>(r.table.data) + 2 * (row * r.frequencies + i);
    return make_float2(at[0], at[1]);
}

/* Rotates columns i to i + 3 of a head by a table with one part per axis; values beyond the head are
 * undefined. first: number of the head's first pair in its token. */
__device__ static inline float4 rotate_by_axes(const struct rope_call &r, const struct axis_rows &place,
                                               int64_t first, const float *head, float4 held, int32_t i) {
    int32_t c = r.runs.c, half = c / 2;
    float v[4];
    if (!r.halves) {
        float2 t = axis_cos_sin(r, place, first + i / 2), u = make_float2(1, 0);
        if (i + 2 < c) u = axis_cos_sin(r, place, first + i / 2 + 1);
        return rotate_adjacent(held, make_float4(t.x, t.y, u.x, u.y));
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
        int32_t pair = i + j < half ? i + j : i + j - half;
        v[j] = 0;
        if (i + j >= c) continue;
        float2 t = axis_cos_sin(r, place, first + pair);
        float2 both = rotate_pair(head[pair], head[pair + half], t.x, t.y);
        v[j] = i + j < half ? both.x : both.y;
    }
    return make_float4(v[0], v[1], v[2], v[3]);
}

/* out = rotated(in rstd norm), the norm being optional; `out` may alias `in`. A team holds one head.
 * Interleaved pairs lie within a thread's four values; half-split pairs are exchanged through shared memory
 * (heads). AXES: the table has one part per axis. */
template <int HELD, enum rows_kind K, bool AXES>
__device__ static inline void rope_run(const struct rope_call &r, float *heads) {
    struct run run = run_of(r.runs);
    int32_t c = r.runs.c, threads = r.runs.threads;
    float4 held[HELD], rstd = all_four(1);
    hold<HELD, K>(held, r.in, r.runs, run);
    if (r.norm.data) {
        float sum = 0;
        for (int j = 0; j < HELD; j++) sum += sum_four(multiply_four(held[j], held[j]));
        rstd = all_four(1.0f / sqrtf(team_sum(sum, threads, NULL) / (float)c + r.eps));
    }
    float *head = heads + (int64_t)threadIdx.x / threads * threads * 4 * HELD;
#pragma unroll
    for (int j = 0; j < HELD; j++) {
        int64_t i = column_of(r.runs, run, j);
        if (r.norm.data) {
            float4 weight = rows_load_plain(r.norm, 0, i, c);
            if (r.zero_centered) weight = add_four(all_four(1), weight);
            held[j] = multiply_four(multiply_four(held[j], rstd), weight);
        }
        if (r.halves)
            st128(head + i, make_uint4(__float_as_uint(held[j].x), __float_as_uint(held[j].y),
                                       __float_as_uint(held[j].z), __float_as_uint(held[j].w)));
    }
    if (r.halves) __syncwarp();
    struct axis_rows place = {};
    if (AXES) place = axis_rows_of(r.axes, run.row);
#pragma unroll
    for (int j = 0; j < HELD; j++) {
        int64_t i = column_of(r.runs, run, j);
        if (run.first + i >= run.end) continue;
        float4 v = AXES       ? rotate_by_axes(r, place, run.first / 2, head, held[j], (int32_t)i)
                   : r.halves ? rotate_halves(r, head, run.row, i)
                              : rotate_adjacent(held[j], rows_load_f32(r.table, run.row, i, c));
        store_quad<K>(r.out, run, i, v);
    }
}

/* Kernel: rope_run with one table row per token. Grid: one team per head (norm_team_of, up to 32 threads),
 * blocks of 128 threads; shared memory: 2 KiB with one group of four per thread, 8 KiB with four; 32
 * registers, or 55; unaligned rows 40 and 56. Bytes: 8 per value, 6 for a bf16 result, and the table once
 * (cached for all heads); FLOPs: 7 per value. Bound by memory; share of peak: not measured yet. */
template <int HELD, enum rows_kind K>
static __global__ void __launch_bounds__(NORM_SMALL_BLOCK) rope_runs(struct rope_call r) {
    SMEM_ARRAY(float, heads, NORM_SMALL_BLOCK * 4 * HELD);
    rope_run<HELD, K, false>(r, heads);
}

/* Kernel: rope_run with a table of one part per axis. Grid, shared memory and bytes as in rope_runs; 38
 * registers, or 46. Each pair also reads 8 bytes of the table through the cache; their addresses take about
 * 150 instructions per thread. Share of peak: not measured yet. */
template <int HELD>
static __global__ void __launch_bounds__(NORM_SMALL_BLOCK) rope_by_axes(struct rope_call r) {
    SMEM_ARRAY(float, heads, NORM_SMALL_BLOCK * 4 * HELD);
    rope_run<HELD, ROWS_ANY, true>(r, heads);
}

static enum status cuda_rope_run(struct cuda *cuda, const struct op *op, char *workspace, struct error *e) {
    const struct tensor *table = &op->in[1], *norm = &op->in[2];
    int32_t c = op->in[0].dim[1] / op->n;
    struct norm_team team = norm_team_of(c);
    struct rope_call call = {};
    call.runs = runs_of(op, c, &team);
    call.eps = op->eps;
    call.zero_centered = op->zero_centered;
    call.halves = op->rotation.pairs == ROPE_HALVES;
    call.axes = op->rotation.axes;
    call.frequencies = table->dim[1];
    call.in = rows_of_runs(&op->in[0], &call.runs);
    call.out = rows_of_runs(&op->out, &call.runs);
    call.table = rows_floats(static_cast<const float *>(table->data), c);
    call.norm = rows_vector(norm);
    if (!weight_is_plain(norm)) {
        cuda_widen_vector(reinterpret_cast<float *>(workspace), norm, c, cuda->compute);
        call.norm = rows_floats(reinterpret_cast<float *>(workspace), 0);
    }
    enum rows_kind kind = rows_kind_of(call.out, call.in, call.in, c);
    unsigned blocks = blocks_of(&call.runs, &team);
    if (call.axes.n_axes && team.held == 1)
        LAUNCH((rope_by_axes<1>), blocks, team.block, 0, cuda->compute, call);
    else if (call.axes.n_axes)
        LAUNCH((rope_by_axes<4>), blocks, team.block, 0, cuda->compute, call);
    else if (team.held == 1)
        LAUNCH_RUNS_HELD(rope_runs, 1, kind, blocks, team.block, cuda->compute, call);
    else
        LAUNCH_RUNS_HELD(rope_runs, 4, kind, blocks, team.block, cuda->compute, call);
    return cuda_launched(op, e);
}

static const void *const rope_kernels[] = {RUNS_KERNELS_HELD(rope_runs, 1), RUNS_KERNELS_HELD(rope_runs, 4),
                                           KERNEL(rope_by_axes<1>), KERNEL(rope_by_axes<4>), NULL};

const struct cuda_operator cuda_rope = {NULL, cuda_rope_run, rope_kernels};

/* Timestep embedding: 256 values in every model, computed on the host and passed as an argument. */
struct embedded {
    float value[TIMES_AT_ONCE];
};

/* Writes a timestep embedding. Grid: one block, one thread per value; no shared memory; 8 registers. The
 * launch takes longer than the transfer. */
static __global__ void __launch_bounds__(TIMES_AT_ONCE)
    write_values(float *out, const struct embedded values, int32_t n) {
    int32_t i = (int32_t)threadIdx.x;
    if (i < n) out[i] = values.value[i];
}

static enum status cuda_timestep_run(struct cuda *cuda, const struct op *op, char *workspace,
                                     struct error *e) {
    (void)workspace;
    int32_t columns = op->out.dim[1];
    struct embedded values = {};
    for (int32_t first = 0; first < columns; first += TIMES_AT_ONCE) {
        int32_t n = columns - first < TIMES_AT_ONCE ? columns - first : TIMES_AT_ONCE;
        for (int32_t i = 0; i < n; i++)
            values.value[i] = timestep_value(op->scale, op->form, columns / 2, first + i);
        LAUNCH(write_values, 1, TIMES_AT_ONCE, 0, cuda->compute, static_cast<float *>(op->out.data) + first,
               values, n);
    }
    return cuda_launched(op, e);
}

static const void *const timestep_kernels[] = {KERNEL(write_values), NULL};

const struct cuda_operator cuda_timestep = {NULL, cuda_timestep_run, timestep_kernels};

struct buckets {
    uint8_t bucket[DISTANCES_AT_ONCE];
};

/* Copies each distance's table row into a column of out. run: number of columns of the table if its
 * quantisation blocks cross row boundaries, else 0. Grid: heads in y, distances in x; block: 256; no shared
 * memory; 39 registers. The launch takes longer than the transfer. */
static __global__ void __launch_bounds__(ROWS_THREADS, 1)
    expand_buckets(struct rows out, struct rows table, const struct buckets buckets, int32_t first, int32_t n,
                   int32_t run) {
    int32_t i = (int32_t)(blockIdx.x * blockDim.x + threadIdx.x), head = (int32_t)blockIdx.y;
    if (i >= n) return;
    float *to = reinterpret_cast<float *>(out.data + head * out.step);
    to[first + i] = rows_value(table, run ? 0 : buckets.bucket[i], buckets.bucket[i] * run + head);
}

static enum status distance_run(struct cuda *cuda, const struct op *op, char *workspace, struct error *e) {
    (void)workspace;
    const struct tensor *table = &op->in[0];
    int32_t places = op->out.dim[1], tokens = (places + 1) / 2;
    struct buckets buckets = {};
    for (int32_t first = 0; first < places; first += DISTANCES_AT_ONCE) {
        int32_t n = places - first < DISTANCES_AT_ONCE ? places - first : DISTANCES_AT_ONCE;
        for (int32_t i = 0; i < n; i++)
            buckets.bucket[i] =
                (uint8_t)distance_bucket(first + i - (tokens - 1), table->dim[0], op->max_distance);
        dim3 grid((unsigned)((n + ROWS_THREADS - 1) / ROWS_THREADS), (unsigned)op->out.dim[0]);
        LAUNCH(expand_buckets, grid, ROWS_THREADS, 0, cuda->compute, rows_of(&op->out), rows_of(table),
               buckets, first, n, tensor_runs_on(table) ? table->dim[1] : 0);
    }
    return cuda_launched(op, e);
}

static const void *const bias_kernels[] = {KERNEL(expand_buckets), NULL};

const struct cuda_operator cuda_relative_bias = {NULL, distance_run, bias_kernels};
