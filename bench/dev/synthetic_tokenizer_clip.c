/* A synthetic tokenizer of CLIP's kind (BPE with word ends). */
#include "bench/dev/synthetic_tokenizer.h"
#include "loaders/tokenizer/tables.h"
#include "loaders/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/random.h"

enum {
    BYTES = 256,
    SYMBOLS_MAX = 12,
    TOKEN_BYTES = 2 * SYMBOLS_MAX + 5,
    CLIP_IDS = 49408,
    LEAST = 2 * BYTES + 2
};
static const char start[] = "<|startoftext|>", end_of_text[] = "<|endoftext|>", word_end[] = "</w>",
                  first_token[] = "!";

struct making {
    char (*token)[TOKEN_BYTES];
    int n_tokens, most;
    uint64_t random;
    json_t *vocab;
    char *lines, *end; /* text of merges.txt */
};

static void bench_tokenizer_clip_add_token(struct making *m, const char *text) {
    strcpy(m->token[m->n_tokens], text);
    json_put(m->vocab, text, json_integer(m->n_tokens++));
}

static void bench_tokenizer_clip_add_merge(struct making *m, const char *left, const char *right) {
    char joined[2 * TOKEN_BYTES];
    int bytes = snprintf(joined, sizeof joined, "%s%s", left, right);
    if (m->n_tokens == m->most || bytes >= TOKEN_BYTES || strstr(left, word_end) ||
        json_object_get(m->vocab, joined))
        return;
    m->end += sprintf(m->end, "%s %s\n", left, right);
    bench_tokenizer_clip_add_token(m, joined);
}

/* Adds the symbols of all bytes, alone and at a word's end, in CLIP's order: bytes that represent themselves
 * first. */
static void add_symbols(struct making *m) {
    for (int ends = 0; ends < 2; ends++)
        for (int code = 0; code < 2 * BYTES; code++) {
            char symbol[8] = {0};
            int byte = alphabet_to_byte(code);
            if (byte < 0) continue;
            symbol_write(byte, symbol);
            if (ends) strcat(symbol, word_end);
            bench_tokenizer_clip_add_token(m, symbol);
        }
}

/* Merges pairs of letters first, so that ordinary words are merged, then random pairs. */
static void bench_tokenizer_clip_add_merges(struct making *m) {
    static const char letters[] = "etaoinshrdlcumwfgypbvkjxqz";
    for (const char *a = letters; *a; a++)
        for (const char *b = letters; *b; b++) {
            bench_tokenizer_clip_add_merge(m, (char[]){*a, 0}, (char[]){*b, 0});
            bench_tokenizer_clip_add_merge(m, (char[]){*a, 0}, (char[]){*b, '<', '/', 'w', '>', 0});
        }
    while (m->n_tokens < m->most) {
        bool wild = random_below(&m->random, 8) == 0 || m->n_tokens == 2 * BYTES;
        uint64_t from = wild ? 0 : 2 * BYTES, n = (uint64_t)m->n_tokens - from;
        const char *left = m->token[from + random_below(&m->random, n)];
        bench_tokenizer_clip_add_merge(m, left, m->token[from + random_below(&m->random, n)]);
    }
}

static json_t *bench_tokenizer_clip_describe(const char *text, bool normalized) {
    return json_pack("{s:s, s:b, s:b, s:b, s:b}", "content", text, "lstrip", 0, "normalized", normalized,
                     "rstrip", 0, "single_word", 0);
}

static json_t *describe_special(const char *text, bool normalized) {
    json_t *token = bench_tokenizer_clip_describe(text, normalized);
    json_put(token, "special", json_true());
    return token;
}

static char *bench_tokenizer_clip_dump_config(int n, const char *pad) {
    char ids[2][16];
    for (int i = 0; i < 2; i++) snprintf(ids[i], sizeof ids[i], "%d", n + i);
    json_t *root =
        json_pack("{s:b, s:{s:o, s:o}, s:s, s:b, s:b, s:s, s:s, s:i, s:s, s:s, s:s}", "add_prefix_space", 0,
                  "added_tokens_decoder", ids[0], describe_special(start, true), ids[1],
                  describe_special(end_of_text, false), "bos_token", start, "clean_up_tokenization_spaces", 1,
                  "do_lower_case", 1, "eos_token", end_of_text, "errors", "replace", "model_max_length", 77,
                  "pad_token", pad, "tokenizer_class", "CLIPTokenizer", "unk_token", end_of_text);
    if (pad == first_token)
        json_put(json_object_get(root, "added_tokens_decoder"), "0", describe_special(pad, false));
    char *text = json_to_text(root, JSON_INDENT(2), failed_json_allocations());
    return text;
}

static char *dump_special_map(const char *pad) {
    json_t *root = json_pack("{s:o, s:o, s:s, s:o}", "bos_token", bench_tokenizer_clip_describe(start, true),
                             "eos_token", bench_tokenizer_clip_describe(end_of_text, false), "pad_token", pad,
                             "unk_token", bench_tokenizer_clip_describe(end_of_text, false));
    char *text = json_to_text(root, JSON_INDENT(2), failed_json_allocations());
    return text;
}

enum status make_clip(struct sys *sys, int n_ids, bool pad_with_id_0, struct synthetic_tokenizer *made,
                      struct error *e) {
    const char *pad = pad_with_id_0 ? first_token : end_of_text;
    struct making m = {.most = (n_ids < CLIP_IDS ? n_ids : CLIP_IDS) - 2, .random = 5};
    if (n_ids < LEAST) return vocabulary_too_small(n_ids, LEAST, e);
    uint64_t n = (uint64_t)m.most;
    m.vocab = json_object();
    m.token = sys->alloc(sys, LINE_HOST, n * TOKEN_BYTES);
    m.lines = m.end = malloc((n + 1) * 2 * TOKEN_BYTES);
    if (m.vocab && m.token && m.lines) {
        m.end += sprintf(m.end, "#version: 0.2\n");
        add_symbols(&m);
        bench_tokenizer_clip_add_merges(&m);
        json_put(m.vocab, start, json_integer(m.most));
        json_put(m.vocab, end_of_text, json_integer(m.most + 1));
        synthetic_tokenizer_add_file(
            made, "vocab.json", json_to_text(json_incref(m.vocab), JSON_COMPACT, failed_json_allocations()));
        synthetic_tokenizer_add_file(made, "tokenizer_config.json",
                                     bench_tokenizer_clip_dump_config(m.most, pad));
        synthetic_tokenizer_add_file(made, "special_tokens_map.json", dump_special_map(pad));
        synthetic_tokenizer_add_file(made, "merges.txt", m.lines);
        m.lines = NULL;
    }
    if (made->n_files < 4) error_set(e, MEMORY, "no memory for a tokenizer of %d ids", n_ids);
    free(m.lines);
    sys->release(sys, m.token);
    json_decref(m.vocab);
    return e->code;
}
