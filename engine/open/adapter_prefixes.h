/* Prefixes of module names in adapters ("lora_unet_", "transformer."), which select a component. */
#ifndef SLUICE_OPEN_ADAPTER_PREFIXES_H
#define SLUICE_OPEN_ADAPTER_PREFIXES_H

#include "engine/open/adapter_file.h"

enum { ADAPTER_PREFIXES_MAX = 15 };

/* Possible prefixes for each slot; none: the adapter does not apply to the slot. If a recipe has two
 * denoisers of one family, the prefixes ("transformer_2.") choose one, else the name of the adapter's file or
 * folder does ("high_noise", or "high" at the end), else the adapter applies to both. */
struct adapter_prefixes {
    const char *of[SLOTS_MAX][ADAPTER_PREFIXES_MAX + 1]; /* prefixes of each slot, NULL-terminated */
    const struct slot *named; /* the only denoiser that the file's or folder's name allows; or NULL */
    bool for_all;             /* the adapter applies to both denoisers: no prefix or name chooses one */
};
void adapter_find_prefixes(const struct adapter *adapter, const struct recipe *recipe,
                           struct adapter_prefixes *prefixes);

/* Removes the prefix, and peft's "base_model.model." before it, from a module name. NULL: the name has
 * another prefix. */
const char *adapter_after_prefix(const char *name, const char *prefix);

#endif
