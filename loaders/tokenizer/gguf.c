/* Reads a tokenizer from GGUF metadata: the keys under tokenizer.ggml. Inverts llama.cpp's converter
 * (convert_hf_to_gguf.py: get_vocab_base, T5's set_vocab), which writes all tokens by id, a type for each,
 * and merges or scores. The converter fills ids without a token with unused ones, "[PAD151669]", which are
 * skipped here. The file contains only the name of the pre-tokenizer (`pre`), not its rules; unknown names
 * are UNSUPPORTED. */
#include "loaders/gguf/gguf.h"
#include "loaders/tokenizer/reading.h"
#include "loaders/alloc_array.h"
#include "loaders/tokenizer/bpe.h"
#include "loaders/tokenizer/normalize.h"

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
    struct gguf_value tokens, types, scores; /* per-token arrays; data is NULL if absent */
    uint64_t n;                              /* number of tokens up to the last used one */
    uint64_t text_bytes;                     /* bytes of the texts of the n tokens */
    json_t *specials;                        /* special tokens, as elements of added_tokens */
};

static enum status tokenizer_gguf_fail(const struct metadata *m, enum status code, const char *key,
                                       const char *problem, struct error *e) {
    return reading_fail(&m->r, code, key, problem, e);
}

static enum status tokenizer_gguf_unsupported(const struct metadata *m, const char *key,
                                              struct gguf_text found, const char *expected, struct error *e) {
    tokenizer_gguf_fail(m, UNSUPPORTED, key, "is not supported", e);
    error_found(e, "\"%.*s\"", found.bytes > 80 ? 80 : (int)found.bytes, found.text);
    return error_expected(e, "%s", expected);
}

static bool tokenizer_gguf_is_text(struct gguf_text text, const char *other) {
    return text.bytes == strlen(other) && !memcmp(text.text, other, text.bytes);
}

static enum status tokenizer_gguf_read_text(const struct metadata *m, const char *key, struct gguf_text *text,
                                            struct error *e) {
    struct gguf_value value;
    uint64_t place = 0;
    *text = (struct gguf_text){.text = ""};
    if (!gguf_find(m->header, key, &value)) return OK;
    if (value.array || value.kind != GGUF_STRING)
        return tokenizer_gguf_fail(m, META, key, "is not a string", e);
    gguf_next_text(&value, &place, text);
    return OK;
}

static bool is_number(const struct gguf_value *value) {
    return value->kind != GGUF_STRING && value->kind != GGUF_BOOL;
}

static enum status find_numbers(const struct metadata *m, const char *key, bool needed,
                                struct gguf_value *value, struct error *e) {
    *value = (struct gguf_value){0};
    if (!gguf_find(m->header, key, value))
        return needed ? tokenizer_gguf_fail(m, MISSING, key, "is missing", e) : OK;
    if (!value->array || !is_number(value))
        return tokenizer_gguf_fail(m, META, key, "is not an array of numbers", e);
    if (value->n == m->tokens.n) return OK;
    tokenizer_gguf_fail(m, META, key, "has a different length than the list of tokens", e);
    error_found(e, "%" PRIu64, value->n);
    return error_expected(e, "%" PRIu64, m->tokens.n);
}

static enum status find_texts(const struct metadata *m, const char *key, struct gguf_value *value,
                              struct error *e) {
    if (!gguf_find(m->header, key, value)) return tokenizer_gguf_fail(m, MISSING, key, "is missing", e);
    return value->array && value->kind == GGUF_STRING
               ? OK
               : tokenizer_gguf_fail(m, META, key, "is not an array of strings", e);
}

static enum status expect_flag(const struct metadata *m, const char *key, struct error *e) {
    struct gguf_value value;
    if (!gguf_find(m->header, key, &value)) return OK;
    if (value.array || value.kind != GGUF_BOOL) return tokenizer_gguf_fail(m, META, key, "is not a bool", e);
    return value.data[0] ? OK : reading_unsupported(&m->r, key, "false", "true", e);
}

/* Reads the type of a token; types outside 1 to 6 mean a damaged file. */
static enum status tokenizer_gguf_type_of(const struct metadata *m, uint64_t id, int *type, struct error *e) {
    double number = m->types.data ? gguf_number(&m->types, id) : TYPE_NORMAL;
    *type = number >= TYPE_NORMAL && number <= TYPE_BYTE ? (int)number : 0;
    if (*type) return OK;
    tokenizer_gguf_fail(m, META, TYPES, "has an unknown token type", e);
    error_found(e, "%g of token %" PRIu64, number, id);
    return error_expected(e, "%d to %d", TYPE_NORMAL, TYPE_BYTE);
}

/* Checks a token such as <0xE2>, which represents a byte without another token. A unigram model treats it
 * like any other piece, as in sentencepiece.c. */
