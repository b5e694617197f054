/* Type conversion kernels (cast.h). */
#include "kernels/cuda/cast.h"

#include "kernels/cuda/row_access.cuh"

/* Rounds eight columns of a row to bf16 or f16 (nearest even). For a product's weight this is the
 * dequantisation, so each type has a kernel. Grid: rows_grid_of, in groups of eight columns; no shared
 * memory; 22 to 25 registers, quantised types 24 to 46. Bytes: 2 per value plus the source. Bound by memory;
 * share of peak: not measured yet. */
template <enum dtype D>
static __global__ void __launch_bounds__(ROWS_THREADS)
    round_rows(uint16_t *to, struct rows from, int64_t rows, int64_t columns, int64_t padded, bool f16) {
    int64_t i = 8 * first_quad();
    if (i >= padded) return;
    for (int64_t row = first_row(); row < rows; row += next_row()) {
        float v[8];
        weights_load<D, 8>(v, from, row, i, columns);
        uint32_t pair[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            pair[j] = f16 ? pack_f16(v[2 * j], v[2 * j + 1]) : pack_bf16(v[2 * j], v[2 * j + 1]);
        st128(to + row * padded + i, make_uint4(pair[0], pair[1], pair[2], pair[3]));
    }
}

/* If quantisation blocks cross rows, each block is processed as a row: the packed result is the same. */
void cuda_round_rows(void *to, enum dtype half, const struct tensor *from, int32_t padded,
                     cudaStream_t stream) {
    int32_t values = dtype_block_values(from->dtype);
    int32_t dim[2] = {(int32_t)(tensor_elements(from) / values), values};
    struct tensor blocks = tensor_make(from->data, from->dtype, 2, dim);
    blocks.scale = from->scale;
    if (tensor_runs_on(from)) from = &blocks, padded = values;
    int64_t rows = tensor_rows(from), columns = tensor_columns(from);
    struct rows_grid g = rows_grid_of(rows, padded / 8);
    switch (from->dtype) {
#define OF_TYPE(D)                                                                                           \
    case D:                                                                                                  \
        LAUNCH((round_rows<D>), g.grid, g.block, 0, stream, static_cast<uint16_t *>(to), rows_of(from),      \
               rows, columns, (int64_t)padded, half == DTYPE_F16);                                           \
        break;
        WEIGHT_TYPES(OF_TYPE)
#undef OF_TYPE
    default:
        break;
    }
}

/* Converts a vector to f32. Grid: rows_grid_of one row; no shared memory; 32 registers. Bytes: 4 per value
 * plus the source. Bound by memory; the launch takes longer than the transfer. */
static __global__ void __launch_bounds__(ROWS_THREADS)
    widen_vector(struct rows to, struct rows from, int64_t n, int64_t padded) {
    int64_t i = 4 * first_quad();
    if (i < padded && first_row() == 0)
        rows_store(to, 0, i, padded, i < n ? rows_load(from, 0, i, n) : all_four(0));
}

void cuda_widen_vector(float *to, const struct tensor *from, int32_t padded, cudaStream_t stream) {
    struct rows_grid g = rows_grid_of(1, ((int64_t)padded + 3) / 4);
    LAUNCH(widen_vector, g.grid, g.block, 0, stream, rows_floats(to, 0), rows_vector(from),
           from->rank ? tensor_elements(from) : 0, (int64_t)padded);
}

/* Expands a group norm to mean, factor = weight rstd, and bias for four channels; `each` consecutive channels
 * form a group. Grid: rows_grid_of one row; no shared memory; 48 registers. Bytes: 12 per channel plus the
 * source. Bound by memory; the launch takes longer than the transfer. */
static __global__ void __launch_bounds__(ROWS_THREADS)
    channel_norm(struct rows to, const float *statistics, struct rows weight, struct rows bias,
                 int32_t channels, int32_t each) {
    int64_t i = 4 * first_quad();
    if (i >= channels || first_row() > 0) return;
    float mean[4], rstd[4];
    for (int j = 0; j < 4; j++) {
        int32_t channel = (int32_t)(i + j < channels ? i + j : channels - 1);
        mean[j] = statistics[2 * (channel / each)];
        rstd[j] = statistics[2 * (channel / each) + 1];
    }
    rows_store(to, 0, i, channels, make_float4(mean[0], mean[1], mean[2], mean[3]));
    rows_store(to, 1, i, channels,
               multiply_four(weight.data ? rows_load(weight, 0, i, channels) : all_four(1),
                             make_float4(rstd[0], rstd[1], rstd[2], rstd[3])));
    rows_store(to, 2, i, channels, bias.data ? rows_load(bias, 0, i, channels) : all_four(0));
}

void cuda_channel_norm(float *to, const struct group_norm *norm, int32_t channels, cudaStream_t stream) {
    struct rows_grid g = rows_grid_of(1, ((int64_t)channels + 3) / 4);
    LAUNCH(channel_norm, g.grid, g.block, 0, stream, rows_floats(to, cuda_channel_norm_stride(channels)),
           static_cast<const float *>(norm->statistics.data), rows_vector(&norm->weight),
           rows_vector(&norm->bias), channels, channels / norm->statistics.dim[0]);
}

/* Epilogue of a product: out = residual + gate act(from). `from` and `residual` may alias `out`: each value
 * is read and written by one thread. Grid: rows_grid_of; no shared memory; 40 registers.
 * Bytes: 8 per value, 12 with a residual, 2 less for a 2-byte result; FLOPs: 2 to 10. Bound by memory; share
 * of peak: not measured yet. */
template <enum rows_kind K>
static __global__ void __launch_bounds__(ROWS_THREADS)
    finish_rows(struct rows out, struct rows from, struct rows gate, struct rows residual, int64_t rows,
                int32_t first, int32_t columns, enum activation activation) {
    int64_t i = 4 * first_quad();
    if (i >= columns) return;
    float4 factor = gate.data ? rows_load(gate, 0, first + i, (int64_t)first + columns) : all_four(1);
    for (int64_t row = first_row(); row < rows; row += next_row()) {
        float4 v = activate_four(rows_load_kind<K>(from, row, i, columns), activation);
        if (gate.data) v = multiply_four(factor, v);
        if (residual.data) v = add_four(rows_load_kind<K>(residual, row, i, columns), v);
        rows_store_kind<K>(out, row, i, columns, v);
    }
}

/* Returns row access to a tensor whose first column is column `first`. */
static struct rows rows_from_column(const struct tensor *t, int32_t first) {
    if (!t->rank) return rows_of(t);
    return rows_at(static_cast<char *>(t->data) + dtype_bytes(t->dtype, first), t->row_bytes, t->dtype);
}

void cuda_finish_product(const struct product_finish *finish, cudaStream_t stream) {
    const struct epilogue *e = finish->epilogue;
    struct rows out = rows_from_column(finish->out, finish->first);
    struct rows from = finish->product ? rows_floats(finish->product, finish->columns) : out;
    struct rows_grid g = rows_grid_of(finish->out->dim[0], ((int64_t)finish->columns + 3) / 4);
    struct rows residual = rows_from_column(&e->residual, finish->first);
    LAUNCH_ROWS(finish_rows, rows_kind_of(out, from, residual, finish->columns), g, stream, out, from,
                rows_vector(&e->gate), residual, (int64_t)finish->out->dim[0], finish->first, finish->columns,
                e->activation);
}

#define ROUND_KERNEL(D) KERNEL(round_rows<D>),
const void *const cuda_cast_kernels[] = {WEIGHT_TYPES(ROUND_KERNEL) KERNEL(widen_vector),
                                         KERNEL(channel_norm), ROWS_KERNELS(finish_rows), NULL};
