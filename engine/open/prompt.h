/* Encodes a prompt to tokens: cleans the text, adds the recipe's template, splits long prompts into windows
 * or truncates them, and inserts placeholder tokens for images. */
#ifndef SLUICE_OPEN_PROMPT_H
#define SLUICE_OPEN_PROMPT_H

#include "loaders/tokenizer/tokenizer.h"
#include "models/models.h"

struct prompt_tokens {
    int32_t *ids;
    float *weights; /* emphasis weight of each token; NULL: all weights are 1 */
    int n_ids;
    int window; /* tokens per window; 0: one window with all tokens */
    bool cut;   /* true if the prompt was truncated */
    /* Tokens that the encoder's attention reads as keys: n_keys from first_key on
     * (text_recipe.masks_padding). n_keys 0: all tokens. */
    int first_key, n_keys;
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

/* Finds the number of tokens of the longest prompt of one window without images. It is tokens_max unless the
 * tokenizer splits template_after into another number of tokens than template_after_tokens. tokenizer NULL:
 * the published one. MEMORY. */
enum status prompt_longest(struct sys *sys, const struct text_recipe *recipe,
                           const struct tokenizer *tokenizer, int *n_ids, struct error *e);

/* Encodes a prompt of `bytes` bytes. use_emphasis: parse emphasis such as "(word:1.3)" (prompt_syntax.h), for
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

/* Cleans a prompt as WAN's pipelines do before tokenizing: decodes HTML character references twice, collapses
 * white space, and strips it at the ends.
 *
 * References: all numbers ("&#38;", "&#x26;"), and the names amp, lt, gt, quot, apos and nbsp. Other names
 * ("&eacute;", "&clubs;") stay as they are; html.unescape and ftfy decode all 2,231 names of HTML 5.
 *
 * Source: diffusers 0.42, pipelines/wan/pipeline_wan.py, prompt_clean. With ftfy installed, diffusers repairs
 * the text first. Of ftfy's changes to valid text only straight quotes are done here: the tokenizer's
 * normalisation does the rest (ligatures, wide letters, composed accents, control characters). Wrongly
 * decoded text ("cafÃ©") stays as it is.
 *
 * Returns the cleaned prompt in *cleaned, *cleaned_bytes bytes, freed with sys->release; NULL after failure.
 * MEMORY; errors of tokenizer_check_text (invalid UTF-8). */
enum status prompt_clean(struct sys *sys, const char *text, size_t bytes, char **cleaned,
                         size_t *cleaned_bytes, struct error *e);

#endif
