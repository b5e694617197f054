/* Positions and times as angles: rope table, rotation, timestep embedding. None needs a workspace: what is
 * computed once (frequencies, the embedding of a time) comes from the host's mathematics, as on the CPU, and
 * travels as a kernel's argument. */
#include "kernels/cuda/arguments.h"
#include "kernels/cuda/rows.cuh"

#include <math.h>

struct table_part {
    struct rope_options rope;
    double frequency[ROPE_PAIRS_AT_ONCE];
    int32_t axis[ROPE_AXES_MAX]; /* first pair of each */
    int32_t first, n;            /* pairs of this part */
    int32_t pairs;               /* of the table */
};

/* Cosine and sine of an angle up to 2^31 in size, off by less than 2^-50, then rounded to f32: but for ties
 * between floats the nearest, as on the CPU. The library's double functions would need local memory for
 * angles that do not occur. The angle less whole quarter turns is exact but for one rounding, with a quarter
 * turn in 106 bits; then Taylor's series, whose first terms left out are below 2^-58 at an eighth. */
__device__ static inline float2 cos_sin(float angle) {
    const double quarter = 0x1.921fb54442d18p+0, rest = 0x1.1a62633145c07p-54;
    double turns = rint((double)angle * 0x1.45f306dc9c883p-1);
    double r = fma(-turns, rest, fma(-turns, quarter, (double)angle)), square = r * r;
    double c = 1, s = 1;
    for (int k = 8; k > 0; k--) {
        c = 1 - square * (1.0 / (2 * k * (2 * k - 1))) * c;
        s = 1 - square * (1.0 / (2 * k * (2 * k + 1))) * s;
    }
    s *= r;
    long long turn = (long long)turns & 3;
    double x = turn & 1 ? s : c, y = turn & 1 ? c : s;
    return make_float2((float)(turn == 1 || turn == 2 ? -x : x), (float)(turn >= 2 ? -y : y));
}

/* The position of a token on an axis. */
__device__ static inline int32_t position_of(const struct rope_options &rope, int64_t token, int axis) {
    int g = 0;
    for (; g < rope.n_grids - 1; g++) {
        int64_t tokens = 1;
        for (int a = 0; a < rope.n_axes; a++) tokens *= rope.grid[g].extent[a];
        if (token < tokens) break;
        token -= tokens;
    }
    for (int a = rope.n_axes - 1; a > axis; a--) token /= rope.grid[g].extent[a];
    return rope.grid[g].start[axis] + (int32_t)(token % rope.grid[g].extent[axis]);
}

/* One pair of one token: cosine and sine of position * frequency, a product in double that is rounded to f32.
 *
 * Grid: rows_grid_of, rows being tokens and pairs in place of quads; no shared memory; 32 registers. Bytes: 8
 * a pair; FLOPs: 60 in double, once for a table. Roof: double arithmetic; share of the roof: not measured
 * yet. */
static __global__ void __launch_bounds__(ROWS_THREADS, 1)
    table_pairs(float *out, const struct table_part part, int64_t tokens) {
    int64_t pair = first_quad();
    if (pair >= part.n) return;
    int axis = 0;
    while (axis + 1 < part.rope.n_axes && part.first + pair >= part.axis[axis + 1]) axis++;
    for (int64_t token = first_row(); token < tokens; token += next_row()) {
        int32_t position = position_of(part.rope, token, axis);
        float2 v = cos_sin((float)(position * part.frequency[pair]));
        float *to = out + 2 * (token * part.pairs + part.first + pair);
        to[0] = v.x;
        to[1] = v.y;
    }
}

static double frequency_of(const struct table_part *part, int32_t pair) {
    int axis = 0;
    while (axis + 1 < part->rope.n_axes && pair >= part->axis[axis + 1]) axis++;
    return 1 / pow(part->rope.theta, 2.0 * (pair - part->axis[axis]) / part->rope.axis_dim[axis]);
}

static enum status cuda_table_run(struct cuda *cuda, const struct op *op, char *workspace, struct error *e) {
    (void)workspace;
    int64_t tokens = op->out.dim[0];
    struct table_part part = {op->rope};
    part.pairs = op->out.dim[1];
    for (int a = 1; a < op->rope.n_axes; a++) part.axis[a] = part.axis[a - 1] + op->rope.axis_dim[a - 1] / 2;
    for (part.first = 0; part.first < part.pairs; part.first += ROPE_PAIRS_AT_ONCE) {
        int32_t left = part.pairs - part.first;
        part.n = left < ROPE_PAIRS_AT_ONCE ? left : ROPE_PAIRS_AT_ONCE;
        for (int32_t i = 0; i < part.n; i++) part.frequency[i] = frequency_of(&part, part.first + i);
        struct rows_grid g = rows_grid_of(tokens, part.n);
        LAUNCH(table_pairs, g.grid, g.block, 0, cuda->compute, static_cast<float *>(op->out.data), part,
               tokens);
    }
    return cuda_launched(op, e);
}

static const void *const table_kernels[] = {KERNEL(table_pairs), NULL};

const struct cuda_operator cuda_rope_table = {NULL, cuda_table_run, table_kernels};

/* What a rotation's threads share: pairs of a head, and units of two (interleaved) or four (halves) of them,
 * which is a quad of in for each load. */
struct rope_shape {
    int64_t rows;
    int32_t pairs, units, heads;
    bool wide; /* quads of every head are aligned */
};

__device__ static inline float2 rotate(float a, float b, float c, float s) {
    return make_float2(a * c - b * s, a * s + b * c);
}

