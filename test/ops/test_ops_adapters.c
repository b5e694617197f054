/* Products and convolutions with LoRA-style adapters against f64; rows without an adapter keep the bits of
 * the base weight. test/gates/test_lora_streaming.c covers whole runs. */
#include "test/ops/ops_checker.h"

#include "test/lib/ops_cases.h"

#include "kernels/cpu/weights.h"

/* Largest errors of each operator, measured with AVX-512, AVX2 and SSE4.1 and two threads. */
struct op_error op_errors[N_OP_KINDS] = {
    [OP_LINEAR] = {6.48e-07, 0},
    [OP_LINEAR_FEW] = {4.81e-07, 0},
    [OP_CONV2D] = {3.4e-07, 0},
};

#define ONE(rank, n, dtype, scale)                                                                           \
    {                                                                                                        \
        { rank, 0, n, dtype, scale }                                                                         \
    }

static const struct adapted_case cases[] = {
    {{1, 1, 1, DTYPE_F32, 0, false, false, ACTIVATION_NONE, RESIDUAL_NONE}, ONE(1, 1, DTYPE_F32, 1), 0, 0},
    {{7, 36, 20, DTYPE_F16, 0, true, false, ACTIVATION_NONE, RESIDUAL_APART},
     ONE(4, 36, DTYPE_F16, 0.8f),
     0,
     0},
    /* Three panels of 128 weight rows, the last one of 44; rank 13 is no multiple of any block size. */
    {{300, 300, 77, DTYPE_BF16, 3, true, true, ACTIVATION_GELU_TANH, RESIDUAL_OUT},
     ONE(13, 300, DTYPE_BF16, -0.5f),
     0,
     0},
    {{33, 576, 1040, DTYPE_BF16, 0, false, false, ACTIVATION_NONE, RESIDUAL_OUT}, /* packed base weights */
     {{16, 0, 576, DTYPE_BF16, 0.3f}, {64, 0, 576, DTYPE_F16, 1}},
     0,
     0},
    /* weight panels of 64 rows */
    {{2, 200, 9001, DTYPE_F16, 0, true, false, ACTIVATION_GELU_ERF, RESIDUAL_NONE},
     {{8, 0, 200, DTYPE_F32, 2}, {1, 0, 200, DTYPE_F32, 1}},
     0,
     0},
    /* Adapters on parts of a fused weight start and end within panels; rows 300 to 320 have no adapter. */
    {{19, 400, 64, DTYPE_F32, 2, true, false, ACTIVATION_SILU, RESIDUAL_NONE},
     {{5, 0, 150, DTYPE_F32, 1}, {3, 150, 150, DTYPE_BF16, 0.7f}, {16, 320, 80, DTYPE_F32, 1}},
     0,
     0},
    /* Multiplies only rows 160 to 359 of the fused weight, which the first adapter does not cover. */
    {{19, 400, 64, DTYPE_F32, 0, false, true, ACTIVATION_NONE, RESIDUAL_APART},
     {{5, 0, 150, DTYPE_F32, 1}, {3, 150, 150, DTYPE_BF16, 0.7f}, {16, 320, 80, DTYPE_F32, 1}},
     160,
     200},
    /* the output tensor is also the residual of the product */
    {{5, 96, 640, DTYPE_BF16, 0, true, false, ACTIVATION_GELU_QUICK, RESIDUAL_NONE},
     ONE(16, 96, DTYPE_BF16, 1),
     0,
     0},
};
enum { N_CASES = sizeof cases / sizeof *cases };

static void test_products_match_f64(void **state) {
    for (int i = 0; i < N_CASES; i++) case_adapted(&cases[i]);
}

static void test_few_rows_match_f64(void **state) {
    for (int i = 0; i < N_CASES; i++) {
        struct adapted_case c = cases[i];
        if (c.base.t > 40) c.base.t = 40;
        case_adapted_few(&c);
    }
}

