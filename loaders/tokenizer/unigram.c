/* Unigram tokenizers (T5): splits normalised text into words, and each word into its most probable pieces.
 * Text is split at white space, which is dropped. U+2581 starts every word, and starts another one within a
 * word. Pieces never span words. Source: Hugging Face tokenizers 0.23 (WhitespaceSplit, Metaspace, Unigram)
 * as combined by transformers 5.23's T5Tokenizer. pieces_* build the vocabulary for all file formats.
 * SentencePiece's library was tried and rejected. It adds scores in single precision and may choose another
 * order of the same pieces than Hugging Face tokenizers: in 64 of 3,000 texts of two repeated characters and
 * in 220 of 3,000 texts of runs. 10^6 unknown characters take 170 s, because the library copies all of them
 * for each character. A NUL ends a piece. The library allocates 5 MB for 32,100 pieces outside the memory
 * budget. */
#include "loaders/tokenizer/reading.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Trie nodes are 24-bit numbers. */
enum { PIECES_BYTES_MAX = (1 << 24) - 2, UNKNOWN_PENALTY = 10 };

enum status pieces_make(struct reading *r, uint64_t n, uint64_t text_bytes, struct error *e) {
    struct tokenizer *t = r->t;
    if (n > TOKENIZER_ID_MAX)
        return reading_fail(e, LIMIT, r,
                            "the vocabulary is too large" FOUND "%" PRIu64 " pieces" EXPECTED "at most %d", n,
                            TOKENIZER_ID_MAX);
    if (text_bytes > PIECES_BYTES_MAX)
        return reading_fail(e, LIMIT, r,
                            "the vocabulary is too long" FOUND "%" PRIu64 " bytes of pieces" EXPECTED
                            "at most %d",
                            text_bytes, PIECES_BYTES_MAX);
    if (word_table_make(t->sys, &t->words, n, text_bytes, e) || reading_start_ids(r, e)) return e->code;
    r->scores = sys_new(t->sys, n, sizeof *r->scores, "the scores of the pieces", e);
    return e->code;
}

/* Sets an error "tokenizer: piece N WHAT", where N is the number of pieces read before. what: printf format,
 * may end in FOUND and EXPECTED parts (error_set). */
