/* Reads tokenizer.json of a unigram model (T5). Only the normalisation table is taken from the file. The
 * reference's class defines the other steps itself, whatever the file contains (transformers 5.23,
 * T5Tokenizer): WhitespaceSplit and Metaspace, without byte fallback. Two forms written by earlier releases
 * are accepted: WhitespaceSplit and Metaspace; or Strip, Replace " {2,}" and Metaspace alone, which gives the
 * same ids except for a few control characters. Other forms are UNSUPPORTED, and the error names the step. */
#include "loaders/tokenizer/reading.h"
#include "loaders/alloc_array.h"
#include "loaders/tokenizer/normalize.h"

#include <nettle/base64.h>
#include <string.h>

static enum status unigram_json_read_table(struct reading *r, const json_t *normalizer, struct error *e) {
    const json_t *text = json_object_get(normalizer, "precompiled_charsmap");
    struct base64_decode_ctx ctx;
    size_t bytes = 0;
    if (reading_absent(text) || r->t->charsmap.units) return OK;
    if (!json_is_string(text))
        return reading_wrong_kind(r, "normalizer.precompiled_charsmap", text, "a string", e);
    uint8_t *blob = alloc_array(r->t->sys, BASE64_DECODE_LENGTH(json_string_length(text)), 1, e);
    if (!blob) return e->code;
    base64_decode_init(&ctx);
    if (!base64_decode_update(&ctx, &bytes, blob, json_string_length(text), json_string_value(text)) ||
        !base64_decode_final(&ctx))
        reading_fail(r, META, "normalizer.precompiled_charsmap", "is not base64", e);
    else if (bytes)
        charsmap_make(r->t->sys, (struct span){(char *)blob, bytes}, r->path, &r->t->charsmap, e);
    r->t->sys->release(r->t->sys, blob);
    return e->code;
}

static enum status unigram_json_read_normalizer(struct reading *r, const json_t *normalizer, bool nested,
                                                struct error *e) {
    if (reading_absent(normalizer)) return OK;
    const char *type = reading_type(r, normalizer, "normalizer", e);
    if (!type) return e->code;
    if (!strcmp(type, "Precompiled")) return unigram_json_read_table(r, normalizer, e);
    const json_t *list = json_object_get(normalizer, "normalizers");
    if (!nested && !strcmp(type, "Sequence")) {
        for (size_t i = 0; i < json_array_size(list) && !e->code; i++)
            unigram_json_read_normalizer(r, json_array_get(list, i), true, e);
        return e->code;
    }
    const json_t *regex = json_object_get(json_object_get(normalizer, "pattern"), "Regex");
    if (nested && (!strcmp(type, "Strip") || (!strcmp(type, "Replace") && reading_is_text(regex, " {2,}"))))
        return OK;
    return reading_unsupported(r, "normalizer type", type, "Precompiled, Strip, Replace of \" {2,}\"", e);
}

static enum status check_metaspace(struct reading *r, const json_t *meta, struct error *e) {
    const json_t *mark = json_object_get(meta, "replacement"),
                 *scheme = json_object_get(meta, "prepend_scheme");
    bool prefix = true;
    if (!reading_absent(mark) && !reading_is_text(mark, "\xe2\x96\x81"))
        return reading_unsupported(r, "the Metaspace pre-tokenizer's replacement",
                                   json_is_string(mark) ? json_string_value(mark) : reading_kind(mark),
                                   "U+2581", e);
    if (reading_bool(r, meta, "add_prefix_space", "the Metaspace pre-tokenizer's add_prefix_space", &prefix,
                     e))
        return e->code;
    if (reading_is_text(scheme, "never") || (reading_absent(scheme) && !prefix))
        return reading_unsupported(r, "the Metaspace pre-tokenizer's prepend_scheme", "never", "always", e);
    return OK;
}

static enum status check_pre_tokenizer(struct reading *r, const json_t *pre, struct error *e) {
    const char *type = reading_type(r, pre, "pre_tokenizer", e);
    if (!type) return e->code;
    const json_t *list = json_object_get(pre, "pretokenizers");
    if (!strcmp(type, "Sequence") && json_array_size(list) == 2) {
        type = reading_type(r, json_array_get(list, 0), "pre_tokenizer.pretokenizers[0]", e);
        if (!type) return e->code;
        if (strcmp(type, "WhitespaceSplit"))
            return reading_unsupported(r, "pre_tokenizer type", type, "WhitespaceSplit, then Metaspace", e);
        pre = json_array_get(list, 1);
        type = reading_type(r, pre, "pre_tokenizer.pretokenizers[1]", e);
        if (!type) return e->code;
    }
    if (strcmp(type, "Metaspace")) return reading_unsupported(r, "pre_tokenizer type", type, "Metaspace", e);
    return check_metaspace(r, pre, e);
}

static enum status read_vocab(struct reading *r, const json_t *vocab, struct error *e) {
    uint64_t n = json_array_size(vocab), bytes = 0;
    if (!json_is_array(vocab)) return reading_wrong_kind(r, "model.vocab", vocab, "an array", e);
    for (uint64_t i = 0; i < n; i++) bytes += json_string_length(json_array_get(json_array_get(vocab, i), 0));
    if (pieces_make(r, n, bytes, e)) return e->code;
    for (uint64_t i = 0; i < n; i++) {
        const json_t *entry = json_array_get(vocab, i), *text = json_array_get(entry, 0);
        const json_t *score = json_array_get(entry, 1);
        if (!json_is_string(text) || !json_is_number(score) || json_array_size(entry) != 2) {
            return error_set(e, META,
                             "tokenizer: piece %llu is not a text with a score" WHERE "%s, model.vocab" FOUND
                             "%s" EXPECTED "[text, score]",
                             (unsigned long long)i, r->path, reading_kind(entry));
        }
        if (pieces_add(r, string_span(text), json_number_value(score), e)) return e->code;
    }
    return OK;
}

enum status unigram_read_json(struct reading *r, const json_t *root, struct error *e) {
    const json_t *model = json_object_get(root, "model"), *unk = json_object_get(model, "unk_id");
    if (unigram_json_read_normalizer(r, json_object_get(root, "normalizer"), false, e)) return e->code;
    if (check_pre_tokenizer(r, json_object_get(root, "pre_tokenizer"), e)) return e->code;
    if (read_vocab(r, json_object_get(model, "vocab"), e)) return e->code;
    if (!json_is_integer(unk)) return reading_wrong_kind(r, "model.unk_id", unk, "the id of a piece", e);
    return pieces_finish(r, json_integer_value(unk), e);
}
