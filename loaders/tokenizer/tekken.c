/* Reads tekken.json, Mistral's own tokenizer file, which ComfyUI stores in text encoder files as a tensor of
 * bytes, `tekken_model`. Byte-level BPE:
 *
 *     {"config": {"pattern": SPLIT, "default_vocab_size": 131072, "default_num_special_tokens": 1000, ...},
 *      "vocab": [{"rank": 0, "token_bytes": BASE64, "token_str": TEXT or null}, ...],
 *      "special_tokens": [{"rank": 1, "token_str": "<s>", "is_control": true}, ...]}
 *
 * The id of a token is its rank plus the number of special tokens; the id of a special token is its rank.
 * Tokens beyond the default vocabulary size are ignored. Two neighbours merge if their joined bytes are a
 * token. The pair whose joined token has the lowest rank merges first; among equal ranks, the leftmost pair
 * (tiktoken's algorithm). A piece that is a token stays whole. Special tokens are recognised in texts, as by
 * transformers 5.24 (integrations/mistral/tokenizer.py). mistral_common encodes their texts as plain text.
 *
 * The split pattern is the file's. diffusers also uses the pattern in tokenizer.json: transformers'
 * fix_mistral_regex, which would replace it, needs a config.json in the tokenizer's folder. Some
 * tokenizer.json files contain Llama 3's pattern, the default of an older converter in transformers. Most
 * texts have the same ids with it; words with combining marks (Hindi, vocalised Arabic) differ.
 *
 * The vocabulary is a text of 20 MB, so tokens are decoded one at a time instead of as one JSON document. */
#include "loaders/tokenizer/reading.h"

#include <inttypes.h>
#include <nettle/base64.h>
#include <stdio.h>
#include <string.h>

enum {
    TOKEN_BYTES_MAX = 256,     /* longest token in bytes (published: 76); bounds the search for merges */
    ITEM_BYTES_MAX = 8192,     /* longest element of "vocab" or "special_tokens" as JSON text */
    CONFIG_BYTES_MAX = 1 << 18 /* longest "config" as JSON text */
};

struct tekken {
    struct reading *r;
    struct json_text config, vocab, specials; /* members of the document; text NULL: absent */
    uint64_t blob_bytes;                      /* bytes allocated for the texts of all words */
    uint64_t n_words;                         /* tokens besides special tokens; UINT64_MAX: all of "vocab" */
    int n_special;                            /* special tokens, with those that have no text in the file */
};

/* Finds the members with the given names in an object. An absent member leaves its value unchanged; a member
 * that occurs twice fails with DUP. */
static enum status find_members(const struct tekken *k, const struct json_text *object,
                                const char *const *names, struct json_text *const *values, int n,
                                struct error *e) {
    struct json_walk walk;
    struct json_member member;
    if (json_walk_start(&walk, object, JSON_DEPTH, e)) return e->code;
    while (json_walk_next(&walk, &member, e))
        for (int i = 0; i < n; i++) {
            size_t bytes = strlen(names[i]);
            if (member.name.bytes != bytes + 2 || memcmp(member.name.text + 1, names[i], bytes)) continue;
            if (values[i]->text) return reading_fail(e, DUP, k->r, "\"%s\" occurs twice", names[i]);
            *values[i] = member.value;
        }
    return e->code;
}

static enum status find_document(struct tekken *k, struct span file, struct error *e) {
    static const char *const names[] = {"config", "vocab", "special_tokens"};
    struct json_text *const values[] = {&k->config, &k->vocab, &k->specials};
    struct json_text whole = {.path = k->r->path, .text = file.at, .bytes = file.bytes};
    return find_members(k, &whole, names, values, 3, e);
}

bool tekken_is(const char *path, struct span file) {
    struct reading r = {.path = path};
    struct tekken k = {.r = &r};
    struct error ignored = {0};
    if (file.bytes <= TOKENIZER_FILE_BYTES) find_document(&k, file, &ignored);
    return k.config.text != NULL;
}

/* Decodes a value of at most `most` bytes. JSON_ALLOW_NUL: the text of token 0 is U+0000. */
static enum status decode(const struct tekken *k, const struct json_text *value, const char *name,
                          uint64_t most, json_t **json, struct error *e) {
    *json = NULL;
    if (value->bytes > most)
        return reading_fail(e, LIMIT, k->r,
                            "%s is too long" FOUND "%" PRIu64 " bytes" EXPECTED "at most %" PRIu64, name,
                            value->bytes, most);
    return json_decode(value, JSON_ALLOW_NUL, json, e);
}

