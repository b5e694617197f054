/* What an adapter's products are multiplied by. */
#ifndef SLUICE_OPEN_ADAPTER_ALPHA_H
#define SLUICE_OPEN_ADAPTER_ALPHA_H

#include "engine/open/adapter_file.h"

/* Sets alpha and scale of every module, whose tensors and rank are set: from scalars beside its factors, else
 * from what peft says of itself, in the file's metadata or in adapter_config.json beside it. META for one
 * that is no finite number, SHAPE for one that is no scalar, UNSUPPORTED for patterns that are more than
 * names. */
enum status adapter_read_alphas(struct adapter *adapter, struct error *e);

#endif
