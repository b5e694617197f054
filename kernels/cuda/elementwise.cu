/* Elementwise operators: glu, add, add_positions, copy, broadcast_row. No workspace. */
#include "kernels/cuda/row_access.cuh"
#include "kernels/cuda/token_coords.cuh"

/* Loads the values of `a` for output columns i to i + 3. `a` has one value per head of `head` columns. */
__device__ static inline float4 head_values(const struct rows &a, int64_t row, uint32_t i, uint32_t columns,
                                            uint32_t head) {
    const char *from = a.data + row * a.step;
    uint32_t last = columns - 1;
    return make_float4(value_at(from, DTYPE_F32, i / head),
                       value_at(from, DTYPE_F32, (i + 1 < last ? i + 1 : last) / head),
                       value_at(from, DTYPE_F32, (i + 2 < last ? i + 2 : last) / head),
                       value_at(from, DTYPE_F32, (i + 3 < last ? i + 3 : last) / head));
}

/* GLU: out = act(a) b. head: output columns per column of `a`; above 1 (one gate per head), `a` is read
 * through the cache and must not alias `out`. Grid: rows_grid_of; no shared memory; 36 registers, unaligned
 * rows 40. Bytes: 12 per value, 10 for a bf16 result, 4 less with one gate per head; FLOPs: 4. Bound by
 * memory; share of peak: not measured yet. An f32 `out` may alias `a` or `b`: each value is read and written
 * by one thread. */
template <enum rows_kind K>
static __global__ void __launch_bounds__(ROWS_THREADS)
    glu_rows(struct rows out, struct rows a, struct rows b, int64_t rows, int64_t columns, uint32_t head,
             enum activation activation) {
    int64_t i = 4 * first_quad();
    if (i >= columns) return;
    for (int64_t row = first_row(); row < rows; row += next_row()) {
        float4 x = head > 1 ? head_values(a, row, (uint32_t)i, (uint32_t)columns, head)
                            : rows_load_kind<K>(a, row, i, columns);
        float4 y = rows_load_kind<K>(b, row, i, columns);
        rows_store_kind<K>(out, row, i, columns, multiply_four(activate_four(x, activation), y));
    }
}

static enum status glu_run(struct cuda *cuda, const struct op *op, char *workspace, struct error *e) {
    (void)workspace;
    int64_t rows = tensor_rows(&op->out), columns = tensor_columns(&op->out);
    struct rows_grid g = rows_grid_of(rows, (columns + 3) / 4);
    struct rows out = rows_of(&op->out), a = rows_of(&op->in[0]), b = rows_of(&op->in[1]);
    uint32_t head = (uint32_t)(columns / tensor_columns(&op->in[0]));
    LAUNCH_ROWS(glu_rows, rows_kind_of(out, b, head > 1 ? b : a, columns), g, cuda->compute, out, a, b, rows,
                columns, head, op->activation);
    return cuda_launched(op, e);
}

static const void *const glu_kernels[] = {ROWS_KERNELS(glu_rows), NULL};

const struct cuda_operator cuda_glu = {NULL, glu_run, glu_kernels};

__device__ static inline float4 add_scaled(float4 sum, float4 v, float factor) {
    return make_float4(fmaf(v.x, factor, sum.x), fmaf(v.y, factor, sum.y), fmaf(v.z, factor, sum.z),
                       fmaf(v.w, factor, sum.w));
}

/* out = a + factor b. ROWS_F32: aligned rows, b and out in f32; ROWS_ANY: all else, b of any weight type. A
 * stride of 0 adds one row of b to every row of a. Grid: rows_grid_of; no shared memory; registers: 32
 * (ROWS_F32), 27 (ROWS_ANY, plain b), 48 (ROWS_ANY, quantised b). Bytes: 8 per value plus b; FLOPs: 1. Bound
 * by memory; share of peak: not measured yet. `out` may alias `a` or `b`, as in glu_rows. */
template <enum rows_kind K, bool PLAIN>
static __global__ void __launch_bounds__(ROWS_THREADS)
    add_rows(struct rows out, struct rows a, struct rows b, float factor, int64_t rows, int64_t columns) {
    int64_t i = 4 * first_quad();
    if (i >= columns) return;
    for (int64_t row = first_row(); row < rows; row += next_row()) {
        float4 added =
            K == ROWS_F32 ? rows_load_kind<K>(b, row, i, columns) : rows_load_of<PLAIN>(b, row, i, columns);
        rows_store_kind<K>(out, row, i, columns,
                           add_scaled(rows_load_kind<K>(a, row, i, columns), added, factor));
    }
}

static enum status cuda_add_run(struct cuda *cuda, const struct op *op, char *workspace, struct error *e) {
    (void)workspace;
    int64_t rows = tensor_rows(&op->out), columns = tensor_columns(&op->out);
    const struct tensor *b = &op->in[1];
    struct rows_grid g = rows_grid_of(rows, (columns + 3) / 4);
    struct rows added = tensor_rows(b) == 1 ? rows_vector(b) : rows_of(b), out = rows_of(&op->out);
    struct rows a = rows_of(&op->in[0]);
    bool f32 = b->dtype == DTYPE_F32 && rows_kind_of(out, a, added, columns) == ROWS_F32;
    if (!weight_is_plain(b))
        LAUNCH((add_rows<ROWS_ANY, false>), g.grid, g.block, 0, cuda->compute, out, a, added, op->scale, rows,
               columns);
    else if (f32)
        LAUNCH((add_rows<ROWS_F32, true>), g.grid, g.block, 0, cuda->compute, out, a, added, op->scale, rows,
               columns);
    else
        LAUNCH((add_rows<ROWS_ANY, true>), g.grid, g.block, 0, cuda->compute, out, a, added, op->scale, rows,
               columns);
    return cuda_launched(op, e);
}

