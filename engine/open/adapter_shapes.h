/* Compares the shapes of an adapter's tensors with those of the weights, ignoring axes of length 1. */
#ifndef SLUICE_OPEN_ADAPTER_SHAPES_H
#define SLUICE_OPEN_ADAPTER_SHAPES_H

#include "engine/open/adapter_changes.h"
#include "engine/open/adapter_derive.h"

/* Checks that the tensors of one change fit the weight. *size: sizes of the factors in LoRA form; all 0 if
 * the module is a plain LoRA, which needs no conversion. Fails with SHAPE, or with OVERFLOW if a size exceeds
 * 2^31. */
enum status change_check_shape(const struct adapter *adapter, const struct change *change,
                               struct derived_size *size, struct error *e);

#endif
