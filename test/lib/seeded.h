/* Random numbers of test cases. The environment variable SEED chooses the numbers of all cases. */
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

/* run_all_tests with the seed of the environment and a time limit. */
int run_seeded_tests(void);

/* tests_run with the seed of the environment and a time limit. */
int seeded_run(const struct CMUnitTest *tests, size_t n_tests);

#endif
