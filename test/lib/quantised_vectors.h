/* Reference vectors and sweeps of quantised types; made and described by test/golden/quantised.py. */
#ifndef SLUICE_TEST_QUANTISED_VECTORS_H
#define SLUICE_TEST_QUANTISED_VECTORS_H

#include "test/lib/cmocka_tests.h"
#include "loaders/loaders.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_QUANTISED = 24 };

/* All weight types with quantisation blocks or scales. */
extern const enum dtype quantised_types[N_QUANTISED];

/* Allocates tensors. The including program sets this function and frees the memory. */
extern void *(*quantised_alloc)(size_t bytes);

struct quantised {
    struct tensor weights, values; /* a quantised matrix, and the f32 values of the matrix */
    unsigned char sweep[32];       /* SHA-256 of the f32 values of the type's sweep (all codes and scales) */
};

/* Usual levels of I4_ROT256. */
extern const float quantised_levels[16];

struct quantised quantised_read(enum dtype dtype);

/* Replaces all NaNs by the one NaN bit pattern of the reference files. */
void quantised_canonical_nan(float *values, int64_t n);

enum { SWEEP_BLOCKS = 1 << 12 }; /* number of quantisation blocks in one piece of a sweep */

/* Position of the scales in a quantisation block: indices of f16 values (the second is dmin; -1: none), or
 * the first `bytes` bytes. */
struct sweep {
    int f16[2], bytes;
    uint32_t blocks; /* number of quantisation blocks whose scales take all values in turn */
};

struct sweep sweep_of(enum dtype dtype);

/* Returns one piece of a type's sweep as a tensor; rank 0 after the last piece. */
struct tensor sweep_piece(enum dtype dtype, uint32_t piece);

#endif
