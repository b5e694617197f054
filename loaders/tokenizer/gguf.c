/* Reads a tokenizer from GGUF metadata: the keys under tokenizer.ggml. Inverts llama.cpp's converter
 * (convert_hf_to_gguf.py: get_vocab_base, T5's set_vocab), which writes all tokens by id, a type for each,
 * and merges or scores. The converter fills ids without a token with unused ones, "[PAD151669]", which are
 * skipped here. The file contains only the name of the pre-tokenizer (`pre`), not its rules; unknown names
 * are UNSUPPORTED. */
#include "loaders/gguf/gguf.h"
#include "loaders/tokenizer/reading.h"

#include <ctype.h>
#include <inttypes.h>
#include <string.h>

enum { TYPE_NORMAL = 1, TYPE_UNKNOWN, TYPE_CONTROL, TYPE_USER, TYPE_UNUSED, TYPE_BYTE };

enum { N_EXTRA = 100 }; /* number of T5's <extra_id_N> tokens */

#define TOKENS "tokenizer.ggml.tokens"
#define TYPES  "tokenizer.ggml.token_type"
#define SCORES "tokenizer.ggml.scores"
#define MERGES "tokenizer.ggml.merges"

struct metadata {
    struct reading r;
    struct gguf *header;
    /* arrays with one element per token; data is NULL if the file lacks the array */
    struct gguf_value tokens, types, scores;
    uint64_t n;          /* number of tokens, without unused tokens at the end */
    uint64_t text_bytes; /* total bytes of the texts of all n tokens */
    json_t *specials;    /* JSON list of special tokens, in the form of added_tokens */
};

static struct span span_in(struct gguf_text text) {
    return (struct span){text.text, text.bytes};
}

static bool is_text(struct gguf_text text, const char *other) {
    return text.bytes == strlen(other) && !memcmp(text.text, other, text.bytes);
}

static enum status unsupported(const struct metadata *m, const char *key, struct gguf_text found,
                               const char *expected, struct error *e) {
    return reading_fail(e, UNSUPPORTED, &m->r, "%s is not supported" FOUND "\"%.*s\"" EXPECTED "%s", key,
                        found.bytes > 80 ? 80 : (int)found.bytes, found.text, expected);
}

/* Reads a string from the metadata; "" if the key is absent. */
static enum status find_text(const struct metadata *m, const char *key, struct gguf_text *text,
                             struct error *e) {
    struct gguf_value value;
    uint64_t place = 0;
    *text = (struct gguf_text){.text = ""};
    if (!gguf_find(m->header, key, &value)) return OK;
    if (value.array || value.kind != GGUF_STRING)
        return reading_fail(e, META, &m->r, "%s is not a string", key);
    gguf_next_text(&value, &place, text);
    return OK;
}

/* Finds a metadata array that has one number for each token. */
static enum status find_numbers(const struct metadata *m, const char *key, bool needed,
                                struct gguf_value *value, struct error *e) {
    *value = (struct gguf_value){0};
    if (!gguf_find(m->header, key, value))
        return needed ? reading_fail(e, MISSING, &m->r, "%s is missing", key) : OK;
    if (!value->array || value->kind == GGUF_STRING || value->kind == GGUF_BOOL)
        return reading_fail(e, META, &m->r, "%s is not an array of numbers", key);
    if (value->n == m->tokens.n) return OK;
    return reading_fail(e, META, &m->r,
                        "%s has a different length than the list of tokens" FOUND "%" PRIu64 EXPECTED
                        "%" PRIu64,
                        key, value->n, m->tokens.n);
}

static enum status find_texts(const struct metadata *m, const char *key, struct gguf_value *value,
                              struct error *e) {
    if (!gguf_find(m->header, key, value)) return reading_fail(e, MISSING, &m->r, "%s is missing", key);
    if (value->array && value->kind == GGUF_STRING) return OK;
    return reading_fail(e, META, &m->r, "%s is not an array of strings", key);
}

/* Fails unless a boolean metadata value is `expected`. absent: the default of the key. */
static enum status expect_flag(const struct metadata *m, const char *key, bool expected, bool absent,
                               struct error *e) {
    struct gguf_value value;
    bool found = gguf_find(m->header, key, &value);
    if (found && (value.array || value.kind != GGUF_BOOL))
        return reading_fail(e, META, &m->r, "%s is not a bool", key);
    if ((found ? value.data[0] != 0 : absent) == expected) return OK;
    return reading_unsupported(&m->r, key, expected ? "false" : "true", expected ? "true" : "false", e);
}

/* The type of a token; 0: outside the known types, which means a damaged file. */
static int type_of(const struct metadata *m, uint64_t id) {
    double number = m->types.data ? gguf_number(&m->types, id) : TYPE_NORMAL;
    return number >= TYPE_NORMAL && number <= TYPE_BYTE ? (int)number : 0;
}

/* Finds the per-token arrays, and the number of tokens without the unused tokens at the end. Unigram models
 * need scores. Checks all types, and tokens such as <0xE2>, which represent a byte without another token. A
 * unigram model treats these like any other piece, as in sentencepiece.c. */
