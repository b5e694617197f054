/* Reads tokenizer.json, and calls tekken.c for tekken.json: byte-level BPE (GPT-2, Qwen, CLIP) and
 * unigram models (T5). All numbers, texts and references are checked here, so that encoding needs no checks.
 * During reading, Jansson's document is the only index from text to token; it is freed afterwards. Members
 * that would change ids and are not implemented are UNSUPPORTED by name. The decoder, and the effects of
 * post_processor and truncation, are ignored: ids exclude special tokens and pipelines truncate by
 * themselves. Their contents are still checked. */
#include "loaders/tokenizer/reading.h"

#include <inttypes.h>
#include <nettle/base64.h>
#include <string.h>

#include "engine/base/checked.h"

/* Normalizers and pre-tokenizers of BPE: three sequences of steps are supported. Qwen and GPT-2 use NFC, a
 * Split into pieces that cover the text, and ByteLevel. CLIP uses NFC, white space to one blank, lower case,
 * a Split that keeps only matches, and ByteLevel with a pattern of its own. Gemma replaces blanks by U+2581;
 * its Split at blanks then has no effect and may be absent. */

/* Reads one normalizer of a sequence. The sequence must have the order in which normalize.c applies the
 * steps. */
static enum status read_normal_step(struct reading *r, const json_t *step, struct error *e) {
    struct tokenizer *t = r->t;
    const char *type = reading_type(r, step, "normalizer", e);
    if (!type) return e->code;
    if (!strcmp(type, "NFC") && !t->one_space && !t->lower) {
        t->nfc = true;
    } else if (!strcmp(type, "Replace") && !t->lower) {
        /* Compares a step with {"type": "Replace", "pattern": {"Regex": "\\s+"}, "content": " "}. */
        const json_t *regex = json_object_get(json_object_get(step, "pattern"), "Regex");
        const json_t *content = json_object_get(step, "content");
        t->one_space = json_is_string(regex) && !strcmp(json_string_value(regex), "\\s+") &&
                       json_is_string(content) && !strcmp(json_string_value(content), " ");
        if (!t->one_space)
            return reading_unsupported(r, "the Replace normalizer's pattern",
                                       json_is_string(regex) ? json_string_value(regex) : "no Regex",
                                       "\\s+ to one blank", e);
    } else if (!strcmp(type, "Lowercase")) {
        t->lower = true;
    } else {
        return reading_unsupported(r, "normalizer type", type, "NFC, Replace, Lowercase in this order", e);
    }
    return OK;
}

/* True for Gemma's normalizer, {"type": "Replace", "pattern": {"String": " "}, "content": U+2581}. */
static bool is_blank_marker(const json_t *step) {
    return reading_is_text(json_object_get(step, "type"), "Replace") &&
           reading_is_text(json_object_get(json_object_get(step, "pattern"), "String"), " ") &&
           reading_is_text(json_object_get(step, "content"), "\xe2\x96\x81");
}

static enum status read_normalizer(struct reading *r, const json_t *normalizer, struct error *e) {
    if (reading_absent(normalizer)) return OK;
    const char *type = reading_type(r, normalizer, "normalizer", e);
    if (!type) return e->code;
    const json_t *list = json_object_get(normalizer, "normalizers");
    bool only = json_array_size(list) == 1 && is_blank_marker(json_array_get(list, 0));
    r->t->marks_blanks = r->t->by_character = only || is_blank_marker(normalizer);
    if (r->t->marks_blanks) return OK;
    if (strcmp(type, "Sequence")) return read_normal_step(r, normalizer, e);
    if (!json_is_array(list)) return reading_wrong_kind(r, "normalizer.normalizers", list, "an array", e);
    for (size_t i = 0; i < json_array_size(list) && !e->code; i++)
        read_normal_step(r, json_array_get(list, i), e);
    return e->code;
}

/* Reads {"type": "Split", "pattern": {"Regex": "..."}, "behavior": "Isolated", "invert": false}; or with
 * "Removed" and true, which keeps the matches and drops the text between them. */
