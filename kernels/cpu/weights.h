/* Weights as numbers: the one place on the CPU where a stored type, with its blocks and scales, becomes f32
 * or bf16 (R7). Operators, and whoever needs a weight's values on the host, come here.
 *
 * A value is what ggml's, OCP's or PyTorch's f32 arithmetic makes of it, bit for bit and in its order of
 * multiplications; then times the row's scale, then times the tensor's, where there are such. Scales that are
 * infinite or NaN give what IEEE 754 says. Bytes may lie at any address. Nothing is allocated. */
#ifndef SLUICE_CPU_WEIGHTS_H
#define SLUICE_CPU_WEIGHTS_H

#include "engine/base/tensor.h"

#include <stdint.h>

/* Are the bytes packed numbers of that type, to be used as they lie? */
bool weights_are(const struct tensor *w, enum dtype dtype);

/* Rows [first, first + rows), counted over all outer dimensions, packed. to may not overlap w. */
void weights_widen(float *to, const struct tensor *w, int64_t first, int64_t rows);
/* The same, rounded to bf16, to nearest even. */
void weights_round(uint16_t *to, const struct tensor *w, int64_t first, int64_t rows);
/* Values [first, first + n) of one row, wherever its blocks begin and end. */
void weights_widen_part(float *to, const struct tensor *w, int64_t row, int64_t first, int64_t n);
/* A matrix [N,K] as [N/64,K,64] (ONEDNN_PRODUCT_PACKED). N in 64s, K in 16s. */
void weights_widen_packed(float *to, const struct tensor *w);
/* A vector as f32: its own data if it is that, else widened into to. NULL if absent (rank 0). */
const float *weights_vector(const struct tensor *w, float *to);

#endif