static enum status find_tokens(struct metadata *m, bool unigram, struct error *e) {
    struct gguf_text text;
    uint64_t place = 0, bytes = 0;
    if (find_texts(m, TOKENS, &m->tokens, e) || find_numbers(m, TYPES, false, &m->types, e)) return e->code;
    if (find_numbers(m, SCORES, unigram, &m->scores, e)) return e->code;
    if (m->tokens.n > TOKENIZER_ID_MAX)
        return reading_fail(e, LIMIT, &m->r,
                            "%s is too long" FOUND "%" PRIu64 " tokens" EXPECTED "at most %d", TOKENS,
                            m->tokens.n, TOKENIZER_ID_MAX);
    for (uint64_t id = 0; gguf_next_text(&m->tokens, &place, &text); id++) {
        int type = type_of(m, id);
        if (!type)
            return reading_fail(e, META, &m->r,
                                "%s has an unknown token type" FOUND "%g of token %" PRIu64 EXPECTED
                                "%d to %d",
                                TYPES, gguf_number(&m->types, id), id, TYPE_NORMAL, TYPE_BYTE);
        bool is_byte = text.bytes == 6 && !memcmp(text.text, "<0x", 3) &&
                       isxdigit((unsigned char)text.text[3]) && isxdigit((unsigned char)text.text[4]) &&
                       text.text[5] == '>';
        if (type == TYPE_BYTE && !is_byte)
            return reading_fail(e, META, &m->r,
                                "a token for a byte is invalid" FOUND "\"%.*s\"" EXPECTED "<0x00> to <0xFF>",
                                text.bytes > 80 ? 80 : (int)text.bytes, text.text);
        if (type == TYPE_BYTE && !unigram) return unsupported(m, "a token for a byte", text, "none", e);
        bytes += text.bytes; /* no overflow: the texts lie in a header in memory */
        if (type == TYPE_UNUSED) continue;
        m->n = id + 1;
        m->text_bytes = bytes;
    }
    return OK;
}

static void add_special(const struct metadata *m, uint64_t id, struct gguf_text text) {
    int type = type_of(m, id);
    if (type == TYPE_CONTROL || type == TYPE_USER)
        added_list_token(m->specials, (int64_t)id, span_in(text), type == TYPE_CONTROL);
}

/* Reads the BPE of Qwen or Mistral ("tekken"). Older files of Qwen models lack the pre-tokenizer's name. */
static enum status read_bpe(struct metadata *m, struct error *e) {
    static const char key[] = "tokenizer.ggml.pre";
    struct tokenizer *t = m->r.t;
    struct gguf_value merges;
    struct gguf_text text;
    uint64_t place = 0;
    uint32_t used = 0;
    if (find_text(m, key, &text, e)) return e->code;
    bool unnamed = !text.bytes || is_text(text, "default");
    bool tekken = is_text(text, "tekken");
    if (!tekken && !is_text(text, "qwen2") && !(unnamed && !strncmp(gguf_architecture(m->header), "qwen", 4)))
        return unsupported(m, key, text, "qwen2 or tekken", e);
    t->nfc = !tekken;
    t->ignore_merges = tekken;
    struct span pattern = span_of(tekken ? tekken_pattern : qwen2_pattern);
    if (split_compile(t, &t->split, pattern, "pre_tokenizer", e) || find_tokens(m, false, e) ||
        word_table_make(t->sys, &t->words, m->n, m->text_bytes, e) || reading_start_ids(&m->r, e))
        return e->code;
    for (uint64_t id = 0; id < m->n && gguf_next_text(&m->tokens, &place, &text); id++) {
        struct word word = {.offset = used, .bytes = (uint32_t)text.bytes, .id = (int32_t)id};
        if (type_of(m, id) == TYPE_UNUSED) continue;
        if (word_table_find(&t->words, span_in(text)) >= 0)
            return reading_fail(e, DUP, &m->r, "%s has a token twice" FOUND "\"%.*s\"", TOKENS,
                                text.bytes > 120 ? 120 : (int)text.bytes, text.text);
        memcpy(t->words.blob + word.offset, text.text, text.bytes);
        used += word.bytes;
        word_table_add(&t->words, word);
        reading_take_id(&m->r, (int64_t)id);
        if (text.bytes > m->r.longest) m->r.longest = text.bytes;
        add_special(m, id, text);
    }
    if (bpe_finish_vocab(&m->r, span_of(""), e) || find_texts(m, MERGES, &merges, e)) return e->code;
    if (merge_table_make(t->sys, &t->merges, merges.n, e)) return e->code;
    place = 0;
    for (uint64_t rank = 0; gguf_next_text(&merges, &place, &text); rank++)
        if (bpe_add_merge_text(&m->r, rank, span_in(text), e)) return e->code;
    if (added_read_list(&m->r, m->specials, e)) return e->code;
    if (t->ignore_merges)
        word_table_to_bytes(&t->words);
    else
        word_table_destroy(t->sys, &t->words);
    return OK;
}