static enum status read_split(struct reading *r, const json_t *split, struct error *e) {
    const json_t *regex = json_object_get(json_object_get(split, "pattern"), "Regex");
    const json_t *behavior = json_object_get(split, "behavior");
    bool invert = false;
    if (!json_is_string(regex))
        return reading_unsupported(r, "the Split pre-tokenizer's pattern", "not a Regex", "a Regex", e);
    if (!json_is_string(behavior))
        return reading_wrong_kind(r, "the Split pre-tokenizer's behavior", behavior, "a string", e);
    r->t->drop_gaps = !strcmp(json_string_value(behavior), "Removed");
    if (!r->t->drop_gaps && strcmp(json_string_value(behavior), "Isolated"))
        return reading_unsupported(r, "the Split pre-tokenizer's behavior", json_string_value(behavior),
                                   "Isolated or Removed", e);
    if (reading_bool(r, split, "invert", "the Split pre-tokenizer's invert", &invert, e)) return e->code;
    if (invert != r->t->drop_gaps)
        return reading_unsupported(r, "the Split pre-tokenizer's invert", invert ? "true" : "false",
                                   "true with Removed, false with Isolated", e);
    return split_compile(r->t, &r->t->split, string_span(regex), "pre_tokenizer.pattern", e);
}

/* Reads the ByteLevel pre-tokenizer. Without a preceding Split, ByteLevel must split by GPT-2's pattern;
 * after a Split, the second split is optional (use_regex). */
static enum status read_byte_level(struct reading *r, const json_t *level, pcre2_code **code,
                                   struct error *e) {
    /* ByteLevel's defaults in Hugging Face tokenizers, for absent members */
    bool prefix = true, regex = true;
    reading_bool(r, level, "add_prefix_space", "the ByteLevel pre-tokenizer's add_prefix_space", &prefix, e);
    if (reading_bool(r, level, "use_regex", "the ByteLevel pre-tokenizer's use_regex", &regex, e))
        return e->code;
    if (prefix)
        return reading_unsupported(r, "the ByteLevel pre-tokenizer's add_prefix_space", "true", "false", e);
    if (!regex && code == &r->t->split)
        return reading_unsupported(r, "the ByteLevel pre-tokenizer's use_regex", "false",
                                   "true where it stands alone", e);
    return regex ? split_compile(r->t, code, span_of(gpt2_pattern), "pre_tokenizer", e) : OK;
}

/* Fails unless element i of a Sequence of pre-tokenizers has the given type. */
static enum status expect_step(struct reading *r, const json_t *list, int i, const char *type,
                               const char *expected, struct error *e) {
    static const char *const names[] = {"pre_tokenizer.pretokenizers[0]", "pre_tokenizer.pretokenizers[1]"};
    const char *found = reading_type(r, json_array_get(list, (size_t)i), names[i], e);
    if (!found || !strcmp(found, type)) return e->code;
    return reading_unsupported(r, "pre_tokenizer type", found, expected, e);
}

static enum status read_pre_tokenizer(struct reading *r, const json_t *pre, struct error *e) {
    static const char both[] = "Split, then ByteLevel",
                      alone[] = "ByteLevel, or a Sequence of Split and ByteLevel";
    if (r->t->by_character && reading_absent(pre)) return OK;
    const char *type = reading_type(r, pre, "pre_tokenizer", e);
    if (!type) return e->code;
    if (r->t->by_character) { /* a Split at blanks has no effect: the normalizer has replaced them */
        const json_t *blank = json_object_get(json_object_get(pre, "pattern"), "String");
        if (!strcmp(type, "Split") && reading_is_text(blank, " ")) return OK;
        return reading_unsupported(r, "pre_tokenizer type", type, "null, or a Split at \" \"", e);
    }
    const json_t *list = json_object_get(pre, "pretokenizers");
    if (!strcmp(type, "Sequence") && json_array_size(list) == 2) {
        if (expect_step(r, list, 0, "Split", both, e) || expect_step(r, list, 1, "ByteLevel", both, e) ||
            read_split(r, json_array_get(list, 0), e))
            return e->code;
        return read_byte_level(r, json_array_get(list, 1), &r->t->resplit, e);
    }
    if (!strcmp(type, "Sequence") && json_array_size(list) == 1) {
        if (expect_step(r, list, 0, "ByteLevel", alone, e)) return e->code;
        pre = json_array_get(list, 0);
    } else if (strcmp(type, "ByteLevel")) {
        return reading_unsupported(r, "pre_tokenizer type", type, alone, e);
    }
    return read_byte_level(r, pre, &r->t->split, e);
}

