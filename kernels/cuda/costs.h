/* Workspace sizes of CUDA operators: pure functions of the call, equal with and without a GPU. The operators'
 * headers define the workspace layouts. */
#ifndef SLUICE_CUDA_COSTS_H
#define SLUICE_CUDA_COSTS_H

#include "kernels/device.h"

/* device->cost of the CUDA device and of the plan-only CUDA device. */
void cuda_cost(const struct device *device, const struct op *op, struct op_cost *cost);

/* Reserves bytes at the end of a workspace that has *used bytes so far. Returns the offset, a multiple of
 * 256. */
static inline uint64_t workspace_part(uint64_t *used, uint64_t bytes) {
    uint64_t offset = *used;
    *used += align_up(bytes, ARENA_ALIGN);
    return offset;
}

#endif
