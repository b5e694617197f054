/* Runs int8 attention with less workspace, so that small calls have several groups of heads. */
#ifndef SLUICE_TEST_ATTENTION_GROUPS_H
#define SLUICE_TEST_ATTENTION_GROUPS_H

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/cuda/attention_int8.h"

/* Queues the call op, whose operands are in device memory. records_max: bytes of k and v in the workspace. */
void attention_in_groups(struct device *device, const struct op *op, uint64_t records_max, void *workspace,
                         struct error *e);

#ifdef __cplusplus
}
#endif

#endif
