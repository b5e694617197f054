/* Functions that all benchmarks share: options, cancellation, medians, report. */
#ifndef SLUICE_BENCH_BENCH_H
#define SLUICE_BENCH_BENCH_H

#include "engine/base/sys.h"
#include "engine/run/plan.h"
#include "engine/sluice_bench.h"

#include <jansson.h>

struct bench {
    struct sluice_bench_options options;
    struct sys sys;
    int threads;
    json_t *rows;
    unsigned json_failures; /* value of failed_json_allocations() when the benchmark started */
    struct rates measured;  /* measured rates to save in the rates file; 0: not measured */
};

/* Reads the options and checks the existing rates file before any measurement. Fails with USAGE for an
 * invalid thread count. */
enum status bench_start(struct bench *bench, const struct sluice_bench_options *options, struct error *e);
/* Reports progress. Fails with CANCELLED if the caller cancels. */
enum status bench_go_on(const struct bench *bench, double fraction, const char *what, struct error *e);
/* Writes the report and the rates text unless *e holds an error, and frees the bench. rest: JSON object whose
 * members are added to the report (takes ownership), or NULL. rates may be NULL. threads: thread count of
 * measured operators, or 0. Returns the exit value of the public function. */
int bench_finish(struct bench *bench, json_t *rest, int threads, char **json, char **rates, struct error *e,
                 struct sluice_error *error);
/* Sorts n values and returns their median. */
double bench_median(double *values, int n);

/* Returns the operator classes that are slower with `threads` threads than with one, as when other programs
 * use the cores: [{"op","threads","of_one_thread"}], of_one_thread: rate as a share of one thread's rate.
 * Classes measured with only one of the two thread counts are left out. The caller owns the result. */
json_t *ops_slower(const struct op_rates *one, const struct op_rates *all, int threads);
/* Returns the kind of disk that reaches this rate (several readers, large pieces), such as "SATA SSD". Never
 * NULL. */
const char *link_of_disk(double bytes_per_second);
/* Returns the PCIe link that reaches this rate from pinned host memory, such as "PCIe Gen3 x8 or Gen4 x4".
 * Never NULL. */
const char *link_of_pinned(double bytes_per_second);

#endif
