/* Checks that are counted and never end the program, so that one wrong run does not hide the next. */
#ifndef SLUICE_TEST_CHECK_H
#define SLUICE_TEST_CHECK_H

#include <stdbool.h>

extern int n_passed, n_failed;

__attribute__((format(printf, 2, 3))) bool check(bool good, const char *format, ...);

/* THOROUGH is set: all budgets, worlds and plans, as make check-all asks; else fewer of each, and every kind.
 */
bool thorough(void);

/* File descriptors of this process. */
int count_open_files(void);

/* Prints the sum; what main returns. */
int finish(void);

#endif
