#include "test/lib/seeded.h"

uint64_t seed_base, seeded_state;

uint64_t below(uint64_t n) {
    return random_below(&seeded_state, n);
}

double from_to(double least, double most) {
    return least + (most - least) * (double)below(1 << 20) / (1 << 20);
}

int tests_run(const struct CMUnitTest *tests, size_t n_tests, CMFixtureFunction begin,
              CMFixtureFunction end) {
    const char *only = getenv("ONLY"), *skip = getenv("SKIP");
    if (only) cmocka_set_test_filter(only);
    if (skip) cmocka_set_skip_filter(skip);
    int n = (int)n_tests, failed = _cmocka_run_group_tests("tests", tests, n_tests, begin, end);
    printf("%d passed, %d failed\n", n - failed, failed);
    return failed != 0;
}

int seeded_run(const struct CMUnitTest *tests, size_t n_tests) {
    const char *seed = getenv("SEED");
    seed_base = seed ? strtoull(seed, NULL, 0) : 1;
    alarm(900); /* SIGALRM ends the program after 900 s, in case of a deadlock */
    return tests_run(tests, n_tests, NULL, NULL);
}

enum { TESTS_MAX = 64 };
static struct CMUnitTest added[TESTS_MAX];
static size_t n_added;

void test_add(const char *name, CMUnitTestFunction function) {
    if (n_added == TESTS_MAX) abort();
    added[n_added++] = (struct CMUnitTest){.name = name, .test_func = function};
}

int tests_main(CMFixtureFunction begin, CMFixtureFunction end) {
    return tests_run(added, n_added, begin, end);
}

int seeded_main(void) {
    return seeded_run(added, n_added);
}
