/* main of the test programs. The environment variable SEED chooses the random numbers of all cases. */
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
#include <string.h>
#include <unistd.h>

extern uint64_t seed_base;

/* State of the random numbers that below and from_to return; a test sets it to seed_base + a number. */
extern uint64_t seeded_state;

uint64_t below(uint64_t n);                /* random integer from 0 to n - 1 */
double from_to(double least, double most); /* random number */

/* Defines a test of a program that ends with tests_main or seeded_main: TEST(test_x) { ... }. */
#define TEST(name)                                                                                           \
    static void name(void **state);                                                                          \
    __attribute__((constructor)) static void name##_add(void) {                                              \
        test_add(#name, name);                                                                               \
    }                                                                                                        \
    static void name(__attribute__((unused)) void **state)
void test_add(const char *name, CMUnitTestFunction function);

/* Run the tests of TEST in the order of their definitions; see tests_run and seeded_run. */
int tests_main(CMFixtureFunction begin, CMFixtureFunction end);
int seeded_main(void);

/* Runs the tests between two fixtures (NULL: none) and prints the numbers of passed and failed tests; returns
 * the exit status for main. ONLY and SKIP in the environment are patterns of test names. */
int tests_run(const struct CMUnitTest *tests, size_t n_tests, CMFixtureFunction begin, CMFixtureFunction end);

/* Like tests_run, with the seed of the environment and a time limit. */
int seeded_run(const struct CMUnitTest *tests, size_t n_tests);

#endif
