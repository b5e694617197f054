/* main of the test programs. The environment variable SEED chooses the random numbers of all cases. */
#ifndef SLUICE_TEST_SEEDED_H
#define SLUICE_TEST_SEEDED_H

#include "engine/base/random.h"
#include "test/lib/cmocka_tests.h"

#include <unistd.h>

extern uint64_t seed_base;

/* State of the random numbers that below and from_to return; a test sets it to seed_base + a number. */
extern uint64_t seeded_state;

uint64_t below(uint64_t n);                /* random integer from 0 to n - 1 */
double from_to(double least, double most); /* random number */

/* Runs the tests of TEST (cmocka_tests.h) with the seed of the environment and a time limit. */
int seeded_main(void);

/* Runs the tests between two fixtures (NULL: none) and prints the numbers of passed and failed tests; returns
 * the exit status for main. ONLY and SKIP in the environment are patterns of test names. */
int tests_run(const struct CMUnitTest *tests, size_t n_tests, CMFixtureFunction begin, CMFixtureFunction end);

/* Like tests_run, with the seed of the environment and a time limit. */
int seeded_run(const struct CMUnitTest *tests, size_t n_tests);

#endif
