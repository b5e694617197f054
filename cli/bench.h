/* The sub-commands of `sluice bench`. Each is handed the whole command line, with operands[0] its own name.
 */
#ifndef SLUICE_CLI_BENCH_H
#define SLUICE_CLI_BENCH_H

#include "cli/args.h"

int bench_checkpoint(const struct args *args, struct sluice_error *e);
int bench_bus(const struct args *args, struct sluice_error *e);
int bench_ops(const struct args *args, struct sluice_error *e);

#endif
