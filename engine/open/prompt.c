/* Encodes prompts: implements prompt.h. */
#include "engine/open/prompt.h"

#include "engine/open/prompt_syntax.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <utf8proc.h>

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

/* Output text of a cleaning step. The buffer may be the buffer of the input, because no step makes a text
 * longer: the write position never passes the read position. */
struct cleaned_text {
    char *at;
    size_t bytes;
};

static void put(struct cleaned_text *out, const char *from, size_t bytes) {
    memmove(out->at + out->bytes, from, bytes);
    out->bytes += bytes;
}

static void put_code(struct cleaned_text *out, int32_t code) {
    utf8proc_uint8_t bytes[4];
    put(out, (const char *)bytes, (size_t)utf8proc_encode_char(code, bytes));
}

enum { REPLACEMENT = 0xFFFD, CODE_MOST = 0x10FFFF };

/* Code points of the bytes 0x80 to 0x9F in Windows code page 1252. */
static const int32_t code_page[32] = {0x20AC, 0x81,   0x201A, 0x192,  0x201E, 0x2026, 0x2020, 0x2021,
                                      0x2C6,  0x2030, 0x160,  0x2039, 0x152,  0x8D,   0x17D,  0x8F,
                                      0x90,   0x2018, 0x2019, 0x201C, 0x201D, 0x2022, 0x2013, 0x2014,
                                      0x2DC,  0x2122, 0x161,  0x203A, 0x153,  0x9D,   0x17E,  0x178};

static int digit_of(char c, int base) {
    int lower = c | 32, digit = c >= '0' && c <= '9'           ? c - '0'
                                : lower >= 'a' && lower <= 'f' ? lower - 'a' + 10
                                                               : 16;
    return digit < base ? digit : -1;
}

/* Decodes a numeric HTML character reference after its "&", such as "#38;" or "#x26;". Returns the length
 * read; 0: not a number. */
static size_t unescape_number(struct cleaned_text *out, const char *text, size_t bytes) {
    int base = bytes > 1 && (text[1] == 'x' || text[1] == 'X') ? 16 : 10;
    size_t first = base == 16 ? 2 : 1, n = first;
    int32_t code = 0;
    for (; n < bytes && digit_of(text[n], base) >= 0; n++)
        if (code <= CODE_MOST) code = code * base + digit_of(text[n], base);
    if (n == first) return 0;
    /* html.unescape drops control characters and codes that are no characters. */
    bool dropped = (code >= 1 && code <= 8) || code == 0xB || (code >= 0xE && code <= 0x1F) || code == 0x7F ||
                   (code >= 0xFDD0 && code <= 0xFDEF) || (code & 0xFFFE) == 0xFFFE;
    if (code >= 0x80 && code <= 0x9F)
        put_code(out, code_page[code - 0x80]);
    else if (!code || (code >= 0xD800 && code <= 0xDFFF) || code > CODE_MOST)
        put_code(out, REPLACEMENT);
    else if (!dropped)
        put_code(out, code);
    return n + (n < bytes && text[n] == ';');
}

/* Decodes a named HTML character reference after its "&", such as "amp;" or "amp". Returns the length read;
 * 0: unknown name. */
static size_t unescape_name(struct cleaned_text *out, const char *text, size_t bytes) {
    static const struct {
        const char *name;
        bool bare; /* HTML allows this name without a semicolon */
        int32_t code;
    } names[] = {{"amp", true, '&'},  {"lt", true, '<'},     {"gt", true, '>'},
                 {"quot", true, '"'}, {"apos", false, '\''}, {"nbsp", true, 0xA0}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t n = strlen(names[i].name);
        if (n > bytes || memcmp(text, names[i].name, n) != 0) continue;
        bool closed = n < bytes && text[n] == ';';
        if (!closed && !names[i].bare) return 0;
        put_code(out, names[i].code);
        return n + closed;
    }
    return 0;
}

