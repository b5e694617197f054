/* Types that weights are stored in: which weight gets which, and the errors of what is quantised. */
#include "engine/run/block.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* ---- which weight gets which type ---- */

static enum dtype stored_type(const struct block_kind *kind, enum dtype stored, enum dtype wanted, int rank,
                              int32_t rows, int32_t columns) {
    struct index_entry entry = {.dtype = stored, .rank = rank, .dim = {rows, columns, 3, 3}, .scale = 1};
    return block_stored_type(kind, &entry, wanted);
}

static void test_matrices_change(void **state) {
    (void)state;
    struct block_kind layer = {.name = "layer"};
    assert_int_equal(stored_type(&layer, DTYPE_BF16, DTYPE_Q4_K, 2, 64, 512), DTYPE_Q4_K);
    assert_int_equal(stored_type(NULL, DTYPE_F8_E4M3, DTYPE_Q8_0, 2, 64, 64), DTYPE_Q8_0);
    assert_int_equal(stored_type(&layer, DTYPE_Q8_0, DTYPE_F16, 2, 64, 64), DTYPE_F16);
    assert_int_equal(stored_type(&layer, DTYPE_F32, DTYPE_F8_E4M3, 2, 41, 25), DTYPE_F8_E4M3);
}

static void test_short_rows_take_smaller_blocks(void **state) {
    (void)state;
    struct block_kind layer = {.name = "layer"};
    assert_int_equal(stored_type(&layer, DTYPE_BF16, DTYPE_Q4_K, 2, 64, 288), DTYPE_Q5_0);
    assert_int_equal(stored_type(&layer, DTYPE_BF16, DTYPE_Q5_K, 2, 64, 288), DTYPE_Q8_0);
    assert_int_equal(stored_type(&layer, DTYPE_BF16, DTYPE_Q6_K, 2, 64, 288), DTYPE_Q8_0);
    assert_int_equal(stored_type(&layer, DTYPE_BF16, DTYPE_Q6_K, 2, 64, 296), DTYPE_BF16);
    assert_int_equal(stored_type(&layer, DTYPE_F32, DTYPE_Q4_0, 2, 64, 40), DTYPE_F32);
}

static void test_small_tensors_and_kept_kinds_stay(void **state) {
    (void)state;
    struct block_kind layer = {.name = "layer"}, final = {.keeps_types = true},
                      table = {.gathers_rows = true};
    assert_int_equal(stored_type(&layer, DTYPE_BF16, DTYPE_Q8_0, 1, 4096, 0), DTYPE_BF16);
    assert_int_equal(stored_type(&layer, DTYPE_BF16, DTYPE_Q8_0, 2, 1, 4096), DTYPE_BF16);
    assert_int_equal(stored_type(&layer, DTYPE_BF16, DTYPE_Q8_0, 2, 32, 32), DTYPE_BF16);
    assert_int_equal(stored_type(&layer, DTYPE_F16, DTYPE_Q8_0, 4, 64, 64), DTYPE_F16);
    assert_int_equal(stored_type(&layer, DTYPE_I64, DTYPE_Q8_0, 2, 64, 64), DTYPE_I64);
    assert_int_equal(stored_type(&final, DTYPE_BF16, DTYPE_Q8_0, 2, 64, 64), DTYPE_BF16);
    assert_int_equal(stored_type(&table, DTYPE_Q6_K, DTYPE_Q8_0, 2, 64, 256), DTYPE_Q6_K);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matrices_change),
        cmocka_unit_test(test_short_rows_take_smaller_blocks),
        cmocka_unit_test(test_small_tensors_and_kept_kinds_stay),
    };
    return cmocka_run_group_tests_name("quantise", tests, NULL, NULL);
}