/* Reads a number from 0 to `most` in the configuration. *count becomes `fallback` if the member is absent. */
static enum status read_count(const struct tekken *k, const json_t *config, const char *name, int most,
                              int64_t fallback, int64_t *count, struct error *e) {
    const json_t *value = json_object_get(config, name);
    *count = fallback;
    if (reading_absent(value)) return OK;
    if (!json_is_integer(value)) return reading_wrong_kind(k->r, name, value, "an integer", e);
    *count = json_integer_value(value);
    if (*count >= 0 && *count <= most) return OK;
    return reading_fail(e, META, k->r, "config.%s is invalid" FOUND "%" PRId64 EXPECTED "0 to %d", name,
                        *count, most);
}

/* Reads the split pattern and the numbers of tokens. Without default_num_special_tokens, all elements of
 * "special_tokens" count. */
static enum status read_config(struct tekken *k, struct error *e) {
    struct tokenizer *t = k->r->t;
    struct json_walk walk;
    struct json_member item;
    json_t *config = NULL;
    int64_t listed = 0, special = 0, size = 0;
    if (k->specials.text && json_first_char(&k->specials) == '[') {
        if (json_walk_array(&walk, &k->specials, JSON_DEPTH, e)) return e->code;
        while (json_walk_next(&walk, &item, e)) listed++;
    }
    if (e->code || decode(k, &k->config, "config", CONFIG_BYTES_MAX, &config, e)) return e->code;
    const json_t *pattern = json_object_get(config, "pattern");
    if (!json_is_string(pattern))
        reading_wrong_kind(k->r, "config.pattern", pattern, "a regular expression", e);
    else if (!read_count(k, config, "default_num_special_tokens", TOKENIZER_ADDED_MAX, listed, &special, e) &&
             !read_count(k, config, "default_vocab_size", TOKENIZER_ID_MAX + 1, -1, &size, e))
        split_compile(t, &t->split, string_span(pattern), "config.pattern", e);
    json_decref(config);
    k->n_special = (int)special;
    k->n_words = size < 0 ? UINT64_MAX : (uint64_t)(size - special);
    if (!e->code && (special > TOKENIZER_ADDED_MAX || (size >= 0 && size < special)))
        reading_fail(e, META, k->r,
                     "the number of special tokens is invalid" FOUND "%" PRId64 EXPECTED
                     "at most %d, and at most the size of the vocabulary",
                     special, TOKENIZER_ADDED_MAX);
    return e->code;
}

/* The special tokens of files without a list (mistral_common: DEPRECATED_SPECIAL_TOKENS). */
static const char *const default_specials[] = {"<unk>",
                                               "<s>",
                                               "</s>",
                                               "[INST]",
                                               "[/INST]",
                                               "[AVAILABLE_TOOLS]",
                                               "[/AVAILABLE_TOOLS]",
                                               "[TOOL_RESULTS]",
                                               "[/TOOL_RESULTS]",
                                               "[TOOL_CALLS]",
                                               "[IMG]",
                                               "<pad>",
                                               "[IMG_BREAK]",
                                               "[IMG_END]",
                                               "[PREFIX]",
                                               "[MIDDLE]",
                                               "[SUFFIX]",
                                               "[SYSTEM_PROMPT]",
                                               "[/SYSTEM_PROMPT]",
                                               "[TOOL_CONTENT]"};
enum { N_DEFAULTS = sizeof default_specials / sizeof *default_specials };

