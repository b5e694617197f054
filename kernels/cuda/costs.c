/* Costs of the CUDA device's operators: see costs.h. */
#include "kernels/cuda/costs.h"

#include "kernels/ops.h"

void cuda_cost(const struct device *device, const struct op *op, struct op_cost *cost) {
    (void)device, (void)op;
    *cost = (struct op_cost){0};
}
