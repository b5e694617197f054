/* What the benches share: when they may go on, and how they end. */
#ifndef SLUICE_BENCH_BENCH_H
#define SLUICE_BENCH_BENCH_H

#include "engine/base/sys.h"
#include "engine/run/rates.h"
#include "engine/sluice_bench.h"

#include <jansson.h>

struct bench {
    struct sluice_bench_options options;
    struct sys sys;
    int threads;
    json_t *rows;
    unsigned losses;       /* failed_json_allocations before the first row */
    struct rates measured; /* 0: not measured */
};

/* Reads options and checks the older rates file, before anything takes time. USAGE for threads. */
enum status bench_start(struct bench *bench, const struct sluice_bench_options *options, struct error *e);
/* CANCELLED if the caller wants no more. */
enum status bench_go_on(const struct bench *bench, double fraction, const char *what, struct error *e);
/* Gives out both texts (rest: more members of the report, stolen, or NULL; rates may be NULL) unless *e holds
 * an error; frees the bench. threads: of the operators, 0 where none were measured. Returns what the public
 * function returns.
 */
int bench_finish(struct bench *bench, json_t *rest, int threads, char **json, char **rates, struct error *e,
                 struct sluice_error *error);
/* The median of n values, which it sorts. */
double bench_median(double *values, int n);

#endif
