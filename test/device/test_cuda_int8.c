/* Products in int8 on the CUDA device: the cases of test/lib/int8_cases.h with shapes for every tile;
 * operands and results in bf16; codes equal to those of loaders/quantise; addresses; tiles. ONLY and SKIP in
 * the environment are patterns of test names. */
#include "test/device/cuda_checker.h"
#include "test/device/emulated.h"

#include "kernels/cuda/int8_tiles.h"
#include "loaders/quantise/quantise.h"
#include "test/lib/cmocka_tests.h"
#include "test/lib/int8_cases.h"
#include "test/lib/ops_cases.h"
#include "test/lib/quantised_ops.h"

struct op_error op_errors[N_OP_KINDS]; /* required by ops_cases.h; this program has its own limits */

#ifdef __SANITIZE_THREAD__
enum { SMALL = 1 };
#else
enum { SMALL = 0 };
#endif

/* Sizes that cross every edge of the tiles: steps of 32 and 64 inputs, and more steps than stages. Each
 * tile is the fastest for some sizes on the emulated GPU, which has one multiprocessor. */
static const struct {
    int32_t rows, outputs, inputs;
    int group, tile;
} sizes[] = {{1, 1, 16, 16, 2},      {64, 129, 48, 16, 2},   {3, 70, 80, 16, 2},
             {65, 1, 192, 64, 1},    {129, 127, 64, 64, 1},  {70, 100, 256, 256, 1},
             {100, 200, 320, 64, 0}, {130, 257, 272, 16, 1}, {5, 250, 1024, 256, 2}};
enum { N_SIZES = sizeof sizes / sizeof *sizes };

TEST(tiles) {
    for (int i = 0; i < N_SIZES; i++) {
        int tile;
        int8_product_cost(sizes[i].rows, sizes[i].outputs, 1, &tile);
        assert_int_equal(tile, sizes[i].tile);
    }
}

TEST(sums_are_exact) {
    random_state = 1;
    int8_case_sums(2, 70, 80, 16);
    if (SMALL) return;
    int8_case_sums(3, 5, 16, 16);
    int8_case_sums(5, 33, 192, 64);
    int8_case_sums(3, 9, 3840, 256);
}

TEST(epilogue_matches_f64) {
    static const double limit = 3e-7; /* relative error; measured under the emulator: 4.0e-8 */
    double most = 0;
    random_state = 3;
    for (int i = 0; i < (SMALL ? 2 : 3 * N_SIZES); i++) {
        int at = i % N_SIZES;
        double error = int8_case_epilogue(sizes[at].rows, sizes[at].outputs, sizes[at].inputs,
                                          sizes[at].group, random_bool());
        if (!(error <= limit)) fail_msg("case %d: error %g", i, error);
        most = fmax(most, error);
    }
    printf("  error of epilogues: %.2e\n", most);
}

TEST(stored_types_equal_f32_values) {
    if (SMALL) skip();
    random_state = 4;
    int8_case_stored_types();
    int8_case_packed(3, 70, 512);
}

TEST(special_rows) {
    random_state = 5;
    int8_case_special_rows();
}

/* Products of adapters are in bf16. With an activation, a separate kernel applies the epilogue. */
TEST(adapters) {
    /* Relative error; measured under the emulator: 7.8e-8 (op_errors of test_cuda_ops.c). */
    static const double limit = 1e-5;
    const struct epilogue epilogues[] = {{.activation = ACTIVATION_NONE},
                                         {.residual = {.rank = 2}},
                                         {.activation = ACTIVATION_SILU, .residual = {.rank = 2}}};
    random_state = 6;
    low_rank_rounded = true;
    for (int i = 0; i < (SMALL ? 1 : 3); i++) {
        double error = int8_case_adapters(SMALL ? 5 : 140, epilogues[i]);
        printf("  error with adapters: %.2e\n", error);
        assert_true(error <= limit);
    }
}

TEST(error_of_a_product) {
    /* Measured under the emulator: 0.0112 and 0.0096; in bf16 mode: 0.0023 and 0.0022. */
    static const double limit = 0.014;
    if (SMALL) skip();
    random_state = 7;
    assert_true(int8_case_error(1, checker.cuda) <= limit);
    assert_true(int8_case_error(30, checker.cuda) <= limit);
}