/* Adds one element of special_tokens to the list of added tokens. seen [n_special]: ids that are in use. */
static enum status list_special(const struct tekken *k, const struct json_text *item, json_t *list,
                                bool *seen, struct error *e) {
    json_t *entry;
    if (decode(k, item, "a special token", ITEM_BYTES_MAX, &entry, e)) return e->code;
    const json_t *text = json_object_get(entry, "token_str"), *rank = json_object_get(entry, "rank");
    if (!json_is_string(text)) {
        reading_wrong_kind(k->r, "a special token's token_str", text, "a string", e);
    } else if (!reading_check_id(k->r, json_string_value(text), rank, e)) {
        int64_t id = json_integer_value(rank);
        if (id >= k->n_special || seen[id]) {
            reading_fail(e, META, k->r,
                         "the rank of special token \"%.80s\" is invalid" FOUND "%" PRId64 EXPECTED
                         "an unused rank from 0 to %d",
                         json_string_value(text), id, k->n_special - 1);
        } else {
            seen[id] = true;
            added_list_token(list, id, string_span(text), true);
        }
    }
    json_decref(entry);
    return e->code;
}

/* Reads the special tokens, or takes the defaults if the list is absent or null. Ids without a special token
 * get the text <SPECIAL_id>. */
static enum status read_specials(struct tekken *k, struct error *e) {
    struct sys *sys = k->r->t->sys;
    unsigned json_failures = failed_json_allocations();
    bool *seen = sys_new(sys, (uint64_t)k->n_special + 1, sizeof *seen, "the special tokens", e);
    json_t *list = json_array();
    struct json_walk walk;
    struct json_member item;
    if (e->code) goto out;
    if (k->specials.text && json_first_char(&k->specials) != 'n') {
        if (!json_walk_array(&walk, &k->specials, JSON_DEPTH, e))
            while (json_walk_next(&walk, &item, e))
                if (list_special(k, &item.value, list, seen, e)) break;
    } else {
        for (int id = 0; id < N_DEFAULTS && id < k->n_special; id++) {
            seen[id] = true;
            added_list_token(list, id, span_of(default_specials[id]), true);
        }
    }
    for (int id = 0; id < k->n_special && !e->code; id++) {
        char name[32];
        snprintf(name, sizeof name, "<SPECIAL_%d>", id);
        if (!seen[id]) added_list_token(list, id, span_of(name), true);
    }
out:
    sys->release(sys, seen);
    return added_read_new_list(k->r, list, json_failures, e);
}

/* Decodes one token into the table of words. rank: its index in "vocab", which the element repeats. The first
 * 256 tokens are the single bytes in order. */
static enum status read_word(const struct tekken *k, const struct json_text *item, uint32_t rank,
                             struct error *e) {
    struct word_table *words = &k->r->t->words;
    const struct word *last = rank ? &words->words[rank - 1] : NULL;
    struct word word = {.offset = last ? last->offset + last->bytes : 0, .id = k->n_special + (int32_t)rank};
    struct base64_decode_ctx ctx;
    size_t bytes = 0;
    json_t *entry;
    if (decode(k, item, "a token", ITEM_BYTES_MAX, &entry, e)) return e->code;
    const json_t *number = json_object_get(entry, "rank"), *text = json_object_get(entry, "token_bytes");
    char *at = words->blob + word.offset;
    base64_decode_init(&ctx);
    if (!json_is_integer(number) || json_integer_value(number) != rank)
        reading_fail(e, META, k->r, "a token has the wrong rank" FOUND "%" JSON_INTEGER_FORMAT EXPECTED "%u",
                     json_integer_value(number), rank);
    else if (!json_is_string(text))
        reading_wrong_kind(k->r, "token_bytes", text, "a string", e);
    else if (BASE64_DECODE_LENGTH(json_string_length(text)) > TOKEN_BYTES_MAX + 2 || /* counts padding */
             BASE64_DECODE_LENGTH(json_string_length(text)) > k->blob_bytes - word.offset)
        reading_fail(e, LIMIT, k->r, "token %u is too long" EXPECTED "at most %d bytes", rank,
                     TOKEN_BYTES_MAX);
    else if (!base64_decode_update(&ctx, &bytes, (uint8_t *)at, json_string_length(text),
                                   json_string_value(text)) ||
             !base64_decode_final(&ctx))
        reading_fail(e, META, k->r, "token_bytes of token %u is not base64", rank);
    else if (rank < 256 ? bytes != 1 || (unsigned char)*at != rank : !bytes)
        reading_fail(e, META, k->r, "token %u has the wrong bytes" FOUND "%zu bytes" EXPECTED "%s", rank,
                     bytes, rank < 256 ? "the byte of this value" : "at least 1");
    else if (word_table_find(words, (struct span){at, bytes}) >= 0)
        reading_fail(e, DUP, k->r, "token %u has the bytes of another token", rank);
    json_decref(entry);
    if (e->code) return e->code;
    word.bytes = (uint32_t)bytes;
    word_table_add(words, word);
    reading_take_id(k->r, word.id);
    return OK;
}

