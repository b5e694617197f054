/* Operators of the CUDA device, on a GPU or under the emulator, against f64: the cases of
 * test/lib/ops_tests.h with this device's shapes. The reference rounds operands of products to bf16, as the
 * device does; attention may have as little as half the error of the rounded reference; convolutions round to
 * TF32 or f16.
 *
 * Environment: EMU_ORDER and EMU_SEED set the emulator's thread order, SEED repeats random cases, CASES is
 * their number, ONLY and SKIP are patterns of test names. */
#include "test/device/cuda_checker.h"
#include "test/device/emulated.h"

#include "test/lib/ops_tests.h"

/* Under ThreadSanitizer barriers are 100 times slower, so shapes have only 2 to 8 thread blocks. */
#ifdef __SANITIZE_THREAD__
enum { SMALL = 1, RANDOM_CASES = 0, ROWS_ALIKE = 20, PICTURES = 3, SHAPES = 0 };
#elif defined(__SANITIZE_ADDRESS__)
enum { SMALL = 0, RANDOM_CASES = 40, ROWS_ALIKE = 70, PICTURES = 6, SHAPES = 1 };
#else
enum { SMALL = 0, RANDOM_CASES = 100, ROWS_ALIKE = 130, PICTURES = 12, SHAPES = 4 };
#endif

/* Largest errors of each operator, measured under the emulator. Tensor cores of GPUs truncate sums, so
 * products may have 20 times the error (2e-5 for K = 10240). */
struct op_error op_errors[N_OP_KINDS] = {
    [OP_LINEAR] = {1e-05, 0},     [OP_LINEAR_FEW] = {3e-07, 0},      [OP_ATTENTION] = {7e-03, 0},
    [OP_RMS_NORM] = {1e-07, 0},   [OP_LAYER_NORM] = {1.1e-07, 0},    [OP_GROUP_STATISTICS] = {5e-08, 0},
    [OP_GROUP_NORM] = {1e-07, 0}, [OP_ROPE_TABLE] = {5e-08, 0},      [OP_ROPE] = {1e-07, 0},
    [OP_GLU] = {1e-07, 0},        [OP_UNPATCHIFY] = {2.7e-08, 0},    [OP_TIMESTEP] = {5e-08, 0},
    [OP_CONV2D] = {7e-04, 0},     [OP_LATENT_TO_IMAGE] = {5e-08, 0}, [OP_ADD] = {3e-08, 0},
    [OP_MEAN_DOWN] = {5e-08, 0},  [OP_ADD_POSITIONS] = {1.1e-07, 0}, [OP_MAP] = {1e-07, 0},
    [OP_ROPE_AXIS] = {5e-08, 0},  [OP_GROUP_RANGE] = {6e-08, 0},     [OP_SNAKE] = {3e-07, 0},
    [OP_SINC_UP] = {1e-07, 0},
};

/* Adapters of parts of fused weights start at unaligned rows; the last case has two panels, and an adapter
 * starts in the second. */
static void test_adapters_match_f64(void **state) {
    static const struct adapted_case cases[] = {
        {{1, 1, 1, DTYPE_F32, 0, false, false, ACTIVATION_NONE, RESIDUAL_NONE},
         {{1, 0, 1, DTYPE_F32, 1}},
         0,
         0},
        {{7, 36, 20, DTYPE_F16, 1, true, true, ACTIVATION_SILU, RESIDUAL_APART},
         {{4, 0, 36, DTYPE_F16, 0.8f}},
         0,
         0},
        {{9, 60, 77, DTYPE_F32, 3, true, false, ACTIVATION_NONE, RESIDUAL_OUT},
         {{5, 0, 21, DTYPE_F32, 1}, {3, 21, 30, DTYPE_BF16, -0.5f}, {16, 51, 9, DTYPE_BF16, 1}},
         10,
         45},
        {{5, 40, 64, DTYPE_BF16, 4, false, false, ACTIVATION_GELU_TANH, RESIDUAL_NONE},
         {{16, 0, 40, DTYPE_BF16, 1}, {64, 0, 40, DTYPE_BF16, 0.3f}},
         0,
         0},
        {{2100, 4100, 8, DTYPE_BF16, 0, true, true, ACTIVATION_NONE, RESIDUAL_OUT},
         {{4, 0, 4100, DTYPE_BF16, 1}, {8, 3000, 1000, DTYPE_F32, 0.5f}},
         0,
         0},
    };
    low_rank_rounded = true;
    for (size_t i = 0; i < (SMALL ? 4 : sizeof cases / sizeof *cases); i++) case_adapted(&cases[i]);
    for (size_t i = 0; i < 4; i++) case_adapted_few(&cases[i]);
}

