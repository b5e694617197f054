/* A synthetic tokenizer of T5's kind (sentencepiece unigram). */
#include "bench/dev/synthetic_tokenizer.h"
#include "loaders/json.h"
#include "loaders/tokenizer/tables.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/random.h"

enum { T5_IDS = 32100, EXTRA = 100, LEAST = 256, LETTERS_MAX = 12, N_SPECIAL = 3, PIECE_OVERHEAD = 16 };
enum { NORMAL = 1, UNKNOWN = 2, CONTROL = 3 };
static const char mark[] = "\xe2\x96\x81"; /* U+2581 in UTF-8, which starts every word */

/* Writes a piece in ModelProto format: two tags and lengths (one byte each), a score, a type. */
static uint8_t *put_piece(uint8_t *to, struct span text, float score, int type) {
    uint32_t bits;
    memcpy(&bits, &score, sizeof bits);
    *to++ = 1 << 3 | 2;
    *to++ = (uint8_t)(2 + text.bytes + 5 + 2);
    *to++ = 1 << 3 | 2;
    *to++ = (uint8_t)text.bytes;
    memcpy(to, text.at, text.bytes);
    to += text.bytes;
    *to++ = 2 << 3 | 5;
    for (int i = 0; i < 4; i++) *to++ = (uint8_t)(bits >> 8 * i);
    *to++ = 3 << 3;
    *to++ = (uint8_t)type;
    return to;
}

/* Vocabulary list and sentencepiece file under construction; both are built together. */
struct making {
    json_t *vocab, *known; /* vocabulary [[piece, score], ...]; set of pieces {piece: true, ...} */
    uint8_t *model, *end;
    int n;
    uint64_t random;
};

static void bench_tokenizer_unigram_add_piece(struct making *m, const char *text, double score, int type) {
    if (json_object_get(m->known, text)) return;
    json_put(m->known, text, json_true());
    json_push(m->vocab, json_pack("[s, f]", text, score));
    if (type) m->end = put_piece(m->end, (struct span){text, strlen(text)}, (float)score, type);
    m->n++;
}

/* Scores are halves and quarters, exact in every notation; later pieces are rarer. */
static double score_of(const struct making *m) {
    return -2 - (double)(m->n / 2048) / 2;
}

/* Adds all printable characters, so that ordinary text has pieces, then random words and parts of words. */
static void add_pieces(struct making *m, int most) {
    static const char letters[] = "etaoinshrdlcumwfgypbvkjxqzetaoinshrdlu";
    bench_tokenizer_unigram_add_piece(m, "<pad>", 0, CONTROL);
    bench_tokenizer_unigram_add_piece(m, "</s>", 0, CONTROL);
    bench_tokenizer_unigram_add_piece(m, "<unk>", 0, UNKNOWN);
    bench_tokenizer_unigram_add_piece(m, mark, score_of(m), NORMAL);
    for (char c = '!'; c <= '~'; c++) bench_tokenizer_unigram_add_piece(m, (char[]){c, 0}, -12, NORMAL);
    while (m->n < most) {
        char text[LETTERS_MAX + sizeof mark] = "";
        if (random_below(&m->random, 2)) strcpy(text, mark);
        size_t n = strlen(text), letters_wanted = 1 + random_below(&m->random, LETTERS_MAX);
        for (size_t i = 0; i < letters_wanted; i++)
            text[n++] = letters[random_below(&m->random, sizeof letters - 1)];
        bench_tokenizer_unigram_add_piece(m, text, score_of(m), NORMAL);
    }
}

static json_t *bench_tokenizer_unigram_describe(const char *text, int id) {
    return json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", id, "content", text, "single_word", 0,
                     "lstrip", 0, "rstrip", 0, "normalized", 0, "special", 1);
}

/* Lists added tokens: the first three, and the last hundred, which only tokenizer.json has (T5's class
 * appends them to the model). */
