/* Operators that go through rows once: swiglu, widen, repeat_row. */
#include "kernels/cpu/operators.h"
#include "kernels/cpu/simd.h"

/* to may be a or b. */
WIDE static void swiglu_row(float *to, const float *a, const float *b, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) to[i] = silu_f32(a[i]) * b[i];
}

static enum status swiglu_run(struct cpu *cpu, const struct op *op, char *workspace, struct error *e) {
    (void)workspace;
    (void)e;
#pragma omp parallel for num_threads(cpu->threads) schedule(static)
    for (int64_t i = 0; i < tensor_rows(&op->out); i++)
        swiglu_row(tensor_row(&op->out, i), tensor_row(&op->in[0], i), tensor_row(&op->in[1], i),
                   tensor_columns(&op->out));
    return OK;
}

const struct cpu_operator cpu_swiglu = {NULL, NULL, swiglu_run};

static enum status widen_run(struct cpu *cpu, const struct op *op, char *workspace, struct error *e) {
    (void)workspace;
    (void)e;
#pragma omp parallel for num_threads(cpu->threads) schedule(static)
    for (int64_t i = 0; i < tensor_rows(&op->out); i++)
        simd_widen(tensor_row(&op->out, i), tensor_row(&op->in[0], i), op->in[0].dtype,
                   tensor_columns(&op->out));
    return OK;
}

const struct cpu_operator cpu_widen = {NULL, NULL, widen_run};

static enum status repeat_run(struct cpu *cpu, const struct op *op, char *workspace, struct error *e) {
    (void)workspace;
    (void)e;
#pragma omp parallel for num_threads(cpu->threads) schedule(static)
    for (int32_t i = 0; i < op->out.dim[0]; i++)
        simd_widen(tensor_row(&op->out, i), op->in[0].data, op->in[0].dtype, op->out.dim[1]);
    return OK;
}

const struct cpu_operator cpu_repeat_row = {NULL, NULL, repeat_run};
