/* Test cases of int8 products (ops.h, "int8 mode") for every device. Operands are drawn as codes, so rotation
 * and codes are exact in f32, and expected values do not depend on a device's rounding. The test program sets
 * x.precision. */
#ifndef SLUICE_TEST_INT8_CASES_H
#define SLUICE_TEST_INT8_CASES_H

#include "test/lib/ops_operands.h"

enum { INT8_GROUP_MOST = 256 };

/* Returns the stored type with rotated groups of 16, 64 or 256 columns. */
enum dtype int8_rotated_type(int group);

/* Ways to draw the codes of a row. */
enum int8_codes { INT8_ALL_MAX, INT8_ALL_MIN, INT8_ALTERNATING, INT8_RANDOM, N_INT8_CODES };

/* A matrix [rows,k] as codes, and as a tensor with the values (codes H) int8_scale. */
struct int8_coded {
    int8_t *codes;
    struct tensor tensor;
};

extern const float int8_scale;

/* Makes an f32 matrix that quantises to the codes. gap: number of unused values between rows. */
struct int8_coded int8_coded_f32(int32_t rows, int32_t k, int group, enum int8_codes codes, int gap);
/* Makes a weight of a rotated type, as a slice of a larger weight. least: with codes -128, which occur only
 * in files. */
struct int8_coded int8_coded_stored(int32_t rows, int32_t k, int group, enum int8_codes codes, bool least);
int64_t int8_sum_of(const int8_t *a, const int8_t *b, int32_t k);

/* Products of all pairs of code patterns have exact sums, with f32 and with stored weights. Instructions that
 * add pairs of products in 16 bits saturate here. */
void int8_case_sums(int32_t rows, int32_t outputs, int32_t inputs, int group);
/* A product with a random epilogue: bias, activation, gate, and residual, which may be the output. Rows may
 * have gaps. Returns the relative error, all of it from the epilogue. */
double int8_case_epilogue(int32_t rows, int32_t outputs, int32_t inputs, int group, bool stored);
/* Weights of every unrotated type give the same bits as their values in f32, in all group sizes. */
void int8_case_stored_types(void);
/* Weights of type I4_ROT256 give the bits of I8_ROT256 with the codes and row scales to which they decode. */
void int8_case_packed(int32_t rows, int32_t outputs, int32_t inputs);
/* A row of zeros gives the bias. A value that is not finite gives NaN in its row or column alone. Rows of
 * tiny and huge values have the usual error. */
void int8_case_special_rows(void);
/* A slice of a weight with two adapters, and an epilogue. Returns the relative error. */
double int8_case_adapters(int32_t rows, struct epilogue epilogue);
/* Prints the error of a product of normally distributed values against f64 in each precision that the device
 * supports. Returns the error of int8. factor: scales every 64th input channel. */
double int8_case_error(float factor, const struct device *device);

#endif
