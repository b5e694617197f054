/* Do an adapter's tensors fit the weights that they are for? Axes are compared, but for those of 1. */
#ifndef SLUICE_OPEN_ADAPTER_SHAPES_H
#define SLUICE_OPEN_ADAPTER_SHAPES_H

#include "engine/open/adapter_changes.h"
#include "engine/open/adapter_derive.h"

/* size: of what is multiplied out; of anything else zeros. SHAPE, naming what was found and expected;
 * OVERFLOW. */
enum status change_check_shape(const struct adapter *adapter, const struct change *change,
                               struct derived_size *size, struct error *e);

#endif
