/* What `sluice bench ops` says beside its rows: see ops.c. */
#ifndef SLUICE_BENCH_OPS_H
#define SLUICE_BENCH_OPS_H

#include "engine/run/rates.h"

#include <jansson.h>

/* The classes that so many threads compute slower than one does: [{"op","threads","of_one_thread"}], the
 * last a share of one thread's rate. A class that only one of them measured is none. The caller's. */
json_t *ops_slower(const struct op_rates *one, const struct op_rates *all, int threads);

#endif
