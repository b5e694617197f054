/* Operators that go through rows once: glu, add, widen, repeat_row. */
#include "kernels/cpu/operators.h"
#include "kernels/cpu/simd.h"

/* to may be a or b. */
#define GLU(name, of)                                                                                        \
    WIDE static void name(float *to, const float *a, const float *b, int64_t n) {                            \
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++) to[i] = of(a[i]) * b[i];                         \
    }
GLU(glu_plain, )
GLU(glu_silu, silu_f32)
GLU(glu_gelu_tanh, gelu_tanh_f32)
GLU(glu_gelu_quick, gelu_quick_f32)

static enum status glu_run(struct cpu *cpu, const struct op *op, char *workspace, struct error *e) {
    static void (*const rows[])(float *, const float *, const float *,
                                int64_t) = {[ACTIVATION_NONE] = glu_plain,
                                            [ACTIVATION_SILU] = glu_silu,
                                            [ACTIVATION_GELU_TANH] = glu_gelu_tanh,
                                            [ACTIVATION_GELU_QUICK] = glu_gelu_quick};
    (void)workspace;
    (void)e;
#pragma omp parallel for num_threads(cpu->threads) schedule(static)
    for (int64_t i = 0; i < tensor_rows(&op->out); i++)
        rows[op->activation](tensor_row(&op->out, i), tensor_row(&op->in[0], i), tensor_row(&op->in[1], i),
                             tensor_columns(&op->out));
    return OK;
}

const struct cpu_operator cpu_glu = {NULL, NULL, glu_run};

/* to may be a, or b if that is f32. */
#define ADD(name, type, widened)                                                                             \
    WIDE static void name(float *to, const float *a, const type *b, int64_t n) {                             \
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++) to[i] = a[i] + widened(b[i]);                    \
    }
ADD(add_f32, float, )
ADD(add_bf16, uint16_t, bf16_f32)
ADD(add_f16, uint16_t, f16_f32)

static void add_row(float *to, const float *a, const void *b, enum dtype dtype, int64_t n) {
    if (dtype == DTYPE_BF16)
        add_bf16(to, a, b, n);
    else if (dtype == DTYPE_F16)
        add_f16(to, a, b, n);
    else
        add_f32(to, a, b, n);
}

static enum status add_run(struct cpu *cpu, const struct op *op, char *workspace, struct error *e) {
    (void)workspace;
    (void)e;
    const struct tensor *b = &op->in[1];
    bool one = tensor_rows(b) == 1;
#pragma omp parallel for num_threads(cpu->threads) schedule(static)
    for (int64_t i = 0; i < tensor_rows(&op->out); i++)
        add_row(tensor_row(&op->out, i), tensor_row(&op->in[0], i), tensor_row(b, one ? 0 : i), b->dtype,
                tensor_columns(&op->out));
    return OK;
}

const struct cpu_operator cpu_add = {NULL, NULL, add_run};

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
