/* Finds the tokenizers of a pipeline's text encoders, each of the kind in its recipe. Places, in order:
 * --tokenizer; the model's folder; the encoder's own file (GGUF metadata, or a tensor `spiece_model`); the
 * folder of an encoder's file. The model's folder precedes the encoder's file because it has more of the
 * added tokens. The folder of an encoder's file comes last because its files may belong to another model. */
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
    uint64_t open_bytes; /* largest temporary memory that opening a tokenizer took */
};

/* Opens the tokenizer of this slot's text encoder; free with tokenizer_close. MISSING: none found. META:
 * --tokenizer has another kind, or the tokenizer lacks a token of the recipe. */
enum status tokenizer_find(struct tokenizer_search *search, int slot, struct tokenizer **tokenizer,
                           struct error *e);

/* Fails with META if --tokenizer was given and no encoder uses it. Call after all searches. */
enum status tokenizer_check_flag(const struct tokenizer_search *search, struct error *e);

#endif
