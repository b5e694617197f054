/* Products of a few rows with a weight, in f32; the order of each output's sum is fixed, whatever else is
 * computed.
 *
 * One warp computes an output: lane l accumulates (explicit FMA) values 8l to 8l + 7 of every 256 in turn,
 * then a butterfly adds the lanes. The number of outputs per warp does not affect any output. */
#include "kernels/cuda/linear_few.h"

#include "kernels/cuda/cast.h"
#include "kernels/cuda/row_access.cuh"

/* Applies the activation to four input values; zeros beyond K. Grid: rows_grid_of; no shared memory; 37
 * registers. Bytes: 8 per value; FLOPs: 4. The launch takes longer than the transfer. */
static __global__ void __launch_bounds__(ROWS_THREADS, 1)
    few_rows(struct rows to, struct rows in, int64_t rows, int64_t k, int64_t columns,
             enum activation activation) {
    int64_t i = 4 * first_quad();
    if (i >= columns) return;
    for (int64_t row = first_row(); row < rows; row += next_row()) {
        float4 v = rows_load_f32(in, row, i, k);
        rows_store(to, row, i, columns, activate_four(v, activation));
    }
}

enum { FEW_WARPS = 4 };

/* Outputs per warp. Two outputs keep every multiprocessor busy with one row and halve the reads of the input.
 * Quantised weights: one output, so that the switch over all types in the load is compiled only once. */
template <bool PLAIN> struct few_outputs { static constexpr int n = PLAIN ? 2 : 1; };

struct few_call {
    struct rows out, weight,
        bias;        /* bias is optional; weight.wide: weight rows are plain and aligned to 16 bytes */
    const float *in; /* activated input [rows, columns] */
    int32_t rows, n, k, columns;
    bool runs_on; /* quantisation blocks cross row boundaries: the weight is one long row */
};

/* Loads values i to i + 7 of a row of k plain weights; zeros beyond k. */
__device__ static inline void load_eight(float *to, const struct rows &weight, int64_t row, int32_t i,
                                         int32_t k) {
    const char *from = weight.data + row * weight.step;
    if (!weight.wide || i + FEW_VALUES > k) {
        for (int j = 0; j < FEW_VALUES; j++) to[j] = i + j < k ? value_at(from, weight.dtype, i + j) : 0;
        return;
    }
    if (weight.dtype == DTYPE_F32) {
        float4 a = four_at(from, DTYPE_F32, true, i, k), b = four_at(from, DTYPE_F32, true, i + 4, k);
        to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w;
        to[4] = b.x, to[5] = b.y, to[6] = b.z, to[7] = b.w;
        return;
    }
    uint4 v = ld128(from + 2 * (int64_t)i);
    uint32_t pair[4] = {v.x, v.y, v.z, v.w};
    for (int j = 0; j < FEW_VALUES; j++) {
        uint16_t half = (uint16_t)(pair[j / 2] >> 16 * (j % 2));
        to[j] = weight.dtype == DTYPE_BF16 ? cuda_bf16_f32(half) : cuda_f16_f32(half);
    }
}

/* Computes a lane's partial sums for few_outputs columns of ROWS rows. Missing rows and columns repeat the
 * last. */
template <int ROWS, bool PLAIN>
__device__ static inline void few_sums(const struct few_call &f, int32_t first_column, int32_t first_row,
                                       float sum[few_outputs<PLAIN>::n][ROWS]) {
    constexpr int columns = few_outputs<PLAIN>::n;
#pragma unroll
    for (int c = 0; c < columns; c++)
#pragma unroll
        for (int r = 0; r < ROWS; r++) sum[c][r] = 0;
    for (int32_t i = (int32_t)threadIdx.x % WARP * FEW_VALUES; i < f.columns; i += WARP * FEW_VALUES) {
        float weight[columns][FEW_VALUES];
#pragma unroll
        for (int c = 0; c < columns; c++) {
            int32_t row = min(first_column + c, f.n - 1);
            if (PLAIN)
                load_eight(weight[c], f.weight, row, i, f.k);
            else
                weights_load_any<FEW_VALUES>(weight[c], f.weight, f.runs_on ? 0 : row,
                                             f.runs_on ? (int64_t)row * f.k + i : i,
                                             f.runs_on ? (int64_t)f.n * f.k : f.k);
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float *from = f.in + (int64_t)min(first_row + r, f.rows - 1) * f.columns + i;
            float in[FEW_VALUES];
#pragma unroll
            for (int j = 0; j < FEW_VALUES; j += 4) {
                uint4 v = ld128(from + j);
                in[j] = __uint_as_float(v.x), in[j + 1] = __uint_as_float(v.y);
                in[j + 2] = __uint_as_float(v.z), in[j + 3] = __uint_as_float(v.w);
            }
#pragma unroll
            for (int c = 0; c < columns; c++)
#pragma unroll
                for (int j = 0; j < FEW_VALUES; j++) sum[c][r] = fmaf(in[j], weight[c][j], sum[c][r]);
        }
    }
}

