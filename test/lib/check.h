/* Counted checks that never end the program: one wrong run does not hide the next. */
#ifndef SLUICE_TEST_CHECK_H
#define SLUICE_TEST_CHECK_H

#include <stdbool.h>

extern int n_passed, n_failed;

__attribute__((format(printf, 2, 3))) bool check(bool good, const char *format, ...);

/* True if THOROUGH is set (make check-all): tests try every budget, fixture and plan, not some of each. */
bool thorough(void);

int count_open_files(void);

/* Prints the totals; returns the exit status for main. */
int finish(void);

#endif