/* Stores all tokens in `words`: as bytes for ignore_merges, as UTF-8 text for by_character. */
static enum status read_words(struct reading *r, struct error *e) {
    struct word_table *words = &r->t->words;
    uint64_t text_bytes = 0;
    uint32_t used = 0;
    for (void *at = json_object_iter(r->vocab); at; at = json_object_iter_next(r->vocab, at))
        if (!add_u64(text_bytes, json_object_iter_key_len(at), &text_bytes))
            return error_set(e, OVERFLOW, "tokenizer: the texts of the vocabulary are too long in total");
    if (word_table_make(r->t->sys, words, json_object_size(r->vocab), text_bytes, e)) return e->code;
    for (void *at = json_object_iter(r->vocab); at; at = json_object_iter_next(r->vocab, at)) {
        struct span text = {json_object_iter_key(at), json_object_iter_key_len(at)};
        int32_t id = (int32_t)json_integer_value(json_object_iter_value(at));
        memcpy(words->blob + used, text.at, text.bytes);
        word_table_add(words, (struct word){.offset = used, .bytes = (uint32_t)text.bytes, .id = id});
        used += (uint32_t)text.bytes;
    }
    if (!r->t->by_character) word_table_to_bytes(words);
    return OK;
}

/* Reads the merges: "a b" or ["a", "b"]. */
static enum status read_merges(struct reading *r, const json_t *merges, struct error *e) {
    uint64_t n = json_array_size(merges);
    if (!json_is_array(merges)) return reading_wrong_kind(r, "model.merges", merges, "an array", e);
    if (merge_table_make(r->t->sys, &r->t->merges, n, e)) return e->code;
    for (uint64_t i = 0; i < n && !e->code; i++) {
        const json_t *item = json_array_get(merges, i);
        const json_t *left = json_array_get(item, 0), *right = json_array_get(item, 1);
        if (json_is_string(item))
            bpe_add_merge_text(r, i, string_span(item), e);
        else if (json_array_size(item) == 2 && json_is_string(left) && json_is_string(right))
            bpe_add_merge(r, i, string_span(left), string_span(right), e);
        else
            error_set(e, META,
                      "tokenizer: merge rule %" PRIu64 " does not have two parts" WHERE "%s" FOUND
                      "%s of %zu elements" EXPECTED "\"a b\" or [\"a\", \"b\"]",
                      i, r->path, reading_kind(item), json_array_size(item));
    }
    return e->code;
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
        return reading_unsupported(r, "continuing_subword_prefix", reading_shown(prefix), "null", e);
    if (!reading_absent(dropout) && !(json_is_number(dropout) && json_number_value(dropout) == 0))
        return reading_unsupported(r, "model.dropout", "not null", "null", e);
    if (reading_bool(r, model, "byte_fallback", "model.byte_fallback", &byte_fallback, e)) return e->code;
    if (byte_fallback == r->t->by_character) return OK;
    return reading_unsupported(
        r, "model.byte_fallback", byte_fallback ? "true" : "false",
        byte_fallback ? "false, or a normalizer that replaces \" \" by U+2581" : "true", e);
}

static enum status read_model(struct reading *r, const json_t *model, struct error *e) {
    if (check_model(r, model, e)) return e->code;
    reading_bool(r, model, "ignore_merges", "model.ignore_merges", &r->t->ignore_merges, e);
    if (reading_bool(r, model, "fuse_unk", "model.fuse_unk", &r->t->fuse_unk, e)) return e->code;
    const json_t *end = json_object_get(model, "end_of_word_suffix");
    struct span suffix = {"", 0};
    if (json_is_string(end))
        suffix = string_span(end);
    else if (!reading_absent(end))
        return reading_wrong_kind(r, "model.end_of_word_suffix", end, "a string or null", e);
    if (suffix.bytes > TOKENIZER_SUFFIX_BYTES)
        return reading_fail(e, LIMIT, r,
                            "model.end_of_word_suffix is too long" FOUND "%" PRIu64 " bytes" EXPECTED
                            "at most %d",
                            suffix.bytes, TOKENIZER_SUFFIX_BYTES);
    if (suffix.bytes && r->t->by_character)
        return reading_unsupported(r, "end_of_word_suffix", suffix.at, "null", e);
    if (suffix.bytes) r->t->kind = "CLIP BPE";
    if (r->t->by_character) r->t->kind = sentencepiece_bpe;
    r->vocab = json_object_get(model, "vocab");
    if (bpe_read_vocab(r, suffix, e)) return e->code;
    if ((r->t->ignore_merges || r->t->by_character) && read_words(r, e)) return e->code;
    if (r->t->by_character) return read_merges(r, json_object_get(model, "merges"), e);
    if (bpe_read_unk(r, json_object_get(model, "unk_token"), e)) return e->code;
    return read_merges(r, json_object_get(model, "merges"), e);
}

