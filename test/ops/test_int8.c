/* Products in int8: exact sums, scales and epilogue, stored types, special values, adapters, and the error of
 * quantisation beside bf16's. Most operands are rotated integers, so rotation and codes are exact, and the
 * expected values do not depend on how a device rounds. */
#include "test/ops/ops_checker.h"

#include "test/lib/cmocka_tests.h"
#include "test/lib/ops_cases.h"
#include "test/lib/quantised_ops.h"

struct op_error op_errors[N_OP_KINDS]; /* required by ops_cases.h; this program has its own limits */

static bool supports_int8(void) {
    const char *reason = checker.two->unsupported[PRECISION_INT8];
    if (reason) printf("SKIP int8: %s\n", reason);
    x.precision = PRECISION_INT8;
    return !reason;
}

/* Multiplies a group by ConvRot's matrix, digit by digit of the index in base 4. */
static void rotate(double *v, int group) {
    for (int step = 1; step < group; step *= 4)
        for (int i = 0; i < group; i++) {
            if (i / step % 4) continue;
            double *at = v + i, sum = at[0] + at[step] + at[2 * step] + at[3 * step], old[4];
            for (int d = 0; d < 4; d++) old[d] = at[d * step];
            for (int d = 0; d < 4; d++) at[d * step] = sum / 2 - old[3 - d];
        }
}

static enum dtype rotated_type(int group) {
    return group == 16 ? DTYPE_I8_ROT16 : group == 64 ? DTYPE_I8_ROT64 : DTYPE_I8_ROT256;
}

/* Ways to draw the codes of a row. */
enum codes { ALL_MOST, ALL_LEAST, ALTERNATING, RANDOM, N_CODES };

/* Draws a row of codes that has one of size 127, so that f32 values quantise to the same codes. */
static void draw_codes(int8_t *row, int64_t k, enum codes codes) {
    for (int64_t i = 0; i < k; i++)
        row[i] = (int8_t)(codes == ALL_MOST      ? 127
                          : codes == ALL_LEAST   ? -127
                          : codes == ALTERNATING ? (i % 2 ? 127 : -127)
                                                 : random_int(-127, 127));
    row[random_int(0, (int)k - 1)] = codes == ALL_MOST ? 127 : -127;
}

/* A matrix [rows,k] as codes and as a tensor. The tensor has scale 2^-3 in each row. */
struct coded {
    int8_t *codes;
    struct tensor tensor;
};

static const float each_scale = 0x1p-3f;

/* gap: number of unused values between rows */
static struct coded coded_f32(int32_t rows, int32_t k, int group, enum codes codes, int gap) {
    struct coded c = {pool_alloc((size_t)rows * (size_t)k), tensor_random(DTYPE_F32, SHAPE(rows, k), gap, 1)};
    double v[256];
    for (int32_t i = 0; i < rows; i++) {
        draw_codes(c.codes + (int64_t)i * k, k, codes);
        for (int32_t j = 0; j < k; j += group) {
            for (int l = 0; l < group; l++) v[l] = c.codes[(int64_t)i * k + j + l];
            rotate(v, group);
            float *to = (float *)(void *)((char *)c.tensor.data + i * c.tensor.row_bytes) + j;
            for (int l = 0; l < group; l++) to[l] = (float)v[l] * each_scale;
        }
    }
    return c;
}

/* A weight of a rotated type; `least`: code -128 too, which only stored weights have. */
static struct coded coded_stored(int32_t rows, int32_t k, int group, enum codes codes, bool least) {
    struct coded c = {.codes = pool_alloc((size_t)rows * (size_t)k)};
    for (int32_t i = 0; i < rows; i++) draw_codes(c.codes + (int64_t)i * k, k, codes);
    for (int64_t i = 0; least && i < (int64_t)rows * k; i++)
        if (c.codes[i] == -127) c.codes[i] = -128;
    c.tensor = tensor_make(c.codes, rotated_type(group), SHAPE(rows, k));
    float *scales = pool_alloc(sizeof *scales * (size_t)rows);
    for (int32_t i = 0; i < rows; i++) scales[i] = 2 * each_scale;
    c.tensor.scales = scales, c.tensor.scale = 0.5f;
    return c;
}

