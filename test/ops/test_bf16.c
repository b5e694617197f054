/* Products in bf16: rounding of operands, errors compared with PyTorch, other operators unchanged in f32, no
 * whole converted copies of weights. test_blocks.c and test_golden.c cover blocks and models in bf16,
 * test_residency.c covers bit equality under budgets. */
#include "test/ops/ops_checker.h"

#include "test/lib/ops_cases.h"

#include <jansson.h>

struct op_error op_errors[N_OP_KINDS]; /* required by ops_cases.h; this program has its own limits */

static const enum precision precisions[] = {PRECISION_F32, PRECISION_BF16};

static bool supports_bf16(void) {
    const char *reason = checker.two->unsupported[PRECISION_BF16];
    if (reason) printf("SKIP bf16: %s\n", reason);
    x.precision = reason ? PRECISION_F32 : PRECISION_BF16;
    return !reason;
}

static int back_to_f32(void **state) {
    x.precision = PRECISION_F32;
    operand_rounding = NULL;
    return 0;
}

/* Returns a value next to a rounding limit: ties, neighbours of ties, largest values; no subnormals. */
static float edge(int i) {
    static const uint32_t tails[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
    static const uint32_t heads[] = {0x3f80, 0x3f81, 0xbf80, 0x4049, 0xc2fe, 0x7f7e, 0xff7e, 0x0080, 0x3fff};
    int n = sizeof tails / sizeof *tails;
    return (union float_bits){.bits = heads[i / n % 9] << 16 | tails[i % n]}.value;
}

/* The product of a row with one nonzero value and a weight of 1 is the value rounded to bf16. */
static void test_operands_are_rounded_to_nearest(void **state) {
    enum { VALUES = 54 };
    if (!supports_bf16()) return;
    pool_used = 0;
    struct tensor in = tensor_random(DTYPE_F32, SHAPE(VALUES + 3, 1), 0, 1);
    struct tensor weight = tensor_random(DTYPE_BF16, SHAPE(1, 1), 0, 1);
    struct tensor out = tensor_random(DTYPE_F32, SHAPE(VALUES + 3, 1), 0, 1);
    float *value = in.data, *got = out.data;
    int moved = 0;
    *(uint16_t *)weight.data = 0x3f80;
    for (int i = 0; i < VALUES; i++) value[i] = edge(i);
    value[VALUES] = NAN, value[VALUES + 1] = INFINITY;
    /* a NaN whose upper 16 bits are those of infinity */
    value[VALUES + 2] = (union float_bits){.bits = 0x7f800001}.value;
    op_linear(&x, out, in, weight, (struct epilogue){0});
    assert_ok(&problem);
    for (int i = 0; i < VALUES; i++) {
        if ((double)got[i] != nearest_bf16(value[i]))
            fail_msg("%a rounded to %a, expected %a", (double)value[i], (double)got[i],
                     nearest_bf16(value[i]));
        moved += got[i] != value[i];
    }
    assert_int_equal(moved, VALUES * 5 / 6);
    assert_true(isnan(got[VALUES]) && isinf(got[VALUES + 1]) && isnan(got[VALUES + 2]));
}

/* Errors against f64 sums of the rounded operands, that is, errors of summing in f32. */
static void test_product_error_is_small(void **state) {
    static const struct linear_case cases[] = {
        {1, 1, 1, DTYPE_BF16, 0, false, .residual = RESIDUAL_NONE},
        {7, 5, 3, DTYPE_BF16, 4, true, .residual = RESIDUAL_OUT},
        {33, 130, 71, DTYPE_F32, 0, true, .residual = RESIDUAL_NONE},
        {20, 513, 67, DTYPE_F16, 2, false, .residual = RESIDUAL_OUT},
        {3, 1100, 129, DTYPE_BF16, 0, true, .residual = RESIDUAL_OUT},
        {65, 96, 640, DTYPE_F32, 1, false, .residual = RESIDUAL_NONE},
        {129, 70, 2049, DTYPE_F16, 0, true, .residual = RESIDUAL_NONE},
        {2, 200, 9001, DTYPE_BF16, 0, false, .residual = RESIDUAL_NONE},
    };
    static const double gate = 1.5e-6; /* limit of the relative error; measured: f32 5.9e-7, bf16 2.3e-7 */
    for (int p = 0, n = supports_bf16() ? 2 : 1; p < n; p++) {
        double most = 0;
        x.precision = precisions[p];
        operand_rounding = p ? nearest_bf16 : NULL;
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            double error = linear_error(cases[i]);
            if (!(error <= gate))
                fail_msg("%s, case %d: error %g", precision_name(precisions[p]), (int)i, error);
            most = fmax(most, error);
        }
        printf("  error of sums in %s: %.2e\n", precision_name(precisions[p]), most);
    }
}

