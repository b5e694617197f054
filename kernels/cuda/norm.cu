/* rms_norm and layer_norm: one read and one write of memory, a run of C values being held in registers.
 *
 * Statistics are f32, because double runs at 1/64 of the rate on most GPUs. A value goes through at most 15
 * additions (four in turn and a tree; more only above 8,192 values), always the same ones. So a mean of
 * squares, whose terms all have one sign, is off by at most 18 2^-24 of itself, and what is normed by
 * half of that, 6e-7, in the worst case. layer_norm subtracts a mean that is rounded to f32, and then its
 * error, which is the mean of what is left: no bits are lost where the mean is far larger than the deviation.
 */
#include "kernels/cuda/norm.h"

#include "kernels/cuda/cast.h"
#include "kernels/cuda/rows.cuh"

/* n runs in a row, of c values. */
struct runs {
    int64_t count;
    int32_t in_row, c, threads;
};

/* A thread's place: of this run, which is columns first to end of a row, it has quads place,
 * place + threads, ... Where there is no run for it (end is first), it reads zeros and writes nothing. */
struct run {
    int64_t row, first, end;
    int32_t place;
};

/* A division of 64 bits takes some hundred instructions, more than a head's run has; few calls need one. */
__device__ static inline int64_t row_of(const struct runs &runs, int64_t number) {
    if (runs.count > UINT32_MAX) return number / runs.in_row;
    return (uint32_t)number / (uint32_t)runs.in_row;
}

__device__ static inline struct run run_of(const struct runs &runs) {
    int32_t teams = (int32_t)blockDim.x / runs.threads, team = (int32_t)threadIdx.x / runs.threads;
    int64_t number = (int64_t)blockIdx.x * teams + team;
    bool any = number < runs.count;
    int64_t row = any ? row_of(runs, number) : 0, first = any ? (number - row * runs.in_row) * runs.c : 0;
    return {row, first, first + (any ? runs.c : 0), (int32_t)threadIdx.x % runs.threads};
}

/* Quads a thread goes through. */
template <int HELD> __device__ static inline int32_t quads_of(const struct runs &runs) {
    return HELD ? HELD : (runs.c - 1) / (4 * runs.threads) + 1;
}

/* Column of the thread's quad j in its run. */
__device__ static inline int64_t column_of(const struct runs &runs, const struct run &run, int32_t j) {
    return 4 * (run.place + (int64_t)j * runs.threads);
}

__device__ static inline float4 load_quad(const struct rows &rows, const struct run &run, int64_t column) {
    return rows_load_f32(rows, run.row, run.first + column, run.end);
}

template <int HELD>
__device__ static inline void hold(float4 *held, const struct rows &in, const struct runs &runs,
                                   const struct run &run) {
    for (int j = 0; j < HELD; j++) held[j] = load_quad(in, run, column_of(runs, run, j));
}

template <int HELD>
__device__ static inline float4 quad_of(const float4 *held, const struct rows &in, const struct run &run,
                                        int j, int64_t column) {
    return HELD ? held[HELD ? j : 0] : load_quad(in, run, column);
}

__device__ static inline float sum_four(float4 v) {
    return (v.x + v.y) + (v.z + v.w);
}

/* The sum over a team, the same bits in all its threads: a butterfly in the warp, then one over the warps'
 * sums. parts: WARP values of shared memory that nobody else uses. */
__device__ static inline float team_sum(float v, int32_t threads, float *parts) {
    for (int o = (threads < WARP ? threads : WARP) / 2; o; o /= 2) v += __shfl_xor_sync(~0u, v, o);
    if (threads <= WARP) return v;
    int lane = threadIdx.x % WARP;
    if (lane == 0) parts[threadIdx.x / WARP] = v;
    __syncthreads();
    v = lane < threads / WARP ? parts[lane] : 0;
    for (int o = WARP / 2; o; o /= 2) v += __shfl_xor_sync(~0u, v, o);
    return v;
}

static struct runs runs_of(const struct op *op, int32_t c, const struct norm_team *team) {
    int32_t in_row = tensor_columns(&op->in[0]) / c;
    return {tensor_rows(&op->in[0]) * in_row, in_row, c, team->threads};
}

static unsigned blocks_of(const struct runs *runs, const struct norm_team *team) {
    int64_t teams = team->block / team->threads;
    return (unsigned)((runs->count + teams - 1) / teams);
}

/* Wide where every run in the row begins at a quad, too. */
static struct rows rows_of_runs(const struct tensor *t, const struct runs *runs) {
    struct rows rows = rows_of(t);
    rows.wide = rows.wide && (runs->c % 4 == 0 || runs->in_row == 1);
    return rows;
}

