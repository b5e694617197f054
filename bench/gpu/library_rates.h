/* Rates of cuBLASLt and cuDNN alone, at the shapes that decide how fast a model can run. */
#ifndef SLUICE_BENCH_GPU_LIBRARY_RATES_H
#define SLUICE_BENCH_GPU_LIBRARY_RATES_H

#include "bench/gpu/rig.h"

#include <jansson.h>

/* Measures one bf16 product [m,k] x [n,k]^T with f32 sums and cuBLASLt's first algorithm. Errors as rig_take
 * and products_prepare. */
enum status library_time_product(struct rig *rig, int32_t m, int32_t k, int32_t n, double *seconds,
                                 struct error *e);

/* Returns rows {"op","shape","type","seconds","flops_per_second"}, or with "error" instead of rates, and
 * passes each to on_row. Types: bf16, f16 and tf32. Products compare cuBLASLt's first algorithm with the
 * fastest of eight: "algorithms" (number measured), "best" (index of the fastest), "best_seconds".
 * Convolutions: 3x3, by channels and by pixels of a band; left out without cuDNN. small: tiny sizes. */
json_t *library_rates_measure(struct rig *rig, bool small, void (*on_row)(const json_t *row));

/* Keeps the GPU busy with products, and the bus with copies to the GPU, for about `seconds`. Returns
 * {"flops_per_second":[by quarter of the time; none if small],"h2d_bytes_per_second"}; NULL after an error.
 */
json_t *library_load(struct rig *rig, double seconds, bool small, struct error *e);

#endif
