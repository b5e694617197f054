#include "test/lib/ops_adapted.h"

bool low_rank_rounded;

void adapted_scratch(void) {
    enum { BYTES = 4 << 20 };
    static struct arena scratch;
    scratch = (struct arena){.base = operand_memory(BYTES), .bytes = BYTES};
    x.scratch = &scratch;
}

static struct low_rank factors_random(const struct factors *f, const struct tensor *weight) {
    int32_t dim[TENSOR_RANK_MAX];
    memcpy(dim, weight->dim, sizeof dim);
    dim[0] = f->rank;
    struct low_rank a = {.row = f->row};
    a.down = tensor_random(f->dtype, weight->rank, dim, 0, 1);
    a.up = tensor_random(f->dtype, SHAPE(f->n, f->rank), 0, 1);
    a.up.scale = f->scale;
    return a;
}

const struct low_rank *adapted_chain(struct low_rank *chain, const struct factors *factors,
                                     const struct tensor *weight) {
    int n = 0;
    for (; n < FACTORS_MOST && factors[n].rank; n++) chain[n] = factors_random(&factors[n], weight);
    for (int i = 0; i + 1 < n; i++) chain[i].next = &chain[i + 1];
    return n ? chain : NULL;
}

/* Operands of a matrix product with adapters. rows: the slice of the weight that is multiplied. */
struct adapted {
    struct low_rank chain[FACTORS_MOST];
    struct tensor in, weight, rows, out, bias;
};

static void adapted_make(const struct adapted_case *c, struct adapted *a) {
    const struct linear_case *b = &c->base;
    case_begin();
    adapted_scratch();
    int32_t rows = c->rows ? c->rows : b->n;
    a->in = tensor_random(DTYPE_F32, SHAPE(b->t, b->k), b->gap, 1);
    a->weight = tensor_random(b->dtype, SHAPE(b->n, b->k), 0, 1);
    a->weight.adapters = adapted_chain(a->chain, c->factors, &a->weight);
    a->rows = tensor_slice(a->weight, c->first, rows);
    a->out = tensor_random(DTYPE_F32, SHAPE(b->t, rows), 2 * b->gap, 1);
    a->bias = b->bias ? tensor_random(b->dtype, SHAPE(rows), 0, 1) : absent;
}

/* Returns the dot product of an input row and row j of the weight, without adapters. */
static double plain_dot(const double *row, const struct tensor *weight, int64_t j, double (*as)(double)) {
    double sum = 0;
    for (int32_t l = 0; l < weight->dim[1]; l++) sum += row[l] * as(load(weight, j, l));
    return sum;
}

static double as_is(double value) {
    return value;
}

/* Adds the adapters' products for one input row to the outputs. `up` holds the `up` factor's f32 values,
 * multiplied by the scale. */
static void add_factors(const struct adapted *a, const double *row, double *to, double (*as)(double)) {
    double (*low_rank_as)(double) = low_rank_rounded ? as : as_is;
    for (const struct low_rank *f = a->weight.adapters; f; f = f->next) {
        int32_t rank = f->down.dim[0];
        double *inner = pool_alloc(sizeof *inner * (size_t)rank);
        for (int32_t i = 0; i < rank; i++) inner[i] = low_rank_as(plain_dot(row, &f->down, i, as));
        for (int32_t j = 0; j < f->up.dim[0]; j++) {
            int32_t column = f->row + j - a->rows.adapter_row;
            if (column < 0 || column >= a->rows.dim[0]) continue;
            for (int32_t i = 0; i < rank; i++)
                to[column] += inner[i] * low_rank_as((double)((float)load(&f->up, j, i) * f->up.scale));
        }
    }
}

/* Returns the products of all rows, before the bias is added. */
static double *adapted_truth(const struct adapted *a, enum activation activation, double (*as)(double)) {
    int32_t n = a->rows.dim[0], k = a->rows.dim[1];
    double *truth = op_truth(&a->out), *row = pool_alloc(sizeof *row * (size_t)k);
    for (int32_t t = 0; t < a->in.dim[0]; t++) {
        double *to = truth + (int64_t)t * n;
        for (int32_t l = 0; l < k; l++) row[l] = as(activated(activation, load(&a->in, t, l)));
        for (int32_t j = 0; j < n; j++) to[j] = plain_dot(row, &a->rows, j, as);
        size_t used = pool_used;
        add_factors(a, row, to, as);
        pool_used = used;
    }
    return truth;
}

void case_adapted(const struct adapted_case *c) {
    struct adapted a;
    const struct linear_case *b = &c->base;
    adapted_make(c, &a);
    int32_t n = a.rows.dim[0];
    struct epilogue e = {.bias = a.bias, .activation = b->activation};
    if (b->gate) e.gate = tensor_random(DTYPE_F32, SHAPE(n), 0, 2);
    if (b->residual == RESIDUAL_APART) e.residual = tensor_random(DTYPE_F32, SHAPE(b->t, n), b->gap, 1);
    if (b->residual == RESIDUAL_OUT) e.residual = a.out;
    double *truth = adapted_truth(&a, ACTIVATION_NONE, rounded);
    for (int64_t i = 0; i < tensor_elements(&a.out); i++) {
        double v = activated(b->activation, truth[i] + (b->bias ? load(&a.bias, 0, i % n) : 0));
        v *= b->gate ? load(&e.gate, 0, i % n) : 1;
        truth[i] = v + (b->residual ? load(&e.residual, i / n, i % n) : 0);
    }
    op_linear(&x, a.out, a.in, a.rows, e);
    op_expect(OP_LINEAR, &a.out, truth);
    assert_int_equal(x.scratch->used, 0);
}

void case_adapted_few(const struct adapted_case *c) {
    struct adapted a;
    const struct linear_case *b = &c->base;
    adapted_make(c, &a);
    int32_t n = a.rows.dim[0];
    double *truth = adapted_truth(&a, b->activation, as_is);
    for (int64_t i = 0; i < tensor_elements(&a.out) && b->bias; i++) truth[i] += load(&a.bias, 0, i % n);
    op_linear_few(&x, a.out, a.in, a.rows, a.bias, b->activation);
    op_expect(OP_LINEAR_FEW, &a.out, truth);
    /* A row computed alone has the same bits (rule R4 in kernels/README.md). */
    struct tensor lone = tensor_random(DTYPE_F32, SHAPE(1, n), 0, 1);
    op_linear_few(&x, lone, tensor_slice(a.in, b->t - 1, 1), a.rows, a.bias, b->activation);
    assert_memory_equal(lone.data, (char *)a.out.data + (b->t - 1) * a.out.row_bytes,
                        (size_t)n * sizeof(float));
    assert_int_equal(x.scratch->used, 0);
}