static int64_t sum_of(const int8_t *a, const int8_t *b, int32_t k) {
    int64_t sum = 0;
    for (int32_t i = 0; i < k; i++) sum += a[i] * b[i];
    return sum;
}

static void expect_sums(const struct tensor *out, const struct coded *in, const struct coded *weight) {
    int32_t k = in->tensor.dim[1];
    assert_ok(&problem);
    for (int32_t i = 0; i < out->dim[0]; i++)
        for (int32_t j = 0; j < out->dim[1]; j++) {
            int64_t sum = sum_of(in->codes + (int64_t)i * k, weight->codes + (int64_t)j * k, k);
            float expected = (float)sum * each_scale * each_scale, got = (float)load(out, i, j);
            if (got != expected)
                fail_msg("%d inputs, row %d, output %d: %.9g, expected %.9g", k, i, j, (double)got,
                         (double)expected);
        }
}

/* The largest codes of either sign, for up to 15,360 inputs. Instructions that add pairs of products in 16
 * bits saturate here. */
TEST(sums_are_exact) {
    static const int32_t sizes[][4] = {/* rows, outputs, inputs, group */
                                       {3, 5, 16, 16},
                                       {2, 70, 80, 16},
                                       {5, 33, 192, 64},
                                       {3, 130, 3840, 256},
                                       {2, 20, 15360, 256}};
    if (!supports_int8()) skip();
    random_state = 1;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int c = 0; c < 2 * N_CODES * N_CODES; c++) {
            const int32_t *s = sizes[i];
            enum codes codes = (enum codes)(c / 2 % N_CODES);
            bool stored = c % 2;
            case_begin();
            struct coded in = coded_f32(s[0], s[2], s[3], (enum codes)(c / 2 / N_CODES), 0);
            struct coded weight =
                stored ? coded_stored(s[1], s[2], s[3], codes, true) : coded_f32(s[1], s[2], s[3], codes, 0);
            struct tensor out = tensor_random(DTYPE_F32, SHAPE(s[0], s[1]), 0, 1);
            op_linear(&x, out, in.tensor, weight.tensor, (struct epilogue){0});
            expect_sums(&out, &in, &weight);
        }
}

/* Several chunks of rows and panels of outputs: each row has the bits of the row alone, also with three
 * threads. */
TEST(rows_and_threads_change_no_bit) {
    enum { T = 530, N = 333, K = 272, THREADS = 3 };
    if (!supports_int8()) skip();
    case_begin();
    random_state = 2;
    struct tensor in = tensor_random(DTYPE_F32, SHAPE(T, K), 3, 1),
                  weight = tensor_random(DTYPE_BF16, SHAPE(N, K), 0, 1);
    struct tensor out = tensor_random(DTYPE_F32, SHAPE(T, N), 5, 1),
                  one = tensor_random(DTYPE_F32, SHAPE(1, N), 0, 1);
    struct op op = {.kind = OP_LINEAR, .precision = PRECISION_INT8, .out = out, .in = {in, weight}};
    op_linear(&x, out, in, weight, (struct epilogue){0});
    for (int32_t t = 0; t < T; t += 23) {
        op_linear(&x, one, tensor_slice(in, t, 1), weight, (struct epilogue){0});
        assert_memory_equal(one.data, (char *)out.data + t * out.row_bytes, N * sizeof(float));
    }
    assert_ok(&problem);
    uint64_t hash = hash_out(&op);
    struct device *device = cpu_open(&checker.sys, THREADS, &problem);
    assert_non_null(device);
    struct op_cost cost;
    device->cost(device, &op, &cost);
    memset(out.data, 0, (size_t)(T * out.row_bytes));
    assert_true(cost.workspace_bytes <= WORKSPACE_MAX);
    assert_int_equal(device->prepare(device, &op, &problem), OK);
    assert_int_equal(device->run(device, &op, workspace, &problem), OK);
    assert_true(hash_out(&op) == hash);
    device->destroy(device);
}

