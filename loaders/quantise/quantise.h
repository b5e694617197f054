/* From numbers to the types that weights are stored in: what `convert` writes and `--type` keeps.
 *
 * Pure functions of their arguments: the same rows give the same bytes at any time, on any thread, in any
 * pieces of whole rows, whatever the processor's instructions. */
#ifndef SLUICE_LOADERS_QUANTISE_QUANTISE_H
#define SLUICE_LOADERS_QUANTISE_QUANTISE_H

#include "engine/base/tensor.h"

/* Can rows of so many columns be given that type? F32, F16, BF16, F8_E4M3, F8_E5M2, Q8_0, Q4_0, Q5_0, Q4_K,
 * Q5_K, Q6_K, I8_ROT16 to I8_ROT256; columns in whole blocks. */
bool quantise_can(enum dtype dtype, int64_t columns);
/* The type of that name in any case ("q8_0", "f8_e4m3", also "fp8", "bf16", "int8_convrot"), or N_DTYPES. */
enum dtype quantise_type(const char *name);

/* rows of columns f32 values, packed, to rows of that type, packed. scale: what values are divided by first
 * (F8; 1 for others; a rotated type divides rows by quantise_row_scale). A block with a value that is not
 * finite becomes NaN; of plain numbers F16 and BF16 keep infinities and go beyond their largest number to
 * them, F8 stays at its largest, NaN stays NaN. Errors of blocks: at most the reference quantisers' (ggml,
 * test_quantise.c). */
void quantise_rows(enum dtype dtype, float scale, const float *from, int64_t rows, int64_t columns, void *to);
/* The scale of an F8 weight whose largest magnitude is this: it becomes the type's largest number; 1 of 0. */
float quantise_scale(enum dtype dtype, float largest);
/* The scale of a row of a rotated type: the largest magnitude once it is rotated becomes 127. Such rows must
 * be finite, and within quantise_most: nothing in a row of codes would say that one was not. */
float quantise_row_scale(enum dtype dtype, const float *row, int64_t columns);
/* The largest magnitude that rows of that type are sure to hold (F8: with its scale); what is larger is cut
 * or becomes infinite. */
float quantise_most(enum dtype dtype);

#endif
