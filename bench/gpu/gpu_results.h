/* Results of a GPU machine: parts, a line of JSON each, written as they come; one document made of them;
 * tables.
 *
 * A part:
 * {"part","status":"done|failed|timeout|skipped|refused","exit","seconds","passed","failed","failures":[...],
 * "skipped":[...],"data":...}. The document:
 * {"version":1,"kind":"gpu","gpu","date","commit","parts":{NAME:part}}. */
#ifndef SLUICE_BENCH_GPU_RESULTS_H
#define SLUICE_BENCH_GPU_RESULTS_H

#include <jansson.h>
#include <stdbool.h>

/* ---- parts.c ---- */

struct part_options {
    const char *results, *name, *status; /* status NULL: by the exit code */
    int exit_code;
    double seconds;
    const char *log;           /* what it printed */
    const char *data, *report; /* files with JSON that belongs to it; NULL */
    char **facts;              /* "name=value" */
    int n_facts;
};

/* Appends a part's line and prints one for people. 0, or 1 if it could not be written. */
int part_add(const struct part_options *options);
/* The document; NULL if results cannot be read. A part that was tried twice counts as the last time. */
json_t *parts_assemble(const char *results, const char *date, const char *commit);

/* ---- tables.c ---- */

/* Of one document, after a run. */
void table_short(const json_t *document);
/* Of each budget that Z-Image was drawn under: a step over max(computing, bytes / bus), the two being a
 * resident step and the bus's best rate in the same document. Rows
 * {"budget","bytes","seconds","floor_seconds","ratio"}. */
json_t *overlap_of(const json_t *document);
/* The README's: n documents, oldest first. */
void table_readme(json_t *const *documents, int n);

/* member_number(json, 0, "a", "b", NULL) is json.a.b or, if there is no such number, the second argument. */
double member_number(const json_t *json, double otherwise, ...);
/* The same for text; NULL if there is none. */
const char *member_text(const json_t *json, ...);
/* The median of steps' member, the first step apart, which also loads; -1 if there are none. */
double steps_median(const json_t *report, const char *member);

#endif
