/* Fills a sluice_error. The four parts are printed as "what (where): found X, expected Y". */
#ifndef SLUICE_CLI_FAIL_H
#define SLUICE_CLI_FAIL_H

#include "engine/sluice.h"

/* Starts an error with its code, exit code and what failed, and empties the other parts. Returns code. */
int fail(struct sluice_error *e, int code, const char *what, ...) __attribute__((format(printf, 3, 4)));

/* Fill one further part of the error each: where, found or expected. A text that is too long loses its
 * middle. Return e->code. */
int fail_where(struct sluice_error *e, const char *format, ...) __attribute__((format(printf, 2, 3)));
int fail_found(struct sluice_error *e, const char *format, ...) __attribute__((format(printf, 2, 3)));
int fail_expected(struct sluice_error *e, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Error for an output that cannot be written, with the reason in words. Exit code 6. */
int fail_output(struct sluice_error *e, const char *path, int error_number);

/* Error for an invalid value of a flag. Exit code 2. */
int fail_value(struct sluice_error *e, const char *flag, const char *found, const char *expected);

#endif