/* Bias, activation, gate and residual, which may be the output; rows with gaps; all groups. Exact sums, so
 * the error is the epilogue's. */
TEST(epilogue_matches_f64) {
    static const double limit = 2e-7; /* relative error; measured: 4.3e-8 */
    double most = 0;
    if (!supports_int8()) skip();
    random_state = 3;
    for (int i = 0; i < 48; i++) {
        int32_t group = 16 << 2 * (i % 3), t = random_int(1, 300), n = random_int(1, 300),
                k = group * (1 + 2 * random_int(0, 2));
        enum residual residual = (enum residual)random_int(0, 2);
        case_begin();
        struct coded in = coded_f32(t, k, group, RANDOM, i % 4);
        struct coded weight =
            i % 2 ? coded_stored(n, k, group, RANDOM, true) : coded_f32(n, k, group, RANDOM, 0);
        struct tensor out = tensor_random(DTYPE_F32, SHAPE(t, n), i % 5, 1);
        struct epilogue e = {.activation = (enum activation)random_int(0, ACTIVATION_GELU_ERF)};
        if (random_bool()) e.bias = tensor_random(random_dtype(), SHAPE(n), 0, 1);
        if (random_bool()) e.gate = tensor_random(random_dtype(), SHAPE(n), 0, 1);
        if (residual == RESIDUAL_OUT) e.residual = out;
        if (residual == RESIDUAL_APART) e.residual = tensor_random(DTYPE_F32, SHAPE(t, n), i % 3, 1);
        double *truth = op_truth(&out);
        for (int64_t at = 0; at < (int64_t)t * n; at++) {
            int64_t row = at / n, column = at % n,
                    sum = sum_of(in.codes + row * k, weight.codes + column * k, k);
            double v = (double)sum * (double)each_scale * (double)each_scale;
            v = activated(e.activation, v + (e.bias.rank ? load(&e.bias, 0, column) : 0));
            v *= e.gate.rank ? load(&e.gate, 0, column) : 1;
            truth[at] = v + (e.residual.rank ? load(&e.residual, row, column) : 0);
        }
        op_linear(&x, out, in.tensor, weight.tensor, e);
        assert_ok(&problem);
        double error = op_error_of(&out, truth);
        if (!(error <= limit)) fail_msg("case %d: error %g", i, error);
        most = fmax(most, error);
    }
    printf("  error of epilogues: %.2e\n", most);
}

/* Weights of every type that is not rotated give the bits of their f32 values, in all groups; widths without
 * a group give those of f32 products. */
TEST(stored_types_equal_f32_values) {
    static const enum dtype plain[] = {DTYPE_F16, DTYPE_BF16};
    if (!supports_int8()) skip();
    random_state = 4;
    for (int i = 0; i < N_QUANTISED + 2; i++) {
        enum dtype dtype = i < 2 ? plain[i] : quantised_types[i - 2];
        int32_t block = dtype_block_values(dtype), n = dtype_tiled_values(dtype) ? 256 : 70;
        if (dtype_is_rotated(dtype)) continue;
        if (n % block && block > 1) n = block;
        same_linear(dtype, 5, n, 512);
        if (64 % block == 0) same_linear(dtype, 3, n, 192);
        if (16 % block == 0) same_linear(dtype, 3, n, 80);
    }
}

TEST(widths_without_a_group_are_f32) {
    enum { T = 3, N = 20, K = 40 };
    if (!supports_int8()) skip();
    case_begin();
    struct tensor in = tensor_random(DTYPE_F32, SHAPE(T, K), 0, 1),
                  weight = tensor_random(DTYPE_BF16, SHAPE(N, K), 0, 1);
    struct tensor out[2];
    for (int i = 0; i < 2; i++) {
        out[i] = tensor_random(DTYPE_F32, SHAPE(T, N), 0, 1);
        x.precision = i ? PRECISION_INT8 : PRECISION_F32;
        op_linear(&x, out[i], in, weight, (struct epilogue){0});
    }
    assert_ok(&problem);
    assert_memory_equal(out[0].data, out[1].data, T * N * sizeof(float));
}

