/* Every operator that takes weights, with each stored type and with the f32 that it stands for: the bits must
 * be the same. The same for every device; the program that includes this brings its watching device. */
#ifndef SLUICE_TEST_QUANTISED_OPS_H
#define SLUICE_TEST_QUANTISED_OPS_H

#include "test/lib/ops_operands.h"
#include "test/lib/quantised_vectors.h"

extern bool small_operands; /* where an operator takes long */

void same_linear(enum dtype dtype, int32_t t, int32_t n, int32_t k);
void same_everywhere(enum dtype dtype);
void same_convolutions(enum dtype dtype);

#endif
