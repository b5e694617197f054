/* Dequantisation: the only place on the CPU that converts a stored type, with its blocks and scales, to f32
 * or bf16. Operators and all host code that needs weight values use these functions.
 *
 * Values equal ggml's, OCP's or PyTorch's f32 results bit for bit, with the same order of multiplications.
 * The row's scale and then the tensor's scale, if present, are multiplied last. Infinite or NaN scales follow
 * IEEE 754. Bytes may have any address. Nothing is allocated. */
#ifndef SLUICE_CPU_WEIGHTS_H
#define SLUICE_CPU_WEIGHTS_H

#include "engine/base/tensor.h"

#include <stdint.h>

/* True if the weight consists of packed numbers of the given type, without scales, so that callers can use
 * the weight in place. */
bool weights_are(const struct tensor *w, enum dtype dtype);

/* Converts rows [first, first + rows) of a weight, counted over all outer dimensions, to packed f32. The
 * result must not overlap w. */
void weights_widen(float *to, const struct tensor *w, int64_t first, int64_t rows);
/* Converts rows of a weight to bf16, rounding to nearest even. */
void weights_round(uint16_t *to, const struct tensor *w, int64_t first, int64_t rows);
/* Converts values [first, first + n) of one weight row to f32; first need not be the start of a block. */
void weights_widen_part(float *to, const struct tensor *w, int64_t row, int64_t first, int64_t n);
/* Writes the 8-bit codes of a row of a rotated type. Returns the row's scale; codes times scale are the
 * rotated values. */
float weights_int8_row(int8_t *to, const struct tensor *w, int64_t row);
/* Converts a weight [N,K] to f32 [N/64,K,64] (ONEDNN_PRODUCT_PACKED). N is a multiple of 64, K of 16. */
void weights_widen_packed(float *to, const struct tensor *w);
/* Returns a weight vector as f32: its own data if already f32, else a converted copy in `to`. NULL if the
 * vector is absent (rank 0). */
const float *weights_vector(const struct tensor *w, float *to);

#endif