/* A matrix with its codes and scales by loaders/quantise. */
struct file_codes {
    int8_t *codes;
    float *scales;
};

static struct file_codes codes_as_in_files(const struct tensor *t, int group) {
    int32_t k = t->dim[1];
    struct file_codes c = {pool_alloc((size_t)tensor_elements(t)),
                           pool_alloc(sizeof(float) * (size_t)t->dim[0])};
    float *row = pool_alloc(sizeof *row * (size_t)k);
    for (int32_t i = 0; i < t->dim[0]; i++) {
        for (int32_t j = 0; j < k; j++) row[j] = (float)load(t, i, j);
        c.scales[i] = quantise_row_scale(int8_rotated_type(group), row, k);
        quantise_row_part(int8_rotated_type(group), c.scales[i], row, k, c.codes + (int64_t)i * k);
    }
    return c;
}

/* With random values, the product must equal the one computed from codes and scales of loaders/quantise. */
static void case_codes_equal_files(int32_t rows, int32_t outputs, int32_t inputs, int group, bool bf16) {
    enum dtype dtype = bf16 ? DTYPE_BF16 : DTYPE_F32;
    case_begin();
    struct tensor in = tensor_random(dtype, SHAPE(rows, inputs), bf16 ? 8 : 3, 5),
                  weight = tensor_random(dtype, SHAPE(outputs, inputs), 0, 0.1),
                  out = tensor_random(dtype, SHAPE(rows, outputs), bf16 ? 8 - outputs % 8 : 0, 1);
    struct file_codes a = codes_as_in_files(&in, group), b = codes_as_in_files(&weight, group);
    op_linear(&x, out, in, weight, (struct epilogue){0});
    assert_ok(&problem);
    for (int32_t i = 0; i < rows; i++)
        for (int32_t j = 0; j < outputs; j++) {
            int64_t sum = int8_sum_of(a.codes + (int64_t)i * inputs, b.codes + (int64_t)j * inputs, inputs);
            double expected = (double)((float)sum * a.scales[i] * b.scales[j]), got = load(&out, i, j);
            if (bf16) expected = nearest_bf16(expected);
            if (got != expected)
                fail_msg("%d inputs, row %d, output %d: %.9g, expected %.9g", inputs, i, j, got, expected);
        }
}

/* The last sizes: a row that fits the registers, one that is loaded twice, the widest of published models. */
TEST(codes_equal_files) {
    random_state = 8;
    for (int i = 0; i < (SMALL ? 3 : N_SIZES); i++)
        for (int bf16 = 0; bf16 < 2; bf16++)
            case_codes_equal_files(SMALL ? 2 : sizes[i].rows, sizes[i].outputs, sizes[i].inputs,
                                   sizes[i].group, bf16);
    if (SMALL) return;
    case_codes_equal_files(2, 3, 15360, 256, true);
    case_codes_equal_files(2, 3, 16640, 256, false);
    case_codes_equal_files(1, 2, 36864, 256, true);
}

/* Rule R1 (kernels/README.md): unaligned rows give the same bits as rows read with wide loads. */
TEST(places_alike) {
    static const struct { int gap, shift; } places[] = {{0, 0}, {4, 0}, {3, 8}, {1, 12}};
    uint64_t bits = 0;
    for (int i = 0; i < (SMALL ? 2 : 4); i++) {
        case_begin();
        random_state = 9;
        checker.bits = 0, checker.shift = places[i].shift;
        struct tensor in = tensor_random(DTYPE_F32, SHAPE(5, 192), places[i].gap, 1),
                      weight = tensor_random(DTYPE_BF16, SHAPE(68, 192), 0, 1),
                      gate = tensor_random(DTYPE_F32, SHAPE(68), 0, 1),
                      out = tensor_random(DTYPE_F32, SHAPE(5, 68), 2 * places[i].gap, 1);
        op_linear(&x, out, in, weight, (struct epilogue){.gate = gate, .residual = out});
        assert_ok(&problem);
        checker.shift = 0;
        if (i == 0) bits = checker.bits;
        assert_true(checker.bits == bits);
    }
}

static int set_up_int8(void **state) {
    int failed = set_up(state);
    x.precision = PRECISION_INT8;
    return failed;
}

int main(void) {
    quantised_alloc = operand_memory;
    small_operands = SMALL;
    return run_all_tests(set_up_int8, tear_down);
}
