/* Kernels for tests of ptx.cuh: each kernel executes one instruction, whose result is compared with loops on
 * the host. All memory is mapped host memory; the caller waits for the kernels. */
#ifndef SLUICE_TEST_CUDA_FRAGMENTS_H
#define SLUICE_TEST_CUDA_FRAGMENTS_H

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/device.h"

enum { LANES = 32, MMA_TILES = 3, CHUNKS = 64, TILE_STRIDE = 24 };

/* Computes d += a b with mma, in fragment layout: a [LANES][4], b [LANES][MMA_TILES][2], d
 * [LANES][MMA_TILES][4]. */
void fragments_mma(struct device *device, const uint32_t *a, const uint32_t *b, float *d);
/* As fragments_mma, with f16 operands and sums: d [LANES][MMA_TILES][2]. */
void fragments_mma_f16(struct device *device, const uint32_t *a, const uint32_t *b, uint32_t *d);
/* As fragments_mma, with mma of signed bytes, in words of four: sums d are exact. start: d = start + a b,
 * with the same start for all elements. */
void fragments_mma_s8(struct device *device, const uint32_t *a, const uint32_t *b, int32_t *d,
                      const int32_t *start);
/* Loads tiles with ldmatrix: rows of 8 values start every TILE_STRIDE values; lane l points at row row_of[l].
 * The result `to` is [LANES][4], four words per lane. */
void fragments_ldmatrix(struct device *device, const uint16_t *values, const int32_t *row_of, bool transposed,
                        uint32_t *to);
/* Computes d[16][16] = a[16][16] b with cp.async, ldmatrix and mma, as the kernels of products do; b is
 * [n][k], or [k][n] if transposed. */
void fragments_product(struct device *device, const uint16_t *a, const uint16_t *b, bool transposed,
                       float *d);
/* Copies CHUNKS chunks of 16 bytes in two groups with cp.async; zeros replace chunks not in `valid`. */
void fragments_copy(struct device *device, const uint32_t *from, const int32_t *valid, uint32_t *to);
/* Converts n values with exp2_fast or a bf16 or f16 conversion of ptx.cuh. */
void fragments_exp2(struct device *device, const float *from, float *to, int32_t n);
void fragments_pack(struct device *device, const float *low, const float *high, uint32_t *to, int32_t n);
void fragments_pack_f16(struct device *device, const float *low, const float *high, uint32_t *to, int32_t n);
void fragments_f16(struct device *device, const uint16_t *from, float *to, int32_t n);
void fragments_unpack_f16(struct device *device, const uint16_t *from, float *to, int32_t n);

#ifdef __cplusplus
}
#endif

#endif
