/* T5's relative position bias: one table row per distance between key and query. No workspace: the host
 * computes the buckets, as on the CPU, and passes the buckets as a kernel argument. */
#include "kernels/cuda/kernel_arguments.h"
#include "kernels/cuda/row_access.cuh"

struct buckets {
    uint8_t bucket[DISTANCES_AT_ONCE];
};

/* Copies each distance's table row into a column of out. run: number of columns of the table if its
 * quantisation blocks cross row boundaries, else 0. Grid: heads in y, distances in x; block: 256; no shared
 * memory; 27 registers. The launch takes longer than the transfer. */
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

static const void *const kernels[] = {KERNEL(expand_buckets), NULL};

const struct cuda_operator cuda_relative_bias = {NULL, distance_run, kernels};
