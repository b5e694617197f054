/* CPU operators with weights of every stored type give the same bits as with the dequantised f32 weights.
 * test_ops.c compares f32 with f64 arithmetic. */
#include "test/ops/ops_checker.h"

#include "test/lib/quantised_ops.h"

static void test_stored_types_equal_f32(void **state) {
    (void)state;
    static const enum dtype plain[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    x.precision = PRECISION_F32;
    for (int i = 0; i < 3; i++) same_everywhere(plain[i]), same_convolutions(plain[i]);
    for (int i = 0; i < N_QUANTISED; i++)
        same_everywhere(quantised_types[i]), same_convolutions(quantised_types[i]);
}

/* Covers weight panels of 64 outputs with a narrower last one, sizes that oneDNN may pack (multiples of 64
 * and of 16), and rows whose last part is short. */
static void test_panels_of_stored_types_equal_f32(void **state) {
    (void)state;
    for (int i = 0; i < N_QUANTISED; i++) {
        enum dtype dtype = quantised_types[i];
        int32_t block = dtype_block_values(dtype) < 256 ? dtype_block_values(dtype) : 256;
        same_linear(dtype, 7, 256, 1024 + (block < 32 ? 16 : block));
        if (block < 32) same_linear(dtype, 3, 80, 10240);
        same_linear(dtype, 33, 768, 256);
    }
}

static void test_stored_types_equal_in_bf16(void **state) {
    (void)state;
    if (checker.two->unsupported[PRECISION_BF16]) skip();
    x.precision = PRECISION_BF16;
    test_panels_of_stored_types_equal_f32(state);
    for (int i = 0; i < N_QUANTISED; i++) same_linear(quantised_types[i], 5, 256, 512);
    x.precision = PRECISION_F32;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stored_types_equal_f32),
        cmocka_unit_test(test_panels_of_stored_types_equal_f32),
        cmocka_unit_test(test_stored_types_equal_in_bf16),
    };
    quantised_alloc = pool_alloc;
    return tests_run(tests, sizeof tests / sizeof *tests, ops_set_up, ops_tear_down);
}
