/* The report file: the library's, corrected by what only the program knows, or a minimal one of the same
 * shape. */
#ifndef SLUICE_CLI_REPORT_H
#define SLUICE_CLI_REPORT_H

#include "engine/sluice.h"

struct report {
    const char *name;        /* --report; NULL writes nothing */
    sluice_session *session; /* whose last run to report; NULL: nothing ran */
    const char *plan_json;   /* for a report without a run, or NULL */
    uint64_t seed;
    double seconds;
};

/* Writes the report of a program that ends with *error (code 0: success). If it cannot be written, *error
 * says so, unless it already says something else. Returns error->code. */
int report_write(const struct report *report, struct sluice_error *error);

#endif
