/* Products in bf16: what is rounded and how, the error beside PyTorch's, what else stays as it is, and that
 * weights are never converted whole, in either precision. Blocks and whole models in bf16 are in
 * test_blocks.c and test_golden.c, other bits under other budgets in test_residency.c. */
#include "test/ops/ops_checker.h"

#include <jansson.h>

static const enum precision precisions[] = {PRECISION_F32, PRECISION_BF16};

static bool can_compute(void) {
    const char *lacks = checker.two->unsupported[PRECISION_BF16];
    if (lacks) printf("SKIP bf16: %s\n", lacks);
    x.precision = lacks ? PRECISION_F32 : PRECISION_BF16;
    return !lacks;
}

static int back_to_f32(void **state) {
    (void)state;
    x.precision = PRECISION_F32;
    return 0;
}

static void assert_no_problem(void) {
    char line[1200];
    if (problem.code) fail_msg("%s", error_line(&problem, line, sizeof line));
}

/* By comparing distances to both neighbours, not as the engine does it. */
static double nearest(double value) {
    if (value == 0 || !isfinite(value)) return value;
    int exponent;
    frexp(value, &exponent);
    double unit = ldexp(1, exponent - 8);
    return nearbyint(value / unit) * unit;
}

/* As a product reads it. */
static double load_rounded(const struct tensor *t, int64_t row, int32_t column) {
    double value = load(t, row, column);
    return x.precision == PRECISION_BF16 ? nearest(value) : value;
}

/* ---- what is rounded ---- */

/* Ties to both sides, neighbours of ties, the largest values, f32 subnormals apart. */
static float edge(int i) {
    static const uint32_t tails[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
    static const uint32_t heads[] = {0x3f80, 0x3f81, 0xbf80, 0x4049, 0xc2fe, 0x7f7e, 0xff7e, 0x0080, 0x3fff};
    int n = sizeof tails / sizeof *tails;
    return (union float_bits){.bits = heads[i / n % 9] << 16 | tails[i % n]}.value;
}

/* One value a row times 1 is that value, rounded. */
static void test_rounding(void **state) {
    (void)state;
    enum { VALUES = 54 };
    if (!can_compute()) return;
    pool_used = 0;
    struct tensor in = tensor_random(DTYPE_F32, SHAPE(VALUES + 3, 1), 0, 1);
    struct tensor weight = tensor_random(DTYPE_BF16, SHAPE(1, 1), 0, 1);
    struct tensor out = tensor_random(DTYPE_F32, SHAPE(VALUES + 3, 1), 0, 1);
    float *value = in.data, *got = out.data;
    int moved = 0;
    *(uint16_t *)weight.data = 0x3f80;
    for (int i = 0; i < VALUES; i++) value[i] = edge(i);
    value[VALUES] = NAN, value[VALUES + 1] = INFINITY;
    value[VALUES + 2] =
        (union float_bits){.bits = 0x7f800001}.value; /* a NaN with nothing in its upper half */
    op_linear(&x, out, in, weight, (struct epilogue){0});
    assert_no_problem();
    for (int i = 0; i < VALUES; i++) {
        if ((double)got[i] != nearest(value[i]))
            fail_msg("%a became %a, not %a", (double)value[i], (double)got[i], nearest(value[i]));
        moved += got[i] != value[i];
    }
    assert_int_equal(moved, VALUES * 5 / 6);
    assert_true(isnan(got[VALUES]) && isinf(got[VALUES + 1]) && isnan(got[VALUES + 2]));
}

struct linear_case {
    int32_t t, n, k;
    enum dtype dtype;
    int gap;
    bool bias, residual;
};

/* Against f64 sums of operands rounded as they should be: what is left is the f32 sum's error. Bias and
 * residual are not rounded. */
static double product_error(struct linear_case c) {
    pool_used = 0;
    struct tensor in = tensor_random(DTYPE_F32, SHAPE(c.t, c.k), c.gap, 1);
    struct tensor weight = tensor_random(c.dtype, SHAPE(c.n, c.k), 0, 1);
    struct tensor out = tensor_random(DTYPE_F32, SHAPE(c.t, c.n), 2 * c.gap, 1);
    struct epilogue e = {0};
    if (c.bias) e.bias = tensor_random(DTYPE_F32, SHAPE(c.n), 0, 1);
    if (c.residual) e.residual = out;
    double *truth = pool_alloc(sizeof *truth * (size_t)c.t * (size_t)c.n), *at = truth, wrong = 0, all = 1e-300;
    for (int32_t i = 0; i < c.t; i++)
        for (int32_t j = 0; j < c.n; j++, at++) {
            *at = (c.bias ? load(&e.bias, 0, j) : 0) + (c.residual ? load(&e.residual, i, j) : 0);
            for (int32_t l = 0; l < c.k; l++) *at += load_rounded(&in, i, l) * load_rounded(&weight, j, l);
        }
    op_linear(&x, out, in, weight, e);
    assert_no_problem();
    for (int32_t i = 0; i < c.t; i++)
        for (int32_t j = 0; j < c.n; j++) {
            double is = truth[(int64_t)i * c.n + j];
            wrong += pow(load(&out, i, j) - is, 2);
            all += is * is;
        }
    return sqrt(wrong / all);
}

static void test_products(void **state) {
    (void)state;
    static const struct linear_case cases[] = {
        {1, 1, 1, DTYPE_BF16, 0, false, false},     {7, 5, 3, DTYPE_BF16, 4, true, true},
        {33, 130, 71, DTYPE_F32, 0, true, false},   {20, 513, 67, DTYPE_F16, 2, false, true},
        {3, 1100, 129, DTYPE_BF16, 0, true, true},  {65, 96, 640, DTYPE_F32, 1, false, false},
        {129, 70, 2049, DTYPE_F16, 0, true, false}, {2, 200, 9001, DTYPE_BF16, 0, false, false},
    };
    static const double gate = 1.5e-6; /* measured: f32 5.9e-7, bf16 2.3e-7 */
    for (int p = 0, n = can_compute() ? 2 : 1; p < n; p++) {
        double most = 0;
        x.precision = precisions[p];
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            double error = product_error(cases[i]);
            if (!(error <= gate))
                fail_msg("%s, case %d: error %g", precision_name(precisions[p]), (int)i, error);
            most = fmax(most, error);
        }
        printf("  sums in %s: %.2e\n", precision_name(precisions[p]), most);
    }
}

