/* The sub-commands of `sluice bench`. operands[0] is the name of the sub-command. */
#ifndef SLUICE_CLI_BENCH_H
#define SLUICE_CLI_BENCH_H

#include "cli/commands.h"
#include "cli/args.h"
#include "engine/sluice_bench.h"

#include <jansson.h>

int bench_bus(const struct args *args, struct sluice_error *e);
int bench_ops(const struct args *args, struct sluice_error *e);
int bench_load(const struct args *args, struct sluice_error *e);
int bench_block(const struct args *args, struct sluice_error *e);

/* Converts flags to options of the library's benchmarks, with a progress callback. Borrows args. */
struct sluice_bench_options bench_options(const struct args *args);

#endif
