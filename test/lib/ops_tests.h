/* Operator tests that the programs of the CPU device and of the CUDA device share. */
#ifndef SLUICE_TEST_OPS_TESTS_H
#define SLUICE_TEST_OPS_TESTS_H

#include "test/lib/ops_cases.h"

/* The programs that run a case. ON_TSAN: the CUDA device under ThreadSanitizer, where barriers are 100 times
 * slower, so that operands must be small. */
enum { ON_CPU = 1, ON_CUDA = 2, ON_BOTH = 3, ON_TSAN = 4, ON_ALL = 7 };

/* Set by the program: which one it is, its number of random cases, and of random convolutions in pieces. */
extern int ops_on, ops_random_cases, ops_pictures;

void test_linear(void **state);
void test_linear_few(void **state);
void test_attention(void **state);
void test_norms(void **state);
void test_rope(void **state);
void test_elementwise(void **state);
/* Operators and options of video with sound (ops_video.c). */
void test_video(void **state);
/* Operators on sound waves and spectrograms (ops_waves.c). */
void test_waves(void **state);
/* Checks the conversion to 8-bit RGB: values halfway between two bytes, values just outside the range, and
 * NaN. */
void test_rgb_rounding(void **state);
void test_conv(void **state);
/* Upsampling is cropped to odd sizes: the convolution reads zeros beyond the crop. */
void test_conv_cut(void **state);
/* Convolutions with and without epilogue, padding and residual, in bands of rows, with a short last band. */
void test_conv_finish(void **state);
void test_conv_dense(void **state);
void test_conv_strided(void **state);
/* Environment: SEED repeats a run, CASES is the number of cases. */
void test_random(void **state);

/* Any rows of a convolution have the bits of the whole result (ops_pieces.c). */
void test_conv_pieces(void **state);
void test_conv_strided_pieces(void **state);
/* A convolution's output may overlap its input or residual if it starts conv_lead bytes before. */
void test_conv_overlap(void **state);
/* The output of a strided convolution may start at its input, or before it where rows grow. */
void test_conv_strided_overlap(void **state);
void test_statistics_pieces(void **state);

#endif
