#include "test/lib/cmocka_tests.h"

enum { TESTS_MAX = 64 };
static struct CMUnitTest tests[TESTS_MAX];
static size_t n_tests;

void add_test(const char *name, CMUnitTestFunction test) {
    if (n_tests == TESTS_MAX) abort();
    tests[n_tests++] = (struct CMUnitTest){.name = name, .test_func = test};
}

int tests_run(const struct CMUnitTest *list, size_t n, CMFixtureFunction set_up,
              CMFixtureFunction tear_down) {
    const char *only = getenv("ONLY"), *skip = getenv("SKIP");
    if (only) cmocka_set_test_filter(only);
    if (skip) cmocka_set_skip_filter(skip);
    int failed = _cmocka_run_group_tests("tests", list, n, set_up, tear_down);
    printf("%d passed, %d failed\n", (int)n - failed, failed);
    return failed != 0;
}

int run_all_tests(CMFixtureFunction set_up, CMFixtureFunction tear_down) {
    return tests_run(tests, n_tests, set_up, tear_down);
}