/* Unigram models (T5). Only the normalisation table is taken from the file. The class T5Tokenizer of
 * transformers 5.23 defines the other steps itself, whatever the file contains: WhitespaceSplit and
 * Metaspace, without byte fallback. Two forms written by earlier releases are accepted: WhitespaceSplit and
 * Metaspace; or Strip, Replace " {2,}" and Metaspace alone, which gives the same ids except for a few
 * control characters. Other forms are UNSUPPORTED, and the error names the step. */

static enum status read_table(struct reading *r, const json_t *normalizer, struct error *e) {
    const json_t *text = json_object_get(normalizer, "precompiled_charsmap");
    struct base64_decode_ctx ctx;
    size_t bytes = 0;
    if (reading_absent(text) || r->t->charsmap.units) return OK;
    if (!json_is_string(text))
        return reading_wrong_kind(r, "normalizer.precompiled_charsmap", text, "a string", e);
    uint8_t *blob =
        sys_new(r->t->sys, BASE64_DECODE_LENGTH(json_string_length(text)), 1, "a normalisation table", e);
    if (!blob) return e->code;
    base64_decode_init(&ctx);
    if (!base64_decode_update(&ctx, &bytes, blob, json_string_length(text), json_string_value(text)) ||
        !base64_decode_final(&ctx))
        reading_fail(e, META, r, "normalizer.precompiled_charsmap is not base64");
    else if (bytes)
        charsmap_make(r->t->sys, (struct span){(char *)blob, bytes}, r->path, &r->t->charsmap, e);
    r->t->sys->release(r->t->sys, blob);
    return e->code;
}

static enum status read_table_normalizer(struct reading *r, const json_t *normalizer, bool nested,
                                         struct error *e) {
    if (reading_absent(normalizer)) return OK;
    const char *type = reading_type(r, normalizer, "normalizer", e);
    if (!type) return e->code;
    if (!strcmp(type, "Precompiled")) return read_table(r, normalizer, e);
    const json_t *list = json_object_get(normalizer, "normalizers");
    if (!nested && !strcmp(type, "Sequence")) {
        for (size_t i = 0; i < json_array_size(list) && !e->code; i++)
            read_table_normalizer(r, json_array_get(list, i), true, e);
        return e->code;
    }
    const json_t *regex = json_object_get(json_object_get(normalizer, "pattern"), "Regex");
    if (nested && (!strcmp(type, "Strip") || (!strcmp(type, "Replace") && reading_is_text(regex, " {2,}"))))
        return OK;
    return reading_unsupported(r, "normalizer type", type, "Precompiled, Strip, Replace of \" {2,}\"", e);
}

static enum status check_unigram_pre_tokenizer(struct reading *r, const json_t *pre, struct error *e) {
    const char *type = reading_type(r, pre, "pre_tokenizer", e);
    bool prefix = true;
    if (!type) return e->code;
    const json_t *list = json_object_get(pre, "pretokenizers");
    if (!strcmp(type, "Sequence") && json_array_size(list) == 2) {
        if (expect_step(r, list, 0, "WhitespaceSplit", "WhitespaceSplit, then Metaspace", e) ||
            expect_step(r, list, 1, "Metaspace", "Metaspace", e))
            return e->code;
        pre = json_array_get(list, 1);
    } else if (strcmp(type, "Metaspace")) {
        return reading_unsupported(r, "pre_tokenizer type", type, "Metaspace", e);
    }
    const json_t *mark = json_object_get(pre, "replacement"),
                 *scheme = json_object_get(pre, "prepend_scheme");
    if (!reading_absent(mark) && !reading_is_text(mark, "\xe2\x96\x81"))
        return reading_unsupported(r, "the Metaspace pre-tokenizer's replacement", reading_shown(mark),
                                   "U+2581", e);
    if (reading_bool(r, pre, "add_prefix_space", "the Metaspace pre-tokenizer's add_prefix_space", &prefix,
                     e))
        return e->code;
    if (reading_is_text(scheme, "never") || (reading_absent(scheme) && !prefix))
        return reading_unsupported(r, "the Metaspace pre-tokenizer's prepend_scheme", "never", "always", e);
    return OK;
}

