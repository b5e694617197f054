/* What the CUDA device's operators cost besides their operands: pure functions of the call, the same with and
 * without a GPU. Workspaces are laid out in the operators' headers. */
#ifndef SLUICE_CUDA_COSTS_H
#define SLUICE_CUDA_COSTS_H

#include "kernels/device.h"

/* device->cost of both CUDA devices. */
void cuda_cost(const struct device *device, const struct op *op, struct op_cost *cost);

/* Takes bytes of a workspace that so far has *used; everything starts at a multiple of 256. */
static inline uint64_t workspace_part(uint64_t *used, uint64_t bytes) {
    uint64_t offset = *used;
    *used += align_up(bytes, ARENA_ALIGN);
    return offset;
}

#endif
