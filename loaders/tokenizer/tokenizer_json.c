/* Byte-level BPE from files: tokenizer.json, or the vocabulary and merges of a folder.
 * All numbers, texts and references are checked here, so that encoding needs no checks. During reading,
 * Jansson's document is the only index from text to token; it is freed afterwards. Members that would change
 * ids and are not implemented are UNSUPPORTED by name. The decoder, and the effects of post_processor and
 * truncation, are ignored: ids exclude special tokens and pipelines truncate by themselves. Their contents
 * are still checked. */
#include "loaders/tokenizer/reading.h"
#include "loaders/alloc_array.h"
#include "loaders/tokenizer/byte_level.h"
#include "loaders/tokenizer/bpe.h"
#include "loaders/utf8.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <utf8proc.h>

#include "engine/base/checked.h"

enum { ALPHABET_END = 324 };

/* True for printable Latin-1 bytes, which represent themselves; other bytes become U+0100 and up. */
static bool stands_for_itself(int byte) {
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

int byte_to_alphabet(int byte) {
    if (stands_for_itself(byte)) return byte;
    int code = 256;
    for (int b = 0; b < byte; b++) code += !stands_for_itself(b);
    return code;
}

int alphabet_to_byte(int code) {
    if (code < 0 || code >= ALPHABET_END) return -1;
    if (code < 256) return stands_for_itself(code) ? code : -1;
    for (int b = 0; b < 256; b++)
        if (byte_to_alphabet(b) == code) return b;
    return -1;
}

/* Looks up a token for each byte. suffix: follows the byte of the last symbol of a piece ("</w>"). */
static void tokenizer_json_read_bytes(const struct reading *r, struct span suffix, int32_t *ids) {
    for (int byte = 0; byte < 256; byte++) {
        char text[4 + TOKENIZER_SUFFIX_BYTES];
        uint64_t n = (uint64_t)utf8proc_encode_char(byte_to_alphabet(byte), (utf8proc_uint8_t *)text);
        memcpy(text + n, suffix.at, suffix.bytes);
        ids[byte] = reading_vocab_id(r, (struct span){text, n + suffix.bytes});
    }
}

enum status bpe_finish_vocab(struct reading *r, struct span suffix, struct error *e) {
    tokenizer_json_read_bytes(r, (struct span){"", 0}, r->t->byte_id);
    tokenizer_json_read_bytes(r, suffix, r->t->last_id);
    r->joined = alloc_array(r->t->sys, r->longest + 1, 1, e);
    return e->code;
}

enum status bpe_read_vocab(struct reading *r, struct span suffix, struct error *e) {
    if (!json_is_object(r->vocab))
        return reading_wrong_kind(r, "the vocabulary", r->vocab, "an object of ids", e);
    if (reading_start_ids(r, e)) return e->code;
    for (void *at = json_object_iter(r->vocab); at; at = json_object_iter_next(r->vocab, at)) {
        const char *token = json_object_iter_key(at);
        const json_t *value = json_object_iter_value(at);
        if (reading_check_id(r, token, value, e)) return e->code;
        if (!reading_take_id(r, json_integer_value(value))) {
            error_set(e, META, "tokenizer: two tokens have the same id, the second is \"%s\"" WHERE "%s",
                      token, r->path);
            error_found(e, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
            return error_expected(e, "unique ids");
        }
        if (json_object_iter_key_len(at) > r->longest) r->longest = json_object_iter_key_len(at);
    }
    return bpe_finish_vocab(r, suffix, e);
}

/* Converts a byte-level token to bytes. False for other characters: the token never occurs in text. */
static bool to_bytes(const int16_t *byte_of, const char *text, uint64_t bytes, char *to, uint32_t *n_bytes) {
    *n_bytes = 0;
    for (uint64_t i = 0; i < bytes;) {
        utf8proc_int32_t code;
        i += (uint64_t)utf8proc_iterate((const utf8proc_uint8_t *)text + i, (utf8proc_ssize_t)(bytes - i),
                                        &code);
        if (code >= ALPHABET_END || byte_of[code] < 0) return false;
        to[(*n_bytes)++] = (char)byte_of[code];
    }
    return true;
}

/* Stores all tokens by their bytes, for ignore_merges. A token never has more bytes than its text. */
static enum status tokenizer_json_read_words(struct reading *r, struct error *e) {
    struct word_table *words = &r->t->words;
    int16_t byte_of[ALPHABET_END];
    uint64_t text_bytes = 0;
    for (int code = 0; code < ALPHABET_END; code++) byte_of[code] = (int16_t)alphabet_to_byte(code);
    for (void *at = json_object_iter(r->vocab); at; at = json_object_iter_next(r->vocab, at))
        if (!add_u64(text_bytes, json_object_iter_key_len(at), &text_bytes))
            return error_set(e, OVERFLOW, "tokenizer: the texts of the vocabulary are too long in total");
    if (word_table_make(r->t->sys, words, json_object_size(r->vocab), text_bytes, e)) return e->code;
    uint32_t used = 0;
    for (void *at = json_object_iter(r->vocab); at; at = json_object_iter_next(r->vocab, at)) {
        struct word word = {.offset = used, .id = (int32_t)json_integer_value(json_object_iter_value(at))};
        if (!to_bytes(byte_of, json_object_iter_key(at), json_object_iter_key_len(at), words->blob + used,
                      &word.bytes))
            continue;
        used += word.bytes;
        word_table_add(words, word);
    }
    return OK;
}

static enum status bad_merge(const struct reading *r, uint64_t rank, const char *problem, struct span text,
                             struct error *e) {
    return error_set(e, META, "tokenizer: merge rule %" PRIu64 " %s" WHERE "%s" FOUND "\"%.*s\"", rank,
                     problem, r->path, text.bytes > 120 ? 120 : (int)text.bytes, text.at);
}

static enum status tokenizer_json_add_merge(struct reading *r, uint64_t rank, struct span left,
                                            struct span right, struct error *e) {
    struct merge merge = {reading_vocab_id(r, left), reading_vocab_id(r, right), -1};
    if (merge.left < 0 || merge.right < 0)
        return bad_merge(r, rank, "has a part that is not in the vocabulary", merge.left < 0 ? left : right,
                         e);
    if (left.bytes > r->longest || right.bytes > r->longest - left.bytes) {
        bad_merge(r, rank, "makes a text longer than any token", right, e);
        return error_expected(e, "at most %" PRIu64 " bytes", r->longest);
    }
    memcpy(r->joined, left.at, left.bytes);
    memcpy(r->joined + left.bytes, right.at, right.bytes);
    struct span joined = {r->joined, left.bytes + right.bytes};
    merge.joined = reading_vocab_id(r, joined);
    if (merge.joined < 0) return bad_merge(r, rank, "makes a text that is not in the vocabulary", joined, e);
    merge_table_add(&r->t->merges, merge);
    return OK;
}

enum status bpe_add_merge(struct reading *r, uint64_t rank, struct span text, struct error *e) {
    const char *space = memchr(text.at, ' ', text.bytes);
    struct span left = {text.at, space ? (uint64_t)(space - text.at) : 0};
    struct span right = {space ? space + 1 : NULL, text.bytes - left.bytes - 1};
    if (!space || memchr(right.at, ' ', right.bytes)) {
        bad_merge(r, rank, "does not have two parts", text, e);
        return error_expected(e, "two tokens and one space between them");
    }
    return tokenizer_json_add_merge(r, rank, left, right, e);
}

static enum status add_merge_json(struct reading *r, uint64_t rank, const json_t *item, struct error *e) {
    if (json_is_string(item)) return bpe_add_merge(r, rank, string_span(item), e);
    const json_t *left = json_array_get(item, 0), *right = json_array_get(item, 1);
    if (json_array_size(item) == 2 && json_is_string(left) && json_is_string(right))
        return tokenizer_json_add_merge(r, rank, string_span(left), string_span(right), e);
    return error_set(e, META,
                     "tokenizer: merge rule %" PRIu64 " does not have two parts" WHERE "%s" FOUND
                     "%s of %zu elements" EXPECTED "\"a b\" or [\"a\", \"b\"]",
                     rank, r->path, reading_kind(item), json_array_size(item));
}

static enum status read_merges_json(struct reading *r, const json_t *merges, struct error *e) {
    if (!json_is_array(merges)) return reading_wrong_kind(r, "model.merges", merges, "an array", e);
    uint64_t n = json_array_size(merges);
    if (merge_table_make(r->t->sys, &r->t->merges, n, e)) return e->code;
    for (uint64_t i = 0; i < n; i++)
        if (add_merge_json(r, i, json_array_get(merges, i), e)) return e->code;
    return OK;
}

/* Returns the next line without its end; false at the end. Only "\n" and "\r\n" end lines. */
static bool next_line(struct span *rest, struct span *line) {
    if (!rest->bytes) return false;
    const char *end = memchr(rest->at, '\n', rest->bytes);
    uint64_t bytes = end ? (uint64_t)(end - rest->at) : rest->bytes;
    *line = (struct span){rest->at, bytes};
    rest->at += bytes + (end != NULL);
    rest->bytes -= bytes + (end != NULL);
    if (line->bytes && line->at[line->bytes - 1] == '\r') line->bytes--;
    return true;
}

/* False for empty lines and version lines. There are no other comments: "# #" merges two hashes. */
static bool is_merge_line(struct span line) {
    return line.bytes && !(line.bytes >= 8 && !memcmp(line.at, "#version", 8));
}

enum status bpe_read_merges_text(struct reading *r, struct span text, struct error *e) {
    struct span rest = text, line;
    uint64_t n = 0, rank = 0;
    uint64_t valid = utf8_valid_bytes(text.at, text.bytes);
    if (valid < text.bytes) {
        return error_set(
            e, UTF8, "tokenizer: the merge rules are not UTF-8" WHERE "%s, byte %" PRIu64 FOUND "byte 0x%02x",
            r->path, valid, (unsigned char)text.at[valid]);
    }
    while (next_line(&rest, &line)) n += is_merge_line(line);
    if (merge_table_make(r->t->sys, &r->t->merges, n, e)) return e->code;
    for (rest = text; next_line(&rest, &line);)
        if (is_merge_line(line) && bpe_add_merge(r, rank++, line, e)) return e->code;
    return OK;
}

/* Rejects members of the model that would change ids and are not implemented. */
static enum status check_model(struct reading *r, const json_t *model, struct error *e) {
    const json_t *prefix = json_object_get(model, "continuing_subword_prefix");
    const json_t *type = json_object_get(model, "type"), *dropout = json_object_get(model, "dropout");
    bool byte_fallback = false;
    if (!json_is_object(model)) return reading_wrong_kind(r, "model", model, "an object", e);
    if (!reading_absent(type) && !json_is_string(type))
        return reading_wrong_kind(r, "model.type", type, "\"BPE\"", e);
    if (!reading_absent(type) && strcmp(json_string_value(type), "BPE"))
        return reading_unsupported(r, "model.type", json_string_value(type), "BPE", e);
    if (!reading_absent(prefix) && !(json_is_string(prefix) && !json_string_length(prefix)))
        return reading_unsupported(r, "continuing_subword_prefix",
                                   json_is_string(prefix) ? json_string_value(prefix) : reading_kind(prefix),
                                   "null", e);
    if (!reading_absent(dropout) && !(json_is_number(dropout) && json_number_value(dropout) == 0))
        return reading_unsupported(r, "model.dropout", "not null", "null", e);
    if (reading_bool(r, model, "byte_fallback", "model.byte_fallback", &byte_fallback, e)) return e->code;
    return byte_fallback ? reading_unsupported(r, "model.byte_fallback", "true", "false", e) : OK;
}

enum status bpe_read_unk(struct reading *r, const json_t *unk, struct error *e) {
    if (reading_absent(unk)) return OK;
    if (!json_is_string(unk)) return reading_wrong_kind(r, "model.unk_token", unk, "a string or null", e);
    r->t->unk = reading_vocab_id(r, string_span(unk));
    for (int byte = 0; byte < 256 && r->t->unk < 0; byte++) {
        if (r->t->byte_id[byte] >= 0 && r->t->last_id[byte] >= 0) continue;
        reading_fail(r, META, "model.unk_token", "is not in the vocabulary", e);
        error_found(e, "\"%s\"", json_string_value(unk));
        return error_expected(e, "a token, because byte 0x%02x has none", (unsigned)byte);
    }
    return OK;
}

static enum status read_suffix(struct reading *r, const json_t *suffix, struct span *out, struct error *e) {
    *out = (struct span){"", 0};
    if (reading_absent(suffix)) return OK;
    if (!json_is_string(suffix))
        return reading_wrong_kind(r, "model.end_of_word_suffix", suffix, "a string or null", e);
    *out = string_span(suffix);
    if (out->bytes <= TOKENIZER_SUFFIX_BYTES) return OK;
    reading_fail(r, LIMIT, "model.end_of_word_suffix", "is too long", e);
    error_found(e, "%" PRIu64 " bytes", out->bytes);
    return error_expected(e, "at most %d", TOKENIZER_SUFFIX_BYTES);
}

static enum status read_model(struct reading *r, const json_t *model, struct error *e) {
    if (check_model(r, model, e)) return e->code;
    reading_bool(r, model, "ignore_merges", "model.ignore_merges", &r->t->ignore_merges, e);
    if (reading_bool(r, model, "fuse_unk", "model.fuse_unk", &r->t->fuse_unk, e)) return e->code;
    struct span suffix;
    if (read_suffix(r, json_object_get(model, "end_of_word_suffix"), &suffix, e)) return e->code;
    if (suffix.bytes) r->t->kind = "CLIP BPE";
    r->vocab = json_object_get(model, "vocab");
    if (bpe_read_vocab(r, suffix, e)) return e->code;
    if (r->t->ignore_merges && tokenizer_json_read_words(r, e)) return e->code;
    if (bpe_read_unk(r, json_object_get(model, "unk_token"), e)) return e->code;
    return read_merges_json(r, json_object_get(model, "merges"), e);
}

static bool is_added(const struct tokenizer *t, const char *text) {
    for (int i = 0; i < t->n_added; i++)
        if (!strcmp(t->added[i].content.at, text)) return true;
    return false;
}

/* Checks that each {"SpecialToken": {"id": NAME}} names a member of special_tokens whose tokens exist. */
static enum status check_template(struct reading *r, const json_t *processor, const char *side,
                                  struct error *e) {
    const json_t *list = json_object_get(processor, side),
                 *known = json_object_get(processor, "special_tokens");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *special = json_object_get(json_array_get(list, i), "SpecialToken");
        const char *name = json_string_value(json_object_get(special, "id"));
        if (!special) continue;
        const json_t *tokens = name ? json_object_get(json_object_get(known, name), "tokens") : NULL;
        bool found = json_array_size(tokens) > 0;
        for (size_t j = 0; j < json_array_size(tokens); j++) {
            const char *token = json_string_value(json_array_get(tokens, j));
            found = found && token &&
                    (is_added(r->t, token) || reading_vocab_id(r, (struct span){token, strlen(token)}) >= 0);
        }
        if (found) continue;
        reading_fail(r, META, "the post_processor's template", "names a special token that is missing", e);
        return error_found(e, "\"%s\"", name ? name : "");
    }
    return OK;
}

static enum status check_processor(struct reading *r, const json_t *processor, bool nested, struct error *e) {
    if (reading_absent(processor)) return OK;
    const char *type = reading_type(r, processor, "post_processor", e);
    if (!type) return e->code;
    if (!strcmp(type, "TemplateProcessing")) {
        if (check_template(r, processor, "single", e)) return e->code;
        return check_template(r, processor, "pair", e);
    }
    const json_t *list = json_object_get(processor, "processors");
    for (size_t i = 0; !nested && i < json_array_size(list) && !e->code; i++)
        check_processor(r, json_array_get(list, i), true, e);
    return e->code;
}

/* Checks truncation and padding. Pipelines set both for each text, so only invalid values matter. */
static enum status check_lengths(struct reading *r, const json_t *root, struct error *e) {
    const json_t *truncation = json_object_get(root, "truncation");
    const json_t *strategy = json_object_get(json_object_get(root, "padding"), "strategy");
    const json_t *most = json_object_get(truncation, "max_length"),
                 *stride = json_object_get(truncation, "stride");
    const json_t *fixed = json_object_get(strategy, "Fixed");
    if (!reading_absent(truncation) &&
        (!json_is_integer(most) || json_integer_value(most) < 1 || json_integer_value(stride) < 0 ||
         json_integer_value(stride) >= json_integer_value(most))) {
        reading_fail(r, META, "truncation", "has invalid lengths", e);
        error_found(e, "max_length %" JSON_INTEGER_FORMAT ", stride %" JSON_INTEGER_FORMAT,
                    json_integer_value(most), json_integer_value(stride));
        return error_expected(e, "0 <= stride < max_length");
    }
    if (!fixed || (json_is_integer(fixed) && json_integer_value(fixed) > 0)) return OK;
    reading_fail(r, META, "padding", "has an invalid length", e);
    error_found(e, "Fixed %" JSON_INTEGER_FORMAT, json_integer_value(fixed));
    return error_expected(e, "at least 1");
}

static enum status read_document(struct reading *r, const json_t *root, struct error *e) {
    const json_t *version = json_object_get(root, "version");
    if (!json_is_object(root)) return reading_wrong_kind(r, "the document", root, "an object", e);
    if (!reading_absent(version) && !reading_is_text(version, "1.0")) {
        reading_fail(r, VERSION, "the file's version", "is not supported", e);
        error_found(e, "%s", json_is_string(version) ? json_string_value(version) : reading_kind(version));
        return error_expected(e, "\"1.0\"");
    }
    const json_t *model = json_object_get(root, "model");
    if (reading_is_text(json_object_get(model, "type"), "Unigram")) {
        if (unigram_read_json(r, root, e)) return e->code;
    } else {
        if (pre_tokenizer_read(r, root, e) || read_model(r, model, e)) return e->code;
    }
    if (added_read_list(r, json_object_get(root, "added_tokens"), e)) return e->code;
    if (check_processor(r, json_object_get(root, "post_processor"), false, e)) return e->code;
    return check_lengths(r, root, e);
}

enum status tokenizer_read_json(struct tokenizer *t, const char *path, struct error *e) {
    struct reading r = {.t = t, .path = path};
    json_t *root = NULL;
    t->path = copy_text(t->sys, path, strlen(path), e);
    if (!t->path || reading_json_file(t->sys, path, &root, e)) return e->code;
    read_document(&r, root, e);
    reading_finish(&r, e);
    json_decref(root);
    return e->code;
}