/* Decodes the HTML character references in a text. Returns the length of the output. */
static size_t unescape(struct cleaned_text *out, const char *text, size_t bytes) {
    size_t from = 0;
    while (from < bytes) {
        const char *sign = memchr(text + from, '&', bytes - from);
        size_t plain = sign ? (size_t)(sign - text) - from : bytes - from;
        put(out, text + from, plain);
        from += plain + 1;
        if (from > bytes) break;
        bool numbered = from < bytes && text[from] == '#';
        size_t n = (numbered ? unescape_number : unescape_name)(out, text + from, bytes - from);
        if (!n) put(out, "&", 1);
        from += n;
    }
    return out->bytes;
}

static bool is_space(int32_t c) {
    return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
           c == 0x3000;
}

/* True for characters that Python's str.strip removes: white space and ASCII separators. */
static bool is_stripped(int32_t c) {
    return is_space(c) || (c >= 0x1C && c <= 0x1F);
}

/* Replaces runs of white space by one blank, strips both ends, and makes quotes straight. Returns the length
 * up to the last character that is not stripped. */
static size_t collapse(struct cleaned_text *out, const char *text, size_t bytes) {
    bool spaced = false;
    size_t kept = 0;
    for (size_t i = 0; i < bytes;) {
        utf8proc_int32_t c = 0;
        i += (size_t)utf8proc_iterate((const utf8proc_uint8_t *)text + i, (utf8proc_ssize_t)(bytes - i), &c);
        if (is_space(c) || (!kept && is_stripped(c))) {
            spaced = true;
            continue;
        }
        if (spaced && kept) put(out, " ", 1);
        spaced = false;
        if (c == 0x2BC || (c >= 0x2018 && c <= 0x201B)) c = '\'';
        if (c >= 0x201C && c <= 0x201F) c = '"';
        put_code(out, c);
        if (!is_stripped(c)) kept = out->bytes;
    }
    return kept;
}

enum status prompt_clean(struct sys *sys, const char *text, size_t bytes, char **cleaned,
                         size_t *cleaned_bytes, struct error *e) {
    *cleaned = NULL;
    if (tokenizer_check_text("text", text, bytes, bytes, e) != OK) return e->code;
    char *buffer = sys->alloc(sys, LINE_HOST, bytes + 1);
    if (!buffer) return error_set(e, MEMORY, "no memory for a prompt of %zu bytes", bytes);
    size_t once = unescape(&(struct cleaned_text){.at = buffer}, text, bytes);
    size_t twice = unescape(&(struct cleaned_text){.at = buffer}, buffer, once);
    *cleaned_bytes = collapse(&(struct cleaned_text){.at = buffer}, buffer, twice);
    *cleaned = buffer;
    return OK;
}

/* Removes white space at both ends of a text, as Python's str.strip. Invalid UTF-8 stays; the tokenizer
 * reports it. */
