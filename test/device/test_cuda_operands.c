/* 2-byte operands: tensors that only products and attention read are stored in bf16, or in precision f16 in
 * f16. Each operator that writes such a tensor must give its f32 result rounded; each operator that
 * reads one must give the bits that it gives for equal values in f32. Invalid operands are rejected. Runs on
 * a GPU or under the emulator. ONLY and SKIP in the environment are patterns of test names. */
#include "test/device/cuda_checker.h"
#include "test/device/emulated.h"
#include "test/lib/ops_cases.h"

struct op_error op_errors[N_OP_KINDS]; /* required by ops_cases.h; these tests compare bits */

static uint16_t *half_at(const struct tensor *t, int64_t row, int64_t i) {
    return (uint16_t *)((char *)t->data + row * t->row_bytes) + i;
}

/* Operand type of the running tests, and rounding to it. */
static enum dtype half = DTYPE_BF16;

static double nearest_half(double value) {
    return half == DTYPE_F16 ? nearest_f16(value) : nearest_bf16(value);
}

static struct tensor f32_copy(const struct tensor *t, int gap) {
    struct tensor to = tensor_random(DTYPE_F32, t->rank, t->dim, gap, 1);
    for (int64_t row = 0; row < tensor_rows(t); row++)
        for (int32_t i = 0; i < tensor_columns(t); i++)
            ((float *)((char *)to.data + row * to.row_bytes))[i] = (float)load(t, row, i);
    return to;
}

/* Allows for differences of cuBLASLt and cuDNN, whose algorithms may depend on the result type. */
static bool near_enough(double found, double plain, bool library) {
    return library && !emulated() && fabs(found - plain) <= 0.01 * fabs(plain) + 0.01;
}

static void expect_rounded(const struct tensor *found, const struct tensor *plain, bool library) {
    assert_ok(&problem);
    for (int64_t row = 0; row < tensor_rows(plain); row++)
        for (int32_t i = 0; i < tensor_columns(plain); i++) {
            double value = load(plain, row, i);
            if (load(found, row, i) != nearest_half(value) &&
                !near_enough(load(found, row, i), value, library))
                fail_msg("row %lld, column %d: %a, expected %a (%a rounded)", (long long)row, i,
                         load(found, row, i), nearest_half(value), value);
        }
}

static void expect_same(const struct tensor *found, const struct tensor *expected) {
    assert_ok(&problem);
    size_t bytes = (size_t)dtype_bytes(found->dtype, tensor_columns(found));
    for (int64_t row = 0; row < tensor_rows(found); row++)
        assert_memory_equal((char *)found->data + row * found->row_bytes,
                            (char *)expected->data + row * expected->row_bytes, bytes);
}

/* Result tensors of one shape: `plain` in f32, `rounded` in the operand type. */
struct results {
    struct tensor plain, rounded;
};

static struct results results_of(int rank, const int32_t *dim, int gap) {
    return (struct results){tensor_random(DTYPE_F32, rank, dim, gap, 1),
                            tensor_random(half, rank, dim, 2 * gap, 1)};
}

enum { PLACES = 4 };
/* a row of 8200 columns does not fit in registers */
static const int32_t columns_of[PLACES] = {128, 36, 77, 8200};
static const int gaps[PLACES] = {0, 4, 1, 8};