/* A row of zeros gives the bias; a value that is not finite gives NaN in its row or column alone; rows of
 * very small and large values keep their error. */
TEST(special_rows) {
    enum { T = 8, N = 70, K = 256, ZERO = 1, NOT_A_NUMBER = 3, INFINITE = 4, TINY = 5, LARGE = 6, BAD = 9 };
    if (!supports_int8()) skip();
    random_state = 5;
    case_begin();
    struct coded in = coded_f32(T, K, K, RANDOM, 0), weight = coded_f32(N, K, K, RANDOM, 0);
    struct tensor bias = tensor_random(DTYPE_F32, SHAPE(N), 0, 1), out[2];
    for (int i = 0; i < 2; i++) {
        out[i] = tensor_random(DTYPE_F32, SHAPE(T, N), 0, 1);
        op_linear(&x, out[i], in.tensor, weight.tensor, (struct epilogue){.bias = bias});
        float(*row)[K] = in.tensor.data;
        memset(row[ZERO], 0, sizeof row[ZERO]);
        row[NOT_A_NUMBER][7] = NAN, row[INFINITE][100] = -INFINITY;
        for (int j = 0; j < K; j++) row[TINY][j] *= 0x1p-140f, row[LARGE][j] *= 0x1p100f;
        ((float *)weight.tensor.data)[BAD * K + 3] = INFINITY;
    }
    assert_ok(&problem);
    for (int t = 0; t < T; t++)
        for (int n = 0; n < N; n++) {
            double old = load(&out[0], t, n), got = load(&out[1], t, n), b = load(&bias, 0, n);
            if (n == BAD || t == NOT_A_NUMBER || t == INFINITE)
                assert_true(isnan(got));
            else if (t == ZERO)
                assert_true(got == b);
            else if (t == TINY)
                assert_true(fabs(got - b) < 1e-30);
            else if (t == LARGE)
                assert_true(fabs(got - (old - b) * 0x1p100) <= 1e-5 * fabs(got));
            else
                assert_true(got == old);
        }
}

/* Adapters are an f32 product, added before the epilogue: several, of slices of a weight, over several chunks
 * of rows. */
TEST(adapters_are_added_in_f32) {
    enum { T = 270, N = 200, K = 192, FIRST = 30, ROWS = 150 };
    static const struct factors factors[FACTORS_MOST] = {{5, 0, 200, DTYPE_BF16, 1.5f},
                                                         {17, 60, 100, DTYPE_F32, -1}};
    static const double limit = 2e-7; /* relative error; measured: 5.1e-8 */
    if (!supports_int8()) skip();
    random_state = 6;
    case_begin();
    adapted_scratch();
    struct low_rank chain[FACTORS_MOST];
    struct coded in = coded_f32(T, K, 64, RANDOM, 2), weight = coded_f32(N, K, 64, RANDOM, 0);
    weight.tensor.adapters = adapted_chain(chain, factors, &weight.tensor);
    struct tensor part = tensor_slice(weight.tensor, FIRST, ROWS),
                  bias = tensor_random(DTYPE_F32, SHAPE(ROWS), 0, 1);
    struct tensor out = tensor_random(DTYPE_F32, SHAPE(T, ROWS), 0, 1);
    double *truth = op_truth(&out), inner[17];
    for (int t = 0; t < T; t++) {
        for (int n = 0; n < ROWS; n++)
            truth[t * ROWS + n] =
                (double)sum_of(in.codes + t * K, weight.codes + (FIRST + n) * K, K) * 0x1p-6 +
                load(&bias, 0, n);
        for (int a = 0; a < 2; a++) {
            for (int r = 0; r < factors[a].rank; r++) {
                inner[r] = 0;
                for (int k = 0; k < K; k++) inner[r] += load(&in.tensor, t, k) * load(&chain[a].down, r, k);
            }
            for (int n = 0; n < factors[a].n; n++)
                for (int r = 0, to = factors[a].row + n - FIRST; r < factors[a].rank && to >= 0 && to < ROWS;
                     r++)
                    truth[t * ROWS + to] += inner[r] * load(&chain[a].up, n, r) * (double)factors[a].scale;
        }
    }
    op_linear(&x, out, in.tensor, part, (struct epilogue){.bias = bias});
    assert_ok(&problem);
    double error = op_error_of(&out, truth);
    printf("  error with adapters: %.2e\n", error);
    assert_true(error <= limit);
}