static enum status check_byte(const struct metadata *m, struct gguf_text text, bool unigram,
                              struct error *e) {
    bool form = text.bytes == 6 && !memcmp(text.text, "<0x", 3) && isxdigit((unsigned char)text.text[3]) &&
                isxdigit((unsigned char)text.text[4]) && text.text[5] == '>';
    if (form) return unigram ? OK : tokenizer_gguf_unsupported(m, "a token for a byte", text, "none", e);
    tokenizer_gguf_fail(m, META, "a token for a byte", "is invalid", e);
    error_found(e, "\"%.*s\"", text.bytes > 80 ? 80 : (int)text.bytes, text.text);
    return error_expected(e, "<0x00> to <0xFF>");
}

/* Finds the per-token arrays, and the number of tokens without the unused tokens at the end. Unigram models
 * need scores. */
static enum status find_tokens(struct metadata *m, bool unigram, struct error *e) {
    struct gguf_text text;
    uint64_t place = 0, bytes = 0;
    if (find_texts(m, TOKENS, &m->tokens, e) || find_numbers(m, TYPES, false, &m->types, e)) return e->code;
    if (find_numbers(m, SCORES, unigram, &m->scores, e)) return e->code;
    if (m->tokens.n > TOKENIZER_ID_MAX) {
        tokenizer_gguf_fail(m, LIMIT, TOKENS, "is too long", e);
        error_found(e, "%" PRIu64 " tokens", m->tokens.n);
        return error_expected(e, "at most %d", TOKENIZER_ID_MAX);
    }
    for (uint64_t id = 0; gguf_next_text(&m->tokens, &place, &text); id++) {
        int type;
        if (tokenizer_gguf_type_of(m, id, &type, e)) return e->code;
        if (type == TYPE_BYTE && check_byte(m, text, unigram, e)) return e->code;
        bytes += text.bytes; /* no overflow: the texts lie in a header in memory */
        if (type == TYPE_UNUSED) continue;
        m->n = id + 1;
        m->text_bytes = bytes;
    }
    return OK;
}

static void add_special(const struct metadata *m, uint64_t id, struct gguf_text text, int type) {
    if (type == TYPE_CONTROL || type == TYPE_USER)
        added_list_token(m->specials, (int64_t)id, (struct span){text.text, text.bytes},
                         type == TYPE_CONTROL);
}

static enum status tokenizer_gguf_add_word(struct metadata *m, uint64_t id, struct gguf_text text,
                                           uint32_t *used, struct error *e) {
    struct word_table *words = &m->r.t->words;
    struct word word = {.offset = *used, .bytes = (uint32_t)text.bytes, .id = (int32_t)id};
    if (word_table_find(words, (struct span){text.text, text.bytes}) >= 0) {
        tokenizer_gguf_fail(m, DUP, TOKENS, "has a token twice", e);
        return error_found(e, "\"%.*s\"", text.bytes > 120 ? 120 : (int)text.bytes, text.text);
    }
    memcpy(words->blob + word.offset, text.text, text.bytes);
    *used += word.bytes;
    word_table_add(words, word);
    reading_take_id(&m->r, (int64_t)id);
    if (text.bytes > m->r.longest) m->r.longest = text.bytes;
    return OK;
}

static enum status tokenizer_gguf_read_words(struct metadata *m, struct error *e) {
    struct gguf_text text;
    uint64_t place = 0;
    uint32_t used = 0;
    if (word_table_make(m->r.t->sys, &m->r.t->words, m->n, m->text_bytes, e)) return e->code;
    if (reading_start_ids(&m->r, e)) return e->code;
    for (uint64_t id = 0; id < m->n && gguf_next_text(&m->tokens, &place, &text); id++) {
        int type;
        if (tokenizer_gguf_type_of(m, id, &type, e)) return e->code;
        if (type == TYPE_UNUSED) continue;
        if (tokenizer_gguf_add_word(m, id, text, &used, e)) return e->code;
        add_special(m, id, text, type);
    }
    return bpe_finish_vocab(&m->r, (struct span){"", 0}, e);
}

static enum status read_merges(struct metadata *m, struct error *e) {
    struct gguf_value merges;
    struct gguf_text text;
    uint64_t place = 0;
    if (find_texts(m, MERGES, &merges, e)) return e->code;
    if (merge_table_make(m->r.t->sys, &m->r.t->merges, merges.n, e)) return e->code;
    for (uint64_t rank = 0; gguf_next_text(&merges, &place, &text); rank++)
        if (bpe_add_merge(&m->r, rank, (struct span){text.text, text.bytes}, e)) return e->code;
    return OK;
}

/* Checks the pre-tokenizer's name, which older files of Qwen models lack. */
static enum status check_split(const struct metadata *m, struct error *e) {
    static const char key[] = "tokenizer.ggml.pre";
    struct gguf_text pre;
    if (tokenizer_gguf_read_text(m, key, &pre, e)) return e->code;
    bool unnamed = !pre.bytes || tokenizer_gguf_is_text(pre, "default");
    if (tokenizer_gguf_is_text(pre, "qwen2") ||
        (unnamed && !strncmp(gguf_architecture(m->header), "qwen", 4)))
        return OK;
    return tokenizer_gguf_unsupported(m, key, pre, "qwen2", e);
}