static void test_norms(void **state) {
    for (int i = 0; i < 2 * PLACES; i++) {
        int32_t c = columns_of[i % PLACES], t = i < PLACES ? 5 : 3, each = i < PLACES ? c : c / (i % 2 + 1);
        random_state = 500 + (uint64_t)i;
        case_begin();
        if (c % each) each = c;
        struct tensor in = tensor_random(DTYPE_F32, SHAPE(t, c), gaps[i % PLACES], 3);
        struct tensor weight = tensor_random(DTYPE_BF16, SHAPE(each), 0, 1);
        struct modulation m = {0};
        if (i % 2) m.scale = tensor_random(DTYPE_F32, SHAPE(each), 0, 1);
        if (i % 3 == 1) m.gate = tensor_random(DTYPE_F32, SHAPE(each), 0, 1);
        if (i % 3 == 1) m.base = tensor_random(DTYPE_F32, SHAPE(t, c), 0, 1);
        struct results out = results_of(2, in.dim, gaps[i % PLACES]);
        op_rms_norm(&x, out.plain, in, weight, 1e-5f, m);
        op_rms_norm(&x, out.rounded, in, weight, 1e-5f, m);
        expect_rounded(&out.rounded, &out.plain, false);
        struct affine affine = {.scale = tensor_random(DTYPE_F32, SHAPE(c), 0, 1)};
        if (i % 2) affine.weight = tensor_random(DTYPE_F16, SHAPE(c), 0, 1);
        if (i % 3) affine.shift = tensor_random(DTYPE_F32, SHAPE(c), 0, 1);
        op_layer_norm(&x, out.plain, in, affine, 1e-6f);
        op_layer_norm(&x, out.rounded, in, affine, 1e-6f);
        expect_rounded(&out.rounded, &out.plain, false);
    }
}

/* Rope with a fused norm gives the bits of norm and rope as two operators. Every second pair of cases has
 * a table by axis. */
static void test_rope(void **state) {
    static const int32_t heads[] = {2, 16, 20, 64, 128, 130, 276, 512};
    for (int i = 0; i < 2 * (int)(sizeof heads / sizeof *heads); i++) {
        int32_t d = heads[i / 2], n = i % 3 + 1;
        struct rotation rotation = {.heads = n, .pairs = i % 2 ? ROPE_HALVES : ROPE_INTERLEAVED};
        random_state = 600 + (uint64_t)i;
        case_begin();
        struct tensor in = tensor_random(DTYPE_F32, SHAPE(7, n * d), gaps[i % PLACES], 2);
        struct tensor table = tensor_random(DTYPE_F32, SHAPE(7, d / 2, 2), 0, 1);
        if (i % 4 > 1) {
            rotation.axes = (struct rope_axes){.n_axes = 1, .extent = {4, 3}, .first_token = 2};
            table = tensor_random(DTYPE_F32, SHAPE(4, n * d / 2, 2), 0, 1);
        }
        struct tensor norm = tensor_random(DTYPE_F16, SHAPE(d), 0, 1);
        struct results out = results_of(2, in.dim, gaps[i % PLACES]);
        struct tensor fused = tensor_random(DTYPE_F32, 2, in.dim, 0, 1);
        op_rms_norm(&x, out.plain, in, norm, 1e-5f, (struct modulation){0});
        op_rope(&x, out.plain, out.plain, table, rotation);
        rotation.norm = norm;
        rotation.eps = 1e-5f;
        op_rope(&x, fused, in, table, rotation);
        op_rope(&x, out.rounded, in, table, rotation);
        expect_same(&fused, &out.plain);
        expect_rounded(&out.rounded, &out.plain, false);
        op_rope(&x, in, in, table, rotation);
        expect_same(&in, &out.plain);
    }
}

