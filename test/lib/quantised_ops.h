/* Runs every operator with quantised weights of each stored type, and with the f32 values of these weights:
 * the results must be bit-identical. Works for every device; the including program brings a device that
 * records results. */
#ifndef SLUICE_TEST_QUANTISED_OPS_H
#define SLUICE_TEST_QUANTISED_OPS_H

#include "test/lib/ops_operands.h"
#include "test/lib/quantised_vectors.h"

extern bool small_operands; /* tests use small operands, for slow devices */

void same_linear(enum dtype dtype, int32_t t, int32_t n, int32_t k);
void same_everywhere(enum dtype dtype);
void same_convolutions(enum dtype dtype);

#endif