/* Matrix products of Z-Image with few tokens: for these shapes cuBLASLt chooses other algorithms. The last
 * case takes several panels of weights. */
static void test_linear_of_families(void **state) {
    static const struct linear_case cases[] = {
        {2, 3500, 10240, DTYPE_F16, 0, true, .residual = RESIDUAL_APART},
        {5, 3840, 1024, DTYPE_BF16, 0, false, .residual = RESIDUAL_OUT},
        {2, 1024, 3840, DTYPE_F16, 0, true, .residual = RESIDUAL_NONE},
        {3, 10240, 3840, DTYPE_BF16, 0, false, .residual = RESIDUAL_NONE},
    };
    for (int i = 0; i < SHAPES; i++) case_linear(cases[i]);
}

static void test_rows_alike(void **state) {
    static const int32_t sizes[] = {127, 256, 257, 1000, 1024, 3840};
    for (int32_t k = 1; k <= (SMALL ? 3 : 40); k += k < 20 ? 1 : 5)
        case_rows_alike(k, (enum dtype)(k % 3), (enum activation)(k % 2), ROWS_ALIKE);
    for (int i = 0; i < (SMALL ? 1 : 6); i++)
        case_rows_alike(sizes[i], DTYPE_BF16, (enum activation)(i % 2), ROWS_ALIKE / 2);
}

/* Tests attention with every head size that has its own tile size, with the head sizes of the families, and
 * with neighbouring sizes. */
static void test_head_sizes(void **state) {
    static const int32_t sizes[] = {1,   8,   15,  16,  17,  24,  31,  32,  40,   48,  49,  64,
                                    65,  72,  80,  96,  100, 112, 120, 128, 129,  160, 161, 192,
                                    200, 256, 257, 384, 500, 512, 640, 641, 1024, 1152};
    static const int32_t few[] = {40, 80, 128, 160, 384, 640, 1024, 1152};
    int n = SMALL ? 8 : (int)(sizeof sizes / sizeof *sizes);
    for (int i = 0; i < n; i++) {
        int32_t d = SMALL ? few[i] : sizes[i], t = SMALL ? 3 + i : 50 + 11 * (i % 4), s = t + (i % 3) * 13;
        if (d == 384 || d == 512 || d == 160) s = t + (SMALL ? 13 : 60);
        case_attention((struct attention_case){t, s, 2, 1 + i % 2, d, i % 2 * 4, i % 3 == 1, i % 4 == 3,
                                               1 / sqrtf((float)d)},
                       i % 5 < 2);
    }
}

/* Returns the bits of an attention with enough keys that wide tiles sum in another order, on a new device of
 * the given compute capability whose kernels are compiled for the architecture `compiled_for`. */
static uint64_t attention_bits(int major, int compiled_for) {
    struct device *kept = checker.cuda;
    emu_set_devices(1, major, 0, (uint64_t)8 << 30);
    emu_set_shared(163 << 10, compiled_for);
    checker.cuda = cuda_open(&checker.sys, 0, &problem);
    assert_ok(&problem);
    random_state = 401;
    checker.bits = 0;
    case_attention((struct attention_case){3, 80, 1, 1, 128, 0, false, false, 0.1f}, false);
    checker.cuda->destroy(checker.cuda);
    checker.cuda = kept;
    emu_set_shared(99 << 10, 0);
    emu_set_devices(1, 8, 0, (uint64_t)8 << 30);
    return checker.bits;
}

/* Attention uses wide tiles only if the loaded code has them. The driver may have compiled it from PTX for
 * another GPU, without kernels for wide tiles. */
static void test_tiles_of_compiled_code(void **state) {
    static const struct {
        int major, compiled_for, wide;
    } cases[] = {{8, 80, 1}, {9, 80, 1}, {9, 90, 1},  {9, 89, 0},
                 {9, 86, 0}, {8, 86, 0}, {12, 90, 0}, {12, 120, 0}};
    if (!emulated()) return;
    uint64_t wide = attention_bits(9, 90), narrow = attention_bits(12, 120);
    assert_true(wide != narrow);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_true(attention_bits(cases[i].major, cases[i].compiled_for) == (cases[i].wide ? wide : narrow));
}