/* Adds an upper bound of the first *n tokens' bytes to blob_bytes. Sets *n to the number of tokens if the
 * vocabulary has fewer. A member name with JSON escapes is not found and adds nothing; read_word then rejects
 * tokens that do not fit. */
static enum status measure_words(struct tekken *k, uint64_t *n, struct error *e) {
    static const char *const names[] = {"token_bytes"};
    struct json_walk walk;
    struct json_member item;
    uint64_t most = *n;
    *n = 0;
    if (json_walk_array(&walk, &k->vocab, JSON_DEPTH, e)) return e->code;
    for (; *n < most && json_walk_next(&walk, &item, e); ++*n) {
        struct json_text text = {0};
        struct json_text *const values[] = {&text};
        if (find_members(k, &item.value, names, values, 1, e)) return e->code;
        k->blob_bytes += BASE64_DECODE_LENGTH(text.bytes);
    }
    return e->code;
}

/* Reads "vocab" into t->words; the ids of single bytes into t->byte_id and t->last_id. */
static enum status read_words(struct tekken *k, struct error *e) {
    struct tokenizer *t = k->r->t;
    struct json_walk walk;
    struct json_member item;
    uint64_t n = k->n_words;
    if (measure_words(k, &n, e)) return e->code;
    if ((k->n_words != UINT64_MAX && n < k->n_words) || n < 256 || n > TOKENIZER_ID_MAX - TOKENIZER_ADDED_MAX)
        return reading_fail(e, META, k->r,
                            "the number of tokens is invalid" FOUND "%" PRIu64 EXPECTED
                            "256 to %d, and as many as default_vocab_size",
                            n, TOKENIZER_ID_MAX - TOKENIZER_ADDED_MAX);
    if (word_table_make(t->sys, &t->words, n, k->blob_bytes, e)) return e->code;
    if (json_walk_array(&walk, &k->vocab, JSON_DEPTH, e)) return e->code;
    for (uint32_t rank = 0; rank < n && json_walk_next(&walk, &item, e); rank++)
        if (read_word(k, &item.value, rank, e)) return e->code;
    for (int byte = 0; byte < 256 && !e->code; byte++)
        t->byte_id[byte] = t->last_id[byte] = k->n_special + byte;
    return e->code;
}

/* Finds all pairs of tokens whose joined bytes are this token. Adds a merge for each to the table; if count
 * is not NULL, only counts them. */
static void find_pairs(struct tokenizer *t, const struct word *word, uint64_t *count) {
    const char *text = t->words.blob + word->offset;
    for (uint32_t n = 1; n < word->bytes; n++) {
        struct merge merge = {.joined = word->id};
        merge.left = word_table_find(&t->words, (struct span){text, n});
        if (merge.left < 0) continue;
        merge.right = word_table_find(&t->words, (struct span){text + n, word->bytes - n});
        if (merge.right < 0) continue;
        if (count)
            ++*count;
        else
            merge_table_add(&t->merges, merge);
    }
}

enum status tokenizer_read_tekken(struct reading *r, struct span file, struct error *e) {
    struct tokenizer *t = r->t;
    struct tekken k = {.r = r};
    uint64_t n = 0;
    t->ignore_merges = true;
    if (find_document(&k, file, e)) return e->code;
    if (!k.vocab.text) return reading_fail(e, MISSING, r, "\"vocab\" is missing");
    if (read_config(&k, e) || reading_start_ids(r, e) || read_specials(&k, e) || read_words(&k, e))
        return e->code;
    /* Merges are ranked in the order of the tokens that they make. In tiktoken all pairs of a token have the
     * same rank, here consecutive ranks. No text with different ids was found, with real or random
     * vocabularies. */
    for (uint32_t i = 0; i < t->words.n_words; i++) find_pairs(t, &t->words.words[i], &n);
    if (merge_table_make(t->sys, &t->merges, n, e)) return e->code;
    for (uint32_t i = 0; i < t->words.n_words; i++) find_pairs(t, &t->words.words[i], NULL);
    return OK;
}