static void test_elementwise(void **state) {
    for (int i = 0; i < PLACES; i++) {
        random_state = 700 + (uint64_t)i;
        case_begin();
        struct tensor a = tensor_random(DTYPE_F32, SHAPE(9, columns_of[i]), gaps[i], 20);
        struct tensor b = tensor_random(DTYPE_F32, SHAPE(9, columns_of[i]), 2 * gaps[i], 1);
        struct results out = results_of(2, a.dim, gaps[i]);
        op_glu(&x, out.plain, a, b, (enum activation)(i % ACTIVATION_GELU_ERF + 1));
        op_glu(&x, out.rounded, a, b, (enum activation)(i % ACTIVATION_GELU_ERF + 1));
        expect_rounded(&out.rounded, &out.plain, false);
        struct tensor gates = tensor_random(DTYPE_F32, SHAPE(9, 1), 1, 3);
        op_glu(&x, out.plain, gates, b, ACTIVATION_SIGMOID_TWICE);
        op_glu(&x, out.rounded, gates, b, ACTIVATION_SIGMOID_TWICE);
        expect_rounded(&out.rounded, &out.plain, false);
        op_rms_norm(&x, out.plain, a, absent, 1e-5f, (struct modulation){0});
        op_rms_norm(&x, out.rounded, a, absent, 1e-5f, (struct modulation){0});
        expect_rounded(&out.rounded, &out.plain, false);
        op_copy(&x, out.rounded, b);
        expect_rounded(&out.rounded, &b, false);
        struct tensor again = tensor_random(half, 2, a.dim, 3, 1);
        op_copy(&x, again, out.rounded);
        expect_same(&again, &out.rounded);
    }
}

static void product_case(struct linear_case c, int in_gap) {
    case_begin();
    struct tensor halves = tensor_random(half, SHAPE(c.t, c.k), in_gap, 1);
    struct tensor in = f32_copy(&halves, 0),
                  weight = tensor_random(c.n % 2 ? DTYPE_BF16 : half, SHAPE(c.n, c.k), 0, 1);
    struct results out = results_of(2, (int32_t[]){c.t, c.n}, c.gap);
    struct tensor same = tensor_random(DTYPE_F32, 2, out.plain.dim, 0, 1);
    struct epilogue e = {.activation = c.activation};
    if (c.bias) e.bias = tensor_random(c.dtype, SHAPE(c.n), 0, 1);
    if (c.gate) e.gate = tensor_random(DTYPE_F32, SHAPE(c.n), 0, 1);
    if (c.residual) e.residual = tensor_random(DTYPE_F32, 2, out.plain.dim, 0, 1);
    op_linear(&x, out.plain, in, weight, e);
    op_linear(&x, same, halves, weight, e);
    expect_same(&same, &out.plain);
    op_linear(&x, out.rounded, in, weight, e);
    expect_rounded(&out.rounded, &out.plain, true);
    op_linear(&x, out.rounded, halves, weight, e);
    expect_rounded(&out.rounded, &out.plain, true);
}

