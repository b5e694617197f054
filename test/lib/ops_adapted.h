/* Cases of matrix products whose weights have low-rank adapters, for every device. */
#ifndef SLUICE_TEST_OPS_ADAPTED_H
#define SLUICE_TEST_OPS_ADAPTED_H

#include "test/lib/ops_cases.h"

enum { FACTORS_MOST = 3 };

/* Low-rank factors of one adapter for weight rows [row, row + n). `rank` 0 ends the list. */
struct factors {
    int32_t rank, row, n;
    enum dtype dtype;
    float scale;
};

struct adapted_case {
    struct linear_case base; /* base.n: number of rows of the whole weight; base.dtype: F32, F16 or BF16 */
    struct factors factors[FACTORS_MOST];
    int32_t first, rows; /* range of weight rows that are multiplied; rows 0: all rows */
};

/* True if the device rounds the low-rank intermediate (in * down^T) and `up` too, in addition to the operands
 * of the base product. */
extern bool low_rank_rounded;

/* Gives the operator context scratch memory, valid until the next case. */
void adapted_scratch(void);
/* Returns random low-rank factors for the weight in `chain`, valid until the next case; NULL: the case has no
 * adapters. */
const struct low_rank *adapted_chain(struct low_rank *chain, const struct factors *factors,
                                     const struct tensor *weight);

void case_adapted(const struct adapted_case *c);
/* Like case_adapted, but with an activation before the product and without a residual. */
void case_adapted_few(const struct adapted_case *c);

#endif
