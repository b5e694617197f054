/* Test checks that count failures and never end the program, so that one failure does not hide the next. */
#ifndef SLUICE_TEST_CHECK_H
#define SLUICE_TEST_CHECK_H

#include <stdbool.h>

extern int n_passed, n_failed;

__attribute__((format(printf, 2, 3))) bool check(bool good, const char *format, ...);

/* Returns a formatted text of at most 511 bytes, valid until 64 further calls. */
__attribute__((format(printf, 1, 2))) const char *format_text(const char *format, ...);

/* True if the environment variable THOROUGH is set (make check-all): tests then try every budget, fixture and
 * plan instead of a few. */
bool thorough(void);

int count_open_files(void);

/* Prints the numbers of passed and failed checks; returns the exit status for main. */
int finish(void);

#endif
