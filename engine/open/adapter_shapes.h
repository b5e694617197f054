/* Compares the shapes of an adapter's tensors with those of the weights, ignoring axes of length 1. */
#ifndef SLUICE_OPEN_ADAPTER_SHAPES_H
#define SLUICE_OPEN_ADAPTER_SHAPES_H

#include "engine/open/adapter_changes.h"
#include "engine/open/adapter_derive.h"

/* Checks the shapes of one change. *size: sizes of the factors in LoRA form, zeros if the module needs no
 * conversion. SHAPE: the error has the shapes found and expected. OVERFLOW. */
enum status change_check_shape(const struct adapter *adapter, const struct change *change,
                               struct derived_size *size, struct error *e);

#endif
