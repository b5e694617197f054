/* Test cases of matrix products, with and without low-rank adapters. */
#include "test/lib/ops_cases.h"

bool low_rank_rounded;

void adapted_scratch(void) {
    enum { BYTES = 4 << 20 };
    static struct arena scratch;
    scratch = (struct arena){.base = operand_memory(BYTES), .bytes = BYTES};
    x.scratch = &scratch;
}

const struct low_rank *adapted_chain(struct low_rank *chain, const struct factors *factors,
                                     const struct tensor *weight) {
    int n = 0;
    for (const struct factors *f = factors; n < FACTORS_MOST && f->rank; f++, n++) {
        int32_t dim[TENSOR_RANK_MAX];
        memcpy(dim, weight->dim, sizeof dim);
        dim[0] = f->rank;
        chain[n] = (struct low_rank){.row = f->row};
        chain[n].down = tensor_random(f->dtype, weight->rank, dim, 0, 1);
        chain[n].up = tensor_random(f->dtype, SHAPE(f->n, f->rank), 0, 1);
        chain[n].up.scale = f->scale;
        if (n) chain[n - 1].next = &chain[n];
    }
    return n ? chain : NULL;
}

/* Operands of a matrix product. rows: the slice of the weight that is multiplied. */
struct product {
    struct tensor in, rows, out;
    const struct low_rank *adapters; /* adapters of the whole weight */
    struct epilogue epilogue;
};

static struct product product_make(const struct adapted_case *c, struct low_rank *chain, double in_scale) {
    const struct linear_case *b = &c->base;
    int32_t n = c->rows ? c->rows : b->n;
    struct product p = {.epilogue.activation = b->activation};
    case_begin();
    if (c->factors[0].rank) adapted_scratch();
    p.in = tensor_random(DTYPE_F32, SHAPE(b->t, b->k), b->gap, in_scale);
    struct tensor weight = tensor_random(b->dtype, SHAPE(b->n, b->k), 0, 1);
    p.adapters = weight.adapters = adapted_chain(chain, c->factors, &weight);
    p.rows = tensor_slice(weight, c->first, n);
    p.out = tensor_random(DTYPE_F32, SHAPE(b->t, n), 2 * b->gap, 1);
    if (b->bias) p.epilogue.bias = tensor_random(b->dtype, SHAPE(n), 0, 1);
    if (b->gate) p.epilogue.gate = tensor_random(DTYPE_F32, SHAPE(n), 0, 2);
    if (b->residual == RESIDUAL_APART)
        p.epilogue.residual = tensor_random(DTYPE_F32, SHAPE(b->t, n), b->gap, 1);
    if (b->residual == RESIDUAL_OUT) p.epilogue.residual = p.out;
    return p;
}

static double as_is(double value) {
    return value;
}

/* Adds in[t][k] weight[n][k]^T to `to`, whose rows have n values. */
static void add_product(double *to, const double *in, int32_t t, const struct tensor *weight,
                        double (*as)(double)) {
    int32_t n = weight->dim[0], k = weight->dim[1];
    double *row = pool_alloc(sizeof *row * (size_t)k);
    for (int32_t j = 0; j < n; j++) {
        for (int32_t l = 0; l < k; l++) row[l] = as(load(weight, j, l));
        for (int32_t i = 0; i < t; i++) {
            double sum = 0;
            for (int32_t l = 0; l < k; l++) sum += in[(int64_t)i * k + l] * row[l];
            to[(int64_t)i * n + j] += sum;
        }
    }
}

/* Returns the products of all rows before the epilogue. `before`: activation of the input. */
static double *product_truth(const struct product *p, enum activation before, double (*as)(double)) {
    int32_t t = p->in.dim[0], n = p->rows.dim[0];
    double *truth = op_truth(&p->out), *in = op_values(&p->in, as_is);
    double (*low_rank_as)(double) = low_rank_rounded ? as : as_is;
    for (int64_t i = 0; i < tensor_elements(&p->in); i++) in[i] = as(activated(before, in[i]));
    memset(truth, 0, sizeof *truth * (size_t)tensor_elements(&p->out));
    add_product(truth, in, t, &p->rows, as);
    for (const struct low_rank *f = p->adapters; f; f = f->next) {
        int32_t rank = f->down.dim[0];
        double *inner = pool_alloc(sizeof *inner * (size_t)(t * rank)), *up = op_values(&f->up, as_is);
        memset(inner, 0, sizeof *inner * (size_t)(t * rank));
        add_product(inner, in, t, &f->down, as);
        /* the device multiplies `up` by its scale in f32 */
        for (int64_t i = 0; i < tensor_elements(&f->up); i++)
            up[i] = low_rank_as((double)((float)up[i] * f->up.scale));
        for (int32_t j = 0; j < f->up.dim[0]; j++) {
            int32_t column = f->row + j - p->rows.adapter_row;
            for (int32_t i = 0; column >= 0 && column < n && i < t; i++)
                for (int32_t r = 0; r < rank; r++)
                    truth[(int64_t)i * n + column] +=
                        low_rank_as(inner[i * rank + r]) * up[(int64_t)j * rank + r];
        }
    }
    return truth;
}

