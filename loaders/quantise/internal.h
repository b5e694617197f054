#ifndef SLUICE_LOADERS_QUANTISE_INTERNAL_H
#define SLUICE_LOADERS_QUANTISE_INTERNAL_H

#include "engine/base/tensor.h"

#include <stdint.h>

enum { F16_NAN = 0x7e00 }; /* f16 bits of the scale of a block with a value that is not finite */

/* Rounds to the nearest f16, ties to even; overflow gives infinity, NaN stays NaN. */
uint16_t quantise_f16(float value);

/* Quantise blocks of 32 values. */
void quantise_q4_0(const float *from, int64_t n_blocks, unsigned char *to);
void quantise_q5_0(const float *from, int64_t n_blocks, unsigned char *to);
void quantise_q8_0(const float *from, int64_t n_blocks, unsigned char *to);

/* Quantise blocks of 256 values. */
void quantise_q4_k(const float *from, int64_t n_blocks, unsigned char *to);
void quantise_q5_k(const float *from, int64_t n_blocks, unsigned char *to);
void quantise_q6_k(const float *from, int64_t n_blocks, unsigned char *to);

/* Quantises a row to a rotated type (ConvRot), with the scale that quantise_row_scale returns. */
void quantise_rotated(enum dtype dtype, const float *row, int64_t columns, int8_t *to);

#endif
