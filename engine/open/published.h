/* Components as they are published, without files: indexes of tensors that lie nowhere, for plans, which need
 * their names, shapes and types alone. */
#ifndef SLUICE_OPEN_PUBLISHED_H
#define SLUICE_OPEN_PUBLISHED_H

#include "engine/open/sizes.h"
#include "engine/sluice.h"

/* Binds the component of each slot of the recipe, in bf16: what families read of files they read of these
 * indexes; none of slots that the options leave out. component: SLOTS_MAX, to be destroyed also after a
 * failure; nothing can be read of their sources. tokenizer_bytes: what tokenizers of their embeddings' sizes
 * take, roughly. MEMORY, or what a family says of sizes that do not fit each other. */
enum status published_bind(struct sys *sys, const struct recipe *recipe, const struct sizes *sizes,
                           const struct sluice_model_options *options, struct component *component,
                           uint64_t *tokenizer_bytes, struct error *e);

#endif
