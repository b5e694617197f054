#include "test/lib/cmocka_tests.h"

enum { TESTS_MAX = 64 };
static struct CMUnitTest tests[TESTS_MAX];
static size_t n_tests;

void add_test(const char *name, CMUnitTestFunction test) {
    if (n_tests == TESTS_MAX) abort();
    tests[n_tests++] = (struct CMUnitTest){.name = name, .test_func = test};
}

int run_all_tests(CMFixtureFunction set_up, CMFixtureFunction tear_down) {
    int failed = _cmocka_run_group_tests("tests", tests, n_tests, set_up, tear_down);
    printf("%d passed, %d failed\n", (int)n_tests - failed, failed);
    return failed != 0;
}
