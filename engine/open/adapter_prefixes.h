/* Prefixes of module names in adapters ("lora_unet_", "transformer."), which select a component. */
#ifndef SLUICE_OPEN_ADAPTER_PREFIXES_H
#define SLUICE_OPEN_ADAPTER_PREFIXES_H

#include "engine/open/adapter_file.h"

enum { ADAPTER_PREFIXES_MAX = 15 };

/* Possible prefixes of module names for each slot; a slot without prefixes is not adapted. If a recipe has
 * two denoisers of one family, prefixes ("transformer_2.") select the denoiser. Without such prefixes the
 * name of the adapter's file or folder selects it ("high_noise", or "high" at the end). Otherwise the adapter
 * applies to both denoisers. */
struct adapter_prefixes {
    const char *of[SLOTS_MAX][ADAPTER_PREFIXES_MAX + 1]; /* prefixes of each slot, NULL-terminated */
    const struct slot *named; /* the denoiser selected by the name of the adapter's file or folder; or NULL */
    bool for_all; /* the adapter applies to both denoisers: no prefix or file name selects one denoiser */
};
void adapter_find_prefixes(const struct adapter *adapter, const struct recipe *recipe,
                           struct adapter_prefixes *prefixes);

/* Removes the prefix, and peft's "base_model.model." before it, from a module name. NULL: the name has
 * another prefix. */
const char *adapter_after_prefix(const char *name, const char *prefix);

#endif
