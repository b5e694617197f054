/* A prompt as the model sees it: the recipe's template around it, its tokens, cut to the longest. */
#ifndef SLUICE_API_PROMPT_H
#define SLUICE_API_PROMPT_H

#include "loaders/tokenizer.h"
#include "models/models.h"

struct prompt_tokens {
    int32_t *ids; /* freed with sys->release */
    int n_ids;
    bool cut; /* the text was longer than the model sees */
};

/* META when the tokenizer lacks a token of the recipe's template, which would be spelled out in other tokens.
 */
enum status prompt_check(const struct recipe *recipe, const struct tokenizer *tokenizer, struct error *e);

enum status prompt_encode(struct sys *sys, const struct recipe *recipe, const struct tokenizer *tokenizer,
                          const char *text, size_t bytes, struct prompt_tokens *tokens, struct error *e);

#endif
