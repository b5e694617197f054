#include "test/lib/seeded.h"

uint64_t seed_base;

int seeded_run(const struct CMUnitTest *tests, size_t n_tests) {
    const char *seed = getenv("SEED");
    seed_base = seed ? strtoull(seed, NULL, 0) : 1;
    alarm(900); /* SIGALRM ends the program after 900 s, in case of a deadlock */
    int n = (int)n_tests, failed = _cmocka_run_group_tests("tests", tests, n_tests, NULL, NULL);
    printf("%d passed, %d failed\n", n - failed, failed);
    return failed != 0;
}
