/* Prefixes of module names in adapters ("lora_unet_", "transformer."), which select a component. */
#ifndef SLUICE_OPEN_ADAPTER_PREFIXES_H
#define SLUICE_OPEN_ADAPTER_PREFIXES_H

#include "engine/open/adapter_file.h"

enum { ADAPTER_PREFIXES_MAX = 15 };

/* Possible prefixes for each slot; none: the adapter does not apply to the slot. If a recipe has two
 * denoisers of one family, the adapter applies to the one given by its prefixes ("transformer_2."), else by
 * its file's or folder's name ("high_noise", or "high" at the end), else to both. */
struct adapter_prefixes {
    const char *of[SLOTS_MAX][ADAPTER_PREFIXES_MAX + 1]; /* NULL-terminated */
    const struct slot *named; /* the only denoiser it applies to, by its file's or folder's name; or NULL */
    bool for_all;             /* it applies to both denoisers: no prefix or name decides */
};
void adapter_find_prefixes(const struct adapter *adapter, const struct recipe *recipe,
                           struct adapter_prefixes *prefixes);

/* The name after the prefix, and after peft's "base_model.model." if present; NULL: another prefix. */
const char *adapter_after_prefix(const char *name, const char *prefix);

#endif
