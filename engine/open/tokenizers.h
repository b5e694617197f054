/* Finds the tokenizers of a pipeline's text encoders, of the kinds that the recipe requires. Places searched,
 * in order:
 * --tokenizer; the model's folder; the encoder's own file (GGUF metadata, or a tensor `spiece_model` or
 * `tekken_model`); the folder of an encoder's file. The model's folder comes before the encoder's file
 * because the folder's tokenizer has more added tokens. The folder of an encoder's file comes last because
 * other files in the folder may belong to another model. */
#ifndef SLUICE_OPEN_TOKENIZERS_H
#define SLUICE_OPEN_TOKENIZERS_H

#include "engine/open/component_files.h"
#include "engine/sluice.h"
#include "loaders/tokenizer/tokenizer.h"

struct tokenizer_search {
    struct sys *sys;
    const struct sluice_model_options *options;
    const struct component_files *files;
    const struct recipe *recipe;
    bool flag_used;      /* a tokenizer was found at the path of --tokenizer */
    uint64_t open_bytes; /* largest temporary memory, in bytes, needed to open one of the tokenizers */
};

/* Opens the tokenizer for the text encoder in a slot; free with tokenizer_close. MISSING: no tokenizer found.
 * META: the tokenizer at --tokenizer has another kind, or the tokenizer lacks a token of the recipe. */
enum status tokenizer_find(struct tokenizer_search *search, int slot, struct tokenizer **tokenizer,
                           struct error *e);

/* Fails with META if --tokenizer was given and no encoder uses it. Call after all searches. */
enum status tokenizer_check_flag(const struct tokenizer_search *search, struct error *e);

#endif
