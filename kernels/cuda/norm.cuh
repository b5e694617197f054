/* Shared device code of RMS norm, layer norm and RoPE. A run is C consecutive values of a row that are normed
 * together (a row or a head). A team of threads holds one run in registers (norm.h). */
#ifndef SLUICE_CUDA_NORM_CUH
#define SLUICE_CUDA_NORM_CUH

#include "kernels/cuda/norm.h"
#include "kernels/cuda/row_access.cuh"

/* A tensor split into runs (c values normed together): in_row runs per row, `threads` threads per run. */
struct runs {
    int64_t count;
    int32_t in_row, c, threads;
};

/* A thread's part of a run (values normed together), which is columns `first` to `end` of `row`: groups of
 * four number place, place + threads, ... A thread without a run (end equals first) reads zeros and writes
 * nothing. */
struct run {
    int64_t row, first, end;
    int32_t place;
};

/* Returns the tensor row that contains this run. Divides in 32 bits if possible: 64-bit division takes about
 * a hundred instructions, more than a head's norm. */
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

/* Returns how many groups of four values a thread has of its run. HELD: as norm_team.held. */
template <int HELD> __device__ static inline int32_t quads_of(const struct runs &runs) {
    return HELD ? HELD : (runs.c - 1) / (4 * runs.threads) + 1;
}

/* Returns the first column, within the run, of the thread's j-th group of four values. */
__device__ static inline int64_t column_of(const struct runs &runs, const struct run &run, int32_t j) {
    return 4 * (run.place + (int64_t)j * runs.threads);
}

/* Loads four values of a run; zeros beyond the run's end, which a thread's last groups may exceed. */
template <enum rows_kind K>
__device__ static inline float4 load_quad(const struct rows &rows, const struct run &run, int64_t column) {
    if (K != ROWS_ANY && run.first + column >= run.end) return all_four(0);
    return rows_load_kind<K>(rows, run.row, run.first + column, run.end);
}

template <enum rows_kind K>
__device__ static inline void store_quad(const struct rows &rows, const struct run &run, int64_t column,
                                         float4 v) {
    if (K != ROWS_ANY && run.first + column >= run.end) return;
    rows_store_kind<K>(rows, run.row, run.first + column, run.end, v);
}

/* Loads all of the thread's groups of four values into registers. */
template <int HELD, enum rows_kind K>
__device__ static inline void hold(float4 *held, const struct rows &in, const struct runs &runs,
                                   const struct run &run) {
    for (int j = 0; j < HELD; j++) held[j] = load_quad<K>(in, run, column_of(runs, run, j));
}

/* Returns the thread's j-th group of four values: from registers, or read again if HELD is 0. */
template <int HELD, enum rows_kind K>
__device__ static inline float4 quad_of(const float4 *held, const struct rows &in, const struct run &run,
                                        int j, int64_t column) {
    return HELD ? held[HELD ? j : 0] : load_quad<K>(in, run, column);
}

__device__ static inline float sum_four(float4 v) {
    return (v.x + v.y) + (v.z + v.w);
}

/* Sum over a team, with the same bits in all threads: a butterfly within each warp, then a butterfly over the
 * warps' sums. parts: WARP values of shared memory reserved for this call. */
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

/* Partition of the operator's first input into runs of c values. */
static struct runs runs_of(const struct op *op, int32_t c, const struct norm_team *team) {
    int32_t in_row = tensor_columns(&op->in[0]) / c;
    return {tensor_rows(&op->in[0]) * in_row, in_row, c, team->threads};
}

/* Returns the thread blocks that all runs of a tensor need. */
static unsigned blocks_of(const struct runs *runs, const struct norm_team *team) {
    int64_t teams = team->block / team->threads;
    return (unsigned)((runs->count + teams - 1) / teams);
}

/* Row access to a tensor of runs; wide only if every run starts at a multiple of four values. */
static struct rows rows_of_runs(const struct tensor *t, const struct runs *runs) {
    struct rows rows = rows_of(t);
    rows.wide = rows.wide && (runs->c % 4 == 0 || runs->in_row == 1);
    return rows;
}

/* Launches the kernel instance for a norm's team size and row kind (its two template arguments). */
#define LAUNCH_RUNS(kernel, team, kind, blocks, stream, call)                                                \
    do {                                                                                                     \
        if ((team)->held == 1)                                                                               \
            LAUNCH_RUNS_HELD(kernel, 1, kind, blocks, (team)->block, stream, call);                          \
        else if ((team)->held == 4)                                                                          \
            LAUNCH_RUNS_HELD(kernel, 4, kind, blocks, (team)->block, stream, call);                          \
        else                                                                                                 \
            LAUNCH_RUNS_HELD(kernel, 0, kind, blocks, (team)->block, stream, call);                          \
    } while (0)
#define LAUNCH_RUNS_HELD(kernel, held, kind, blocks, block, stream, call)                                    \
    do {                                                                                                     \
        if ((kind) == ROWS_F32)                                                                              \
            LAUNCH((kernel<held, ROWS_F32>), blocks, block, 0, stream, call);                                \
        else if ((kind) == ROWS_BF16)                                                                        \
            LAUNCH((kernel<held, ROWS_BF16>), blocks, block, 0, stream, call);                               \
        else                                                                                                 \
            LAUNCH((kernel<held, ROWS_ANY>), blocks, block, 0, stream, call);                                \
    } while (0)
#define RUNS_KERNELS(kernel)                                                                                 \
    RUNS_KERNELS_HELD(kernel, 0), RUNS_KERNELS_HELD(kernel, 1), RUNS_KERNELS_HELD(kernel, 4)
#define RUNS_KERNELS_HELD(kernel, held)                                                                      \
    KERNEL(kernel<held, ROWS_ANY>), KERNEL(kernel<held, ROWS_F32>), KERNEL(kernel<held, ROWS_BF16>)

#endif
