#include "engine/job/check.h"

#include <stdio.h>

enum status bad_value(struct error *e, const char *flag, double found, const char *expected) {
    return error_set(e, USAGE, "invalid value for %s" FOUND "%g" EXPECTED "%s", flag, found, expected);
}

enum status check_range(const char *flag, double found, double least, double most, struct error *e) {
    char expected[64];
    if (found >= least && found <= most) return OK;
    snprintf(expected, sizeof expected, "%g to %g", least, most);
    return bad_value(e, flag, found, expected);
}
