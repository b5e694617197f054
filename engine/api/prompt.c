/* Prompts: see prompt.h. */
#include "engine/api/prompt.h"

#include <string.h>

enum status prompt_check(const struct text_recipe *recipe, const struct tokenizer *tokenizer,
                         struct error *e) {
    for (int i = 0; recipe->special[i]; i++) {
        if (tokenizer_special(tokenizer, recipe->special[i]) >= 0) continue;
        error_set(e, META, "the tokenizer lacks the token '%s'", recipe->special[i]);
        return error_expected(e, "it among the added tokens: the template of prompts needs it");
    }
    return OK;
}

enum status prompt_encode(struct sys *sys, const struct text_recipe *recipe,
                          const struct tokenizer *tokenizer, const char *text, size_t bytes,
                          struct prompt_tokens *tokens, struct error *e) {
    size_t before = strlen(recipe->template_before), after = strlen(recipe->template_after);
    char *whole = sys->alloc(sys, LINE_HOST, before + bytes + after + 1);
    if (!whole) return error_set(e, MEMORY, "no memory for a prompt of %zu bytes", bytes);
    memcpy(whole, recipe->template_before, before);
    memcpy(whole + before, text, bytes);
    memcpy(whole + before + bytes, recipe->template_after, after);
    tokenizer_encode(tokenizer, whole, before + bytes + after, &tokens->ids, &tokens->n_ids, e);
    sys->release(sys, whole);
    tokens->cut = e->code == OK && tokens->n_ids > recipe->tokens_max;
    if (tokens->cut) tokens->n_ids = recipe->tokens_max;
    return e->code;
}
