/* rms_norm and layer_norm: one read and one write of memory; a run of C values is held in registers.
 *
 * Statistics are f32, because double runs at 1/64 of the rate on most GPUs. A value passes at most 15
 * additions (four in sequence and a tree; more only above 8,192 values), always the same ones. The error of a
 * mean of squares is therefore at most 18 2^-24 relative, and of a normed value half of that, 6e-7, in the
 * worst case. layer_norm subtracts the mean rounded to f32 and then the mean of the remainder, so no bits are
 * lost where the mean is much larger than the deviation. */
#include "kernels/cuda/norm.h"

#include "kernels/cuda/cast.h"
#include "kernels/cuda/norm.cuh"

/* Computes an RMS norm's vectors: factor = weight (1 + scale), gate = tanh(gate). Grid: rows_grid_of one row;
 * no shared memory; 32 registers. Bytes: 8 per channel plus the sources. The launch takes longer than the
 * transfer. CUDA's tanhf is within 2 ulp. */
static __global__ void __launch_bounds__(ROWS_THREADS)
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
    struct rows out, in, factor, gate, base;
    struct runs runs;
    float eps;
    enum activation activation;
};

/* out = base + gate (in rstd factor). `out` may alias `in` or `base`: a thread reads four values before
 * writing these values. Grid: one team per run (norm_team_of), blocks of 128 threads or one team; shared
 * memory: 128 bytes; 26 registers with one group of four per thread, 40 with four; unaligned rows 30 and 45.
 * Bytes: 8 per value, 12 with a base, 2 less for a bf16 result; FLOPs: 4 to 7. Bound by memory; share of
 * peak: not measured yet. */
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
        v = multiply_four(v, rows_load_plain(r.factor, 0, i, c));
        if (ACTIVATED) v = activate_four(v, r.activation);
        if (r.gate.data) v = multiply_four(rows_load_f32(r.gate, 0, i, c), v);
        if (r.base.data) v = add_four(load_quad<K>(r.base, run, i), v);
        store_quad<K>(r.out, run, i, v);
    }
}

template <int HELD, enum rows_kind K>
static __global__ void __launch_bounds__(512) rms_runs(struct rms_call r) {
    SMEM_ARRAY(float, parts, WARP);
    rms_run<HELD, K, false>(r, parts);
}

/* rms_runs with an activation, a separate kernel, because an activation needs more registers: 54 (sm_80). */
template <int HELD> static __global__ void __launch_bounds__(512, 1) rms_activated(struct rms_call r) {
    SMEM_ARRAY(float, parts, WARP);
    rms_run<HELD, ROWS_ANY, true>(r, parts);
}

static void launch_activated(const struct norm_team *team, cudaStream_t stream, struct rms_call call) {
    unsigned blocks = blocks_of(&call.runs, team);
    if (team->held == 1)
        LAUNCH((rms_activated<1>), blocks, team->block, 0, stream, call);
    else if (team->held == 4)
        LAUNCH((rms_activated<4>), blocks, team->block, 0, stream, call);
    else
        LAUNCH((rms_activated<0>), blocks, team->block, 0, stream, call);
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
    enum rows_kind kind = rows_kind_of(call.out, call.in, call.base, call.runs.c);
    call.activation = op->modulation.activation;
    if (call.activation)
        launch_activated(&team, cuda->compute, call);
    else
        LAUNCH_RUNS(rms_runs, &team, kind, blocks_of(&call.runs, &team), cuda->compute, call);
    return cuda_launched(op, e);
}

static const void *const rms_kernels[] = {KERNEL(cuda_rms_vectors), RUNS_KERNELS(rms_runs),
                                          KERNEL(rms_activated<0>), KERNEL(rms_activated<1>),
                                          KERNEL(rms_activated<4>), NULL};

const struct cuda_operator cuda_rms_norm = {NULL, cuda_rms_run, rms_kernels};

struct layer_call {
    struct rows out, in;
    struct rows weight, bias, scale, shift; /* each vector is optional */
    struct runs runs;
    float eps;
};

/* Returns v - mean; 0 beyond the run's n values. */
__device__ static inline float4 centered(float4 v, float mean, int64_t i, int64_t n) {
    return make_float4(i < n ? v.x - mean : 0, i + 1 < n ? v.y - mean : 0, i + 2 < n ? v.z - mean : 0,
                       i + 3 < n ? v.w - mean : 0);
}

/* Applies the vectors that are present: models have weight and bias of the norm, or scale and shift of
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

/* Returns vector i, converted to f32 in the workspace if the vector is not plain. */
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
