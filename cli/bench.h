/* The sub-commands of `sluice bench`. Each is handed the whole command line, with operands[0] its own name.
 */
#ifndef SLUICE_CLI_BENCH_H
#define SLUICE_CLI_BENCH_H

#include "cli/answer.h"
#include "cli/args.h"
#include "engine/sluice_bench.h"

#include <jansson.h>

int bench_checkpoint(const struct args *args, struct sluice_error *e);
int bench_bus(const struct args *args, struct sluice_error *e);
int bench_ops(const struct args *args, struct sluice_error *e);
int bench_load(const struct args *args, struct sluice_error *e);
int bench_stream(const struct args *args, struct sluice_error *e);
int bench_block(const struct args *args, struct sluice_error *e);

/* What they share. The library's options as flags say them, with a progress line; they borrow args. */
struct sluice_bench_options bench_options(const struct args *args);

#endif
