/* Fills a sluice_error. The four parts are printed as "what (where): found X, expected Y". */
#ifndef SLUICE_CLI_FAIL_H
#define SLUICE_CLI_FAIL_H

#include "engine/sluice.h"

/* Separators of the parts in the format of fail(). */
#define WHERE    "\1"
#define FOUND    "\2"
#define EXPECTED "\3"

/* Replaces *e with an error of up to four parts: fail(e, SLUICE_USAGE, "unknown command" FOUND "\"%s\"",
 * name). The exit code follows from the code. A part that is too long loses its middle. Returns code. */
int fail(struct sluice_error *e, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Replaces the place, a flag or file name, in an error that another function has filled. Returns e->code. */
int fail_where(struct sluice_error *e, const char *where);

/* Error for an output that cannot be written, with the reason in words. Exit code 6. */
int fail_output(struct sluice_error *e, const char *path, int error_number);

/* Error for an invalid value of a flag. Exit code 2. */
int fail_value(struct sluice_error *e, const char *flag, const char *found, const char *expected);

#endif
