/* Cases of products whose weights have adapters. The same for every device. */
#ifndef SLUICE_TEST_OPS_ADAPTED_H
#define SLUICE_TEST_OPS_ADAPTED_H

#include "test/lib/ops_cases.h"

enum { FACTORS_MOST = 3 };

/* An adapter's factors: of rows [row, row + n) of the weight. rank 0: no more come. */
struct factors {
    int32_t rank, row, n;
    enum dtype dtype;
    float scale;
};

struct adapted_case {
    struct linear_case base; /* n: of the weight; its type F32, F16 or BF16 */
    struct factors factors[FACTORS_MOST];
    int32_t first, rows; /* what is multiplied is these rows of it; rows 0: all */
};

/* What devices round besides a product's own operands: in . down^T and `up`. */
extern bool low_rank_rounded;

/* Scratch for what the wrappers keep in between, of operand memory, until the next case begins. */
void adapted_scratch(void);
/* Random factors for such a weight, of operand memory; chain has room for as many. NULL if there are none. */
const struct low_rank *adapted_chain(struct low_rank *chain, const struct factors *factors,
                                     const struct tensor *weight);

void case_adapted(const struct adapted_case *c);
/* Activation before the product, no residual. */
void case_adapted_few(const struct adapted_case *c);

#endif