/* ---- beside PyTorch ---- */

/* Value i, from 0, of a seed: as test/golden/bf16.py draws it (splitmix64, Steele et al. 2014). */
static float drawn(uint64_t seed, uint64_t i) {
    uint64_t z = (i + 1 + (seed << 32)) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (float)((double)((z ^ (z >> 31)) >> 40) / (1 << 23) - 1);
}

struct deviation {
    double l2, max, bias;
};

static struct deviation deviation(const struct tensor *out, const double *truth) {
    double wrong = 0, all = 0, most = 0, sum = 0;
    int64_t n = tensor_elements(out);
    for (int64_t i = 0; i < n; i++) {
        double d = (double)((float *)out->data)[i] - truth[i];
        wrong += d * d, all += truth[i] * truth[i], sum += d;
        most = fmax(most, fabs(d));
    }
    double rms = sqrt(all / (double)n);
    return (struct deviation){sqrt(wrong / all), most / rms, fabs(sum / (double)n) / rms};
}

static double known(const json_t *row, const char *key) {
    double value = json_number_value(json_object_get(row, key));
    if (!(value > 0)) fail_msg("no %s in the golden file", key);
    return value;
}

static void expect_beside(const json_t *row) {
    int32_t t = (int32_t)known(row, "t"), n = (int32_t)known(row, "n"), k = (int32_t)known(row, "k");
    uint64_t seed = (uint64_t)json_integer_value(json_object_get(row, "seed"));
    pool_used = 0;
    struct tensor in = tensor_random(DTYPE_F32, SHAPE(t, k), 0, 1);
    struct tensor weight = tensor_random(DTYPE_BF16, SHAPE(n, k), 0, 1);
    struct tensor out = tensor_random(DTYPE_F32, SHAPE(t, n), 0, 1);
    double *truth = pool_alloc(sizeof *truth * (size_t)t * (size_t)n), *at = truth;
    for (int64_t i = 0; i < (int64_t)t * k; i++) ((float *)in.data)[i] = drawn(2 * seed, (uint64_t)i);
    for (int64_t i = 0; i < (int64_t)n * k; i++)
        ((uint16_t *)weight.data)[i] =
            (uint16_t)((union float_bits){.value = (float)nearest(drawn(2 * seed + 1, (uint64_t)i))}.bits >>
                       16);
    for (int32_t i = 0; i < t; i++)
        for (int32_t j = 0; j < n; j++, at++) {
            *at = 0;
            for (int32_t l = 0; l < k; l++) *at += load(&in, i, l) * load(&weight, j, l);
        }
    op_linear(&x, out, in, weight, (struct epilogue){0});
    assert_no_problem();
    struct deviation d = deviation(&out, truth);
    double l2 = known(row, "l2"), most = known(row, "max"), mean = known(row, "bias") + 4 * l2 / sqrt(t * n);
    printf("  %d x %d x %d: %.2e max %.2e bias %.2e; of PyTorch's %.2f, %.2f\n", t, n, k, d.l2, d.max, d.bias,
           d.l2 / l2, d.max / most);
    assert_true(d.l2 <= 1.5 * l2 + 1e-7 && d.max <= 1.5 * most + 1e-7 && d.bias <= 1.5 * mean + 1e-7);
}

