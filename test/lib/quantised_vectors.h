/* The golden vectors of stored types and their sweeps, as test/golden/quantised.py makes and describes them.
 */
#ifndef SLUICE_TEST_QUANTISED_VECTORS_H
#define SLUICE_TEST_QUANTISED_VECTORS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "loaders/loaders.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { N_QUANTISED = 22 };

/* Every type that takes blocks or scales to tell. */
extern const enum dtype quantised_types[N_QUANTISED];

/* Where tensors go; the program that includes this says so, and gives it back. */
extern void *(*quantised_take)(size_t bytes);

struct quantised {
    struct tensor weights, values; /* a matrix, and the f32 that it stands for */
    unsigned char sweep[32];       /* SHA-256 of what the sweep stands for */
};

struct quantised quantised_read(enum dtype dtype);

/* NaN as the files have it. */
void quantised_settle(float *values, int64_t n);

/* --- sweeps --- */

enum { SWEEP_BLOCKS = 1 << 12 }; /* in one piece */

/* Where a block's scales lie: f16 places (second: dmin, -1: none) or so many bytes in front. */
struct sweep {
    int f16[2], bytes;
    uint32_t blocks; /* of it in all */
};

struct sweep sweep_of(enum dtype dtype);

/* Piece i of a type's sweep as a tensor; rank 0 where it has ended. */
struct tensor sweep_piece(enum dtype dtype, uint32_t piece);

#endif
