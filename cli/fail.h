/* Filling a sluice_error from the program's side, with the same four parts as the library's own. */
#ifndef SLUICE_CLI_FAIL_H
#define SLUICE_CLI_FAIL_H

#include "engine/sluice.h"

/* Starts an error: code, the exit code that follows from it, and what failed. Overwrites; returns code. */
int fail(struct sluice_error *e, int code, const char *what, ...) __attribute__((format(printf, 3, 4)));

/* The other parts of the error just started. Text that is too long loses its middle. Each returns e->code. */
int fail_where(struct sluice_error *e, const char *format, ...) __attribute__((format(printf, 2, 3)));
int fail_found(struct sluice_error *e, const char *format, ...) __attribute__((format(printf, 2, 3)));
int fail_expected(struct sluice_error *e, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* "The file could not be written (path): found <strerror>": exit 6. */
int fail_output(struct sluice_error *e, const char *path, int error_number);

/* A flag whose value is no good: exit 2. */
int fail_value(struct sluice_error *e, const char *flag, const char *found, const char *expected);

#endif