static enum status read_unigram(struct reading *r, const json_t *root, struct error *e) {
    const json_t *model = json_object_get(root, "model"), *unk = json_object_get(model, "unk_id");
    const json_t *vocab = json_object_get(model, "vocab");
    uint64_t n = json_array_size(vocab), bytes = 0;
    if (read_table_normalizer(r, json_object_get(root, "normalizer"), false, e)) return e->code;
    if (check_unigram_pre_tokenizer(r, json_object_get(root, "pre_tokenizer"), e)) return e->code;
    if (!json_is_array(vocab)) return reading_wrong_kind(r, "model.vocab", vocab, "an array", e);
    for (uint64_t i = 0; i < n; i++) bytes += json_string_length(json_array_get(json_array_get(vocab, i), 0));
    if (pieces_make(r, n, bytes, e)) return e->code;
    for (uint64_t i = 0; i < n; i++) {
        const json_t *entry = json_array_get(vocab, i), *text = json_array_get(entry, 0);
        const json_t *score = json_array_get(entry, 1);
        if (!json_is_string(text) || !json_is_number(score) || json_array_size(entry) != 2)
            return error_set(e, META,
                             "tokenizer: piece %" PRIu64 " is not a text with a score" WHERE
                             "%s, model.vocab" FOUND "%s" EXPECTED "[text, score]",
                             i, r->path, reading_kind(entry));
        if (pieces_add(r, string_span(text), json_number_value(score), e)) return e->code;
    }
    if (!json_is_integer(unk)) return reading_wrong_kind(r, "model.unk_id", unk, "the id of a piece", e);
    return pieces_finish(r, json_integer_value(unk), e);
}

/* Checks that each {"SpecialToken": {"id": NAME}} of a template names a member of special_tokens whose tokens
 * exist. */
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
                    (tokenizer_special(r->t, token) >= 0 || reading_vocab_id(r, span_of(token)) >= 0);
        }
        if (found) continue;
        return reading_fail(
            e, META, r, "the post_processor's template names a special token that is missing" FOUND "\"%s\"",
            name ? name : "");
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
         json_integer_value(stride) >= json_integer_value(most)))
        return reading_fail(e, META, r,
                            "truncation has invalid lengths" FOUND "max_length %" JSON_INTEGER_FORMAT
                            ", stride %" JSON_INTEGER_FORMAT EXPECTED "0 <= stride < max_length",
                            json_integer_value(most), json_integer_value(stride));
    if (!fixed || (json_is_integer(fixed) && json_integer_value(fixed) > 0)) return OK;
    return reading_fail(
        e, META, r, "padding has an invalid length" FOUND "Fixed %" JSON_INTEGER_FORMAT EXPECTED "at least 1",
        json_integer_value(fixed));
}

/* Reads tokenizer.json's document. */
static enum status read_document(struct reading *r, const json_t *root, struct error *e) {
    const json_t *version = json_object_get(root, "version"), *model = json_object_get(root, "model");
    if (!json_is_object(root)) {
        reading_wrong_kind(r, "the document", root, "an object", e);
    } else if (!reading_absent(version) && !reading_is_text(version, "1.0")) {
        reading_fail(e, VERSION, r, "the file's version is not supported" FOUND "%s" EXPECTED "\"1.0\"",
                     reading_shown(version));
    } else if (reading_is_text(json_object_get(model, "type"), "Unigram")) {
        read_unigram(r, root, e);
    } else if (!read_normalizer(r, json_object_get(root, "normalizer"), e) &&
               !read_pre_tokenizer(r, json_object_get(root, "pre_tokenizer"), e)) {
        read_model(r, model, e);
    }
    if (!e->code && !added_read_list(r, json_object_get(root, "added_tokens"), e) &&
        !check_processor(r, json_object_get(root, "post_processor"), false, e))
        check_lengths(r, root, e);
    r->vocab = NULL; /* it points into the document, which the caller frees */
    return e->code;
}

enum status tokenizer_read_json(struct reading *r, const struct span *stored, struct error *e) {
    struct sys *sys = r->t->sys;
    json_t *root = NULL;
    char *text = NULL;
    uint64_t bytes = 0;
    if (!stored && file_read_text(sys, r->path, TOKENIZER_FILE_BYTES, &text, &bytes, e)) return e->code;
    struct span file = stored ? *stored : (struct span){text, bytes};
    if (tekken_is(r->path, file))
        tokenizer_read_tekken(r, file, e);
    else
        json_parse(r->path, file.at, file.bytes, JSON_DEPTH, &root, e);
    sys->release(sys, text);
    if (root) read_document(r, root, e);
    json_decref(root);
    return e->code;
}
