/* A cmocka test program: TEST(name) {...} defines the test test_name, and main returns run_all_tests(...).
 * Tests run in the order in which the file defines them. */
#ifndef SLUICE_TEST_CMOCKA_TESTS_H
#define SLUICE_TEST_CMOCKA_TESTS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEST(name)                                                                                           \
    static void test_##name(void **state);                                                                   \
    __attribute__((constructor)) static void add_test_##name(void) {                                         \
        add_test("test_" #name, test_##name);                                                                \
    }                                                                                                        \
    static void test_##name(__attribute__((unused)) void **state)

/* Adds a test to the program; TEST calls it before main. */
void add_test(const char *name, CMUnitTestFunction test);

/* Runs all tests of the program between the two fixtures (NULL: none). Prints the numbers of passed and
 * failed tests; returns the exit status for main. ONLY and SKIP in the environment are patterns of test
 * names. */
int run_all_tests(CMFixtureFunction set_up, CMFixtureFunction tear_down);

/* The same for an array of tests. */
int tests_run(const struct CMUnitTest *list, size_t n, CMFixtureFunction set_up, CMFixtureFunction tear_down);

#endif
