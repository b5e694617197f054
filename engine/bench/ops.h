#ifndef SLUICE_BENCH_OPS_H
#define SLUICE_BENCH_OPS_H

#include "engine/run/plan.h"

#include <jansson.h>

/* Returns the operator classes that are slower with `threads` threads than with one, as when other programs
 * use the cores: [{"op","threads","of_one_thread"}], of_one_thread: rate as a share of one thread's rate.
 * Classes measured with only one of the two thread counts are left out. The caller owns the result. */
json_t *ops_slower(const struct op_rates *one, const struct op_rates *all, int threads);

#endif
