/* Tables of a SentencePiece BPE (Gemma) from scored pieces, as tokenizer.model and GGUF files contain them.
 * The merges join characters, not bytes; a character without a token becomes the tokens of its bytes, <0x00>
 * to <0xFF>. Two neighbours merge if their joined text is a piece. Merges are ranked by falling score, then
 * by id of the piece, then by ids of the parts, as in Gemma's tokenizer.json (transformers 5.24,
 * convert_slow_tokenizer.py, generate_merges). */
#include "loaders/tokenizer/reading.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum status bpe_find_byte_tokens(struct reading *r, struct error *e) {
    for (int byte = 0; byte < 256; byte++) {
        char text[8];
        snprintf(text, sizeof text, "<0x%02X>", (unsigned)byte);
        r->t->byte_id[byte] = reading_vocab_id(r, span_of(text));
        if (r->t->byte_id[byte] < 0)
            return reading_fail(e, META, r, "the vocabulary lacks the token of a byte" FOUND "no \"%s\"",
                                text);
    }
    return OK;
}

struct scored_piece {
    double score;
    uint32_t word; /* index in t->words, equal to the id */
};

/* Orders pieces by falling score, then by id. */
static int compare_scores(const void *a, const void *b) {
    const struct scored_piece *one = a, *other = b;
    if (one->score != other->score) return one->score > other->score ? -1 : 1;
    return one->word < other->word ? -1 : one->word > other->word;
}

/* Orders merges by the ids of their parts. */
static int compare_parts(const void *a, const void *b) {
    const struct merge *one = a, *other = b;
    if (one->left != other->left) return one->left < other->left ? -1 : 1;
    return one->right < other->right ? -1 : one->right > other->right;
}

/* Lists the merges that result in a piece, sorted by the ids of their parts: at most one per character.
 * Returns their number. */
static int list_merges(const struct word_table *words, struct word word, struct merge *merges) {
    int n = 0;
    const char *text = words->blob + word.offset;
    for (uint32_t i = 1; i < word.bytes; i++) {
        if (((unsigned char)text[i] & 0xC0) == 0x80) continue;
        int32_t left = word_table_find(words, (struct span){text, i});
        int32_t right = left < 0 ? -1 : word_table_find(words, (struct span){text + i, word.bytes - i});
        if (right >= 0) merges[n++] = (struct merge){left, right, word.id};
    }
    if (n > 1) qsort(merges, (size_t)n, sizeof *merges, compare_parts);
    return n;
}

enum status bpe_pieces_finish(struct reading *r, struct error *e) {
    struct tokenizer *t = r->t;
    const struct word_table *words = &t->words;
    struct merge merges[TOKENIZER_PIECE_BYTES];
    uint64_t n_merges = 0;
    t->kind = sentencepiece_bpe;
    t->by_character = t->marks_blanks = true;
    if (bpe_find_byte_tokens(r, e)) return e->code;
    for (uint32_t i = 0; i < words->n_words; i++)
        n_merges += (uint64_t)list_merges(words, words->words[i], merges);
    struct scored_piece *pieces =
        sys_new(t->sys, words->n_words, sizeof *pieces, "the order of the pieces", e);
    if (!pieces || merge_table_make(t->sys, &t->merges, n_merges, e)) goto out;
    for (uint32_t i = 0; i < words->n_words; i++) pieces[i] = (struct scored_piece){r->scores[i], i};
    if (words->n_words) qsort(pieces, words->n_words, sizeof *pieces, compare_scores);
    for (uint32_t i = 0; i < words->n_words; i++) {
        int n = list_merges(words, words->words[pieces[i].word], merges);
        for (int k = 0; k < n; k++) merge_table_add(&t->merges, merges[k]);
    }
out:
    t->sys->release(t->sys, pieces);
    return e->code;
}
