/* Reads the alpha of each module of an adapter, and computes its scale alpha / rank. */
#ifndef SLUICE_OPEN_ADAPTER_ALPHA_H
#define SLUICE_OPEN_ADAPTER_ALPHA_H

#include "engine/open/adapter_file.h"

/* Sets alpha and scale of every module whose tensors and rank are set. Reads alpha from scalar tensors of the
 * file, else from peft's configuration in the file's metadata or in adapter_config.json next to the file.
 * META: alpha is not finite. SHAPE: alpha is not a scalar. UNSUPPORTED: an alpha_pattern that is a regular
 * expression. */
enum status adapter_read_alphas(struct adapter *adapter, struct error *e);

#endif
