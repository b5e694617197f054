/* What stands before a module's name in an adapter, and so whose module it is: trainers' prefixes for each
 * kind of component, and the slots of a recipe that they mean. */
#ifndef SLUICE_OPEN_ADAPTER_PREFIXES_H
#define SLUICE_OPEN_ADAPTER_PREFIXES_H

#include "engine/open/adapter_file.h"

enum { ADAPTER_PREFIXES_MAX = 15 };

/* The prefixes that an adapter's modules for each slot may have; without any nothing of it is for the slot.
 * Of several denoisers of one family an adapter is for those that its prefixes ("transformer_2.") or its
 * file's name ("high_noise", or "high" at its end) or its folder's say, else for all. */
struct adapter_prefixes {
    const char *of[SLOTS_MAX][ADAPTER_PREFIXES_MAX + 1]; /* NULL-terminated */
    const struct slot *named; /* the only denoiser that it is for, by its file's or folder's name; or NULL */
    bool for_all;             /* nothing says which of several denoisers it is for */
};
void adapter_find_prefixes(const struct adapter *adapter, const struct recipe *recipe,
                           struct adapter_prefixes *prefixes);

/* What stands behind a prefix, and behind peft's own after it; NULL: the name does not begin so. */
const char *adapter_behind_prefix(const char *name, const char *prefix);

#endif
