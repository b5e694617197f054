/* Runs the block tests of all fixtures (test/lib/block_tests.h). Whole pipelines: test_golden.c. */
#include "test/lib/block_tests.h"

int main(int argc, char **argv) {
    return golden_main("blocks", block_suites, argv + (argc > 0));
}
