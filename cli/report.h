/* Writes the report file (--report): the library's report with the program's exit code, or a minimal one with
 * the same keys if no run took place. */
#ifndef SLUICE_CLI_REPORT_H
#define SLUICE_CLI_REPORT_H

#include "engine/sluice.h"

struct report {
    const char *name;        /* --report; NULL: no report */
    sluice_session *session; /* session whose last run is reported; NULL: no run took place */
    const char *plan_json;   /* plan for a report without a run, or NULL */
    uint64_t seed;
    double seconds;
};

/* Writes the report of a program that ends with *error (code 0: success). If the report cannot be written and
 * *error is empty, *error becomes that failure. Returns error->code. */
int report_write(const struct report *report, struct sluice_error *error);

#endif