static void test_random(void **state) {
    for (uint64_t i = 0; i < 60; i++) {
        random_state = 1000 + i;
        struct adapted_case c = {.base = {random_size(300), random_size(500), random_size(700),
                                          random_dtype(), random_int(0, 5), random_bool(), random_bool(),
                                          random_int(0, ACTIVATION_GELU_ERF), random_int(0, 2)}};
        for (int f = 0, n = random_int(1, FACTORS_MOST); f < n; f++) {
            int32_t row = random_int(0, c.base.n - 1), rows = random_int(1, c.base.n - row);
            c.factors[f] =
                (struct factors){random_size(70), row, rows, random_dtype(), (float)random_int(-4, 4) / 2};
        }
        c.first = random_int(0, c.base.n - 1);
        c.rows = random_int(1, c.base.n - c.first);
        if (i % 3)
            case_adapted(&c);
        else
            case_adapted_few(&c);
    }
}

/* In precision bf16, the base product and the `down` product round their input to bf16; the input of the `up`
 * product is not rounded. */
static void test_bf16_rounds_inputs_only(void **state) {
    if (checker.two->unsupported[PRECISION_BF16]) {
        printf("SKIP bf16: %s\n", checker.two->unsupported[PRECISION_BF16]);
        return;
    }
    x.precision = PRECISION_BF16;
    operand_rounding = nearest_bf16;
    for (int i = 0; i < N_CASES; i++) case_adapted(&cases[i]);
    x.precision = PRECISION_F32;
    operand_rounding = NULL;
}

/* Adapts the weight by one pair of factors. */
static const struct low_rank *one_adapter(struct low_rank *chain, struct factors factors,
                                          const struct tensor *weight) {
    return adapted_chain(chain, (struct factors[FACTORS_MOST]){factors}, weight);
}

struct call {
    struct tensor out, in, weight, bias;
};

static struct call call_random(int32_t t, int32_t n, int32_t k) {
    case_begin();
    adapted_scratch();
    return (struct call){
        tensor_random(DTYPE_F32, SHAPE(t, n), 0, 1), tensor_random(DTYPE_F32, SHAPE(t, k), 0, 1),
        tensor_random(DTYPE_BF16, SHAPE(n, k), 0, 1), tensor_random(DTYPE_BF16, SHAPE(n), 0, 1)};
}

static void run(const struct call *c, struct tensor weight, bool few) {
    if (few)
        op_linear_few(&x, c->out, c->in, weight, c->bias, ACTIVATION_SILU);
    else
        op_linear(&x, c->out, c->in, weight, (struct epilogue){.bias = c->bias});
    assert_int_equal(problem.code, OK);
}

/* No adapter, an adapter for other rows, and an adapter of strength 0 give equal bits. */
static void test_unchanged_rows_keep_bits(void **state) {
    for (int few = 0; few < 2; few++) {
        struct call c = call_random(9, 300, 96);
        size_t bytes = (size_t)tensor_bytes(&c.out);
        void *base = pool_alloc(bytes);
        run(&c, c.weight, few);
        memcpy(base, c.out.data, bytes);
        struct low_rank chain[FACTORS_MOST];
        struct tensor adapted = c.weight;
        adapted.adapters = one_adapter(chain, (struct factors){4, 300, 50, DTYPE_F32, 1}, &c.weight);
        run(&c, adapted, few);
        assert_memory_equal(c.out.data, base, bytes);
        adapted.adapters = one_adapter(chain, (struct factors){4, 0, 300, DTYPE_F32, 0}, &c.weight);
        run(&c, adapted, few);
        for (int64_t i = 0; i < tensor_elements(&c.out); i++)
            assert_true(((float *)c.out.data)[i] == ((float *)base)[i]);
        chain[0].up.scale = 1;
        run(&c, adapted, few);
        assert_memory_not_equal(c.out.data, base, bytes);
    }
}