static const char prefix_key[] = "tokenizer.ggml.add_space_prefix",
                  extra_key[] = "tokenizer.ggml.remove_extra_whitespaces";

/* Reads a SentencePiece BPE (Gemma), which adds no blank before a text. User-defined tokens such as "  "
 * contain blanks here, and U+2581 in tokenizer.model. They are added tokens, so they match before blanks are
 * replaced. */
static enum status read_sentencepiece_bpe(struct metadata *m, struct error *e) {
    struct gguf_text text;
    uint64_t place = 0;
    if (expect_flag(m, prefix_key, false, true, e) || expect_flag(m, extra_key, false, false, e) ||
        find_tokens(m, true, e) || pieces_make(&m->r, m->n, m->text_bytes, e))
        return e->code;
    for (uint64_t id = 0; id < m->n && gguf_next_text(&m->tokens, &place, &text); id++) {
        if (pieces_add(&m->r, span_in(text), gguf_number(&m->scores, id), e)) return e->code;
        add_special(m, id, text);
        if (type_of(m, id) == TYPE_UNKNOWN) added_list_token(m->specials, (int64_t)id, span_in(text), true);
    }
    return bpe_pieces_finish(&m->r, e) ? e->code : added_read_list(&m->r, m->specials, e);
}

/* Reads a unigram model. T5's last hundred tokens (<extra_id_N>) come from the tokenizer class, not from the
 * model file; some GGUF files have unused tokens in their place. llama.cpp's converter changes the scores of
 * user tokens; transformers' T5Tokenizer uses 0. */
static enum status read_unigram(struct metadata *m, struct error *e) {
    static const char table_key[] = "tokenizer.ggml.precompiled_charsmap";
    struct gguf_value table;
    struct gguf_text text;
    uint64_t place = 0;
    int64_t unk = -1;
    bool has_extra = false;
    if (expect_flag(m, prefix_key, true, true, e)) return e->code;
    if (expect_flag(m, extra_key, true, true, e)) return e->code;
    if (find_tokens(m, true, e)) return e->code;
    if (gguf_find(m->header, table_key, &table) && table.n) {
        if (!table.array || (table.kind != GGUF_U8 && table.kind != GGUF_I8))
            return reading_fail(e, META, &m->r, "%s is not an array of bytes", table_key);
        struct span blob = {(const char *)table.data, table.n};
        if (charsmap_make(m->r.t->sys, blob, m->r.path, &m->r.t->charsmap, e)) return e->code;
    }
    int extra = m->tokens.n - m->n >= N_EXTRA ? N_EXTRA : 0;
    if (pieces_make(&m->r, m->n + (uint64_t)extra, m->text_bytes + 32 * (uint64_t)extra, e)) return e->code;
    for (uint64_t id = 0; id < m->n && gguf_next_text(&m->tokens, &place, &text); id++) {
        int type = type_of(m, id);
        double score = type == TYPE_USER ? 0 : gguf_number(&m->scores, id);
        if (pieces_add(&m->r, span_in(text), score, e)) return e->code;
        if (type == TYPE_UNKNOWN && unk >= 0)
            return reading_fail(e, META, &m->r, "%s has two unknown pieces", TYPES);
        if (type == TYPE_UNKNOWN) unk = (int64_t)id;
        has_extra |= is_text(text, "<extra_id_0>");
        add_special(m, id, text);
    }
    if (!has_extra && pieces_add_extra(&m->r, extra, m->specials, e)) return e->code;
    if (unigram_read_added(&m->r, NULL, NULL, m->specials, e)) return e->code;
    return pieces_finish(&m->r, unk, e);
}

enum status tokenizer_read_gguf(struct reading *r, struct error *e) {
    static const char key[] = "tokenizer.ggml.model";
    struct metadata m = {0};
    struct byte_source source;
    struct gguf_text kind;
    unsigned json_failures = failed_json_allocations();
    if (source_open(r->t->sys, r->path, &source, e) != OK) return e->code;
    m.r = *r;
    if (gguf_read(&source, &m.header, e) != OK || find_text(&m, key, &kind, e) != OK) goto out;
    if (!kind.bytes) {
        reading_fail(e, MISSING, r, "%s is missing" EXPECTED "a GGUF file with a tokenizer", key);
        goto out;
    }
    m.specials = json_array();
    if (is_text(kind, "gpt2"))
        read_bpe(&m, e);
    else if (is_text(kind, "t5"))
        read_unigram(&m, e);
    else if (is_text(kind, "llama"))
        read_sentencepiece_bpe(&m, e);
    else
        unsupported(&m, key, kind, "gpt2, llama or t5", e);
    if (!m.specials || failed_json_allocations() != json_failures)
        error_set(e, MEMORY, "no memory for added tokens");
    json_decref(m.specials);
out:
    *r = m.r;
    gguf_close(m.header);
    source_close(&source);
    return e->code;
}
