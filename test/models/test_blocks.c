/* Tests the blocks of every family one by one, each on the reference's input, so that two errors cannot
 * cancel. Runs the suites of all fixtures. Whole pipelines: test_golden.c. */
#include "test/lib/golden.h"

static const struct suite *const *suites_of(const struct fixture *f) {
    return f->blocks;
}

int main(int argc, char **argv) {
    return golden_main("blocks", suites_of, argv + (argc > 0));
}