/* With an adapter, a quantised base weight and its dequantised f32 values give equal bits. */
static void test_quantised_base_equals_f32(void **state) {
    enum { T = 21, N = 200, K = 128 };
    struct call c = call_random(T, N, K);
    struct tensor blocks = tensor_make(NULL, DTYPE_Q8_0, SHAPE(N, K)),
                  wide = tensor_random(DTYPE_F32, SHAPE(N, K), 0, 1);
    blocks.data = pool_alloc((size_t)tensor_bytes(&blocks));
    unsigned char *to = blocks.data;
    for (int64_t i = 0; i < tensor_bytes(&blocks); i++) to[i] = (unsigned char)random_bits();
    /* upper bytes of f16 scales of about 1/128 */
    for (int64_t i = 0; i < tensor_bytes(&blocks); i += dtype_block_bytes(DTYPE_Q8_0)) to[i + 1] = 0x20;
    weights_widen(wide.data, &blocks, 0, N);
    struct low_rank chain[FACTORS_MOST];
    blocks.adapters = wide.adapters =
        one_adapter(chain, (struct factors){16, 40, 130, DTYPE_BF16, 0.8f}, &wide);
    for (int few = 0; few < 2; few++) {
        void *as_f32 = pool_alloc((size_t)tensor_bytes(&c.out));
        run(&c, wide, few);
        memcpy(as_f32, c.out.data, (size_t)tensor_bytes(&c.out));
        run(&c, blocks, few);
        assert_memory_equal(c.out.data, as_f32, (size_t)tensor_bytes(&c.out));
    }
}

static bool clear_if_awaited(void *user, const struct tensor *tensor) {
    /* the test's copy of an adapter: awaiting a factor sets the copy's data pointer to NULL */
    struct low_rank *awaited = user;
    if (tensor->data == awaited->down.data) awaited->down.data = NULL;
    if (tensor->data == awaited->up.data) awaited->up.data = NULL;
    return true;
}

/* The operator awaits both adapter factors and counts their FLOPs. */
static void test_factors_are_awaited_and_counted(void **state) {
    enum { T = 9, N = 40, K = 96, RANK = 4 };
    for (int few = 0; few < 2; few++) {
        struct call c = call_random(T, N, K);
        struct low_rank chain[FACTORS_MOST];
        c.weight.adapters = one_adapter(chain, (struct factors){RANK, 0, N, DTYPE_F32, 1}, &c.weight);
        struct low_rank awaited = chain[0];
        x.await = clear_if_awaited, x.await_user = &awaited, x.flops = 0;
        run(&c, c.weight, few);
        x.await = NULL;
        assert_true(!awaited.down.data && !awaited.up.data);
        double added = few ? T * N : 0; /* FLOPs of the separate operator that adds the adapter's result */
        assert_true(x.flops == 2.0 * T * (N * K + RANK * (N + K)) + added);
    }
}

/* A product with few outputs is one panel for one thread. With op.skinny its rows are split: it uses two
 * threads and the memory of both. */
static void test_skinny_product_uses_two_threads(void **state) {
    for (int skinny = 0; skinny < 2; skinny++) {
        struct op op = {.kind = OP_LINEAR, .skinny = skinny};
        op.in[0] = tensor_make(NULL, DTYPE_F32, SHAPE(300, 640));
        op.in[1] = tensor_make(NULL, DTYPE_BF16, SHAPE(16, 640));
        op.out = tensor_make(NULL, DTYPE_F32, SHAPE(300, 16));
        struct op_cost one, two;
        checker.one->cost(checker.one, &op, &one);
        checker.two->cost(checker.two, &op, &two);
        assert_int_equal(two.workspace_bytes > one.workspace_bytes, skinny);
    }
}

struct conv_shape {
    int32_t rows, columns, c, n, k;
    struct conv_options options;
    bool normed, residual;
};

/* Returns the base convolution kernel plus the product of the adapter factors. */
static struct tensor merged_kernel(const struct tensor *weight) {
    struct tensor m = tensor_random(DTYPE_F32, weight->rank, weight->dim, 0, 1);
    int64_t values = tensor_elements(weight) / weight->dim[0], k = tensor_columns(weight);
    for (int64_t i = 0; i < tensor_elements(weight); i++) {
        double sum = load(weight, i / k, i % k);
        int64_t n = i / values, at = i % values;
        for (const struct low_rank *a = weight->adapters; a; a = a->next)
            for (int32_t r = 0; r < a->up.dim[1]; r++)
                sum += load(&a->up, n, r) * (double)a->up.scale *
                       load(&a->down, (r * values + at) / k, (r * values + at) % k);
        ((float *)m.data)[i] = (float)sum;
    }
    return m;
}

