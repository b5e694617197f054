/* Rows of int8 products: rotation, quantisation, and the layout of weights in oneDNN's kernels (ops.h, "int8
 * mode").
 *
 * All arithmetic is f32 in a fixed order, so a row's codes and scale have the same bits for any instruction
 * set, thread count and number of rows. Nothing is allocated. */
#ifndef SLUICE_CPU_INT8_H
#define SLUICE_CPU_INT8_H

#include <stdint.h>

/* Outputs that are packed at a time, and the unit of outputs and inputs of a packed weight. */
enum { INT8_PACK_ROWS = 16, INT8_BLOCK = 64 };

/* Input codes are unsigned: INT8_ZERO stands for 0. Weight codes are signed. */
enum { INT8_ZERO = 128 };

/* Rotates and quantises a row of k values. group: 16, 64 or 256, divides k. zero: added to each code modulo
 * 256, 0 or INT8_ZERO. rotated: room for k values; may be `from`. Returns the row's scale: 0 for zeros, NaN
 * if a rotated value is not finite. */
float int8_quantise_row(uint8_t *codes, float *rotated, const float *from, int64_t k, int32_t group,
                        uint8_t zero);

/* Returns the sum of n signed codes. */
int32_t int8_sum(const uint8_t *codes, int64_t n);
/* Packs INT8_PACK_ROWS rows of k signed codes to [k/64][16][64][4] (inputs, outputs, inputs), where these
 * rows are 16 of the 64 outputs. k: a multiple of INT8_BLOCK. */
void int8_pack_rows(uint8_t *to, const uint8_t *codes, int64_t k);

/* Converts n s32 sums of unsigned input codes to products: each less INT8_ZERO times the weight's sum of
 * codes, times the scales of weight and input row. Integers wrap, so the sums of the codes are exact. `to`
 * may be `sums`. */
void int8_scale_sums(float *to, const void *sums, const int32_t *weight_sums, const float *weight_scales,
                     float scale, int64_t n);

#endif