static const void *const add_kernels[] = {KERNEL(add_rows<ROWS_ANY, true>), KERNEL(add_rows<ROWS_ANY, false>),
                                          KERNEL(add_rows<ROWS_F32, true>), NULL};

const struct cuda_operator cuda_add = {NULL, cuda_add_run, add_kernels};

/* Adds the bilinear sum of the four table rows around each token. Grid: rows_grid_of; no shared memory; 32
 * registers, quantised 101. Bytes: 8 per value plus the table, which neighbouring tokens read again from the
 * cache; FLOPs: 8. Bound by memory; share of peak: not measured yet. `out` may alias `a`, as in glu_rows. */
template <bool PLAIN>
static __global__ void __launch_bounds__(ROWS_THREADS, 1)
    add_table(struct rows out, struct rows a, struct rows table, const struct position_grid grid,
              int64_t columns) {
    int64_t i = 4 * first_quad(), tokens = (int64_t)grid.rows * grid.columns;
    if (i >= columns) return;
    for (int64_t token = first_row(); token < tokens; token += next_row()) {
        struct token_coords at =
            cuda_token_coords_at(grid.token_order, grid.rows, grid.columns, (uint32_t)token);
        struct table_place y = cuda_table_place_at(at.row, grid.rows, grid.side);
        struct table_place x = cuda_table_place_at(at.column, grid.columns, grid.side);
        float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 1
        for (int corner = 0; corner < 4; corner++) {
            int64_t row = (int64_t)(corner < 2 ? y.first : y.second) * grid.side;
            float down = corner < 2 ? 1 - y.fraction : y.fraction;
            float across = corner % 2 ? x.fraction : 1 - x.fraction;
            row += corner % 2 ? x.second : x.first;
            sum = add_scaled(sum, rows_load_of<PLAIN>(table, row, i, columns), down * across);
        }
        rows_store_kind<ROWS_ANY>(out, token, i, columns, add_four(rows_load_f32(a, token, i, columns), sum));
    }
}

static enum status cuda_add_positions_run(struct cuda *cuda, const struct op *op, char *workspace,
                                          struct error *e) {
    (void)workspace;
    int64_t columns = tensor_columns(&op->out);
    struct rows_grid g = rows_grid_of(tensor_rows(&op->out), (columns + 3) / 4);
    struct rows out = rows_of(&op->out), a = rows_of(&op->in[0]), table = rows_of(&op->in[1]);
    if (weight_is_plain(&op->in[1]))
        LAUNCH(add_table<true>, g.grid, g.block, 0, cuda->compute, out, a, table, op->positions, columns);
    else
        LAUNCH(add_table<false>, g.grid, g.block, 0, cuda->compute, out, a, table, op->positions, columns);
    return cuda_launched(op, e);
}

static const void *const add_positions_kernels[] = {KERNEL(add_table<true>), KERNEL(add_table<false>), NULL};

const struct cuda_operator cuda_add_positions = {NULL, cuda_add_positions_run, add_positions_kernels};

/* out = in, from any weight type to f32 or bf16; a stride of 0 repeats one row. Grid: rows_grid_of; no shared
 * memory; 23 registers, quantised 48. Bytes: 4 per value, or 2, plus the source. Bound by memory; share of
 * peak: not measured yet. */
template <bool PLAIN>
static __global__ void __launch_bounds__(ROWS_THREADS)
    copy_rows(struct rows out, struct rows in, int64_t rows, int64_t columns) {
    int64_t i = 4 * first_quad();
    if (i >= columns) return;
    for (int64_t row = first_row(); row < rows; row += next_row())
        rows_store_kind<ROWS_ANY>(out, row, i, columns, rows_load_of<PLAIN>(in, row, i, columns));
}

static enum status copy_from(struct cuda *cuda, const struct op *op, struct rows in, struct error *e) {
    int64_t rows = tensor_rows(&op->out), columns = tensor_columns(&op->out);
    struct rows_grid g = rows_grid_of(rows, (columns + 3) / 4);
    if (weight_is_plain(&op->in[0]))
        LAUNCH(copy_rows<true>, g.grid, g.block, 0, cuda->compute, rows_of(&op->out), in, rows, columns);
    else
        LAUNCH(copy_rows<false>, g.grid, g.block, 0, cuda->compute, rows_of(&op->out), in, rows, columns);
    return cuda_launched(op, e);
}

static enum status cuda_copy_run(struct cuda *cuda, const struct op *op, char *workspace, struct error *e) {
    (void)workspace;
    return copy_from(cuda, op, rows_of(&op->in[0]), e);
}

static const void *const copy_kernels[] = {KERNEL(copy_rows<true>), KERNEL(copy_rows<false>), NULL};

const struct cuda_operator cuda_copy = {NULL, cuda_copy_run, copy_kernels};

static enum status cuda_broadcast_run(struct cuda *cuda, const struct op *op, char *workspace,
                                      struct error *e) {
    (void)workspace;
    return copy_from(cuda, op, rows_vector(&op->in[0]), e);
}

const struct cuda_operator cuda_broadcast_row = {NULL, cuda_broadcast_run};