static void expect_conv(const struct conv_shape *s) {
    case_begin();
    adapted_scratch();
    struct conv_options o = s->options;
    struct tensor in = tensor_random(DTYPE_F32, SHAPE(s->rows, s->columns, s->c), 0, 1);
    if (s->normed) {
        o.norm.statistics = tensor_random(DTYPE_F32, SHAPE(4, 2), 0, 1);
        o.norm.weight = tensor_random(DTYPE_F32, SHAPE(s->c), 0, 1);
        o.norm.bias = tensor_random(DTYPE_F32, SHAPE(s->c), 0, 1);
        o.activation = ACTIVATION_SILU;
    }
    struct tensor weight = tensor_random(DTYPE_BF16, SHAPE(s->n, s->c, s->k, s->k), 0, 1);
    struct low_rank chain[FACTORS_MOST];
    const struct factors factors[FACTORS_MOST] = {{5, 0, s->n, DTYPE_F32, 0.5f},
                                                  {16, 0, s->n, DTYPE_BF16, 1}};
    weight.adapters = adapted_chain(chain, factors, &weight);
    int32_t rows = conv_size(s->rows, &o, o.cut_row) - o.first_row;
    if (o.first_row) rows = 2;
    struct tensor out =
        tensor_random(DTYPE_F32, SHAPE(rows, conv_size(s->columns, &o, o.cut_column), s->n), 0, 1);
    struct tensor whole = tensor_random(DTYPE_F32, out.rank, out.dim, 0, 1);
    struct epilogue e = {.bias = tensor_random(DTYPE_F32, SHAPE(s->n), 0, 1)};
    if (s->residual) e.residual = out, memcpy(whole.data, out.data, (size_t)tensor_bytes(&out));
    op_conv2d(&x, out, in, weight, e, o);
    if (s->residual) e.residual = whole;
    op_conv2d(&x, whole, in, merged_kernel(&weight), e, o);
    double *truth = op_truth(&out);
    for (int64_t i = 0; i < tensor_elements(&out); i++) truth[i] = (double)((float *)whole.data)[i];
    op_expect(OP_CONV2D, &out, truth);
    assert_int_equal(x.scratch->used, 0);
}

static void test_convolutions_match_merged_kernel(void **state) {
    static const struct conv_shape shapes[] = {
        {5, 9, 12, 20, 3, {.upsample = 1}, false, false},
        {8, 8, 16, 8, 3, {.upsample = 1}, true, true},
        {6, 4, 24, 40, 1, {.upsample = 1}, false, true},
        {4, 6, 8, 16, 3, {.upsample = 2}, true, false},
        {7, 5, 8, 12, 3, {.upsample = 2, .cut_row = true}, false, true},
        {7, 9, 8, 12, 3, {.upsample = 1, .stride = 2, .pad_before = 1}, false, false},
        /* several bands of at most 13 output rows */
        {9, 600, 8, 4, 3, {.upsample = 1, .first_row = 3}, false, true},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) expect_conv(&shapes[i]);
}

/* The convolution's output overlaps its input, so the adapter's product must be computed first. */
static void test_overlapping_convolution_matches(void **state) {
    enum { Y = 40, X = 512, C = 8 };
    case_begin();
    adapted_scratch();
    struct conv_options o = {.upsample = 1};
    struct tensor in = tensor_random(DTYPE_F32, SHAPE(Y, X, C), 0, 1),
                  out = tensor_random(DTYPE_F32, SHAPE(Y, X, C), 0, 1);
    struct tensor weight = tensor_random(DTYPE_F32, SHAPE(C, C, 3, 3), 0, 1);
    struct low_rank chain[FACTORS_MOST];
    weight.adapters = one_adapter(chain, (struct factors){4, 0, C, DTYPE_F32, 1}, &weight);
    int64_t row = sizeof(float) * X * C, lead = conv_lead(Y, X, 1, 1, row, row);
    struct tensor over = out, later = in;
    over.data = pool_alloc((size_t)(lead + Y * row));
    later.data = (char *)over.data + lead;
    memcpy(later.data, in.data, (size_t)tensor_bytes(&in));
    op_conv2d(&x, out, in, weight, (struct epilogue){0}, o);
    /* Calls the device directly: the checking device repeats calls, but this call overwrites its input. */
    x.device = checker.two;
    op_conv2d(&x, over, later, weight, (struct epilogue){0}, o);
    x.device = &checker.device;
    assert_int_equal(problem.code, OK);
    assert_memory_equal(over.data, out.data, (size_t)tensor_bytes(&out));
}

