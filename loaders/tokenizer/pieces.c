/* Builds a unigram vocabulary, with checks of every piece, for all file formats. */
#include "loaders/tokenizer/reading.h"
#include "loaders/alloc_array.h"
#include "loaders/tokenizer/bpe.h"
#include "loaders/tokenizer/unigram.h"
#include "loaders/utf8.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Trie nodes are 24-bit numbers. */
enum { PIECES_BYTES_MAX = (1 << 24) - 2 };

enum status pieces_make(struct reading *r, uint64_t n, uint64_t text_bytes, struct error *e) {
    struct tokenizer *t = r->t;
    if (n > TOKENIZER_ID_MAX) {
        reading_fail(r, LIMIT, "the vocabulary", "is too large", e);
        error_found(e, "%" PRIu64 " pieces", n);
        return error_expected(e, "at most %d", TOKENIZER_ID_MAX);
    }
    if (text_bytes > PIECES_BYTES_MAX) {
        reading_fail(r, LIMIT, "the vocabulary", "is too long", e);
        error_found(e, "%" PRIu64 " bytes of pieces", text_bytes);
        return error_expected(e, "at most %d", PIECES_BYTES_MAX);
    }
    if (word_table_make(t->sys, &t->words, n, text_bytes, e) || reading_start_ids(r, e)) return e->code;
    r->scores = alloc_array(t->sys, n, sizeof *r->scores, e);
    return e->code;
}

static enum status bad_piece(const struct reading *r, enum status code, const char *problem,
                             struct error *e) {
    return error_set(e, code, "tokenizer: piece %" PRIu32 " %s" WHERE "%s", r->t->words.n_words, problem,
                     r->path);
}

enum status pieces_add(struct reading *r, struct span text, double score, struct error *e) {
    struct word_table *words = &r->t->words;
    if (!text.bytes) return bad_piece(r, META, "is empty", e);
    if (text.bytes > TOKENIZER_PIECE_BYTES) {
        bad_piece(r, LIMIT, "is too long", e);
        error_found(e, "%" PRIu64 " bytes", text.bytes);
        return error_expected(e, "at most %d", TOKENIZER_PIECE_BYTES);
    }
    if (utf8_valid_bytes(text.at, text.bytes) < text.bytes) return bad_piece(r, UTF8, "is not UTF-8", e);
    if (!isfinite(score)) {
        bad_piece(r, META, "has an invalid score", e);
        error_found(e, "%g", score);
        return error_expected(e, "a finite number");
    }
    if (word_table_find(words, text) >= 0) {
        bad_piece(r, DUP, "occurs twice", e);
        return error_found(e, "\"%.*s\"", text.bytes > 120 ? 120 : (int)text.bytes, text.at);
    }
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

enum status pieces_finish(struct reading *r, int64_t unk, struct error *e) {
    struct tokenizer *t = r->t;
    uint64_t n = t->words.n_words;
    if (unk < 0 || (uint64_t)unk >= n) {
        reading_fail(r, META, "the unknown piece's id", "is invalid", e);
        error_found(e, "%" PRId64, unk);
        return error_expected(e, "one of %" PRIu64 " pieces", n);
    }
    t->unk = (int32_t)unk;
    t->kind = "unigram";
    double *scores = r->scores;
    r->scores = NULL;
    return unigram_make(t, scores, r->text_bytes, e);
}
