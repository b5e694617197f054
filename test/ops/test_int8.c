/* int8 products on the CPU: the cases of test/lib/int8_cases.h, threads, and workspace. */
#include "test/ops/ops_checker.h"

#include "test/lib/cmocka_tests.h"
#include "test/lib/int8_cases.h"
#include "test/lib/ops_cases.h"
#include "test/lib/quantised_ops.h"

struct op_error op_errors[N_OP_KINDS]; /* required by ops_cases.h; this program has its own limits */

static bool supports_int8(void) {
    const char *reason = checker.two->unsupported[PRECISION_INT8];
    if (reason) printf("SKIP int8: %s\n", reason);
    x.precision = PRECISION_INT8;
    return !reason;
}

TEST(sums_are_exact) {
    if (!supports_int8()) skip();
    random_state = 1;
    int8_case_sums(3, 5, 16, 16);
    int8_case_sums(2, 70, 80, 16);
    int8_case_sums(5, 33, 192, 64);
    int8_case_sums(3, 130, 3840, 256);
    int8_case_sums(2, 20, 15360, 256);
}

/* Each output of a stored weight has its own scale, in every panel. */
TEST(outputs_have_their_scales) {
    enum { T = 3, N = 300, K = 64 };
    if (!supports_int8()) skip();
    case_begin();
    random_state = 8;
    struct int8_coded in = int8_coded_f32(T, K, K, INT8_RANDOM, 0),
                      weight = int8_coded_stored(N, K, K, INT8_RANDOM, true);
    struct tensor out = tensor_random(DTYPE_F32, SHAPE(T, N), 0, 1);
    float *scales = pool_alloc(sizeof *scales * (size_t)(weight.tensor.scale_row + N));
    for (int32_t n = 0; n < N; n++) scales[weight.tensor.scale_row + n] = ldexpf(1, n % 7);
    weight.tensor.scales = scales;
    op_linear(&x, out, in.tensor, weight.tensor, (struct epilogue){0});
    assert_ok(&problem);
    for (int32_t t = 0; t < T; t++)
        for (int32_t n = 0; n < N; n++) {
            double sum = (double)int8_sum_of(in.codes + t * K, weight.codes + n * K, K);
            assert_true(load(&out, t, n) == ldexp(sum * (double)int8_scale / 2, n % 7));
        }
}

/* With several chunks of rows and panels of outputs, and with three threads, each row has the same bits as if
 * computed alone. */
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

TEST(epilogue_matches_f64) {
    static const double limit = 2e-7; /* relative error; measured: 4.3e-8 */
    double most = 0;
    if (!supports_int8()) skip();
    random_state = 3;
    for (int i = 0; i < 48; i++) {
        int32_t group = 16 << 2 * (i % 3);
        double error = int8_case_epilogue(random_int(1, 300), random_int(1, 300),
                                          group * (1 + 2 * random_int(0, 2)), group, i % 2);
        if (!(error <= limit)) fail_msg("case %d: error %g", i, error);
        most = fmax(most, error);
    }
    printf("  error of epilogues: %.2e\n", most);
}

TEST(stored_types_equal_f32_values) {
    if (!supports_int8()) skip();
    random_state = 4;
    int8_case_stored_types();
    int8_case_packed(3, 70, 512);
}

TEST(widths_without_a_group_are_f32) {
    enum { T = 3, N = 20, K = 40 };
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

TEST(special_rows) {
    if (!supports_int8()) skip();
    random_state = 5;
    int8_case_special_rows();
}

/* Adapters are computed in f32, over several chunks of rows. */
TEST(adapters_are_added_in_f32) {
    static const double limit = 2e-7; /* relative error; measured: 5.1e-8 */
    if (!supports_int8()) skip();
    random_state = 6;
    double error = int8_case_adapters(270, (struct epilogue){0});
    printf("  error with adapters: %.2e\n", error);
    assert_true(error <= limit);
}

TEST(error_of_a_product) {
    static const double limit = 0.014; /* measured: 0.0112 and 0.0096; without rotation 0.06 */
    if (!supports_int8()) skip();
    random_state = 7;
    assert_true(int8_case_error(1, checker.two) <= limit);
    assert_true(int8_case_error(30, checker.two) <= limit);
}

/* The workspace holds the input's codes and, per thread, one panel of codes and one chunk of sums. */
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