static void test_invalid_factors_are_rejected(void **state) {
    struct call c = call_random(3, 40, 32);
    struct low_rank chain[FACTORS_MOST], mistaken;
    struct tensor weight = c.weight;
    const struct low_rank *fits = one_adapter(chain, (struct factors){4, 0, 40, DTYPE_F32, 1}, &c.weight);
    weight.adapters = &mistaken;
    mistaken = *fits;
    mistaken.down = tensor_slice(mistaken.down, 0, 3);
    op_linear(&x, c.out, c.in, weight, (struct epilogue){0});
    expect_error_text("operator linear: invalid adapter's up");
    mistaken = *fits;
    mistaken.down = tensor_random(DTYPE_F32, SHAPE(4, 31), 0, 1);
    op_linear_few(&x, c.out, c.in, weight, absent, ACTIVATION_NONE);
    expect_error_text("operator linear_few: invalid adapter's down");
    mistaken = *fits;
    struct arena small = {.base = x.scratch->base, .bytes = 40};
    x.scratch = &small;
    op_linear(&x, c.out, c.in, weight, (struct epilogue){0});
    expect_error_text("scratch memory of the visit is too small");
    adapted_scratch();
    struct tensor kernel = tensor_random(DTYPE_F32, SHAPE(40, 8, 1, 1), 0, 1);
    kernel.adapters = one_adapter(chain, (struct factors){4, 0, 39, DTYPE_F32, 1}, &kernel);
    struct tensor in = tensor_random(DTYPE_F32, SHAPE(2, 2, 8), 0, 1),
                  out = tensor_random(DTYPE_F32, SHAPE(2, 2, 40), 0, 1);
    op_conv2d(&x, out, in, kernel, (struct epilogue){0}, (struct conv_options){.upsample = 1});
    expect_error_text("operator conv2d: invalid adapter's up");
    kernel.adapters = one_adapter(chain, (struct factors){4, 0, 40, DTYPE_F32, 1}, &kernel);
    op_conv2d(&x, out, in, kernel, (struct epilogue){0},
              (struct conv_options){.upsample = 1, .finish = FINISH_RELU});
    expect_error_text("expected no scale or finish");
    op_conv2d(&x, out, in, kernel, (struct epilogue){0}, (struct conv_options){.upsample = 1, .scale = 0.5f});
    expect_error_text("expected no scale or finish");
}

/* Other operators reject weights with adapters, but accept rows that no adapter changes. */
static void test_other_operators_reject_adapters(void **state) {
    struct call c = call_random(3, 40, 32);
    struct low_rank chain[FACTORS_MOST];
    struct tensor weight = tensor_random(DTYPE_F32, SHAPE(40, 32), 0, 1);
    struct tensor out = tensor_random(DTYPE_F32, SHAPE(20, 32), 0, 1);
    weight.adapters = one_adapter(chain, (struct factors){4, 0, 20, DTYPE_F32, 1}, &weight);
    op_add(&x, out, out, tensor_slice(weight, 20, 20));
    assert_int_equal(problem.code, OK);
    op_add(&x, out, out, tensor_slice(weight, 19, 20));
    assert_int_equal(problem.code, UNSUPPORTED);
    problem.code = INTERNAL;
    expect_error_text("operator add: invalid weight with adapters");
    op_linear(&x, c.out, c.in, weight, (struct epilogue){0});
    assert_int_equal(problem.code, OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products_match_f64),
        cmocka_unit_test(test_few_rows_match_f64),
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_bf16_rounds_inputs_only),
        cmocka_unit_test(test_unchanged_rows_keep_bits),
        cmocka_unit_test(test_quantised_base_equals_f32),
        cmocka_unit_test(test_convolutions_match_merged_kernel),
        cmocka_unit_test(test_overlapping_convolution_matches),
        cmocka_unit_test(test_other_operators_reject_adapters),
        cmocka_unit_test(test_invalid_factors_are_rejected),
        cmocka_unit_test(test_factors_are_awaited_and_counted),
        cmocka_unit_test(test_skinny_product_uses_two_threads),
        cmocka_unit_test(test_print_errors),
    };
    return tests_run(tests, sizeof tests / sizeof *tests, ops_set_up, ops_tear_down);
}
