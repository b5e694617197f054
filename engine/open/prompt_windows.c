#include "engine/open/prompt_windows.h"

#include "engine/open/emphasis.h"

#include <string.h>

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

/* Closes the window after its last comma; later tokens move to the next window. */
static void end_window_at_comma(struct windows *w) {
    int32_t moved[WINDOW_BACKTRACK];
    float weights[WINDOW_BACKTRACK];
    int from = w->last_comma + 1, n = w->n - from;
    memcpy(moved, window_ids(w) + from, (size_t)n * sizeof *moved);
    memcpy(weights, window_weights(w) + from, (size_t)n * sizeof *weights);
    end_window(w, from);
    for (int i = 0; i < n; i++) put_token(w, moved[i], weights[i]);
}

static void add_token(struct windows *w, int32_t id, float weight) {
    bool full = w->n == w->size;
    if (id == w->comma)
        w->last_comma = w->n;
    else if (full && w->last_comma >= 0 && w->n - w->last_comma <= WINDOW_BACKTRACK)
        end_window_at_comma(w);
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

/* Makes one piece with weight 1 from a text without emphasis. */
static void take_plain(const char *text, size_t bytes, struct emphasis *m, struct emphasis_piece *piece) {
    *piece = (struct emphasis_piece){.bytes = bytes, .weight = 1};
    *m = (struct emphasis){.text = (char *)(uintptr_t)text, .piece = piece, .n_pieces = bytes > 0};
}

static enum status find_comma(struct sys *sys, const struct tokenizer *tokenizer, int32_t *comma,
                              struct error *e) {
    int32_t *ids = NULL;
    int n = 0;
    if (tokenizer_encode(tokenizer, ",", 1, &ids, &n, e) != OK) return e->code;
    *comma = n == 1 ? ids[0] : -1;
    sys->release(sys, ids);
    return OK;
}

static enum status fill_windows(struct sys *sys, struct windows *w, const struct tokenizer *tokenizer,
                                const struct emphasis *m, struct error *e) {
    const struct text_recipe *recipe = w->recipe;
    size_t most = (size_t)recipe->windows_max * (size_t)recipe->tokens_max;
    if (find_comma(sys, tokenizer, &w->comma, e) != OK) return e->code;
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

enum status windows_encode(struct sys *sys, const struct text_recipe *recipe,
                           const struct tokenizer *tokenizer, const char *text, size_t bytes,
                           bool use_emphasis, struct prompt_tokens *tokens, struct error *e) {
    struct windows w = {.recipe = recipe, .size = recipe->tokens_max - 2, .last_comma = -1};
    struct emphasis m = {0};
    struct emphasis_piece whole;
    if (use_emphasis)
        emphasis_read(sys, text, bytes, &m, e);
    else
        take_plain(text, bytes, &m, &whole);
    if (e->code == OK && fill_windows(sys, &w, tokenizer, &m, e) == OK) take_filled(sys, &w, tokens, e);
    if (use_emphasis) emphasis_destroy(sys, &m);
    sys->release(sys, w.ids);
    sys->release(sys, w.weights);
    return e->code;
}