/* --- rms_norm --- */

/* factor = weight (1 + scale), gate = tanh(gate).
 *
 * Grid: rows_grid_of one row; no shared memory; 39 registers. Bytes: 8 a channel and what is read. A launch
 * takes longer than its bytes. tanhf is CUDA's own: at most 2 ulp. */
static __global__ void __launch_bounds__(ROWS_THREADS, 1)
    cuda_rms_vectors(struct rows to_factor, struct rows to_gate, struct rows weight, struct rows scale,
                     struct rows gate, int32_t c) {
    int64_t i = 4 * first_quad();
    if (i >= c || first_row() > 0) return;
    float4 factor = rows_load(weight, 0, i, c);
    if (scale.data) factor = multiply_four(factor, add_four(all_four(1), rows_load(scale, 0, i, c)));
    rows_store(to_factor, 0, i, c, factor);
    if (!gate.data) return;
    float4 v = rows_load(gate, 0, i, c);
    rows_store(to_gate, 0, i, c, make_float4(tanhf(v.x), tanhf(v.y), tanhf(v.z), tanhf(v.w)));
}

struct rms_call {
    struct rows out, in, factor, gate, base; /* gate and base may be absent */
    struct runs runs;
    float eps;
};

/* out = base + gate (in rstd factor), where out may be in or base: a thread reads a quad before it writes it.
 *
 * Grid: a team a run (norm_team_of), blocks of 128 threads or one team; shared memory: 128 bytes; 30
 * registers for one quad a thread, 46 for four. Bytes: 8 a value, 12 with a base; FLOPs: 4 to 7. Roof:
 * memory; share of the roof: not measured yet. */
template <int HELD> static __global__ void __launch_bounds__(512, 1) rms_runs(struct rms_call r) {
    SMEM_ARRAY(float, parts, WARP);
    struct run run = run_of(r.runs);
    int32_t c = r.runs.c, quads = quads_of<HELD>(r.runs);
    float4 held[HELD ? HELD : 1];
    hold<HELD>(held, r.in, r.runs, run);
    float sum = 0;
    for (int j = 0; j < quads; j++) {
        float4 v = quad_of<HELD>(held, r.in, run, j, column_of(r.runs, run, j));
        sum += sum_four(multiply_four(v, v));
    }
    float mean = team_sum(sum, r.runs.threads, parts) / (float)c;
    float4 rstd = all_four(1.0f / sqrtf(mean + r.eps));
    for (int j = 0; j < quads; j++) {
        int64_t i = column_of(r.runs, run, j);
        float4 v = multiply_four(quad_of<HELD>(held, r.in, run, j, i), rstd);
        v = multiply_four(v, rows_load_plain(r.factor, 0, i, c));
        if (r.gate.data) v = multiply_four(rows_load_f32(r.gate, 0, i, c), v);
        if (r.base.data) v = add_four(load_quad(r.base, run, i), v);
        rows_store(r.out, run.row, run.first + i, run.end, v);
    }
}

static void rms_prepare_vectors(struct cuda *cuda, const struct op *op, const struct rms_layout *l,
                                char *workspace, struct rms_call *call) {
    int32_t c = op->in[1].dim[0];
    call->factor = rows_vector(&op->in[1]);
    call->gate = rows_at(NULL, 0, DTYPE_F32);
    if (l->direct) return;
    struct rows weight = call->factor, gate = rows_vector(&op->modulation.gate);
    call->factor = rows_at(workspace + l->factor, 0, DTYPE_F32);
    if (gate.data) call->gate = rows_at(workspace + l->gate, 0, DTYPE_F32);
    struct rows_grid g = rows_grid_of(1, ((int64_t)c + 3) / 4);
    LAUNCH(cuda_rms_vectors, g.grid, g.block, 0, cuda->compute, call->factor, call->gate, weight,
           rows_vector(&op->modulation.scale), gate, c);
}

static enum status cuda_rms_run(struct cuda *cuda, const struct op *op, char *workspace, struct error *e) {
    struct rms_layout l = cuda_rms_layout(op);
    struct norm_team team = norm_team_of(op->in[1].dim[0]);
    struct rms_call call = {};
    call.runs = runs_of(op, op->in[1].dim[0], &team);
    call.eps = op->eps;
    call.in = rows_of_runs(&op->in[0], &call.runs);
    call.out = rows_of_runs(&op->out, &call.runs);
    call.base = rows_of_runs(&op->modulation.base, &call.runs);
    rms_prepare_vectors(cuda, op, &l, workspace, &call);
    unsigned blocks = blocks_of(&call.runs, &team);
    if (team.held == 1)
        LAUNCH((rms_runs<1>), blocks, team.block, 0, cuda->compute, call);
    else if (team.held == 4)
        LAUNCH((rms_runs<4>), blocks, team.block, 0, cuda->compute, call);
    else
        LAUNCH((rms_runs<0>), blocks, team.block, 0, cuda->compute, call);
    return cuda_launched(op, e);
}

