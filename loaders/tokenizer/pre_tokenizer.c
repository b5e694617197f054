/* Normalizers and pre-tokenizers of byte-level BPE, from tokenizer.json or implied by the class of a folder
 * without it. Two sequences of steps are supported. Qwen and GPT-2 use NFC, a Split into pieces that cover
 * the text, and ByteLevel. CLIP uses NFC, white space to one blank, lower case, a Split that keeps only
 * matches, and ByteLevel with a pattern of its own. */
#include "loaders/tokenizer/reading.h"
#include "loaders/tokenizer/byte_level.h"
#include "loaders/tokenizer/split.h"

#include <string.h>

/* Reads {"type": "Replace", "pattern": {"Regex": "\\s+"}, "content": " "}. */
static enum status read_replace(struct reading *r, const json_t *replace, struct error *e) {
    const json_t *regex = json_object_get(json_object_get(replace, "pattern"), "Regex");
    const json_t *content = json_object_get(replace, "content");
    if (!json_is_string(regex) || strcmp(json_string_value(regex), "\\s+") || !json_is_string(content) ||
        strcmp(json_string_value(content), " "))
        return reading_unsupported(r, "the Replace normalizer's pattern",
                                   json_is_string(regex) ? json_string_value(regex) : "no Regex",
                                   "\\s+ to one blank", e);
    r->t->one_space = true;
    return OK;
}

/* Reads one normalizer of a sequence. The sequence must have the order in which normalize.c applies the
 * steps. */
static enum status read_normal_step(struct reading *r, const json_t *step, struct error *e) {
    struct tokenizer *t = r->t;
    const char *type = reading_type(r, step, "normalizer", e);
    if (!type) return e->code;
    bool early = !t->one_space && !t->lower;
    if (!strcmp(type, "NFC") && early)
        t->nfc = true;
    else if (!strcmp(type, "Replace") && !t->lower)
        return read_replace(r, step, e);
    else if (!strcmp(type, "Lowercase"))
        t->lower = true;
    else
        return reading_unsupported(r, "normalizer type", type, "NFC, Replace, Lowercase in this order", e);
    return OK;
}

static enum status pre_tokenizer_read_normalizer(struct reading *r, const json_t *normalizer,
                                                 struct error *e) {
    if (reading_absent(normalizer)) return OK;
    const char *type = reading_type(r, normalizer, "normalizer", e);
    if (!type) return e->code;
    if (strcmp(type, "Sequence")) return read_normal_step(r, normalizer, e);
    const json_t *list = json_object_get(normalizer, "normalizers");
    if (!json_is_array(list)) return reading_wrong_kind(r, "normalizer.normalizers", list, "an array", e);
    for (size_t i = 0; i < json_array_size(list) && !e->code; i++)
        read_normal_step(r, json_array_get(list, i), e);
    return e->code;
}

static enum status compile_text(struct tokenizer *t, pcre2_code **code, const char *pattern,
                                struct error *e) {
    return split_compile(t, code, (struct span){pattern, strlen(pattern)}, "pre_tokenizer", e);
}

/* Reads {"type": "Split", "pattern": {"Regex": "..."}, "behavior": "Isolated", "invert": false}; or "Removed"
 * and true, which keeps matches and drops the rest. */
static enum status pre_tokenizer_read_split(struct reading *r, const json_t *split, struct error *e) {
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
    bool prefix = true, regex = true; /* defaults of Hugging Face tokenizers for absent members */
    reading_bool(r, level, "add_prefix_space", "the ByteLevel pre-tokenizer's add_prefix_space", &prefix, e);
    if (reading_bool(r, level, "use_regex", "the ByteLevel pre-tokenizer's use_regex", &regex, e))
        return e->code;
    if (prefix)
        return reading_unsupported(r, "the ByteLevel pre-tokenizer's add_prefix_space", "true", "false", e);
    if (!regex && code == &r->t->split)
        return reading_unsupported(r, "the ByteLevel pre-tokenizer's use_regex", "false",
                                   "true where it stands alone", e);
    return regex ? compile_text(r->t, code, gpt2_pattern, e) : OK;
}

static enum status read_two_steps(struct reading *r, const json_t *first, const json_t *second,
                                  struct error *e) {
    const char *split = reading_type(r, first, "pre_tokenizer.pretokenizers[0]", e);
    if (!split) return e->code;
    if (strcmp(split, "Split"))
        return reading_unsupported(r, "pre_tokenizer type", split, "Split, then ByteLevel", e);
    const char *level = reading_type(r, second, "pre_tokenizer.pretokenizers[1]", e);
    if (!level) return e->code;
    if (strcmp(level, "ByteLevel"))
        return reading_unsupported(r, "pre_tokenizer type", level, "Split, then ByteLevel", e);
    if (pre_tokenizer_read_split(r, first, e)) return e->code;
    return read_byte_level(r, second, &r->t->resplit, e);
}

static enum status read_pre_tokenizer(struct reading *r, const json_t *pre, struct error *e) {
    const char *type = reading_type(r, pre, "pre_tokenizer", e);
    if (!type) return e->code;
    const json_t *list = json_object_get(pre, "pretokenizers");
    if (!strcmp(type, "Sequence") && json_array_size(list) == 2)
        return read_two_steps(r, json_array_get(list, 0), json_array_get(list, 1), e);
    if (!strcmp(type, "Sequence") && json_array_size(list) == 1) {
        pre = json_array_get(list, 0);
        type = reading_type(r, pre, "pre_tokenizer.pretokenizers[0]", e);
        if (!type) return e->code;
    }
    if (strcmp(type, "ByteLevel"))
        return reading_unsupported(r, "pre_tokenizer type", type,
                                   "ByteLevel, or a Sequence of Split and ByteLevel", e);
    return read_byte_level(r, pre, &r->t->split, e);
}

enum status pre_tokenizer_read(struct reading *r, const json_t *root, struct error *e) {
    if (pre_tokenizer_read_normalizer(r, json_object_get(root, "normalizer"), e)) return e->code;
    return read_pre_tokenizer(r, json_object_get(root, "pre_tokenizer"), e);
}

enum status pre_tokenizer_set_qwen2(struct reading *r, struct error *e) {
    r->t->nfc = true;
    return compile_text(r->t, &r->t->split, qwen2_pattern, e);
}

/* Source: transformers 5.23, CLIPTokenizer. ByteLevel splits the pieces again by GPT-2's pattern, which only
 * affects the texts of special tokens. */
enum status pre_tokenizer_set_clip(struct reading *r, struct error *e) {
    r->t->nfc = r->t->one_space = r->t->lower = r->t->drop_gaps = true;
    if (compile_text(r->t, &r->t->split, clip_pattern, e)) return e->code;
    return compile_text(r->t, &r->t->resplit, gpt2_pattern, e);
}