/* Runs op_linear. Returns the expected values of *out. */
static double *run_linear(const struct adapted_case *c, struct tensor *out) {
    struct low_rank chain[FACTORS_MOST];
    struct product p = product_make(c, chain, 1);
    const struct epilogue *e = &p.epilogue;
    double *truth = product_truth(&p, ACTIVATION_NONE, rounded);
    int32_t n = p.rows.dim[0];
    for (int64_t i = 0; i < tensor_elements(&p.out); i++) {
        double v = activated(e->activation, truth[i] + (e->bias.rank ? load(&e->bias, 0, i % n) : 0));
        v *= e->gate.rank ? load(&e->gate, 0, i % n) : 1;
        truth[i] = v + (e->residual.rank ? load(&e->residual, i / n, i % n) : 0);
    }
    op_linear(&x, p.out, p.in, p.rows, *e);
    if (p.adapters) assert_int_equal(x.scratch->used, 0);
    *out = p.out;
    return truth;
}

void case_adapted(const struct adapted_case *c) {
    struct tensor out;
    double *truth = run_linear(c, &out);
    op_expect(OP_LINEAR, &out, truth);
}

double linear_error(struct linear_case c) {
    struct tensor out;
    double *truth = run_linear(&(struct adapted_case){.base = c}, &out);
    assert_ok(&problem);
    return op_error_of(&out, truth);
}

void case_linear(struct linear_case c) {
    case_adapted(&(struct adapted_case){.base = c});
}

void case_adapted_few(const struct adapted_case *c) {
    const struct linear_case *b = &c->base;
    struct adapted_case plain = *c;
    plain.base.gate = false, plain.base.residual = RESIDUAL_NONE;
    struct low_rank chain[FACTORS_MOST];
    struct product p = product_make(&plain, chain, 3);
    const struct tensor *bias = &p.epilogue.bias;
    int32_t n = p.rows.dim[0];
    double *truth = product_truth(&p, b->activation, as_is);
    for (int64_t i = 0; b->bias && i < tensor_elements(&p.out); i++) truth[i] += load(bias, 0, i % n);
    op_linear_few(&x, p.out, p.in, p.rows, *bias, b->activation);
    op_expect(OP_LINEAR_FEW, &p.out, truth);
    /* A row computed alone has the same bits (rule R4 in kernels/README.md). */
    struct tensor lone = tensor_random(DTYPE_F32, SHAPE(1, n), 0, 1);
    op_linear_few(&x, lone, tensor_slice(p.in, b->t - 1, 1), p.rows, *bias, b->activation);
    assert_memory_equal(lone.data, (char *)p.out.data + (b->t - 1) * p.out.row_bytes,
                        (size_t)n * sizeof(float));
    if (p.adapters) assert_int_equal(x.scratch->used, 0);
}

void case_linear_few(struct linear_case c) {
    case_adapted_few(&(struct adapted_case){.base = c});
}

void case_rows_alike(int32_t k, enum dtype dtype, enum activation activation, int32_t most) {
    enum { N = 5 };
    const int32_t rows[] = {7, most < 64 ? most : 64, most};
    case_begin();
    struct tensor in = tensor_random(DTYPE_F32, SHAPE(most, k), 0, 3);
    struct tensor weight = tensor_random(dtype, SHAPE(N, k), 0, 1),
                  bias = tensor_random(dtype, SHAPE(N), 0, 1);
    struct tensor lone = tensor_random(DTYPE_F32, SHAPE(most, N), 0, 1);
    for (int32_t t = 0; t < most; t++)
        if (t < 64 || t % 37 == 0 || t == most - 1)
            op_linear_few(&x, tensor_slice(lone, t, 1), tensor_slice(in, t, 1), weight, bias, activation);
    for (int i = 0; i < 3; i++) {
        struct tensor out = tensor_random(DTYPE_F32, SHAPE(rows[i], N), 0, 1);
        op_linear_few(&x, out, tensor_slice(in, 0, rows[i]), weight, bias, activation);
        for (int32_t t = 0; t < rows[i]; t++)
            if (t < 64 || t % 37 == 0 || t == most - 1)
                assert_memory_equal((char *)out.data + t * out.row_bytes,
                                    (char *)lone.data + t * lone.row_bytes, N * sizeof(float));
    }
    assert_ok(&problem);
}
