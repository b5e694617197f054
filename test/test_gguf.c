#include "test/malformed_gguf.h"
int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gguf_rows), cmocka_unit_test(test_G01_short_files),
        cmocka_unit_test(test_G02_foreign_files), cmocka_unit_test(test_G13_depth),
        cmocka_unit_test(test_G29_types), cmocka_unit_test(test_long_arrays),
        cmocka_unit_test(test_G43_caps),
    };
    int n = sizeof tests / sizeof *tests, failed = cmocka_run_group_tests(tests, set_up, tear_down);
    printf("%d passed, %d failed\n", n - failed, failed);
    return failed != 0;
}