/* Computes few_outputs columns of all rows, ROWS rows at a time: weights come from memory once, then from the
 * cache. Grid: one warp per few_outputs columns; block: 4 warps; no shared memory; 64, 107 and 168 registers
 * for 1, 4 and 8 rows; quantised weights 48 and 56 for 1 and 4 rows. Bytes: the weights; FLOPs: 2 T per
 * weight. Bound by memory, from about 8 rows on by f32 arithmetic; share of peak: not measured yet. */
template <int ROWS, bool PLAIN>
static __global__ void __launch_bounds__(FEW_WARPS *WARP, 1) few_columns(struct few_call f) {
    constexpr int columns = few_outputs<PLAIN>::n;
    int32_t warp = (int32_t)(blockIdx.x * FEW_WARPS + threadIdx.x / WARP), column = warp * columns;
    bool writes = threadIdx.x % WARP == 0;
    for (int32_t row = 0; row < f.rows; row += ROWS) {
        float sum[columns][ROWS];
        few_sums<ROWS, PLAIN>(f, column, row, sum);
#pragma unroll
        for (int c = 0; c < columns; c++)
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                float v = sum[c][r];
                for (int o = WARP / 2; o; o /= 2) v += __shfl_xor_sync(~0u, v, o);
                if (!writes || column + c >= f.n || row + r >= f.rows) continue;
                if (f.bias.data) v += value_at(f.bias.data, f.bias.dtype, column + c);
                reinterpret_cast<float *>(f.out.data + (row + r) * f.out.step)[column + c] = v;
            }
    }
}

static struct rows few_bias(const struct cuda *cuda, const struct op *op, const struct few_layout *l,
                            char *workspace) {
    const struct tensor *bias = &op->in[2];
    if (weight_is_plain(bias)) return rows_vector(bias);
    float *to = reinterpret_cast<float *>(workspace + l->bias);
    cuda_widen_vector(to, bias, tensor_columns(bias), cuda->compute);
    return rows_floats(to, 0);
}

template <int ROWS, bool PLAIN> static void few_launch(const struct few_call &call, cudaStream_t stream) {
    unsigned blocks = (unsigned)((call.n - 1) / (few_outputs<PLAIN>::n * FEW_WARPS) + 1);
    LAUNCH((few_columns<ROWS, PLAIN>), blocks, FEW_WARPS * WARP, 0, stream, call);
}

static void few_launch_plain(const struct few_call &call, cudaStream_t stream) {
    if (call.rows == 1)
        few_launch<1, true>(call, stream);
    else if (call.rows <= 4)
        few_launch<4, true>(call, stream);
    else
        few_launch<8, true>(call, stream);
}

static enum status cuda_few_run(struct cuda *cuda, const struct op *op, char *workspace, struct error *e) {
    struct few_layout l = cuda_few_layout(op);
    const struct tensor *in = &op->in[0], *weight = &op->in[1];
    float *rows = reinterpret_cast<float *>(workspace + l.in);
    struct rows_grid g = rows_grid_of(in->dim[0], l.columns / 4);
    LAUNCH(few_rows, g.grid, g.block, 0, cuda->compute, rows_floats(rows, l.columns), rows_of(in),
           (int64_t)in->dim[0], (int64_t)in->dim[1], (int64_t)l.columns, op->activation);
    struct few_call call = {rows_of(&op->out), rows_of(weight), few_bias(cuda, op, &l, workspace), rows};
    if (weight_is_plain(weight))
        call.weight.wide = ((uintptr_t)weight->data | (uintptr_t)weight->row_bytes) % 16 == 0;
    call.runs_on = tensor_runs_on(weight);
    call.rows = in->dim[0];
    call.n = weight->dim[0];
    call.k = weight->dim[1];
    call.columns = l.columns;
    if (weight_is_plain(weight))
        few_launch_plain(call, cuda->compute);
    else if (call.rows == 1)
        few_launch<1, false>(call, cuda->compute);
    else
        few_launch<4, false>(call, cuda->compute);
    return cuda_launched(op, e);
}

static const void *const kernels[] = {KERNEL(few_rows),
                                      KERNEL(few_columns<1, true>),
                                      KERNEL(few_columns<4, true>),
                                      KERNEL(few_columns<8, true>),
                                      KERNEL(few_columns<1, false>),
                                      KERNEL(few_columns<4, false>),
                                      NULL};

const struct cuda_operator cuda_linear_few = {NULL, cuda_few_run, kernels};
