/* Converts floats to the stored types of weights, for `convert` and `--type`. Pure functions: the same rows
 * give the same bytes on any thread and processor, in any division into whole rows. */
#ifndef SLUICE_LOADERS_QUANTISE_QUANTISE_H
#define SLUICE_LOADERS_QUANTISE_QUANTISE_H

#include "engine/base/tensor.h"

/* True if rows of `columns` values can be stored in the type: F32, F16, BF16, F8_E4M3, F8_E5M2, Q8_0, Q4_0,
 * Q5_0, Q4_K, Q5_K, Q6_K, I8_ROT16 to I8_ROT256. Rows must be whole blocks. */
bool quantise_can(enum dtype dtype, int64_t columns);
/* Finds a type by name, in upper or lower case ("q8_0", "f8_e4m3", also "fp8", "int8_convrot"); N_DTYPES if
 * unknown. */
enum dtype quantise_type(const char *name);

/* Converts packed rows of f32 values to packed rows of the type. scale: divisor of the values for F8,
 * otherwise 1 (rotated types divide each row by quantise_row_scale instead). A block with a value that is not
 * finite becomes NaN. F16 and BF16 overflow to infinity, F8 to its largest number; NaN stays NaN. Errors of
 * block types are at most those of ggml's quantisers (test_quantise.c). */
void quantise_rows(enum dtype dtype, float scale, const float *from, int64_t rows, int64_t columns, void *to);
/* Scale that maps an F8 weight's largest magnitude to the type's largest number; 1 if `largest` is 0. */
float quantise_scale(enum dtype dtype, float largest);
/* Converts n values of a row, in whole groups, to codes of a rotated type. scale: the row's scale. */
void quantise_row_part(enum dtype dtype, float scale, const float *from, int64_t n, int8_t *to);
/* Scale of a row of a rotated type: the largest rotated magnitude becomes 127. NaN if the row has a
 * value that is not finite. */
float quantise_row_scale(enum dtype dtype, const float *row, int64_t columns);
/* Largest magnitude that rows of the type represent (F8: with its scale); larger ones are clamped or
 * infinite. */
float quantise_most(enum dtype dtype);

#endif
