/* Rows of int8 products (ops.h, "int8 mode"): rotation, quantisation, and packing of weights for oneDNN.
 *
 * All arithmetic is f32 in a fixed order, so a row's codes and scale have the same bits for any instruction
 * set, thread count and number of rows. Nothing is allocated. */
#ifndef SLUICE_CPU_INT8_H
#define SLUICE_CPU_INT8_H

#include <stdint.h>

/* INT8_PACK_ROWS: outputs per call of int8_pack_rows. INT8_BLOCK: a packed weight has a multiple of this
 * number of outputs and of inputs. */
enum { INT8_PACK_ROWS = 16, INT8_BLOCK = 64 };

/* Codes of the input are unsigned, code 0 being stored as INT8_ZERO. Codes of weights are signed. */
enum { INT8_ZERO = 128 };

/* Rotates and quantises a row of k values. group: 16, 64 or 256, divides k. zero: 0 or INT8_ZERO, added to
 * each code modulo 256. rotated: scratch memory for k values, may be `from`. Returns the row's scale: 0 for a
 * row of zeros, NaN if a rotated value is not finite. */
float int8_quantise_row(uint8_t *codes, float *rotated, const float *from, int64_t k, int32_t group,
                        uint8_t zero);

/* Returns the sum of n signed codes. */
int32_t int8_sum(const uint8_t *codes, int64_t n);
/* Packs INT8_PACK_ROWS rows of k signed codes into oneDNN's layout [k/64, 16, 64, 4] of inputs / 64, inputs /
 * 4, outputs, inputs. These rows are 16 of the 64 outputs. k: a multiple of INT8_BLOCK. */
void int8_pack_rows(uint8_t *to, const uint8_t *codes, int64_t k);

/* Converts n s32 sums over unsigned input codes to f32 products: to = (sum - INT8_ZERO weight_sum)
 * weight_scale scale. weight_sums: sum of each output's codes; scale: of the input row. Subtraction modulo
 * 2^32 gives the exact sum of signed codes. `to` may be `sums`. */
void int8_scale_sums(float *to, const void *sums, const int32_t *weight_sums, const float *weight_scales,
                     float scale, int64_t n);

#endif