static enum status read_bpe(struct metadata *m, struct error *e) {
    if (check_split(m, e) || pre_tokenizer_set_qwen2(&m->r, e) || find_tokens(m, false, e)) return e->code;
    if (tokenizer_gguf_read_words(m, e) || read_merges(m, e) || added_read_list(&m->r, m->specials, e))
        return e->code;
    word_table_destroy(m->r.t->sys, &m->r.t->words);
    return OK;
}

/* Reads the pieces. llama.cpp's converter changes the scores of user tokens; transformers' T5Tokenizer uses
 * 0. */
static enum status tokenizer_gguf_read_pieces(struct metadata *m, int64_t *unk, bool *has_extra,
                                              struct error *e) {
    struct gguf_text text;
    uint64_t place = 0;
    for (uint64_t id = 0; id < m->n && gguf_next_text(&m->tokens, &place, &text); id++) {
        int type;
        if (tokenizer_gguf_type_of(m, id, &type, e)) return e->code;
        double score = type == TYPE_USER ? 0 : gguf_number(&m->scores, id);
        if (pieces_add(&m->r, (struct span){text.text, text.bytes}, score, e)) return e->code;
        if (type == TYPE_UNKNOWN && *unk >= 0)
            return tokenizer_gguf_fail(m, META, TYPES, "has two unknown pieces", e);
        if (type == TYPE_UNKNOWN) *unk = (int64_t)id;
        *has_extra |= tokenizer_gguf_is_text(text, "<extra_id_0>");
        add_special(m, id, text, type);
    }
    return OK;
}

static enum status tokenizer_gguf_read_table(struct metadata *m, struct error *e) {
    static const char key[] = "tokenizer.ggml.precompiled_charsmap";
    struct gguf_value table;
    if (!gguf_find(m->header, key, &table) || !table.n) return OK;
    if (!table.array || (table.kind != GGUF_U8 && table.kind != GGUF_I8))
        return tokenizer_gguf_fail(m, META, key, "is not an array of bytes", e);
    struct span blob = {(const char *)table.data, table.n};
    return charsmap_make(m->r.t->sys, blob, m->r.path, &m->r.t->charsmap, e);
}

/* Reads a unigram model. T5's last hundred tokens (<extra_id_N>) come from the tokenizer class, not from the
 * model file; some GGUF files have unused tokens in their place. */
static enum status read_unigram(struct metadata *m, struct error *e) {
    int64_t unk = -1;
    bool has_extra = false;
    if (expect_flag(m, "tokenizer.ggml.add_space_prefix", e)) return e->code;
    if (expect_flag(m, "tokenizer.ggml.remove_extra_whitespaces", e)) return e->code;
    if (find_tokens(m, true, e) || tokenizer_gguf_read_table(m, e)) return e->code;
    int extra = m->tokens.n - m->n >= N_EXTRA ? N_EXTRA : 0;
    if (pieces_make(&m->r, m->n + (uint64_t)extra, m->text_bytes + 32 * (uint64_t)extra, e)) return e->code;
    if (tokenizer_gguf_read_pieces(m, &unk, &has_extra, e)) return e->code;
    if (!has_extra && pieces_add_extra(&m->r, extra, m->specials, e)) return e->code;
    if (unigram_read_added(&m->r, NULL, NULL, m->specials, e)) return e->code;
    return pieces_finish(&m->r, unk, e);
}

static enum status tokenizer_gguf_read_metadata(struct metadata *m, struct error *e) {
    static const char key[] = "tokenizer.ggml.model";
    struct gguf_text kind;
    unsigned json_failures = failed_json_allocations();
    if (tokenizer_gguf_read_text(m, key, &kind, e)) return e->code;
    if (!kind.bytes) {
        tokenizer_gguf_fail(m, MISSING, key, "is missing", e);
        return error_expected(e, "a GGUF file with a tokenizer");
    }
    m->specials = json_array();
    if (tokenizer_gguf_is_text(kind, "gpt2"))
        read_bpe(m, e);
    else if (tokenizer_gguf_is_text(kind, "t5"))
        read_unigram(m, e);
    else
        tokenizer_gguf_unsupported(m, key, kind, "gpt2 or t5", e);
    if (!m->specials || failed_json_allocations() != json_failures)
        error_set(e, MEMORY, "no memory for added tokens");
    json_decref(m->specials);
    return e->code;
}

enum status tokenizer_read_gguf(struct tokenizer *t, const char *path, struct error *e) {
    struct metadata m = {.r = {.t = t, .path = path}};
    struct byte_source source;
    t->path = copy_text(t->sys, path, strlen(path), e);
    if (!t->path || source_open(t->sys, path, &source, e) != OK) return e->code;
    if (gguf_read(&source, &m.header, e) == OK) {
        tokenizer_gguf_read_metadata(&m, e);
        gguf_close(m.header);
    }
    source_close(&source);
    return reading_finish(&m.r, e);
}
