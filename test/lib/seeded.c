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
    filter_tests();
    int n = (int)n_tests, failed = _cmocka_run_group_tests("tests", tests, n_tests, begin, end);
    printf("%d passed, %d failed\n", n - failed, failed);
    return failed != 0;
}

static void seed_and_limit(void) {
    const char *seed = getenv("SEED");
    seed_base = seed ? strtoull(seed, NULL, 0) : 1;
    alarm(900); /* SIGALRM ends the program after 900 s, in case of a deadlock */
}

int seeded_run(const struct CMUnitTest *tests, size_t n_tests) {
    seed_and_limit();
    return tests_run(tests, n_tests, NULL, NULL);
}

int seeded_main(void) {
    seed_and_limit();
    return run_all_tests(NULL, NULL);
}
