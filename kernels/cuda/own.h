/* What both CUDA devices say of themselves, the one that computes and the one that is only planned for. */
#ifndef SLUICE_CUDA_OWN_H
#define SLUICE_CUDA_OWN_H

#include "kernels/cuda/costs.h"
#include "kernels/cuda/pages.h"

/* Taken on the GPU by the context, cuBLASLt, cuDNN and everything's code, once kernels are loaded; taken of
 * the host's memory by the driver and these libraries. Assumed generously: no GPU run yet. */
static const uint64_t CUDA_CONTEXT_BYTES = (uint64_t)640 << 20;
static const uint64_t CUDA_HOST_BYTES = (uint64_t)768 << 20;

/* Beside the latter where the driver compiles kernels: ptxas of CUDA 13.0 took 99 MiB for those of
 * attention.cu, which are most of them, compute_80's PTX to sm_89 (/usr/bin/time -f %M). */
static const uint64_t CUDA_COMPILING_BYTES = (uint64_t)128 << 20;

/* The fields of both, all but its functions. */
static inline struct device cuda_identity(void) {
    static const char bf16_only[] = "the CUDA device computes in bf16";
    return (struct device){.name = "cuda",
                           .lacks = {[PRECISION_F32] = bf16_only, [PRECISION_F16] = bf16_only},
                           .own_bytes = CUDA_CONTEXT_BYTES + PAGES_SPARE_BYTES,
                           .host_bytes = CUDA_HOST_BYTES,
                           .cost = cuda_cost};
}

#endif
