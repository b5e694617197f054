/* What both CUDA devices say of themselves, the one that computes and the one that is only planned for. */
#ifndef SLUICE_CUDA_OWN_H
#define SLUICE_CUDA_OWN_H

#include "kernels/cuda/costs.h"
#include "kernels/cuda/pages.h"

/* Taken on the GPU by the context, cuBLASLt and cuDNN when they are opened, and by everything's code once
 * kernels are loaded; taken of the host's memory by the driver and these libraries. Assumed generously: no
 * GPU run yet. Where there is a GPU its context is measured (nvml.h), and the larger is planned with. */
static const uint64_t CUDA_OPENED_BYTES = (uint64_t)448 << 20, CUDA_CODE_BYTES = (uint64_t)192 << 20;
static const uint64_t CUDA_HOST_BYTES = (uint64_t)768 << 20;
/* Measured sizes are rounded up to whole ones of these, so that plans of two runs are one; more than the
 * latter is no context: somebody else has taken memory meanwhile. */
static const uint64_t CUDA_CONTEXT_STEP = (uint64_t)16 << 20, CUDA_CONTEXT_MOST = (uint64_t)2 << 30;

/* Beside the latter where the driver compiles kernels: ptxas of CUDA 13.0 took 99 MiB for those of
 * attention.cu, which are most of them, compute_80's PTX to sm_89 (/usr/bin/time -f %M). */
static const uint64_t CUDA_COMPILING_BYTES = (uint64_t)128 << 20;

/* Chunks that fill a card: products come in tiles of 128 rows and waves of a tile for each multiprocessor,
 * and each chunk reads all weights. Calculated over four cards, two models and five sizes (bench/LOG.md): all
 * between 1,400 and 2,600 rows are within some percent of no chunks at all. At 4,128 tokens of Z-Image what
 * they take (240 MB, calculated) is more than q, k, v and what becomes of them (190 MB), and less than these
 * took in f32 (253 MB). */
static const struct row_chunks CUDA_ROW_CHUNKS = {1792, 128};

/* The fields of both, all but its functions. */
static inline struct device cuda_identity(void) {
    static const char bf16_only[] = "the CUDA device computes in bf16";
    return (struct device){.name = "cuda",
                           .chunks = CUDA_ROW_CHUNKS,
                           .lacks = {[PRECISION_F32] = bf16_only, [PRECISION_F16] = bf16_only},
                           .operands.in = {[PRECISION_BF16] = DTYPE_BF16},
                           .own_bytes = CUDA_OPENED_BYTES + CUDA_CODE_BYTES + PAGES_SPARE_BYTES,
                           .host_bytes = CUDA_HOST_BYTES,
                           .cost = cuda_cost};
}

#endif