static const void *const rms_kernels[] = {KERNEL(cuda_rms_vectors), KERNEL(rms_runs<0>), KERNEL(rms_runs<1>),
                                          KERNEL(rms_runs<4>), NULL};

const struct cuda_operator cuda_rms_norm = {NULL, cuda_rms_run, rms_kernels};

/* --- layer_norm --- */

struct layer_call {
    struct rows out, in;
    struct rows weight, bias, scale, shift; /* each may be absent */
    struct runs runs;
    float eps;
};

/* v - mean, but 0 beyond the run's n values. */
__device__ static inline float4 about(float4 v, float mean, int64_t i, int64_t n) {
    return make_float4(i < n ? v.x - mean : 0, i + 1 < n ? v.y - mean : 0, i + 2 < n ? v.z - mean : 0,
                       i + 3 < n ? v.w - mean : 0);
}

/* Those that are there: families have the norm's own two, or modulation's two. */
__device__ static inline float4 refine(const struct layer_call &r, float4 v, int64_t i) {
    int64_t c = r.runs.c;
    if (r.weight.data) v = multiply_four(v, rows_load_plain(r.weight, 0, i, c));
    if (r.bias.data) v = add_four(v, rows_load_plain(r.bias, 0, i, c));
    if (r.scale.data) v = multiply_four(v, add_four(all_four(1), rows_load_plain(r.scale, 0, i, c)));
    if (r.shift.data) v = add_four(v, rows_load_plain(r.shift, 0, i, c));
    return v;
}

/* out = ((in - mean) rstd weight + bias) (1 + scale) + shift, where out may be in.
 *
 * Grid and shared memory: as rms_runs, thrice the shared memory; 38 registers, or 53. Bytes: 8 a value;
 * FLOPs: 9 and one for each vector. Roof: memory; share of the roof: not measured yet. */
template <int HELD> static __global__ void __launch_bounds__(512, 1) layer_runs(struct layer_call r) {
    SMEM_ARRAY(float, parts, 3 * WARP);
    struct run run = run_of(r.runs);
    int32_t c = r.runs.c, threads = r.runs.threads, quads = quads_of<HELD>(r.runs);
    float4 held[HELD ? HELD : 1];
    hold<HELD>(held, r.in, r.runs, run);
    float sum = 0, rest = 0, squares = 0;
    for (int j = 0; j < quads; j++)
        sum += sum_four(quad_of<HELD>(held, r.in, run, j, column_of(r.runs, run, j)));
    float mean = team_sum(sum, threads, parts) / (float)c;
    for (int j = 0; j < quads; j++) {
        int64_t i = column_of(r.runs, run, j);
        float4 d = about(quad_of<HELD>(held, r.in, run, j, i), mean, i, c);
        rest += sum_four(d);
        squares += sum_four(multiply_four(d, d));
    }
    rest = team_sum(rest, threads, parts + WARP) / (float)c;
    float variance = team_sum(squares, threads, parts + 2 * WARP) / (float)c - rest * rest;
    float4 rstd = all_four(1.0f / sqrtf((variance > 0 ? variance : 0) + r.eps));
#pragma unroll HELD ? HELD : 1 /* what is held has to be in registers */
    for (int j = 0; j < quads; j++) {
        int64_t i = column_of(r.runs, run, j);
        float4 v = about(quad_of<HELD>(held, r.in, run, j, i), mean, i, c);
        v = multiply_four(about(v, rest, i, c), rstd);
        rows_store(r.out, run.row, run.first + i, run.end, refine(r, v, i));
    }
}

/* Vector number i, made plain in the workspace if it is not. */
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
    unsigned blocks = blocks_of(&call.runs, &team);
    if (team.held == 1)
        LAUNCH((layer_runs<1>), blocks, team.block, 0, cuda->compute, call);
    else if (team.held == 4)
        LAUNCH((layer_runs<4>), blocks, team.block, 0, cuda->compute, call);
    else
        LAUNCH((layer_runs<0>), blocks, team.block, 0, cuda->compute, call);
    return cuda_launched(op, e);
}

static const void *const layer_kernels[] = {KERNEL(layer_runs<0>), KERNEL(layer_runs<1>),
                                            KERNEL(layer_runs<4>), NULL};

const struct cuda_operator cuda_layer_norm = {NULL, cuda_layer_run, layer_kernels};
