/* Encodes a prompt to tokens: adds the recipe's template, splits long prompts into windows or truncates them,
 * and inserts placeholder tokens for images. */
#ifndef SLUICE_OPEN_PROMPT_H
#define SLUICE_OPEN_PROMPT_H

#include "loaders/tokenizer/tokenizer.h"
#include "models/models.h"

struct prompt_tokens {
    int32_t *ids;
    float *weights; /* weight of each token; NULL: all 1 */
    int n_ids;
    int window;   /* tokens per window; 0: one window with all tokens */
    bool cut;     /* the text was truncated */
    int drop_idx; /* number of leading tokens (the template's) whose embeddings are dropped before the
                     denoiser */
    int picture[LANE_REFERENCES_MAX]; /* index in ids of the first vision token of each image */
    int pooled_row; /* index in ids of the first `eos` token, whose hidden state is the pooled embedding */
};

/* Checks that a tokenizer suits a recipe. META: the tokenizer has another kind, or would split a special
 * token of the recipe into several tokens because its vocabulary lacks the token. */
enum status prompt_check(const struct text_recipe *recipe, const struct tokenizer *tokenizer,
                         struct error *e);

/* Id of the padding token: from the tokenizer's configuration, else from the recipe. */
int32_t prompt_pad(const struct text_recipe *recipe, const struct tokenizer *tokenizer);

/* Encodes a prompt of `bytes` bytes. use_emphasis: parse emphasis such as "(word:1.3)" (emphasis.h), for
 * recipes with windows. Destroy tokens also after failure. */
enum status prompt_encode(struct sys *sys, const struct text_recipe *recipe,
                          const struct tokenizer *tokenizer, const char *text, size_t bytes,
                          bool use_emphasis, struct prompt_tokens *tokens, struct error *e);
/* As prompt_encode, for recipes whose text encoder reads images. pictures: number of vision tokens, at least
 * 1, of each of the n_pictures images. */
enum status prompt_encode_pictured(struct sys *sys, const struct text_recipe *recipe,
                                   const struct tokenizer *tokenizer, const char *text, size_t bytes,
                                   const int32_t *pictures, int n_pictures, struct prompt_tokens *tokens,
                                   struct error *e);
void prompt_destroy(struct sys *sys, struct prompt_tokens *tokens);

#endif
