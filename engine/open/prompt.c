#include "engine/open/prompt.h"

#include "engine/open/prompt_clean.h"
#include "engine/open/prompt_windows.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

static enum status check_special(const struct tokenizer *tokenizer, const char *token, struct error *e) {
    if (!token || tokenizer_special(tokenizer, token) >= 0) return e->code;
    return error_set(e, META,
                     "the tokenizer lacks the token '%s'" EXPECTED
                     "the model's own tokenizer, whose added tokens include it",
                     token);
}

enum status prompt_check(const struct text_recipe *recipe, const struct tokenizer *tokenizer,
                         struct error *e) {
    const char *kind = tokenizer_kind(tokenizer);
    if (strcmp(kind, recipe->tokenizer) != 0) {
        return error_set(e, META, "wrong kind of tokenizer for this model" FOUND "%s" EXPECTED "%s", kind,
                         recipe->tokenizer);
    }
    for (int i = 0; recipe->special_tokens[i]; i++) check_special(tokenizer, recipe->special_tokens[i], e);
    check_special(tokenizer, recipe->bos, e);
    check_special(tokenizer, recipe->eos, e);
    check_special(tokenizer, recipe->image_prompt.pad, e);
    return check_special(tokenizer, recipe->pad, e);
}

/* A text under construction; if `at` is NULL the bytes are only counted. */
struct text_builder {
    char *at;
    size_t bytes;
};

static void append(struct text_builder *whole, const char *text, size_t bytes) {
    if (whole->at && bytes) memcpy(whole->at + whole->bytes, text, bytes);
    whole->bytes += bytes;
}

/* Appends a text after replacing its %d by a number. text NULL: appends nothing. */
static void append_template(struct text_builder *whole, const char *text, int number) {
    const char *mark = text ? strstr(text, "%d") : NULL;
    char digits[16];
    if (!text) return;
    if (!mark) return append(whole, text, strlen(text));
    append(whole, text, (size_t)(mark - text));
    append(whole, digits, (size_t)snprintf(digits, sizeof digits, "%d", number));
    append(whole, mark + 2, strlen(mark + 2));
}

/* Writes the prompt with its template, and one placeholder token for each image. */
static void write_prompt(struct text_builder *whole, const struct text_recipe *recipe, const char *text,
                         size_t bytes, int n_pictures) {
    const struct image_prompt *pictured = &recipe->image_prompt;
    append_template(whole, n_pictures ? pictured->template_before : recipe->template_before, 0);
    for (int i = 0; i < n_pictures; i++) {
        append_template(whole, pictured->before, i + 1);
        append_template(whole, pictured->pad, 0);
        append_template(whole, pictured->after, i + 1);
    }
    append(whole, text, bytes);
    append_template(whole, recipe->template_after, 0);
}

static enum status encode_written(struct sys *sys, const struct text_recipe *recipe,
                                  const struct tokenizer *tokenizer, const char *text, size_t bytes,
                                  int n_pictures, struct prompt_tokens *tokens, struct error *e) {
    struct text_builder whole = {0};
    write_prompt(&whole, recipe, text, bytes, n_pictures);
    whole.at = sys->alloc(sys, LINE_HOST, whole.bytes + 1);
    whole.bytes = 0;
    if (!whole.at) return error_set(e, MEMORY, "no memory for a prompt of %zu bytes", bytes);
    write_prompt(&whole, recipe, text, bytes, n_pictures);
    tokenizer_encode(tokenizer, whole.at, whole.bytes, &tokens->ids, &tokens->n_ids, e);
    tokens->drop_idx = n_pictures ? recipe->image_prompt.drop_idx : recipe->drop_idx;
    sys->release(sys, whole.at);
    return e->code;
}

static enum status encode_text(struct sys *sys, const struct text_recipe *recipe,
                               const struct tokenizer *tokenizer, const char *text, size_t bytes,
                               int n_pictures, struct prompt_tokens *tokens, struct error *e) {
    char *cleaned = NULL;
    if (recipe->clean_html && prompt_clean(sys, text, bytes, &cleaned, &bytes, e) != OK) return e->code;
    encode_written(sys, recipe, tokenizer, cleaned ? cleaned : text, bytes, n_pictures, tokens, e);
    sys->release(sys, cleaned);
    return e->code;
}

static bool has_special_tokens(const struct text_recipe *recipe) {
    return recipe->bos || recipe->eos || recipe->pad || recipe->pad_with_id_0;
}

static bool pads(const struct text_recipe *recipe) {
    return recipe->pad || recipe->pad_with_id_0;
}

int32_t prompt_pad(const struct text_recipe *recipe, const struct tokenizer *tokenizer) {
    if (tokenizer_pad(tokenizer) >= 0) return tokenizer_pad(tokenizer);
    return recipe->pad ? tokenizer_special(tokenizer, recipe->pad) : 0;
}

/* Position of the first `eos` token, which transformers takes as the end of a prompt. */
static int find_last(const struct prompt_tokens *tokens, int32_t last) {
    int i = 0;
    while (i + 1 < tokens->n_ids && tokens->ids[i] != last) i++;
    return i;
}