static void test_beside_pytorch(void **state) {
    (void)state;
    size_t i;
    json_t *rows = json_load_file("test/golden/bf16_linear.json", 0, NULL), *row;
    assert_true(json_array_size(rows) >= 7);
    if (can_compute()) json_array_foreach(rows, i, row) expect_beside(row);
    json_decref(rows);
}

/* ---- what is not ---- */

/* Conditioning rows and everything between products have the bits of f32. */
static void test_the_rest_is_f32(void **state) {
    (void)state;
    if (!can_compute()) return;
    uint64_t hash[2][3];
    for (int i = 0; i < 2; i++) {
        x.precision = precisions[i];
        pool_used = 0;
        random_state = 5;
        struct tensor in = tensor_random(DTYPE_F32, SHAPE(9, 96), 0, 1),
                      out = tensor_random(DTYPE_F32, SHAPE(9, 96), 0, 1);
        struct tensor weight = tensor_random(DTYPE_BF16, SHAPE(96, 96), 0, 1);
        struct tensor norm = tensor_random(DTYPE_BF16, SHAPE(96), 0, 1);
        op_linear_few(&x, out, in, weight, absent, ACTIVATION_SILU);
        hash[i][0] = hash_out(&(struct op){.out = out});
        op_attention(&x, out, in, in, in, (struct attention_options){.queries = 3, .keys = 3, .scale = 0.2f});
        hash[i][1] = hash_out(&(struct op){.out = out});
        op_rms_norm(&x, out, in, norm, 1e-5f, (struct modulation){0});
        hash[i][2] = hash_out(&(struct op){.out = out});
        assert_no_problem();
    }
    assert_memory_equal(hash[0], hash[1], sizeof hash[0]);
}

/* ---- memory ---- */

/* Beyond rows in and each thread's results of a panel a workspace has at most a panel of weights a thread: 2
 * MiB of f32, 1 of bf16; nothing where they are stored as they are multiplied. */
static void test_no_whole_copy(void **state) {
    (void)state;
    enum { T = 64, N = 10240, K = 3840, THREADS = 2, PANEL = 2 << 20, SLACK = 1 << 20 };
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    int n = can_compute() ? 2 : 1;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < 3; k++) {
            struct op op = {.kind = OP_LINEAR, .precision = precisions[i]};
            op.in[0] = tensor_make(NULL, DTYPE_F32, SHAPE(T, K));
            op.in[1] = tensor_make(NULL, dtypes[k], SHAPE(N, K));
            op.out = tensor_make(NULL, DTYPE_F32, SHAPE(T, N));
            struct op_cost cost;
            checker.two->cost(checker.two, &op, &cost);
            bool stored = dtypes[k] == (i ? DTYPE_BF16 : DTYPE_F32);
            uint64_t rows = sizeof(float) * (uint64_t)T * (K + THREADS * 128);
            printf("  %s weights in %s: workspace %llu KiB\n", dtype_name(dtypes[k]),
                   precision_name(precisions[i]), (unsigned long long)cost.workspace_bytes >> 10);
            assert_true(cost.workspace_bytes <= rows + SLACK +
                                                    THREADS * (stored ? 0
                                                               : i    ? PANEL / 2
                                                                      : PANEL));
        }
}

/* ---- refusals ---- */

/* What a device lacks follows from the instructions that oneDNN may use; test/program/run.sh limits them. */
static void test_lacks(void **state) {
    (void)state;
    assert_null(checker.two->unsupported[PRECISION_F32]);
    assert_non_null(checker.two->unsupported[PRECISION_F16]);
    assert_int_equal(!checker.two->unsupported[PRECISION_BF16], onednn_has_bf16());
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_rounding, back_to_f32),
        cmocka_unit_test_teardown(test_products, back_to_f32),
        cmocka_unit_test_teardown(test_beside_pytorch, back_to_f32),
        cmocka_unit_test_teardown(test_the_rest_is_f32, back_to_f32),
        cmocka_unit_test_teardown(test_no_whole_copy, back_to_f32),
        cmocka_unit_test(test_lacks),
    };
    int n = sizeof tests / sizeof *tests, failed = cmocka_run_group_tests(tests, ops_set_up, ops_tear_down);
    printf("%d passed, %d failed\n", n - failed, failed);
    return failed != 0;
}
