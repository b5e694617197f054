/* Constants and fields common to the CUDA device and the plan-only CUDA device. */
#ifndef SLUICE_CUDA_DEVICE_DEFAULTS_H
#define SLUICE_CUDA_DEVICE_DEFAULTS_H

#include "kernels/cuda/costs.h"
#include "kernels/cuda/pages.h"

/* Assumed bytes, generous because the real values have not been measured on a GPU. OPENED: device memory of
 * the context, cuBLASLt and cuDNN; CODE: of kernel code once loaded; HOST: host memory of the driver and
 * these libraries. On a GPU the context is measured (nvml.h) and the larger value is used. */
static const uint64_t CUDA_OPENED_BYTES = (uint64_t)448 << 20, CUDA_CODE_BYTES = (uint64_t)192 << 20;
static const uint64_t CUDA_HOST_BYTES = (uint64_t)768 << 20;
/* Measured context sizes are rounded up to CUDA_CONTEXT_STEP, so that plans of two runs are equal. A value
 * above CUDA_CONTEXT_MOST is discarded: another process allocated memory meanwhile. */
static const uint64_t CUDA_CONTEXT_STEP = (uint64_t)16 << 20, CUDA_CONTEXT_MOST = (uint64_t)2 << 30;

/* Additional host memory when the driver compiles PTX. ptxas of CUDA 13.0 took 99 MiB for attention.cu, which
 * has most of the kernels, from compute_80 PTX to sm_89 (/usr/bin/time -f %M). */
static const uint64_t CUDA_COMPILING_BYTES = (uint64_t)128 << 20;

/* Row chunks that fill a GPU: products run in tiles of 128 rows and waves of one tile per multiprocessor, and
 * each chunk reads all weights. Calculated over four cards, two models and five sizes (bench/LOG.md): 1,400
 * to 2,600 rows are within a few percent of no chunking. At 4,128 tokens of Z-Image a chunk takes 240 MB
 * (calculated), more than q, k, v and the attention result (190 MB), and less than these took in f32 (253
 * MB). */
static const struct row_chunks CUDA_ROW_CHUNKS = {1792, 128};

/* Returns the fields that both CUDA devices share, without functions. */
static inline struct device cuda_device_defaults(void) {
    static const char bf16_only[] = "the CUDA device supports only bf16";
    return (struct device){.name = "cuda",
                           .chunks = CUDA_ROW_CHUNKS,
                           .unsupported = {[PRECISION_F32] = bf16_only, [PRECISION_F16] = bf16_only},
                           .operands.in = {[PRECISION_BF16] = DTYPE_BF16},
                           .overhead_bytes = CUDA_OPENED_BYTES + CUDA_CODE_BYTES + PAGES_SPARE_BYTES,
                           .host_bytes = CUDA_HOST_BYTES,
                           .cost = cuda_cost};
}

#endif