static void strip(const char **text, size_t *bytes) {
    const utf8proc_uint8_t *at = (const utf8proc_uint8_t *)*text;
    size_t first = 0, end = 0, n;
    for (size_t i = 0; i < *bytes; i += n) {
        utf8proc_int32_t c = 0;
        utf8proc_ssize_t length = utf8proc_iterate(at + i, (utf8proc_ssize_t)(*bytes - i), &c);
        bool stripped = length > 0 && is_stripped(c);
        n = length > 0 ? (size_t)length : 1;
        if (stripped && !end) first = i + n;
        if (!stripped) end = i + n;
    }
    *text += end ? first : 0;
    *bytes = end ? end - first : 0;
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

/* Appends a prompt and leaves out every occurrence of `deleted` (NULL: nothing is left out). */
static void append_prompt(struct text_builder *whole, const char *text, size_t bytes, const char *deleted) {
    size_t n = deleted ? strlen(deleted) : 0, from = 0;
    for (size_t i = 0; n && i + n <= bytes;) {
        bool found = !memcmp(text + i, deleted, n);
        if (found) append(whole, text + from, i - from);
        i += found ? n : 1;
        if (found) from = i;
    }
    append(whole, text + from, bytes - from);
}

/* Writes the prompt with its template, and one placeholder token for each image. */
static void write_prompt(struct text_builder *whole, const struct text_recipe *recipe, const char *text,
                         size_t bytes, int n_pictures) {
    const struct image_prompt *pictured = &recipe->image_prompt;
    append_template(whole, n_pictures ? pictured->template_before : recipe->template_before, 0);
    for (int i = 0; i < n_pictures; i++) {
        if (i) append_template(whole, pictured->between, 0);
        append_template(whole, pictured->before, i + 1);
        append_template(whole, pictured->pad, 0);
        append_template(whole, pictured->after, i + 1);
    }
    append_prompt(whole, text, bytes, recipe->deleted);
    if (!bytes) append_template(whole, recipe->empty, 0);
    if (!recipe->template_after_tokens) append_template(whole, recipe->template_after, 0);
}

/* Encodes a prompt of any length with its template. Cleans the prompt first if the recipe requires it. */
static enum status encode_text(struct sys *sys, const struct text_recipe *recipe,
                               const struct tokenizer *tokenizer, const char *text, size_t bytes,
                               int n_pictures, struct prompt_tokens *tokens, struct error *e) {
    char *cleaned = NULL;
    if (recipe->clean_html && prompt_clean(sys, text, bytes, &cleaned, &bytes, e) != OK) return e->code;
    if (cleaned) text = cleaned;
    if (recipe->strips) strip(&text, &bytes);
    struct text_builder whole = {0};
    write_prompt(&whole, recipe, text, bytes, n_pictures);
    whole.at = sys->alloc(sys, LINE_HOST, whole.bytes + 1);
    whole.bytes = 0;
    if (whole.at) {
        write_prompt(&whole, recipe, text, bytes, n_pictures);
        tokenizer_encode(tokenizer, whole.at, whole.bytes, &tokens->ids, &tokens->n_ids, e);
    } else {
        error_set(e, MEMORY, "no memory for a prompt of %zu bytes", bytes);
    }
    tokens->drop_idx = n_pictures ? recipe->image_prompt.drop_idx : recipe->drop_idx;
    sys->release(sys, whole.at);
    sys->release(sys, cleaned);
    return e->code;
}

/* Token ids under construction, in a buffer of fixed size. */
struct id_builder {
    int32_t *ids; /* [capacity] */
    int n, capacity;
};

/* Tokenises a piece of a prompt and appends its tokens. Tokens beyond the capacity are dropped. */
static void append_tokens(struct sys *sys, const struct tokenizer *tokenizer, const char *text, size_t bytes,
                          struct id_builder *whole, struct error *e) {
    int32_t *ids = NULL;
    int n = 0;
    tokenizer_encode(tokenizer, text, bytes, &ids, &n, e);
    for (int i = 0; i < n && whole->n < whole->capacity && e->code == OK; i++)
        whole->ids[whole->n++] = ids[i];
    sys->release(sys, ids);
}

/* As append_tokens, for a prompt whose quoted parts are tokenised one code point at a time. */
static enum status append_quoted_tokens(struct sys *sys, const struct tokenizer *tokenizer, const char *text,
                                        size_t bytes, struct id_builder *whole, struct error *e) {
    char *masked = sys->alloc(sys, LINE_HOST, bytes + 1);
    if (!masked) return error_set(e, MEMORY, "no memory for a prompt of %zu bytes", bytes);
    quotes_mask(text, bytes, masked);
    for (size_t at = 0; at < bytes && whole->n < whole->capacity && e->code == OK;) {
        bool quoted = false;
        size_t end = at + quotes_piece(text, masked, at, bytes, &quoted);
        while (at < end && whole->n < whole->capacity && e->code == OK) {
            utf8proc_int32_t c;
            size_t step = end - at;
            if (quoted)
                step =
                    (size_t)utf8proc_iterate((const utf8proc_uint8_t *)text + at, (utf8proc_ssize_t)step, &c);
            append_tokens(sys, tokenizer, text + at, step, whole, e);
            at += step;
        }
    }
    sys->release(sys, masked);
    return e->code;
}

/* Tokenises the template (with one placeholder token for each image) and the prompt separately. Sets
 * *tokens_max to the maximum number of tokens of both. Of a longer prompt, one token more is stored, from
 * which add_special_tokens detects the truncation. */
static enum status encode_apart(struct sys *sys, const struct text_recipe *recipe,
                                const struct tokenizer *tokenizer, const char *text, size_t bytes,
                                int n_pictures, struct prompt_tokens *tokens, int *tokens_max,
                                struct error *e) {
    const char *before = n_pictures ? recipe->image_prompt.template_before : recipe->template_before;
    int32_t *template = NULL;
    assert(before && !recipe->template_after && !recipe->clean_html && !recipe->deleted);
    if (tokenizer_check_text("text", text, bytes, bytes, e) != OK ||
        encode_text(sys, recipe, tokenizer, "", 0, n_pictures, tokens, e) != OK ||
        tokenizer_encode(tokenizer, before, strlen(before), &template, &tokens->drop_idx, e) != OK)
        return e->code;
    sys->release(sys, template);
    *tokens_max = tokens->n_ids + recipe->tokens_max - recipe->drop_idx;
    struct id_builder whole = {.n = tokens->n_ids, .capacity = *tokens_max + 1};
    whole.ids = sys->alloc(sys, LINE_HOST, (size_t)whole.capacity * sizeof *whole.ids);
    if (!whole.ids) return error_set(e, MEMORY, "no memory for %d tokens", whole.capacity);
    memcpy(whole.ids, tokens->ids, (size_t)whole.n * sizeof *whole.ids);
    sys->release(sys, tokens->ids);
    tokens->ids = whole.ids;
    if (recipe->quotes_by_character)
        append_quoted_tokens(sys, tokenizer, text, bytes, &whole, e);
    else
        append_tokens(sys, tokenizer, text, bytes, &whole, e);
    tokens->n_ids = whole.n;
    return e->code;
}

/* Truncates the prompt to leave room for text_recipe.template_after_tokens, then appends the tokens of
 * template_after. */
static enum status append_template_after(struct sys *sys, const struct text_recipe *recipe,
                                         const struct tokenizer *tokenizer, struct prompt_tokens *tokens,
                                         struct error *e) {
    int32_t *after = NULL, *ids = NULL;
    int n = 0;
    if (tokenizer_encode(tokenizer, recipe->template_after, strlen(recipe->template_after), &after, &n, e) !=
        OK)
        return e->code;
    int most = recipe->tokens_max - recipe->template_after_tokens;
    tokens->cut = tokens->n_ids > most;
    if (tokens->cut) tokens->n_ids = most;
    ids = sys->alloc(sys, LINE_HOST, (size_t)(tokens->n_ids + n) * sizeof *ids);
    if (ids) {
        memcpy(ids, tokens->ids, (size_t)tokens->n_ids * sizeof *ids);
        memcpy(ids + tokens->n_ids, after, (size_t)n * sizeof *ids);
        sys->release(sys, tokens->ids);
        tokens->ids = ids;
        tokens->n_ids += n;
    } else {
        error_set(e, MEMORY, "no memory for %d tokens", tokens->n_ids + n);
    }
    sys->release(sys, after);
    return e->code;
}

enum status prompt_longest(struct sys *sys, const struct text_recipe *recipe,
                           const struct tokenizer *tokenizer, int *n_ids, struct error *e) {
    int32_t *after = NULL;
    int n = 0;
    *n_ids = recipe->tokens_max;
    if (!tokenizer || !recipe->template_after_tokens) return OK;
    if (tokenizer_encode(tokenizer, recipe->template_after, strlen(recipe->template_after), &after, &n, e) ==
        OK)
        *n_ids += n - recipe->template_after_tokens;
    sys->release(sys, after);
    return e->code;
}

int32_t prompt_pad(const struct text_recipe *recipe, const struct tokenizer *tokenizer) {
    if (tokenizer_pad(tokenizer) >= 0) return tokenizer_pad(tokenizer);
    return recipe->pad ? tokenizer_special(tokenizer, recipe->pad) : 0;
}

/* Position of the first `eos` token, where transformers takes a prompt to end; the last position if there is
 * none. */
static int find_eos(const struct prompt_tokens *tokens, int32_t eos) {
    int i = 0;
    while (i + 1 < tokens->n_ids && tokens->ids[i] != eos) i++;
    return i;
}

/* Adds the recipe's `bos` and `eos` tokens and padding. Truncates a longer prompt to tokens_max tokens,
 * including `bos` and `eos`. */
static enum status add_special_tokens(struct sys *sys, const struct text_recipe *recipe,
                                      const struct tokenizer *tokenizer, int tokens_max,
                                      struct prompt_tokens *tokens, struct error *e) {
    int n_special = (recipe->bos != NULL) + (recipe->eos != NULL), content = tokens->n_ids, n = 0;
    if (content > tokens_max - n_special) content = tokens_max - n_special;
    int n_keys = content + n_special;
    int padding = recipe->pad || recipe->pad_with_id_0 ? tokens_max - n_keys : 0;
    if (recipe->padding_max && padding > recipe->padding_max) padding = recipe->padding_max;
    int n_ids = n_keys + padding, first = recipe->pads_left ? padding : 0;
    int32_t *ids = sys->alloc(sys, LINE_HOST, (size_t)(n_ids + 1) * sizeof *ids);
    if (!ids) return error_set(e, MEMORY, "no memory for %d tokens", n_ids);
    int32_t eos = recipe->eos ? tokenizer_special(tokenizer, recipe->eos) : -1;
    while (n < first) ids[n++] = prompt_pad(recipe, tokenizer);
    if (recipe->bos) ids[n++] = tokenizer_special(tokenizer, recipe->bos);
    for (int i = 0; i < content; i++) ids[n++] = tokens->ids[i];
    if (recipe->eos) ids[n++] = eos;
    while (n < n_ids) ids[n++] = prompt_pad(recipe, tokenizer);
    tokens->cut = content < tokens->n_ids;
    sys->release(sys, tokens->ids);
    tokens->ids = ids;
    tokens->n_ids = n_ids;
    if (recipe->masks_padding) {
        tokens->first_key = first;
        tokens->n_keys = n_keys;
    }
    if (recipe->eos) tokens->pooled_row = find_eos(tokens, eos);
    return OK;
}

/* Windows: long prompts are split into chunks of 75 tokens for CLIP, as in AUTOMATIC1111's web UI. Each
 * window has tokens_max tokens: first token, content, last token, padding. A window ends when it is full,
 * after a comma among its last 20 tokens, or at BREAK. Source: stable-diffusion-webui 1.10,
 * modules/sd_hijack_clip.py, tokenize_line, with the default comma_padding_backtrack of 20. */
enum { WINDOW_BACKTRACK = 20 };

struct windows {
    const struct text_recipe *recipe;
    int32_t first, last, pad, comma;
    int size;       /* number of content tokens in a full window, without the first and last token */
    int n;          /* number of content tokens in the current window */
    int last_comma; /* position of the last comma in the current window; -1: none */
    int n_windows;
    int32_t *ids; /* [windows_max, tokens_max] */
    float *weights;
    bool cut;
};

static int32_t *window_ids(const struct windows *w) {
    return w->ids + w->n_windows * w->recipe->tokens_max + 1;
}

static float *window_weights(const struct windows *w) {
    return w->weights + w->n_windows * w->recipe->tokens_max + 1;
}

static void end_window(struct windows *w, int n) {
    int32_t *ids = window_ids(w);
    float *weights = window_weights(w);
    ids[-1] = w->first;
    ids[n] = w->last;
    for (int i = n + 1; i <= w->size; i++) ids[i] = w->pad;
    weights[-1] = 1;
    for (int i = n; i <= w->size; i++) weights[i] = 1;
    w->n_windows++;
    w->n = 0;
    w->last_comma = -1;
}

static bool has_free_window(const struct windows *w) {
    return w->n_windows < w->recipe->windows_max;
}

static void put_token(struct windows *w, int32_t id, float weight) {
    w->cut |= !has_free_window(w);
    if (w->cut) return;
    window_ids(w)[w->n] = id;
    window_weights(w)[w->n++] = weight;
}

/* Adds a content token. A full window is closed first. If its last comma is near the end, the window ends
 * after the comma, and the tokens after the comma move to the next window. */
static void add_token(struct windows *w, int32_t id, float weight) {
    if (id == w->comma) {
        w->last_comma = w->n;
    } else if (w->n == w->size && w->last_comma >= 0 && w->n - w->last_comma <= WINDOW_BACKTRACK) {
        int32_t moved[WINDOW_BACKTRACK];
        float weights[WINDOW_BACKTRACK];
        int from = w->last_comma + 1, n = w->n - from;
        memcpy(moved, window_ids(w) + from, (size_t)n * sizeof *moved);
        memcpy(weights, window_weights(w) + from, (size_t)n * sizeof *weights);
        end_window(w, from);
        for (int i = 0; i < n; i++) put_token(w, moved[i], weights[i]);
    }
    if (w->n == w->size) end_window(w, w->size);
    put_token(w, id, weight);
}

static enum status add_piece(struct sys *sys, struct windows *w, const struct tokenizer *tokenizer,
                             const struct emphasis *m, const struct emphasis_piece *piece, struct error *e) {
    int32_t *ids = NULL;
    int n = 0;
    if (piece->breaks) {
        if (has_free_window(w)) end_window(w, w->n);
        return OK;
    }
    tokenizer_encode(tokenizer, m->text + piece->first, piece->bytes, &ids, &n, e);
    for (int i = 0; i < n && !w->cut && e->code == OK; i++) add_token(w, ids[i], (float)piece->weight);
    sys->release(sys, ids);
    return e->code;
}

static enum status fill_windows(struct sys *sys, struct windows *w, const struct tokenizer *tokenizer,
                                const struct emphasis *m, struct error *e) {
    const struct text_recipe *recipe = w->recipe;
    size_t most = (size_t)recipe->windows_max * (size_t)recipe->tokens_max;
    int32_t *comma = NULL;
    int n = 0;
    if (tokenizer_encode(tokenizer, ",", 1, &comma, &n, e) != OK) return e->code;
    w->comma = n == 1 ? comma[0] : -1;
    sys->release(sys, comma);
    w->first = tokenizer_special(tokenizer, recipe->bos);
    w->last = tokenizer_special(tokenizer, recipe->eos);
    w->pad = prompt_pad(recipe, tokenizer);
    w->ids = sys->alloc(sys, LINE_HOST, most * sizeof *w->ids);
    w->weights = sys->alloc(sys, LINE_HOST, most * sizeof *w->weights);
    if (!w->ids || !w->weights) return error_set(e, MEMORY, "no memory for %zu tokens", most);
    for (int i = 0; i < m->n_pieces && !w->cut && e->code == OK; i++)
        add_piece(sys, w, tokenizer, m, &m->piece[i], e);
    if (has_free_window(w) && (w->n || !w->n_windows)) end_window(w, w->n);
    return e->code;
}

/* Copies the filled windows to tokens. If all weights are 1, stores no weights, so that emphasis without
 * effect changes no bit of the result. */
static enum status take_filled(struct sys *sys, const struct windows *w, struct prompt_tokens *tokens,
                               struct error *e) {
    int n = w->n_windows * w->recipe->tokens_max, even = 0;
    size_t ids = (size_t)n * sizeof *tokens->ids, weights = (size_t)n * sizeof *tokens->weights;
    while (even < n && w->weights[even] == 1) even++;
    tokens->ids = sys->alloc(sys, LINE_HOST, ids);
    if (even < n) tokens->weights = sys->alloc(sys, LINE_HOST, weights);
    if (!tokens->ids || (even < n && !tokens->weights))
        return error_set(e, MEMORY, "no memory for %d tokens", n);
    memcpy(tokens->ids, w->ids, ids);
    if (tokens->weights) memcpy(tokens->weights, w->weights, weights);
    tokens->n_ids = n;
    tokens->window = w->recipe->tokens_max;
    tokens->cut = w->cut;
    return OK;
}

static enum status encode_windows(struct sys *sys, const struct text_recipe *recipe,
                                  const struct tokenizer *tokenizer, const char *text, size_t bytes,
                                  bool use_emphasis, struct prompt_tokens *tokens, struct error *e) {
    struct windows w = {.recipe = recipe, .size = recipe->tokens_max - 2, .last_comma = -1};
    struct emphasis m = {0};
    struct emphasis_piece whole = {.bytes = bytes, .weight = 1};
    if (use_emphasis)
        emphasis_read(sys, text, bytes, &m, e);
    else
        m = (struct emphasis){.text = (char *)(uintptr_t)text, .piece = &whole, .n_pieces = bytes > 0};
    if (e->code == OK && fill_windows(sys, &w, tokenizer, &m, e) == OK) take_filled(sys, &w, tokens, e);
    if (use_emphasis) emphasis_destroy(sys, &m);
    sys->release(sys, w.ids);
    sys->release(sys, w.weights);
    return e->code;
}

enum status prompt_encode(struct sys *sys, const struct text_recipe *recipe,
                          const struct tokenizer *tokenizer, const char *text, size_t bytes,
                          bool use_emphasis, struct prompt_tokens *tokens, struct error *e) {
    *tokens = (struct prompt_tokens){0};
    if (recipe->windows_max) {
        if (encode_windows(sys, recipe, tokenizer, text, bytes, use_emphasis, tokens, e) == OK)
            tokens->pooled_row = find_eos(tokens, tokenizer_special(tokenizer, recipe->eos));
        tokens->drop_idx = recipe->drop_idx;
        return e->code;
    }
    int tokens_max = recipe->tokens_max;
    if (recipe->template_apart)
        encode_apart(sys, recipe, tokenizer, text, bytes, 0, tokens, &tokens_max, e);
    else
        encode_text(sys, recipe, tokenizer, text, bytes, 0, tokens, e);
    if (e->code != OK) return e->code;
    if (recipe->bos || recipe->eos || recipe->pad || recipe->pad_with_id_0)
        return add_special_tokens(sys, recipe, tokenizer, tokens_max, tokens, e);
    if (recipe->template_after_tokens) return append_template_after(sys, recipe, tokenizer, tokens, e);
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
    if (found < n_pictures) { /* a longer added token matched instead of the image token */
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
    if (tokens->n_keys) tokens->n_keys += n_ids - tokens->n_ids;
    tokens->ids = ids;
    tokens->n_ids = n_ids;
    return OK;
}

enum status prompt_encode_pictured(struct sys *sys, const struct text_recipe *recipe,
                                   const struct tokenizer *tokenizer, const char *text, size_t bytes,
                                   const int32_t *pictures, int n_pictures, struct prompt_tokens *tokens,
                                   struct error *e) {
    *tokens = (struct prompt_tokens){0};
    int tokens_max = 0;
    if (!recipe->template_apart)
        encode_text(sys, recipe, tokenizer, text, bytes, n_pictures, tokens, e);
    else if (encode_apart(sys, recipe, tokenizer, text, bytes, n_pictures, tokens, &tokens_max, e) == OK)
        add_special_tokens(sys, recipe, tokenizer, tokens_max, tokens, e);
    if (e->code != OK) return e->code;
    const char *pad = recipe->image_prompt.pad;
    return insert_image_tokens(sys, pad, tokenizer_special(tokenizer, pad), pictures, n_pictures, tokens, e);
}

void prompt_destroy(struct sys *sys, struct prompt_tokens *tokens) {
    sys->release(sys, tokens->ids);
    sys->release(sys, tokens->weights);
    *tokens = (struct prompt_tokens){0};
}