/* Attention with one token, with one key, and with scores so far apart that one key gets all the weight. */
static void test_attention_edges(void **state) {
    const struct attention_case cases[] = {
        {1, 1, 2, 2, 64, 0, true, false, 0.125f},
        {1, SMALL ? 20 : 200, 4, 2, 40, 0, true, false, 0.15f},
        {SMALL ? 5 : 90, 1, 2, 1, 80, 4, false, true, 0.1f},
        {SMALL ? 4 : 65, SMALL ? 9 : 65, 1, 1, 96, 0, true, false, 2},
    };
    for (int i = 0; i < 4; i++) case_attention(cases[i], false);
}

/* Convolutions must round operands to TF32: more exact results would come from a slow cuDNN algorithm. */
static void test_conv_is_tf32(void **state) {
    if (!SMALL) assert_true(op_errors[OP_CONV2D].measured > 1e-5);
}

/* A convolution with published numbers of channels, c to n, and side x side pixels. */
struct wide_conv {
    int32_t side, c, n;
};

/* Returns the error of `out` relative to the f64 result, as the quotient of root mean squares. */
static double distance_of(const struct tensor *out, const double *truth) {
    double error = 0, size = 0;
    int64_t columns = tensor_columns(out);
    for (int64_t i = 0; i < tensor_elements(out); i++) {
        error += pow(load(out, i / columns, i % columns) - truth[i], 2);
        size += truth[i] * truth[i];
    }
    return sqrt(error / size);
}

/* Computes silu(norm(in)) of each value in f64; groups of 1/32 of the channels. */
static void normed_truth(double *to, const struct tensor *in, const struct group_norm *norm) {
    int32_t c = in->dim[2], each = c / norm->statistics.dim[0];
    for (int64_t i = 0; i < tensor_elements(in); i++) {
        int64_t j = i % c;
        double v = (load(in, i / c, j) - load(&norm->statistics, j / each, 0)) *
                   load(&norm->statistics, j / each, 1);
        v = v * load(&norm->weight, 0, j) + load(&norm->bias, 0, j);
        to[i] = v / (1 + exp(-v));
    }
}

static void conv_truth(double *to, const double *in, const struct tensor *weight, int32_t side) {
    int32_t n = weight->dim[0], c = weight->dim[1];
    const float *w = weight->data;
    for (int32_t p = 0; p < side * side; p++)
        for (int32_t j = 0; j < n; j++) {
            double sum = 0;
            for (int t = 0; t < 9; t++) {
                int32_t y = p / side + t / 3 - 1, xx = p % side + t % 3 - 1;
                if (y < 0 || xx < 0 || y >= side || xx >= side) continue;
                for (int32_t i = 0; i < c; i++)
                    sum += in[((int64_t)y * side + xx) * c + i] * (double)w[((int64_t)j * c + i) * 9 + t];
            }
            to[(int64_t)p * n + j] = sum;
        }
}

/* Compares the errors of an f16 convolution (normed input) and a TF32 convolution of the same values.
 * Operands are rounded to 11 bits in both; f16 also rounds the result. Expected quotient: sqrt(3 / 2) = 1.22;
 * measured: 1.21 and 1.22. */
