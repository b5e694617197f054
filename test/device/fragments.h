/* Kernels that do nothing but one instruction of ptx.cuh each, so that a test on the host can say what went
 * in and what must come out. All memory is shared with the GPU; the caller waits. */
#ifndef SLUICE_TEST_CUDA_FRAGMENTS_H
#define SLUICE_TEST_CUDA_FRAGMENTS_H

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/device.h"

enum { LANES = 32, MMA_TILES = 3, CHUNKS = 64, TILE_STRIDE = 24 };

/* a [LANES][4], b [LANES][MMA_TILES][2], d [LANES][MMA_TILES][4], which is also what is added to. */
void fragments_mma(struct device *device, const uint32_t *a, const uint32_t *b, float *d);
/* Rows of 8 values begin every TILE_STRIDE values; lane l points at row row_of[l]. to [LANES][4]. */
void fragments_ldmatrix(struct device *device, const uint16_t *values, const int32_t *row_of, bool transposed,
                        uint32_t *to);
/* d[16][16] = a[16][16] . b through copies, ldmatrix and mma as kernels chain them; b is [n][k], or [k][n].
 */
void fragments_product(struct device *device, const uint16_t *a, const uint16_t *b, bool transposed,
                       float *d);
/* CHUNKS chunks of 16 bytes each in two groups, valid[i] of them. */
void fragments_copy(struct device *device, const uint32_t *from, const int32_t *valid, uint32_t *to);
/* n values each. */
void fragments_exp2(struct device *device, const float *from, float *to, int32_t n);
void fragments_pack(struct device *device, const float *low, const float *high, uint32_t *to, int32_t n);
void fragments_f16(struct device *device, const uint16_t *from, float *to, int32_t n);

#ifdef __cplusplus
}
#endif

#endif