/* Returns value i of splitmix64 (Steele et al. 2014), as test/golden/bf16.py generates it. */
static float splitmix_value(uint64_t seed, uint64_t i) {
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

static double golden_value(const json_t *row, const char *key) {
    double value = json_number_value(json_object_get(row, key));
    if (!(value > 0)) fail_msg("missing or non-positive %s in the golden file", key);
    return value;
}

static void expect_error_like_pytorch(const json_t *row) {
    int32_t t = (int32_t)golden_value(row, "t"), n = (int32_t)golden_value(row, "n"),
            k = (int32_t)golden_value(row, "k");
    uint64_t seed = (uint64_t)json_integer_value(json_object_get(row, "seed"));
    pool_used = 0;
    struct tensor in = tensor_random(DTYPE_F32, SHAPE(t, k), 0, 1);
    struct tensor weight = tensor_random(DTYPE_BF16, SHAPE(n, k), 0, 1);
    struct tensor out = tensor_random(DTYPE_F32, SHAPE(t, n), 0, 1);
    double *truth = pool_alloc(sizeof *truth * (size_t)t * (size_t)n), *at = truth;
    for (int64_t i = 0; i < (int64_t)t * k; i++)
        ((float *)in.data)[i] = splitmix_value(2 * seed, (uint64_t)i);
    for (int64_t i = 0; i < (int64_t)n * k; i++)
        ((uint16_t *)weight.data)[i] =
            (uint16_t)((union float_bits){.value =
                                              (float)nearest_bf16(splitmix_value(2 * seed + 1, (uint64_t)i))}
                           .bits >>
                       16);
    for (int32_t i = 0; i < t; i++)
        for (int32_t j = 0; j < n; j++, at++) {
            *at = 0;
            for (int32_t l = 0; l < k; l++) *at += load(&in, i, l) * load(&weight, j, l);
        }
    op_linear(&x, out, in, weight, (struct epilogue){0});
    assert_ok(&problem);
    struct deviation d = deviation(&out, truth);
    double l2 = golden_value(row, "l2"), most = golden_value(row, "max"),
           mean = golden_value(row, "bias") + 4 * l2 / sqrt(t * n);
    printf("  %d x %d x %d: %.2e max %.2e bias %.2e; relative to PyTorch %.2f, %.2f\n", t, n, k, d.l2, d.max,
           d.bias, d.l2 / l2, d.max / most);
    assert_true(d.l2 <= 1.5 * l2 + 1e-7 && d.max <= 1.5 * most + 1e-7 && d.bias <= 1.5 * mean + 1e-7);
}

static void test_error_matches_pytorch(void **state) {
    size_t i;
    json_t *rows = json_load_file("test/golden/bf16_linear.json", 0, NULL), *row;
    assert_true(json_array_size(rows) >= 7);
    if (supports_bf16()) json_array_foreach(rows, i, row) expect_error_like_pytorch(row);
    json_decref(rows);
}

/* In precision bf16, small conditioning products and all other operators give the bits of f32. */
static void test_other_operators_stay_f32(void **state) {
    if (!supports_bf16()) return;
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
        assert_ok(&problem);
    }
    assert_memory_equal(hash[0], hash[1], sizeof hash[0]);
}

/* A workspace holds at most one panel of converted weights per thread (2 MiB of f32 or 1 MiB of bf16),
 * besides input rows and per-thread results; none if the stored type is the multiplied type. */
static void test_weights_are_converted_by_panels(void **state) {
    enum { T = 64, N = 10240, K = 3840, THREADS = 2, PANEL = 2 << 20, SLACK = 1 << 20 };
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    int n = supports_bf16() ? 2 : 1;
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
            printf("  %s weights, precision %s: workspace %llu KiB\n", dtype_name(dtypes[k]),
                   precision_name(precisions[i]), (unsigned long long)cost.workspace_bytes >> 10);
            assert_true(cost.workspace_bytes <= rows + SLACK +
                                                    THREADS * (stored ? 0
                                                               : i    ? PANEL / 2
                                                                      : PANEL));
        }
}

/* device->unsupported follows oneDNN's instruction sets, which test/program/command_line.sh limits. */
static void test_unsupported_follows_instruction_sets(void **state) {
    assert_null(checker.two->unsupported[PRECISION_F32]);
    assert_non_null(checker.two->unsupported[PRECISION_F16]);
    assert_int_equal(!checker.two->unsupported[PRECISION_BF16], onednn_has_bf16());
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_operands_are_rounded_to_nearest, back_to_f32),
        cmocka_unit_test_teardown(test_product_error_is_small, back_to_f32),
        cmocka_unit_test_teardown(test_error_matches_pytorch, back_to_f32),
        cmocka_unit_test_teardown(test_other_operators_stay_f32, back_to_f32),
        cmocka_unit_test_teardown(test_weights_are_converted_by_panels, back_to_f32),
        cmocka_unit_test(test_unsupported_follows_instruction_sets),
    };
    return tests_run(tests, sizeof tests / sizeof *tests, ops_set_up, ops_tear_down);
}
