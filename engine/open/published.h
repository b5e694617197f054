/* Makes components with published sizes, without files (--family). Their indexes list tensor names, shapes
 * and types, as a plan needs. */
#ifndef SLUICE_OPEN_PUBLISHED_H
#define SLUICE_OPEN_PUBLISHED_H

#include "engine/open/sizes.h"
#include "engine/sluice.h"

/* Binds a component in bf16 for each slot of the recipe that the options do not disable. component: SLOTS_MAX
 * entries, to be destroyed also after failure. The components' weights cannot be read, because there are no
 * files. *tokenizer_bytes: estimated memory of the tokenizers. MEMORY, or a family's error about inconsistent
 * sizes. */
enum status published_bind(struct sys *sys, const struct recipe *recipe, const struct sizes *sizes,
                           const struct sluice_model_options *options, struct component *component,
                           uint64_t *tokenizer_bytes, struct error *e);

#endif
