/* Parts of tensors as text, in test data (test/golden/block_tests.py): slices as in numpy, then a permutation
 * of the axes as in einsum. "[0,:,2:8:3] yx->xy" is index 0 of the first axis, all of the second, every third
 * of indices 2 to 7 of the third, with the two remaining axes exchanged. "" is the whole tensor. */
#ifndef SLUICE_TEST_TENSOR_NOTATION_H
#define SLUICE_TEST_TENSOR_NOTATION_H

#include "engine/base/tensor.h"

/* Returns a packed copy of the part, in test memory. */
struct tensor notation_read(struct tensor from, const char *part);

/* Writes the values of the packed tensor `from` to the part of `to`, which has as many elements. */
void notation_write(struct tensor to, const char *part, struct tensor from);

#endif
