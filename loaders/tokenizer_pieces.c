/* A unigram vocabulary from whichever file to a model: checked pieces, written as a ModelProto in memory.
 *
 * SentencePiece gets this instead of the file. So nothing of a file reaches it unchecked, tokenizer.json and
 * spiece.model become the same model, and it does what the reference's Unigram does rather than what a
 * spiece.model says: every piece can be found in text, also control pieces and the unknown one; nothing is
 * normalised, for tokenizer_charsmap.c did that. The unknown piece that it insists on stands behind the last.
 * Source of the format: sentencepiece_model.proto, SentencePiece 0.1.97. */
#include "loaders/tokenizer_reading.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "loaders/unigram.h"

enum { NORMAL = 1, UNKNOWN = 2, SPECS_BYTES = 64 };

enum status pieces_make(struct reading *r, uint64_t n, uint64_t text_bytes, struct error *e) {
    struct tokenizer *t = r->t;
    if (n > TOKENIZER_ID_MAX) {
        reading_fail(r, LIMIT, "the vocabulary", "is too large", e);
        error_found(e, "%" PRIu64 " pieces", n);
        return error_expected(e, "at most %d", TOKENIZER_ID_MAX);
    }
    if (word_table_make(t->sys, &t->words, n, text_bytes, e) || reading_start_ids(r, e)) return e->code;
    r->scores = alloc_array(t->sys, n, sizeof *r->scores, e);
    return e->code;
}

static enum status bad_piece(const struct reading *r, enum status code, const char *problem,
                             struct error *e) {
    error_set(e, code, "piece %" PRIu32 " %s", r->t->words.n_words, problem);
    return error_where(e, "%s", r->path);
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
    if (!isfinite((float)score)) {
        bad_piece(r, META, "has a score that is not usable", e);
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
    r->scores[words->n_words] = (float)score;
    reading_take_id(r, word.id);
    word_table_add(words, word);
    return OK;
}

/* ---- the ModelProto ---- */

static uint8_t *put_varint(uint8_t *to, uint64_t value) {
    for (; value > 127; value >>= 7) *to++ = (uint8_t)(0x80 | (value & 127));
    *to++ = (uint8_t)value;
    return to;
}

static uint64_t varint_bytes(uint64_t value) {
    uint64_t n = 1;
    while (value >>= 7) n++;
    return n;
}

uint8_t *proto_piece(uint8_t *to, struct span text, float score, int type) {
    uint32_t bits;
    memcpy(&bits, &score, sizeof bits);
    *to++ = 1 << 3 | 2;
    to = put_varint(to, 1 + varint_bytes(text.bytes) + text.bytes + 5 + 2);
    *to++ = 1 << 3 | 2;
    to = put_varint(to, text.bytes);
    memcpy(to, text.at, text.bytes);
    to += text.bytes;
    *to++ = 2 << 3 | 5;
    for (int i = 0; i < 4; i++) *to++ = (uint8_t)(bits >> 8 * i);
    *to++ = 3 << 3;
    return put_varint(to, (uint64_t)type);
}

/* A text cannot hold a byte 0xFF. SentencePiece takes a NUL for the end of a piece: such pieces are hidden
 * from it, as no prompt needs them. */
static struct span findable(struct span text, uint32_t i, char *hidden) {
    if (!memchr(text.at, 0, text.bytes)) return text;
    hidden[0] = (char)0xFF;
    for (int k = 1; k < 5; k++, i >>= 7) hidden[k] = (char)(1 + (i & 127));
    return (struct span){hidden, 5};
}

static uint64_t put_model(const struct reading *r, uint8_t *to) {
    /* trainer_spec {model_type: UNIGRAM}; normalizer_spec {name: "identity", add_dummy_prefix: false,
     * remove_extra_whitespaces: false, escape_whitespaces: false} */
    static const char specs[] = "\x12\x02\x18\x01\x1a\x10\x0a\x08identity\x18\x00\x20\x00\x28\x00";
    const struct word_table *words = &r->t->words;
    uint8_t *at = to;
    char hidden[5];
    for (uint32_t i = 0; i < words->n_words; i++) {
        struct span text = {words->blob + words->words[i].offset, words->words[i].bytes};
        at = proto_piece(at, findable(text, i, hidden), r->scores[i], NORMAL);
    }
    at = proto_piece(at, (struct span){"\xff", 1}, 0, UNKNOWN);
    memcpy(at, specs, sizeof specs - 1);
    return (uint64_t)(at - to) + sizeof specs - 1;
}

enum status pieces_finish(struct reading *r, int64_t unk, struct error *e) {
    struct tokenizer *t = r->t;
    uint64_t n = t->words.n_words;
    char why[120];
    if (unk < 0 || (uint64_t)unk >= n) {
        reading_fail(r, META, "the unknown piece's id", "is not usable", e);
        error_found(e, "%" PRId64, unk);
        return error_expected(e, "one of %" PRIu64 " pieces", n);
    }
    t->unk = (int32_t)unk;
    t->unknown = (int)n;
    t->kind = "unigram";
    uint8_t *proto = alloc_array(t->sys, r->text_bytes + (n + 1) * PROTO_PIECE_OVERHEAD + SPECS_BYTES, 1, e);
    if (!proto) return e->code;
    enum unigram_result result = unigram_open(proto, put_model(r, proto), &t->unigram, why, sizeof why);
    t->sys->release(t->sys, proto);
    if (result == UNIGRAM_NO_MEMORY) return error_set(e, MEMORY, "no memory for a unigram model");
    if (!result) return OK;
    reading_fail(r, META, "the vocabulary", "is refused by SentencePiece", e);
    return error_found(e, "%s", why);
}