#define bad_piece(e, code, r, what, ...)                                                                     \
    error_set(e, code, "tokenizer: piece %" PRIu32 " " what WHERE "%s", (r)->t->words.n_words,               \
              ##__VA_ARGS__, (r)->path)

enum status pieces_add(struct reading *r, struct span text, double score, struct error *e) {
    struct word_table *words = &r->t->words;
    if (!text.bytes) return bad_piece(e, META, r, "is empty");
    if (text.bytes > TOKENIZER_PIECE_BYTES)
        return bad_piece(e, LIMIT, r, "is too long" FOUND "%" PRIu64 " bytes" EXPECTED "at most %d",
                         text.bytes, TOKENIZER_PIECE_BYTES);
    if (utf8_valid_bytes(text.at, text.bytes) < text.bytes) return bad_piece(e, UTF8, r, "is not UTF-8");
    if (!isfinite(score))
        return bad_piece(e, META, r, "has an invalid score" FOUND "%g" EXPECTED "a finite number", score);
    if (word_table_find(words, text) >= 0)
        return bad_piece(e, DUP, r, "occurs twice" FOUND "\"%.*s\"", text.bytes > 120 ? 120 : (int)text.bytes,
                         text.at);
    struct word word = {r->text_bytes, (uint32_t)text.bytes, (int32_t)words->n_words};
    memcpy(words->blob + word.offset, text.at, text.bytes);
    r->text_bytes += word.bytes;
    r->scores[words->n_words] = score;
    reading_take_id(r, word.id);
    word_table_add(words, word);
    return OK;
}

enum status pieces_add_extra(struct reading *r, int n, json_t *list, struct error *e) {
    char text[32];
    while (n-- > 0 && !e->code) {
        uint64_t bytes = (uint64_t)snprintf(text, sizeof text, "<extra_id_%d>", n);
        added_list_token(list, r->t->words.n_words, (struct span){text, bytes}, true);
        pieces_add(r, (struct span){text, bytes}, 0, e);
    }
    return e->code;
}

/* Finds the slot of the trie edge from a node by a byte, and the child node. If there is no such edge, the
 * child is 0 and *key is where to write a new edge. */
static uint32_t *edge_slot(const struct unigram *u, uint32_t node, uint32_t byte, uint32_t **key) {
    uint32_t wanted = node << 8 | byte;
    uint64_t h = wanted * 0x9E3779B97F4A7C15u;
    uint32_t i = (uint32_t)(h >> 32) & u->mask;
    while (u->edges[i].child && u->edges[i].key != wanted) i = (i + 1) & u->mask;
    if (key) *key = &u->edges[i].key;
    return &u->edges[i].child;
}

enum status pieces_finish(struct reading *r, int64_t unk, struct error *e) {
    struct tokenizer *t = r->t;
    const struct word_table *words = &t->words;
    struct unigram *u = &t->unigram;
    if (unk < 0 || unk >= words->n_words)
        return reading_fail(e, META, r,
                            "the unknown piece's id is invalid" FOUND "%" PRId64 EXPECTED "one of %" PRIu32
                            " pieces",
                            unk, words->n_words);
    t->unk = (int32_t)unk;
    t->kind = "unigram";
    u->scores = r->scores;
    r->scores = NULL;
    uint64_t n_slots = 2; /* text_bytes bounds the number of trie edges; usually half as many exist */
    while (n_slots <= (uint64_t)r->text_bytes + r->text_bytes / 4) n_slots *= 2;
    u->mask = (uint32_t)(n_slots - 1);
    u->edges = sys_new(t->sys, n_slots, sizeof *u->edges, "the edges of the pieces", e);
    u->piece = sys_new(t->sys, (uint64_t)r->text_bytes + 1, sizeof *u->piece, "the pieces", e);
    if (e->code) return e->code;
    u->piece[u->n_nodes++] = -1;
    for (uint32_t i = 0; i < words->n_words; i++) {
        uint32_t node = 0, *key;
        for (uint64_t j = 0; j < words->words[i].bytes; j++) {
            uint32_t byte = (unsigned char)words->blob[words->words[i].offset + j];
            uint32_t *child = edge_slot(u, node, byte, &key);
            if (!*child) {
                *key = node << 8 | byte;
                u->piece[ *child = u->n_nodes++] = -1;
            }
            node = *child;
        }
        u->piece[node] = (int32_t)i;
        if (!i || u->scores[i] < u->unknown_score) u->unknown_score = u->scores[i];
    }
    u->unknown_score -= UNKNOWN_PENALTY;
    return OK;
}

static const char mark[] = "\xe2\x96\x81"; /* U+2581, which starts every word */
enum { MARK_BYTES = 3 };

enum { NOWHERE = UINT32_MAX };

/* The best segmentation up to a position in a word. */
struct place {
    double score;
    uint32_t from; /* start of the segmentation's last piece; NOWHERE: no segmentation yet */
    int32_t id;
};

/* Encoding state of one text. Buffers for the longest word: word (bytes with U+2581), found (as many ids),
 * places (one more). */
struct unigram_encoding {
    const struct tokenizer *t;
    char *word;
    int32_t *found;
    struct place *places;
    struct id_list *out;
};

static uint64_t character_bytes(char first) {
    unsigned char c = (unsigned char)first;
    return c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
}

/* Replaces the best segmentation up to a position if the new segmentation has a better score. */
static void offer(struct place *place, uint32_t from, double score, int32_t id) {
    if (place->from != NOWHERE && score <= place->score) return;
    *place = (struct place){score, from, id};
}

/* Tries every piece that starts at `from` as the next piece of the segmentation. Also tries the unknown
 * piece if no piece is exactly one character. */
static void offer_pieces(const struct tokenizer *t, struct place *places, struct span word, uint32_t from) {
    const struct unigram *u = &t->unigram;
    uint64_t character = character_bytes(word.at[from]);
    double here = places[from].score;
    bool single = false;
    uint32_t node = 0, i = from;
    while (i < word.bytes && (node = *edge_slot(u, node, (unsigned char)word.at[i], NULL))) {
        int32_t id = u->piece[node];
        i++;
        if (id < 0) continue;
        offer(&places[i], from, here + u->scores[id], id);
        single = single || i - from == character;
    }
    if (!single) offer(&places[from + character], from, here + u->unknown_score, t->unk);
}

/* Encodes a word. Among segmentations of equal score the one with the longest last piece wins. Adjacent
 * unknown pieces are joined. */
static enum status encode_word(struct unigram_encoding *m, struct span word, struct error *e) {
    uint64_t n = 0;
    for (uint64_t i = 0; i <= word.bytes; i++) m->places[i].from = NOWHERE;
    m->places[0].score = 0;
    for (uint64_t i = 0; i < word.bytes; i += character_bytes(word.at[i]))
        offer_pieces(m->t, m->places, word, (uint32_t)i);
    for (uint64_t i = word.bytes; i; i = m->places[i].from) {
        int32_t id = m->places[i].id;
        if (!(id == m->t->unk && n && m->found[n - 1] == id)) m->found[n++] = id;
    }
    while (n && !e->code) id_list_push(m->t->sys, m->out, m->found[--n], e);
    return e->code;
}

static bool is_mark(struct span text, uint64_t i) {
    return text.bytes - i >= MARK_BYTES && !memcmp(text.at + i, mark, MARK_BYTES);
}

static enum status encode_marked(struct unigram_encoding *m, struct span text, struct error *e) {
    struct span all = {m->word, text.bytes};
    if (!is_mark(text, 0)) {
        memcpy(m->word, mark, MARK_BYTES);
        all.bytes += MARK_BYTES;
    }
    memcpy(m->word + (all.bytes - text.bytes), text.at, text.bytes);
    for (uint64_t from = 0, i = 1; i <= all.bytes; i++) {
        if (i < all.bytes && !is_mark(all, i)) continue;
        if (encode_word(m, (struct span){all.at + from, i - from}, e)) return e->code;
        from = i;
    }
    return OK;
}

enum status unigram_text(const struct tokenizer *t, struct span text, struct id_list *out, struct error *e) {
    struct unigram_encoding m = {.t = t, .out = out};
    uint64_t from = 0;
    m.word = sys_new(t->sys, text.bytes + MARK_BYTES, 1, "the words of a text", e);
    m.found = sys_new(t->sys, text.bytes + MARK_BYTES, sizeof *m.found, "the ids of a word", e);
    m.places = sys_new(t->sys, text.bytes + MARK_BYTES + 1, sizeof *m.places, "the pieces of a word", e);
    for (uint64_t i = 0; i <= text.bytes && !e->code;) {
        int32_t code = ' ';
        uint64_t n = i < text.bytes ? code_at(text, i, &code) : 1;
        if (code_is_space(code)) {
            if (from < i) encode_marked(&m, (struct span){text.at + from, i - from}, e);
            from = i + n;
        }
        i += n;
    }
    t->sys->release(t->sys, m.word);
    t->sys->release(t->sys, m.found);
    t->sys->release(t->sys, m.places);
    return e->code;
}