static void test_conv_f16_error(void **state) {
    static const struct wide_conv cases[] = {{6, 512, 512}, {6, 128, 128}, {4, 1280, 1280}, {6, 320, 320}};
    for (int i = 0; i < (SMALL ? 0 : (int)(sizeof cases / sizeof *cases)); i++) {
        struct wide_conv k = cases[i];
        random_state = 950 + (uint64_t)i;
        case_begin();
        struct tensor in = tensor_random(DTYPE_F32, SHAPE(k.side, k.side, k.c), 0, 3), flat = in;
        struct tensor weight = tensor_random(DTYPE_F32, SHAPE(k.n, k.c, 3, 3), 0, 0.05f);
        struct tensor out = tensor_random(DTYPE_F32, SHAPE(k.side, k.side, k.n), 0, 1);
        struct conv_options plain = {.upsample = 1}, normed = {.upsample = 1, .activation = ACTIVATION_SILU};
        normed.norm = (struct group_norm){.statistics = tensor_random(DTYPE_F32, SHAPE(32, 2), 0, 1),
                                          .weight = tensor_random(DTYPE_F32, SHAPE(k.c), 0, 1),
                                          .bias = tensor_random(DTYPE_F32, SHAPE(k.c), 0, 1)};
        double *values = malloc(sizeof *values * (size_t)tensor_elements(&in)),
               *truth = malloc(sizeof *truth * (size_t)tensor_elements(&out));
        normed_truth(values, &in, &normed.norm);
        conv_truth(truth, values, &weight, k.side);
        op_conv2d(&x, out, in, weight, (struct epilogue){0}, normed);
        double f16 = distance_of(&out, truth);
        for (int64_t j = 0; j < tensor_elements(&in); j++) ((float *)flat.data)[j] = (float)values[j];
        op_conv2d(&x, out, flat, weight, (struct epilogue){0}, plain);
        double tf32 = distance_of(&out, truth);
        plain.bounded = true;
        op_conv2d(&x, out, flat, weight, (struct epilogue){0}, plain);
        assert_true(fabs(distance_of(&out, truth) - f16) < 0.1 * f16);
        assert_ok(&problem);
        print_message("  %d to %d channels: f16 %.2e, TF32 %.2e, quotient %.2f\n", k.c, k.n, f16, tf32,
                      f16 / tf32);
        assert_true(f16 < 1.4 * tf32 && f16 > 1e-5);
        free(values);
        free(truth);
    }
}

/* Compares the errors of a product with an f16 weight in f16 and in bf16. f16 has three bits more, and rounds
 * only the input. Expected quotient: sqrt(1 / 2) / 8 = 0.088; measured: 0.080 to 0.083. */
static void test_product_f16_error(void **state) {
    static const int32_t shapes[][3] = {{16, 640, 640}, {8, 1280, 2048}, {4, 320, 1280}};
    for (int i = 0; i < (SMALL ? 0 : 3); i++) {
        const int32_t *k = shapes[i];
        double error[2];
        random_state = 960 + (uint64_t)i;
        case_begin();
        struct tensor in = tensor_random(DTYPE_F32, SHAPE(k[0], k[2]), 0, 1),
                      weight = tensor_random(DTYPE_F16, SHAPE(k[1], k[2]), 0, 0.05f),
                      out = tensor_random(DTYPE_F32, SHAPE(k[0], k[1]), 0, 1);
        double *truth = calloc((size_t)tensor_elements(&out), sizeof *truth);
        for (int32_t j = 0; j < k[0] * k[1]; j++)
            for (int32_t l = 0; l < k[2]; l++)
                truth[j] += load(&in, j / k[1], l) * load(&weight, j % k[1], l);
        for (int p = 0; p < 2; p++) {
            x.precision = p ? PRECISION_F16 : PRECISION_BF16;
            op_linear(&x, out, in, weight, (struct epilogue){0});
            error[p] = distance_of(&out, truth);
        }
        x.precision = PRECISION_BF16;
        assert_ok(&problem);
        print_message("  %d x %d x %d: bf16 %.2e, f16 %.2e, quotient %.3f\n", k[0], k[1], k[2], error[0],
                      error[1], error[1] / error[0]);
        assert_true(error[1] < 0.1 * error[0]);
        free(truth);
    }
}

/* Runs one case of each operator that accepts rows with any stride and alignment. */
static void cases_at(int gap) {
    const struct attention_case attention = {9, 21, 2, 1, 48, gap, false, false, 0.1f};
    case_linear_few((struct linear_case){5, 9, 132, DTYPE_BF16, gap, true, .activation = ACTIVATION_SILU});
    case_attention(attention, false);
    case_attention(attention, true);
    case_rms_norm((struct rms_case){3, 64, 2, DTYPE_BF16, gap, false, true, ACTIVATION_NONE});
    case_rms_norm((struct rms_case){3, 516, 1, DTYPE_F16, gap, true, false, ACTIVATION_NONE});
    case_rms_norm((struct rms_case){3, 516, 1, DTYPE_BF16, gap, false, false, ACTIVATION_SILU});
    case_affine(3, 516, gap, WITH_SCALE, true);
    case_affine(3, 516, gap, WITH_WEIGHT | WITH_BIAS | WITH_SCALE | WITH_SHIFT, false);
    case_rope((struct rope_case){5, 2, 40, gap, ROPE_INTERLEAVED, true, DTYPE_BF16, true});
    case_rope((struct rope_case){5, 2, 40, gap, ROPE_HALVES, true, DTYPE_BF16, false});
    case_glu(3, 136, gap, 0, ACTIVATION_GELU_TANH);
    case_add(3, 136, DTYPE_BF16, gap, false, 0);
    case_add_scaled(3, 136, DTYPE_F32, gap, false, 1, 0.7f);
    case_add(3, 136, DTYPE_F16, gap, true, 1);
    case_copy(3, 72, DTYPE_BF16, gap);
    case_patch_orders(4, 4, 8, 2, gap);
    case_group_norm(3, 5, 16, 4, false);
    case_picture(4, 5, 8);
}

