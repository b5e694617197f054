/* The tokenizers of a pipeline's text encoders: each is where --tokenizer says, in the model's folder, in the
 * encoder's own file (a GGUF file's metadata, or a tensor `spiece_model`), or beside an encoder, in this
 * order, and of the kind that its recipe wants. What a model's folder has says more of added tokens than an
 * encoder's file does; a file that merely lies beside the encoder may be another model's. */
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
    bool flag_serves;    /* --tokenizer had one of them */
    uint64_t open_bytes; /* the most that opening one needed for a while */
};

/* The tokenizer of this slot's text encoder, for tokenizer_close. MISSING where there is none, META where it
 * is of another kind or lacks a token of the recipe. */
enum status tokenizer_find(struct tokenizer_search *search, int slot, struct tokenizer **tokenizer,
                           struct error *e);

/* After all were found: META if --tokenizer is given and had none of them. */
enum status tokenizer_check_flag(const struct tokenizer_search *search, struct error *e);

#endif