static json_t *list_added(struct making *m) {
    static const char *const texts[] = {"<pad>", "</s>", "<unk>"};
    json_t *list = json_array();
    char text[32];
    for (int id = 0; id < N_SPECIAL; id++) json_push(list, bench_tokenizer_unigram_describe(texts[id], id));
    for (int i = EXTRA - 1; i >= 0; i--) {
        snprintf(text, sizeof text, "<extra_id_%d>", i);
        json_push(list, bench_tokenizer_unigram_describe(text, m->n));
        bench_tokenizer_unigram_add_piece(m, text, 0, 0);
    }
    return list;
}

static char *bench_tokenizer_unigram_dump_tokenizer(struct making *m) {
    json_t *added = list_added(m);
    json_t *meta = json_pack("{s:s, s:s, s:s, s:b}", "type", "Metaspace", "replacement", mark,
                             "prepend_scheme", "always", "split", 1);
    json_t *root = json_pack(
        "{s:s, s:n, s:n, s:o, s:n, s:{s:s, s:[{s:s}, O]}, s:n, s:o, s:{s:s, s:i, s:O, s:b}}", "version",
        "1.0", "truncation", "padding", "added_tokens", added, "normalizer", "pre_tokenizer", "type",
        "Sequence", "pretokenizers", "type", "WhitespaceSplit", meta, "post_processor", "decoder", meta,
        "model", "type", "Unigram", "unk_id", 2, "vocab", m->vocab, "byte_fallback", 0);
    char *text = json_to_text(root, JSON_COMPACT, failed_json_allocations());
    return text;
}

static char *bench_tokenizer_unigram_dump_config(void) {
    json_t *root = json_pack("{s:s, s:i, s:i, s:s, s:s, s:s}", "eos_token", "</s>", "extra_ids", EXTRA,
                             "model_max_length", 512, "pad_token", "<pad>", "tokenizer_class", "T5Tokenizer",
                             "unk_token", "<unk>");
    char *text = json_to_text(root, JSON_INDENT(2), failed_json_allocations());
    return text;
}

/* Ends the model with trainer_spec {model_type: UNIGRAM, unk_id: 2, bos_id: -1, eos_id: 1, pad_id: 0} and
 * normalizer_spec {name: "identity"}: see sentencepiece.c. */
static uint64_t end_model(struct making *m) {
    static const char specs[] = "\x12\x17\x18\x01\xc0\x02\x02\xc8\x02\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"
                                "\xd0\x02\x01\xd8\x02\x00\x1a\x0a\x0a\x08identity";
    memcpy(m->end, specs, sizeof specs - 1);
    m->end += sizeof specs - 1;
    return (uint64_t)(m->end - m->model);
}

enum status make_unigram(int n_ids, struct synthetic_tokenizer *made, struct error *e) {
    struct making m = {.random = 7};
    int most = (n_ids < T5_IDS ? n_ids : T5_IDS) - EXTRA;
    if (n_ids < LEAST) return vocabulary_too_small(n_ids, LEAST, e);
    m.vocab = json_array();
    m.known = json_object();
    m.model = m.end = malloc((uint64_t)(most + 4) * (LETTERS_MAX + sizeof mark + PIECE_OVERHEAD));
    if (m.vocab && m.known && m.model) {
        add_pieces(&m, most);
        made->files[made->n_files++] =
            (struct synthetic_file){"spiece.model", (char *)m.model, end_model(&m)};
        synthetic_tokenizer_add_file(made, "tokenizer.json", bench_tokenizer_unigram_dump_tokenizer(&m));
        synthetic_tokenizer_add_file(made, "tokenizer_config.json", bench_tokenizer_unigram_dump_config());
        m.model = NULL;
    }
    if (made->n_files < 3) error_set(e, MEMORY, "no memory for a tokenizer of %d ids", n_ids);
    free(m.model);
    json_decref(m.vocab);
    json_decref(m.known);
    return e->code;
}