/* Rule R1 (kernels/README.md): unaligned rows give the same bits as rows read with wide loads. */
static void test_places_alike(void **state) {
    static const struct { int gap, shift; } places[] = {{0, 0}, {4, 0}, {0, 4}, {3, 8}, {1, 12}};
    uint64_t bits = 0;
    for (int i = 0; i < 5; i++) {
        random_state = 400;
        checker.bits = 0;
        checker.shift = places[i].shift;
        cases_at(places[i].gap);
        checker.shift = 0;
        if (i == 0) bits = checker.bits;
        assert_true(checker.bits == bits);
    }
}

static void test_precisions(void **state) {
    assert_non_null(checker.cuda->unsupported[PRECISION_F32]);
    assert_null(checker.cuda->unsupported[PRECISION_F16]);
    assert_null(checker.cuda->unsupported[PRECISION_BF16]);
    for (int i = 0; i < N_PRECISIONS; i++)
        if (checker.cuda->unsupported[i])
            assert_string_equal(checker.cuda->unsupported[i], checker.planned->unsupported[i]);
    assert_true(checker.cuda->overhead_bytes == checker.planned->overhead_bytes);
    assert_true(checker.cuda->host_bytes == checker.planned->host_bytes);
}

/* Running a product that was not prepared is an internal error. */
static void test_unprepared(void **state) {
    case_begin();
    struct op op = {
        .kind = OP_LINEAR,
        .out = tensor_random(DTYPE_F32, SHAPE(11, 13), 0, 1),
        .in = {tensor_random(DTYPE_F32, SHAPE(11, 19), 0, 1), tensor_random(DTYPE_BF16, SHAPE(13, 19), 0, 1)},
        .precision = PRECISION_BF16};
    struct op moved = op_on_device(&op);
    assert_int_equal(checker.cuda->run(checker.cuda, &moved, checker.workspace, &problem), INTERNAL);
    problem = (struct error){0};
    checker_wait();
}

/* Runs last. Checks that every kernel was loaded before its launch, so that launches take no memory during a
 * run. */
static void test_kernels_were_loaded(void **state) {
    assert_int_equal(emulated_late_kernels(), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_precisions),
        cmocka_unit_test(test_linear),
        cmocka_unit_test(test_adapters_match_f64),
        cmocka_unit_test(test_linear_of_families),
        cmocka_unit_test(test_linear_few),
        cmocka_unit_test(test_rows_alike),
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_head_sizes),
        cmocka_unit_test(test_tiles_of_compiled_code),
        cmocka_unit_test(test_attention_edges),
        cmocka_unit_test(test_norms),
        cmocka_unit_test(test_rope),
        cmocka_unit_test(test_elementwise),
        cmocka_unit_test(test_video),
        cmocka_unit_test(test_waves),
        cmocka_unit_test(test_rgb_rounding),
        cmocka_unit_test(test_conv),
        cmocka_unit_test(test_conv_cut),
        cmocka_unit_test(test_conv_finish),
        cmocka_unit_test(test_conv_dense),
        cmocka_unit_test(test_conv_strided),
        cmocka_unit_test(test_conv_strided_overlap),
        cmocka_unit_test(test_conv_pieces),
        cmocka_unit_test(test_conv_overlap),
        cmocka_unit_test(test_statistics_pieces),
        cmocka_unit_test(test_places_alike),
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_unprepared),
        cmocka_unit_test(test_kernels_were_loaded),
        cmocka_unit_test(test_conv_is_tf32),
        cmocka_unit_test(test_conv_f16_error),
        cmocka_unit_test(test_product_f16_error),
        cmocka_unit_test(test_print_errors),
    };
    ops_on = SMALL ? ON_TSAN : ON_CUDA, ops_random_cases = RANDOM_CASES, ops_pictures = PICTURES;
    return tests_run(tests, sizeof tests / sizeof *tests, set_up, tear_down);
}
