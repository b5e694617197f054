/* Checks of a request's numbers. */
#ifndef SLUICE_JOB_CHECK_H
#define SLUICE_JOB_CHECK_H

#include "engine/base/error.h"

/* Fails with USAGE: the value of a flag is invalid. expected: the valid values. */
enum status bad_value(struct error *e, const char *flag, double found, const char *expected);
/* Fails with USAGE if the value of a flag is outside [least, most] or NaN. */
enum status check_range(const char *flag, double found, double least, double most, struct error *e);

#endif
