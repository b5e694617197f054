#include "test/lib/seeded.h"

uint64_t seed_base, seeded_state;

uint64_t below(uint64_t n) {
    return random_below(&seeded_state, n);
}

double from_to(double least, double most) {
    return least + (most - least) * (double)below(1 << 20) / (1 << 20);
}

static void read_seed(void) {
    const char *seed = getenv("SEED");
    seed_base = seed ? strtoull(seed, NULL, 0) : 1;
    alarm(900); /* SIGALRM ends the program after 900 s, in case of a deadlock */
}

int run_seeded_tests(void) {
    read_seed();
    return run_all_tests(NULL, NULL);
}

int seeded_run(const struct CMUnitTest *tests, size_t n_tests) {
    read_seed();
    return tests_run(tests, n_tests, NULL, NULL);
}