/* Pairs (2i, 2i + 1), two of a head in place.
 *
 * Grid: rows_grid_of, units of all heads in place of quads; no shared memory; 28 registers (47 by halves).
 * Bytes: 8 a value and the table once, which the cache keeps for all heads; FLOPs: 3 a value. Roof: memory;
 * share of the roof: not measured yet. */
static __global__ void __launch_bounds__(ROWS_THREADS, 1)
    cuda_rotate_interleaved(struct rows inout, struct rows table, struct rope_shape s) {
    int64_t unit = first_quad();
    if (unit >= (int64_t)s.units * s.heads) return;
    int64_t head = (uint32_t)unit / (uint32_t)s.units, pair = 2 * ((uint32_t)unit % (uint32_t)s.units);
    int64_t i = 2 * (head * s.pairs + pair), end = 2 * (head + 1) * s.pairs;
    inout.wide = inout.wide && s.wide;
    for (int64_t row = first_row(); row < s.rows; row += next_row()) {
        float4 v = rows_load_f32(inout, row, i, end), t = rows_load_f32(table, row, 2 * pair, 2 * s.pairs);
        float2 x = rotate(v.x, v.y, t.x, t.y), y = rotate(v.z, v.w, t.z, t.w);
        rows_store(inout, row, i, end, make_float4(x.x, x.y, y.x, y.y));
    }
}

/* Pairs (i, i + D / 2), four of a head in place. Grid and the rest: as rotate_interleaved. */
static __global__ void __launch_bounds__(ROWS_THREADS, 1)
    cuda_rotate_halves(struct rows inout, struct rows table, struct rope_shape s) {
    int64_t unit = first_quad();
    if (unit >= (int64_t)s.units * s.heads) return;
    int64_t head = (uint32_t)unit / (uint32_t)s.units, pair = 4 * ((uint32_t)unit % (uint32_t)s.units);
    int64_t low = 2 * head * s.pairs + pair, middle = (2 * head + 1) * s.pairs, end = middle + s.pairs;
    inout.wide = inout.wide && s.wide;
    for (int64_t row = first_row(); row < s.rows; row += next_row()) {
        float4 a = rows_load_f32(inout, row, low, middle);
        float4 b = rows_load_f32(inout, row, low + s.pairs, end);
        float4 t = rows_load_f32(table, row, 2 * pair, 2 * s.pairs);
        float4 u = rows_load_f32(table, row, 2 * pair + 4, 2 * s.pairs);
        float2 x = rotate(a.x, b.x, t.x, t.y), y = rotate(a.y, b.y, t.z, t.w);
        float2 z = rotate(a.z, b.z, u.x, u.y), w = rotate(a.w, b.w, u.z, u.w);
        rows_store(inout, row, low, middle, make_float4(x.x, y.x, z.x, w.x));
        rows_store(inout, row, low + s.pairs, end, make_float4(x.y, y.y, z.y, w.y));
    }
}

static enum status cuda_rope_run(struct cuda *cuda, const struct op *op, char *workspace, struct error *e) {
    (void)workspace;
    int32_t pairs = op->in[0].dim[1], each = op->pairs == ROPE_HALVES ? 4 : 2;
    struct rope_shape s = {op->out.dim[0], pairs, (pairs + each - 1) / each, op->n, pairs % each == 0};
    struct rows table = rows_floats(static_cast<const float *>(op->in[0].data), 2 * (int64_t)pairs);
    struct rows_grid g = rows_grid_of(s.rows, (int64_t)s.units * s.heads);
    if (op->pairs == ROPE_HALVES)
        LAUNCH(cuda_rotate_halves, g.grid, g.block, 0, cuda->compute, rows_of(&op->out), table, s);
    else
        LAUNCH(cuda_rotate_interleaved, g.grid, g.block, 0, cuda->compute, rows_of(&op->out), table, s);
    return cuda_launched(op, e);
}

static const void *const rope_kernels[] = {KERNEL(cuda_rotate_interleaved), KERNEL(cuda_rotate_halves), NULL};

const struct cuda_operator cuda_rope = {NULL, cuda_rope_run, rope_kernels};

/* An embedding has 256 values in every model: few enough to be computed on the host and to travel along. */
struct embedded {
    float value[TIMES_AT_ONCE];
};

/* Grid: one block, a thread a value; no shared memory; 8 registers. A launch takes longer than its bytes. */
static __global__ void __launch_bounds__(TIMES_AT_ONCE, 1)
    write_values(float *out, const struct embedded values, int32_t n) {
    int32_t i = (int32_t)threadIdx.x;
    if (i < n) out[i] = values.value[i];
}

/* Exponent, frequency and angle rounded to f32 each, as on the CPU. */
static float timestep_value(float t, int32_t half, int32_t i) {
    float exponent = -(float)log(10000) * (float)(i % half) / (float)half;
    float angle = t * (float)exp((double)exponent);
    return (float)(i < half ? cos((double)angle) : sin((double)angle));
}

static enum status cuda_timestep_run(struct cuda *cuda, const struct op *op, char *workspace,
                                     struct error *e) {
    (void)workspace;
    int32_t columns = op->out.dim[1];
    struct embedded values = {};
    for (int32_t first = 0; first < columns; first += TIMES_AT_ONCE) {
        int32_t n = columns - first < TIMES_AT_ONCE ? columns - first : TIMES_AT_ONCE;
        for (int32_t i = 0; i < n; i++) values.value[i] = timestep_value(op->scale, columns / 2, first + i);
        LAUNCH(write_values, 1, TIMES_AT_ONCE, 0, cuda->compute, static_cast<float *>(op->out.data) + first,
               values, n);
    }
    return cuda_launched(op, e);
}

static const void *const timestep_kernels[] = {KERNEL(write_values), NULL};

const struct cuda_operator cuda_timestep = {NULL, cuda_timestep_run, timestep_kernels};