static float normal_value(void) {
    double sum = 0;
    for (int i = 0; i < 12; i++) sum += (double)random_value();
    return (float)sum / 2;
}

/* Error of a product of normal values against f64, beside the other precisions; `factor`: of 16 channels. */
static void measure_error(float factor, double most) {
    enum { T = 64, N = 128, K = 1024 };
    double errors[N_PRECISIONS] = {0};
    case_begin();
    struct tensor in = tensor_random(DTYPE_F32, SHAPE(T, K), 0, 1),
                  weight = tensor_random(DTYPE_F32, SHAPE(N, K), 0, 1),
                  out = tensor_random(DTYPE_F32, SHAPE(T, N), 0, 1);
    float *a = in.data, *b = weight.data;
    for (int i = 0; i < T * K; i++) a[i] = normal_value() * (i % K % 64 == 0 ? factor : 1);
    for (int i = 0; i < N * K; i++) b[i] = normal_value();
    double *truth = op_truth(&out);
    for (int i = 0; i < T * N; i++) {
        truth[i] = 0;
        for (int k = 0; k < K; k++) truth[i] += (double)a[i / N * K + k] * (double)b[i % N * K + k];
    }
    for (int p = 0; p < N_PRECISIONS; p++) {
        x.precision = (enum precision)p;
        if (checker.two->unsupported[p]) continue;
        op_linear(&x, out, in, weight, (struct epilogue){0});
        errors[p] = op_error_of(&out, truth);
    }
    assert_ok(&problem);
    printf("  error with channels times %g: f32 %.2e, bf16 %.2e, int8 %.2e\n", (double)factor,
           errors[PRECISION_F32], errors[PRECISION_BF16], errors[PRECISION_INT8]);
    assert_true(errors[PRECISION_INT8] <= most);
}

TEST(error_of_a_product) {
    if (!supports_int8()) skip();
    random_state = 7;
    measure_error(1, 0.014);  /* measured: 0.0112 */
    measure_error(30, 0.014); /* measured: 0.0096; 0.06 without rotation */
}

/* A workspace holds the input's codes, and per thread one panel of codes and a chunk of sums. */
TEST(workspace_is_small) {
    enum { T = 4096, N = 10240, K = 3840, THREADS = 2, PANEL = 2 << 20 };
    if (!supports_int8()) skip();
    struct op op = {.kind = OP_LINEAR, .precision = PRECISION_INT8};
    op.in[0] = tensor_make(NULL, DTYPE_F32, SHAPE(T, K));
    op.in[1] = tensor_make(NULL, DTYPE_BF16, SHAPE(N, K));
    op.out = tensor_make(NULL, DTYPE_F32, SHAPE(T, N));
    struct op_cost cost;
    checker.two->cost(checker.two, &op, &cost);
    assert_true(cost.workspace_bytes <= (uint64_t)T * K + THREADS * PANEL);
}

/* device->unsupported follows oneDNN's instruction sets, which test/program/command_line.sh limits. */
TEST(unsupported_follows_instruction_sets) {
    assert_int_equal(!checker.two->unsupported[PRECISION_INT8], onednn_has_int8());
}

int main(void) {
    quantised_alloc = pool_alloc;
    return run_all_tests(ops_set_up, ops_tear_down);
}
