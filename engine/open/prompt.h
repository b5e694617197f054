/* A prompt as the model sees it: the recipe's template around it, its tokens, in windows or cut to the
 * longest, with places for pictures among them. */
#ifndef SLUICE_OPEN_PROMPT_H
#define SLUICE_OPEN_PROMPT_H

#include "loaders/tokenizer/tokenizer.h"
#include "models/models.h"

struct prompt_tokens {
    int32_t *ids;
    float *weights; /* of each token; NULL: all weigh 1 */
    int n_ids;
    int window;                       /* of so many tokens each; 0: there is one */
    bool cut;                         /* the text was longer than the model sees */
    int dropped;                      /* of the first ids, whose rows denoisers do not see */
    int picture[LANE_REFERENCES_MAX]; /* the place of the first token of each picture */
    int pooled_row;                   /* the place of the recipe's first `last` token, if it has one */
};

/* META when the tokenizer lacks a token of the recipe, which would be spelled out in other tokens, or is of
 * another kind. */
enum status prompt_check(const struct text_recipe *recipe, const struct tokenizer *tokenizer,
                         struct error *e);

/* What shorter texts are padded with: as the tokenizer's folder says, else the recipe. */
int32_t prompt_pad(const struct text_recipe *recipe, const struct tokenizer *tokenizer);

/* weighs: where the recipe has windows, marks in the text weigh its words (emphasis.h). To be destroyed also
 * after failure. */
enum status prompt_encode(struct sys *sys, const struct text_recipe *recipe,
                          const struct tokenizer *tokenizer, const char *text, size_t bytes, bool weighs,
                          struct prompt_tokens *tokens, struct error *e);
/* The same of a recipe that is told pictures, with so many of them, and with so many tokens in the place of
 * each: 1 or more. */
enum status prompt_encode_pictured(struct sys *sys, const struct text_recipe *recipe,
                                   const struct tokenizer *tokenizer, const char *text, size_t bytes,
                                   const int32_t *pictures, int n_pictures, struct prompt_tokens *tokens,
                                   struct error *e);
void prompt_destroy(struct sys *sys, struct prompt_tokens *tokens);

#endif