static void test_linear(void **state) {
    static const struct {
        int in_gap;
        struct linear_case c; /* type and gap: of the bias and of the output */
    } cases[] = {
        {0, {33, 40, 64, DTYPE_BF16, 0, false, false, ACTIVATION_NONE, RESIDUAL_NONE}},
        {0, {33, 40, 64, DTYPE_BF16, 0, true, false, ACTIVATION_NONE, RESIDUAL_NONE}},
        {0, {33, 40, 64, DTYPE_F32, 8, true, false, ACTIVATION_NONE, RESIDUAL_NONE}},
        /* K = 77 of the product is padded with zeros, because cuBLASLt requires aligned rows */
        {0, {5, 37, 77, DTYPE_BF16, 0, true, false, ACTIVATION_NONE, RESIDUAL_NONE}},
        /* gaps between rows of the bf16 input and of the output; the f32 input is contiguous */
        {8, {9, 36, 72, DTYPE_BF16, 1, true, false, ACTIVATION_NONE, RESIDUAL_NONE}},
        {1, {9, 36, 72, DTYPE_BF16, 3, false, false, ACTIVATION_NONE, RESIDUAL_NONE}},
        {0, {17, 64, 128, DTYPE_F16, 0, true, false, ACTIVATION_GELU_TANH, RESIDUAL_NONE}},
        {0, {17, 48, 128, DTYPE_BF16, 4, false, true, ACTIVATION_SILU, RESIDUAL_APART}},
        {0, {3, 21, 16, DTYPE_BF16, 0, false, false, ACTIVATION_NONE, RESIDUAL_APART}},
        {0, {2100, 4100, 8, DTYPE_BF16, 0, true, false, ACTIVATION_GELU_TANH, RESIDUAL_NONE}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        random_state = 800 + i;
        product_case(cases[i].c, cases[i].in_gap);
    }
}

static void operands_of_attention(struct attention_case c) {
    case_begin();
    struct attention_options heads = {
        .queries = c.heads, .keys = c.key_heads, .scale = 1 / sqrtf((float)c.d), .causal = c.causal};
    struct tensor q = tensor_random(half, SHAPE(c.t, c.heads * c.d), c.gap, 1);
    struct tensor k = tensor_random(half, SHAPE(c.s, c.key_heads * c.d), 2 * c.gap, 1);
    struct tensor v = tensor_random(half, SHAPE(c.s, c.key_heads * c.d), c.gap, 1);
    struct tensor wide_q = f32_copy(&q, c.gap), wide_k = f32_copy(&k, 0), wide_v = f32_copy(&v, 0);
    struct tensor same = tensor_random(DTYPE_F32, 2, q.dim, 0, 1);
    struct results out = results_of(2, q.dim, c.gap);
    op_attention(&x, out.plain, wide_q, wide_k, wide_v, heads);
    op_attention(&x, same, q, k, v, heads);
    expect_same(&same, &out.plain);
    op_attention(&x, out.rounded, wide_q, k, v, heads);
    expect_rounded(&out.rounded, &out.plain, false);
    op_attention(&x, out.rounded, q, wide_k, wide_v, heads);
    expect_rounded(&out.rounded, &out.plain, false);
    op_attention(&x, q, q, k, v, heads);
    expect_rounded(&q, &out.plain, false);
}

static void test_attention(void **state) {
    static const struct attention_case cases[] = {
        {20, 33, 2, 2, 16, 0, false, false, 0}, {20, 70, 4, 2, 32, 8, false, false, 0},
        {9, 77, 2, 1, 64, 0, false, false, 0},  {70, 70, 2, 2, 128, 8, true, false, 0},
        {5, 40, 2, 1, 128, 4, false, false, 0}, {5, 40, 2, 2, 40, 0, false, false, 0},
        {7, 9, 2, 2, 7, 1, false, false, 0},    {9, 40, 1, 1, 512, 0, false, false, 0},
        {5, 33, 2, 1, 256, 8, false, false, 0}, {6, 50, 2, 2, 80, 0, true, false, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        random_state = 900 + i;
        operands_of_attention(cases[i]);
    }
}

/* The inputs of GLU are the halves of wide rows, and the output starts directly after the last row. The
 * output must not count as overlapping the inputs. */
static void test_wide_rows_stay_in_bounds(void **state) {
    case_begin();
    char *memory = operand_memory(4 * 64 * sizeof(float) + 4 * 32 * sizeof(uint16_t));
    memset(memory, 0, 4 * 64 * sizeof(float));
    struct tensor a = tensor_make(memory, DTYPE_F32, SHAPE(4, 64)), b = a;
    struct tensor out = tensor_make(memory + tensor_bytes(&a), DTYPE_BF16, SHAPE(4, 32));
    a.dim[1] = b.dim[1] = 32;
    b.data = memory + 32 * sizeof(float);
    op_glu(&x, out, b, a, ACTIVATION_GELU_ERF);
    assert_int_equal(problem.code, OK);
}

static void test_invalid_operands_are_rejected(void **state) {
    struct modulation plain = {0};
    case_begin();
    struct tensor in = tensor_random(DTYPE_F32, SHAPE(4, 32), 0, 1), rounded_in = in, out = in;
    struct tensor weight = tensor_random(DTYPE_BF16, SHAPE(32), 0, 1);
    rounded_in.dtype = DTYPE_F16;
    op_rms_norm(&x, rounded_in, in, weight, 0, plain);
    expect_error_text("operator rms_norm: invalid out");
    rounded_in.dtype = DTYPE_BF16;
    op_rms_norm(&x, rounded_in, in, weight, 0, plain);
    expect_error_text("operator rms_norm: invalid out");
    op_layer_norm(&x, rounded_in, in, (struct affine){0}, 0);
    expect_error_text("the type of the tensor that it overwrites");
    op_glu(&x, rounded_in, tensor_random(DTYPE_F32, SHAPE(4, 32), 0, 1), in, ACTIVATION_SILU);
    expect_error_text("the type of the tensor that it overwrites");
    out = tensor_random(DTYPE_BF16, SHAPE(4, 32), 0, 1);
    op_add(&x, out, in, in);
    expect_error_text("operator add: invalid out");
    op_rms_norm(&x, in, out, weight, 0, plain);
    expect_error_text("operator rms_norm: invalid in");
    struct tensor matrix = tensor_random(DTYPE_BF16, SHAPE(8, 32), 0, 1);
    struct tensor product = tensor_random(DTYPE_F32, SHAPE(4, 8), 0, 1), shifted = out;
    shifted.data = half_at(&out, 0, 1);
    op_linear(&x, product, shifted, matrix, (struct epilogue){0});
    expect_error_text("an address that is a multiple of 16");
    struct attention_options heads = {.queries = 2, .keys = 2, .scale = 1};
    op_attention(&x, out, out, out, in, heads);
    expect_error_text("k's type");
    x.precision = PRECISION_F32; /* in precision f32 every operand of an operator is f32 */
    op_rms_norm(&x, out, in, weight, 0, plain);
    x.precision = PRECISION_BF16;
    expect_error_text("operator rms_norm: invalid out");
}

/* context_operand returns scratch tensors of the operand type (f32 in precision f32), also for slices. */
static void test_scratch_has_operand_type(void **state) {
    static char memory[16384];
    struct arena arena = {.base = memory, .bytes = sizeof memory};
    x.scratch = &arena;
    struct tensor operand = context_operand(&x, SHAPE(4, 8)), f32 = context_unrounded(&x, operand);
    assert_int_equal(operand.dtype, DTYPE_BF16);
    assert_int_equal(f32.dtype, DTYPE_F32);
    assert_true(f32.data != operand.data && f32.rank == 2 && f32.dim[0] == 4 && f32.dim[1] == 8);
    for (int32_t columns = 1; columns <= 17; columns++) {
        operand = tensor_slice(context_operand(&x, SHAPE(2, columns)), 1, 1);
        assert_true(operand.dim[1] == columns && (uintptr_t)operand.data % 16 == 0);
    }
    x.precision = PRECISION_F32;
    operand = context_operand(&x, SHAPE(4, 8)), f32 = context_unrounded(&x, operand);
    x.precision = PRECISION_BF16;
    assert_int_equal(operand.dtype, DTYPE_F32);
    assert_ptr_equal(f32.data, operand.data);
    assert_ok(&problem);
    x.scratch = NULL;
}

/* The same tests in precision f16: weights in bf16 are converted, weights in f16 are used in place. */
static void test_f16(void **state) {
    x.precision = PRECISION_F16;
    half = DTYPE_F16;
    test_norms(state);
    test_rope(state);
    test_elementwise(state);
    test_linear(state);
    test_attention(state);
    x.precision = PRECISION_BF16;
    half = DTYPE_BF16;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_norms),
        cmocka_unit_test(test_rope),
        cmocka_unit_test(test_elementwise),
        cmocka_unit_test(test_linear),
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_f16),
        cmocka_unit_test(test_wide_rows_stay_in_bounds),
        cmocka_unit_test(test_invalid_operands_are_rejected),
        cmocka_unit_test(test_scratch_has_operand_type),
    };
    return tests_run(tests, sizeof tests / sizeof *tests, set_up, tear_down);
}
