/* Unigram tokenizers (T5): splits normalised text into words, and each word into its most probable pieces.
 * Text is split at white space, which is dropped. U+2581 starts every word, and starts another one within a
 * word. Pieces never span words. Source: Hugging Face tokenizers 0.23 (WhitespaceSplit, Metaspace, Unigram)
 * as combined by transformers 5.23's T5Tokenizer.
 * SentencePiece's library was tried and rejected. It adds scores in single precision and may choose another
 * order of the same pieces than the reference: in 64 of 3,000 texts of two repeated characters and in 220 of
 * 3,000 texts of runs. 10^6 unknown characters take 170 s, because the library copies all of them for each
 * character. A NUL ends a piece. The library allocates 5 MB for 32,100 pieces outside the memory budget. */
#include "loaders/alloc_array.h"
#include "loaders/tokenizer/bpe.h"
#include "loaders/tokenizer/normalize.h"
#include "loaders/tokenizer/unigram.h"

#include <string.h>
#include <utf8proc.h>

static const char mark[] = "\xe2\x96\x81"; /* U+2581, which starts every word */
enum { MARK_BYTES = 3, UNKNOWN_PENALTY = 10 };

enum { NOWHERE = UINT32_MAX };

/* The best segmentation up to a position in a word. */
struct place {
    double score;
    uint32_t from; /* start of the last piece; NOWHERE: no segmentation yet */
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

static void unigram_add_piece(struct unigram *u, struct span text, int32_t id) {
    uint32_t node = 0, *key;
    for (uint64_t i = 0; i < text.bytes; i++) {
        uint32_t byte = (unsigned char)text.at[i], *child = edge_slot(u, node, byte, &key);
        if (!*child) {
            *key = node << 8 | byte;
            u->piece[ *child = u->n_nodes++] = -1;
        }
        node = *child;
    }
    u->piece[node] = id;
}

enum status unigram_make(struct tokenizer *t, double *scores, uint64_t text_bytes, struct error *e) {
    const struct word_table *words = &t->words;
    struct unigram *u = &t->unigram;
    u->scores = scores;
    uint64_t n_slots = 2; /* text_bytes bounds the number of trie edges; usually half as many exist */
    while (n_slots <= text_bytes + text_bytes / 4) n_slots *= 2;
    u->mask = (uint32_t)(n_slots - 1);
    u->edges = alloc_array(t->sys, n_slots, sizeof *u->edges, e);
    u->piece = alloc_array(t->sys, text_bytes + 1, sizeof *u->piece, e);
    if (e->code) return e->code;
    u->piece[u->n_nodes++] = -1;
    for (uint32_t i = 0; i < words->n_words; i++) {
        unigram_add_piece(u, (struct span){words->blob + words->words[i].offset, words->words[i].bytes},
                          (int32_t)i);
        if (!i || scores[i] < u->unknown_score) u->unknown_score = scores[i];
    }
    u->unknown_score -= UNKNOWN_PENALTY;
    return OK;
}

void unigram_destroy(struct sys *sys, struct unigram *u) {
    sys->release(sys, u->edges);
    sys->release(sys, u->piece);
    sys->release(sys, u->scores);
}

static uint64_t character_bytes(char first) {
    unsigned char c = (unsigned char)first;
    return c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
}

/* Replaces the best segmentation up to a position if the new segmentation has a better score. */
static void offer(struct place *place, uint32_t from, double score, int32_t id) {
    if (place->from != NOWHERE && score <= place->score) return;
    *place = (struct place){score, from, id};
}

/* Offers every piece that starts at `from`, and the unknown piece if no piece is exactly one character. */
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

static enum status encode_words(struct unigram_encoding *m, struct span text, struct error *e) {
    uint64_t from = 0;
    for (uint64_t i = 0; i <= text.bytes;) {
        utf8proc_int32_t code = ' ';
        uint64_t n = 1;
        if (i < text.bytes)
            n = (uint64_t)utf8proc_iterate((const utf8proc_uint8_t *)text.at + i,
                                           (utf8proc_ssize_t)(text.bytes - i), &code);
        if (code_is_space(code)) {
            if (from < i && encode_marked(m, (struct span){text.at + from, i - from}, e)) return e->code;
            from = i + n;
        }
        i += n;
    }
    return OK;
}

enum status unigram_text(const struct tokenizer *t, struct span text, struct id_list *out, struct error *e) {
    struct unigram_encoding m = {.t = t, .out = out};
    m.word = alloc_array(t->sys, text.bytes + MARK_BYTES, 1, e);
    m.found = alloc_array(t->sys, text.bytes + MARK_BYTES, sizeof *m.found, e);
    m.places = alloc_array(t->sys, text.bytes + MARK_BYTES + 1, sizeof *m.places, e);
    if (!e->code) encode_words(&m, text, e);
    t->sys->release(t->sys, m.word);
    t->sys->release(t->sys, m.found);
    t->sys->release(t->sys, m.places);
    return e->code;
}
