/* Internals of the quantisers: see quantise.h. */
#ifndef SLUICE_LOADERS_QUANTISE_INTERNAL_H
#define SLUICE_LOADERS_QUANTISE_INTERNAL_H

#include "engine/base/tensor.h"

#include <stdint.h>

enum { F16_NAN = 0x7e00 }; /* scale of a block with a value that is not finite */

/* Rounds to nearest even; overflow gives infinity, NaN stays NaN. */
uint16_t quantise_f16(float value);

/* Blocks of 32: Q4_0, Q5_0, Q8_0. */
void quantise_q4_0(const float *from, int64_t n_blocks, unsigned char *to);
void quantise_q5_0(const float *from, int64_t n_blocks, unsigned char *to);
void quantise_q8_0(const float *from, int64_t n_blocks, unsigned char *to);

/* Blocks of 256. */
void quantise_q4_k(const float *from, int64_t n_blocks, unsigned char *to);
void quantise_q5_k(const float *from, int64_t n_blocks, unsigned char *to);
void quantise_q6_k(const float *from, int64_t n_blocks, unsigned char *to);

/* Quantises a row of a rotated type (ConvRot), divided by quantise_row_scale. */
void quantise_rotated(enum dtype dtype, const float *row, int64_t columns, int8_t *to);

#endif
