/* Prompts: see prompt.h. */
#include "engine/open/prompt.h"

#include "engine/open/windows.h"

#include <string.h>

static enum status check_special(const struct tokenizer *tokenizer, const char *token, struct error *e) {
    if (!token || tokenizer_special(tokenizer, token) >= 0) return e->code;
    error_set(e, META, "the tokenizer lacks the token '%s'", token);
    return error_expected(e, "it among the added tokens: prompts are seen with it");
}

enum status prompt_check(const struct text_recipe *recipe, const struct tokenizer *tokenizer,
                         struct error *e) {
    const char *kind = tokenizer_kind(tokenizer);
    if (strcmp(kind, recipe->tokenizer) != 0) {
        error_set(e, META, "the tokenizer is of another kind");
        error_found(e, "%s", kind);
        return error_expected(e, "%s", recipe->tokenizer);
    }
    for (int i = 0; recipe->special[i]; i++) check_special(tokenizer, recipe->special[i], e);
    check_special(tokenizer, recipe->first, e);
    check_special(tokenizer, recipe->last, e);
    return check_special(tokenizer, recipe->pad, e);
}

/* The ids of the prompt with the text around it. */
static enum status encode_text(struct sys *sys, const struct text_recipe *recipe,
                               const struct tokenizer *tokenizer, const char *text, size_t bytes,
                               struct prompt_tokens *tokens, struct error *e) {
    const char *before = recipe->template_before ? recipe->template_before : "";
    const char *after = recipe->template_after ? recipe->template_after : "";
    size_t before_bytes = strlen(before), after_bytes = strlen(after);
    char *whole = sys->alloc(sys, LINE_HOST, before_bytes + bytes + after_bytes + 1);
    if (!whole) return error_set(e, MEMORY, "no memory for a prompt of %zu bytes", bytes);
    memcpy(whole, before, before_bytes);
    memcpy(whole + before_bytes, text, bytes);
    memcpy(whole + before_bytes + bytes, after, after_bytes);
    tokenizer_encode(tokenizer, whole, before_bytes + bytes + after_bytes, &tokens->ids, &tokens->n_ids, e);
    sys->release(sys, whole);
    return e->code;
}

static bool is_framed(const struct text_recipe *recipe) {
    return recipe->first || recipe->last || recipe->pad || recipe->pads_with_0;
}

static bool pads(const struct text_recipe *recipe) {
    return recipe->pad || recipe->pads_with_0;
}

int32_t prompt_pad(const struct text_recipe *recipe, const struct tokenizer *tokenizer) {
    if (tokenizer_pad(tokenizer) >= 0) return tokenizer_pad(tokenizer);
    return recipe->pad ? tokenizer_special(tokenizer, recipe->pad) : 0;
}

/* The first `last`, as transformers finds the end of a prompt. */
static int find_last(const struct prompt_tokens *tokens, int32_t last) {
    int i = 0;
    while (i + 1 < tokens->n_ids && tokens->ids[i] != last) i++;
    return i;
}

/* Tokens around the content, of which the first are kept, and padding behind it. */
static enum status frame(struct sys *sys, const struct text_recipe *recipe, const struct tokenizer *tokenizer,
                         struct prompt_tokens *tokens, struct error *e) {
    int around = (recipe->first != NULL) + (recipe->last != NULL), content = tokens->n_ids, n = 0;
    if (content > recipe->tokens_max - around) content = recipe->tokens_max - around;
    int n_ids = pads(recipe) ? recipe->tokens_max : content + around;
    int32_t *ids = sys->alloc(sys, LINE_HOST, (size_t)(n_ids + 1) * sizeof *ids);
    if (!ids) return error_set(e, MEMORY, "no memory for %d tokens", n_ids);
    int32_t last = recipe->last ? tokenizer_special(tokenizer, recipe->last) : -1;
    if (recipe->first) ids[n++] = tokenizer_special(tokenizer, recipe->first);
    for (int i = 0; i < content; i++) ids[n++] = tokens->ids[i];
    if (recipe->last) ids[n++] = last;
    while (n < n_ids) ids[n++] = prompt_pad(recipe, tokenizer);
    tokens->cut = content < tokens->n_ids;
    sys->release(sys, tokens->ids);
    tokens->ids = ids;
    tokens->n_ids = n_ids;
    if (recipe->last) tokens->pooled_row = find_last(tokens, last);
    return OK;
}

enum status prompt_encode(struct sys *sys, const struct text_recipe *recipe,
                          const struct tokenizer *tokenizer, const char *text, size_t bytes, bool weighs,
                          struct prompt_tokens *tokens, struct error *e) {
    *tokens = (struct prompt_tokens){0};
    if (recipe->windows_max) {
        if (windows_encode(sys, recipe, tokenizer, text, bytes, weighs, tokens, e) == OK)
            tokens->pooled_row = find_last(tokens, tokenizer_special(tokenizer, recipe->last));
        return e->code;
    }
    if (encode_text(sys, recipe, tokenizer, text, bytes, tokens, e) != OK) return e->code;
    if (is_framed(recipe)) return frame(sys, recipe, tokenizer, tokens, e);
    tokens->cut = tokens->n_ids > recipe->tokens_max;
    if (tokens->cut) tokens->n_ids = recipe->tokens_max;
    return OK;
}

void prompt_destroy(struct sys *sys, struct prompt_tokens *tokens) {
    sys->release(sys, tokens->ids);
    sys->release(sys, tokens->weights);
    *tokens = (struct prompt_tokens){0};
}
