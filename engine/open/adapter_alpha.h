/* Reads the alpha of each module of an adapter, and computes its scale alpha / rank. */
#ifndef SLUICE_OPEN_ADAPTER_ALPHA_H
#define SLUICE_OPEN_ADAPTER_ALPHA_H

#include "engine/open/adapter_file.h"

/* Sets alpha and scale of every module; tensors and rank must be set. Sources: scalar tensors of the file,
 * else peft's configuration in the file's metadata or in adapter_config.json next to the file. META: not
 * finite. SHAPE: no scalar. UNSUPPORTED: an alpha_pattern that is a regular expression. */
enum status adapter_read_alphas(struct adapter *adapter, struct error *e);

#endif
