/* Measures one component for `sluice bench block`, at any size. */
#ifndef SLUICE_BENCH_BLOCK_H
#define SLUICE_BENCH_BLOCK_H

#include "engine/bench/bench.h"
#include "engine/bench/random_component.h"

/* Measures one component in `rounds` rounds and adds the component's rows to the report. name: such as
 * "block"; shape: description for the report; `from`, `to`: start and end of this case in the benchmark's
 * progress, 0 to 1. */
struct bench_block_case {
    const char *name, *shape;
    struct random_component_sizes sizes;
    int rounds; /* number of rounds, 1 to BENCH_ROUNDS_MAX */
    double from, to;
};

enum { BENCH_ROUNDS_MAX = 15 };

/* Returns the benchmark case of this name from family.measured, in bf16. Asserts that a family has it. */
struct bench_block_case bench_block_case_named(const char *name);

enum status bench_block_measure(struct bench *bench, struct device *device, const struct bench_block_case *c,
                                struct error *e);

#endif
