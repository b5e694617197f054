/* Costs that plans need, equal with and without a GPU: assumed overheads, and the fields that every CUDA
 * device has. Needs no CUDA headers. */
#ifndef SLUICE_CUDA_COSTS_H
#define SLUICE_CUDA_COSTS_H

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/device.h"

/* Assumed bytes of all kernels' code once loaded. Generous, because not measured on a GPU. */
static const uint64_t CUDA_CODE_BYTES = (uint64_t)192 << 20;
/* Measured sizes of the CUDA context are rounded up to CUDA_CONTEXT_STEP, so that plans of two runs are
 * equal. A size above CUDA_CONTEXT_MOST is discarded: another process allocated device memory meanwhile. */
static const uint64_t CUDA_CONTEXT_STEP = (uint64_t)16 << 20, CUDA_CONTEXT_MOST = (uint64_t)2 << 30;
/* Additional host memory when the driver compiles PTX. ptxas of CUDA 13.0 took 99 MiB for attention.cu, which
 * has most of the kernels, from compute_80 PTX to sm_89 (/usr/bin/time -f %M). */
static const uint64_t CUDA_COMPILING_BYTES = (uint64_t)128 << 20;

/* Returns the device fields that the CUDA device and the planning-only CUDA device share, cost() included. */
struct device cuda_device_defaults(void);

#ifdef __cplusplus
}
#endif

#endif
