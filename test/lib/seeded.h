/* For tests with random cases. The environment variable SEED chooses the random numbers of all cases. */
#ifndef SLUICE_TEST_SEEDED_H
#define SLUICE_TEST_SEEDED_H

#include "engine/base/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

extern uint64_t seed_base;

/* State of the random numbers that below and from_to return; a test sets it to seed_base + a number. */
extern uint64_t seeded_state;

uint64_t below(uint64_t n);                /* random integer from 0 to n - 1 */
double from_to(double least, double most); /* random number */

/* Runs the tests and prints the numbers of passed and failed tests; returns the exit status for main. */
int seeded_run(const struct CMUnitTest *tests, size_t n_tests);

#endif
