/* Edits of a tensor set that are written as text: the renamings from diffusers' names to those of published
 * checkpoints, and the changes that make a model invalid. test/models/layouts/README.md lists the edits. */
#ifndef SLUICE_TEST_TENSOR_EDITS_H
#define SLUICE_TEST_TENSOR_EDITS_H

#include "test/lib/tensor_set.h"

/* Defines the list of edits that the edit "as NAME" applies. The words must stay valid. */
void tensor_edits_define(const char *name, const char *const *words, int n);

/* Applies the edits to the set; the word ";" separates them. Each edit must change a tensor or the
 * configuration, except those of a list that "as" applies, because fixtures with fewer tensors share a list.
 */
void tensor_set_edit(struct tensor_set *p, const char *const *words, int n);

#endif