/* Adds the recipe's `bos` and `eos` tokens and padding; truncates the content in between. */
static enum status add_special_tokens(struct sys *sys, const struct text_recipe *recipe,
                                      const struct tokenizer *tokenizer, struct prompt_tokens *tokens,
                                      struct error *e) {
    int n_special = (recipe->bos != NULL) + (recipe->eos != NULL), content = tokens->n_ids, n = 0;
    if (content > recipe->tokens_max - n_special) content = recipe->tokens_max - n_special;
    int n_ids = pads(recipe) ? recipe->tokens_max : content + n_special;
    int32_t *ids = sys->alloc(sys, LINE_HOST, (size_t)(n_ids + 1) * sizeof *ids);
    if (!ids) return error_set(e, MEMORY, "no memory for %d tokens", n_ids);
    int32_t last = recipe->eos ? tokenizer_special(tokenizer, recipe->eos) : -1;
    if (recipe->bos) ids[n++] = tokenizer_special(tokenizer, recipe->bos);
    for (int i = 0; i < content; i++) ids[n++] = tokens->ids[i];
    if (recipe->eos) ids[n++] = last;
    while (n < n_ids) ids[n++] = prompt_pad(recipe, tokenizer);
    tokens->cut = content < tokens->n_ids;
    sys->release(sys, tokens->ids);
    tokens->ids = ids;
    tokens->n_ids = n_ids;
    if (recipe->eos) tokens->pooled_row = find_last(tokens, last);
    return OK;
}

enum status prompt_encode(struct sys *sys, const struct text_recipe *recipe,
                          const struct tokenizer *tokenizer, const char *text, size_t bytes,
                          bool use_emphasis, struct prompt_tokens *tokens, struct error *e) {
    *tokens = (struct prompt_tokens){0};
    if (recipe->windows_max) {
        if (windows_encode(sys, recipe, tokenizer, text, bytes, use_emphasis, tokens, e) == OK)
            tokens->pooled_row = find_last(tokens, tokenizer_special(tokenizer, recipe->eos));
        tokens->drop_idx = recipe->drop_idx;
        return e->code;
    }
    if (encode_text(sys, recipe, tokenizer, text, bytes, 0, tokens, e) != OK) return e->code;
    if (has_special_tokens(recipe)) return add_special_tokens(sys, recipe, tokenizer, tokens, e);
    tokens->cut = tokens->n_ids > recipe->tokens_max;
    if (tokens->cut) tokens->n_ids = recipe->tokens_max;
    return OK;
}

/* Repeats each image's placeholder token to the image's number of tokens. The template's placeholders precede
 * the prompt, so the first n_pictures placeholder tokens stand for the images; further ones are part of the
 * prompt. */
static enum status insert_image_tokens(struct sys *sys, const char *token, int32_t pad,
                                       const int32_t *pictures, int n_pictures, struct prompt_tokens *tokens,
                                       struct error *e) {
    int n_ids = tokens->n_ids, found = 0, n = 0, at = 0;
    for (int i = 0; i < tokens->n_ids; i++) found += tokens->ids[i] == pad;
    if (found < n_pictures) { /* a longer added token matched first */
        return error_set(e, META, "the tokenizer does not recognise its image token '%s'" FOUND "%d of %d",
                         token, found, n_pictures);
    }
    for (int i = 0; i < n_pictures; i++) n_ids += pictures[i] - 1;
    int32_t *ids = sys->alloc(sys, LINE_HOST, (size_t)n_ids * sizeof *ids);
    if (!ids) return error_set(e, MEMORY, "no memory for %d tokens", n_ids);
    for (int i = 0; i < tokens->n_ids; i++) {
        bool stands = tokens->ids[i] == pad && n < n_pictures;
        if (stands) tokens->picture[n] = at;
        for (int k = stands ? pictures[n] : 1; k > 0; k--) ids[at++] = tokens->ids[i];
        n += stands;
    }
    assert(at == n_ids);
    sys->release(sys, tokens->ids);
    tokens->ids = ids;
    tokens->n_ids = n_ids;
    return OK;
}

enum status prompt_encode_pictured(struct sys *sys, const struct text_recipe *recipe,
                                   const struct tokenizer *tokenizer, const char *text, size_t bytes,
                                   const int32_t *pictures, int n_pictures, struct prompt_tokens *tokens,
                                   struct error *e) {
    *tokens = (struct prompt_tokens){0};
    if (encode_text(sys, recipe, tokenizer, text, bytes, n_pictures, tokens, e) != OK) return e->code;
    const char *pad = recipe->image_prompt.pad;
    return insert_image_tokens(sys, pad, tokenizer_special(tokenizer, pad), pictures, n_pictures, tokens, e);
}

void prompt_destroy(struct sys *sys, struct prompt_tokens *tokens) {
    sys->release(sys, tokens->ids);
    sys->release(sys, tokens->weights);
    *tokens = (struct prompt_tokens){0};
}
