/* Tokenizer files: tokenizer.json, or vocab.json + merges.txt and their neighbours, to the kept tables.
 *
 * Every number, text and reference is checked here, so that encoding trusts the tables. Jansson's document is
 * the only index of tokens by text while a file is read (merges and added tokens are looked up in it);
 * nothing of it is kept. A member that would change ids and that is not reproduced is UNSUPPORTED by name.
 * Not looked at: decoder, post_processor's and truncation's effects (ids are without special tokens, and a
 * pipeline truncates by itself); their contents are checked all the same. */
#include "loaders/tokenizer_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <utf8proc.h>

#include "engine/base/checked.h"
#include "loaders/json.h"
#include "loaders/loaders.h"

enum { JSON_DEPTH = 64, ALPHABET_END = 324 };
static const uint64_t file_bytes_max = 256000000;

/* One tokenizer being read. */
struct reading {
    struct tokenizer *t;
    const char *path; /* of the file being read */
    json_t *vocab;    /* borrowed from its document: token -> id */
    uint8_t *taken;   /* one bit per id */
    uint64_t longest; /* bytes of the longest token's text */
    char *joined;     /* longest + 1 bytes, to look merges up */
};

char *copy_text(struct sys *sys, const char *from, uint64_t bytes, struct error *e) {
    char *copy = alloc_array(sys, bytes + 1, 1, e);
    if (copy) memcpy(copy, from, bytes);
    return copy;
}

void *alloc_array(struct sys *sys, uint64_t n, uint64_t element_bytes, struct error *e) {
    uint64_t bytes = 0;
    if (!multiply_u64(n, element_bytes, &bytes) || bytes > SIZE_MAX) {
        error_set(e, OVERFLOW, "%" PRIu64 " elements of %" PRIu64 " bytes", n, element_bytes);
        return NULL;
    }
    void *memory = sys->alloc(sys, LINE_HOST, bytes ? bytes : 1);
    if (!memory) error_set(e, MEMORY, "no memory for %" PRIu64 " bytes of a tokenizer", bytes);
    return memory;
}

/* Printable Latin-1 stands for itself; the other bytes, in order, for U+0100 and up. */
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

/* ---- small readers of JSON members ---- */

static enum status fail(const struct reading *r, enum status code, const char *object, const char *problem,
                        struct error *e) {
    error_set(e, code, "%s %s", object, problem);
    return error_where(e, "%s", r->path);
}

static const char *kind_of(const json_t *value) {
    static const char *const names[] = {"an object", "an array", "a string", "an integer",
                                        "a number",  "true",     "false",    "null"};
    return value ? names[json_typeof(value)] : "nothing";
}

static enum status wrong_kind(const struct reading *r, const char *object, const json_t *value,
                              const char *expected, struct error *e) {
    fail(r, META, object, "has the wrong type", e);
    error_found(e, "%s", kind_of(value));
    return error_expected(e, "%s", expected);
}

static enum status unsupported(const struct reading *r, const char *object, const char *found,
                               const char *expected, struct error *e) {
    fail(r, UNSUPPORTED, object, "is not supported", e);
    error_found(e, "\"%s\"", found);
    return error_expected(e, "%s", expected);
}

static bool absent(const json_t *value) {
    return !value || json_is_null(value);
}

/* A boolean member; *out stays when it is absent or null. */
static enum status read_bool(const struct reading *r, const json_t *object, const char *key, const char *name,
                             bool *out, struct error *e) {
    const json_t *value = json_object_get(object, key);
    if (absent(value)) return OK;
    if (!json_is_boolean(value)) return wrong_kind(r, name, value, "true or false", e);
    *out = json_is_true(value);
    return OK;
}

/* The type of a component such as a normalizer, or NULL with META. */
static const char *read_type(const struct reading *r, const json_t *object, const char *name,
                             struct error *e) {
    const json_t *type = json_object_get(object, "type");
    if (!json_is_object(object))
        wrong_kind(r, name, object, "an object or null", e);
    else if (!json_is_string(type))
        wrong_kind(r, name, type, "a \"type\" that is a string", e);
    return e->code ? NULL : json_string_value(type);
}

static enum status check_id(const struct reading *r, const char *token, const json_t *value,
                            struct error *e) {
    if (json_is_integer(value) && json_integer_value(value) >= 0 &&
        json_integer_value(value) <= TOKENIZER_ID_MAX)
        return OK;
    error_set(e, META, "the id of token \"%s\" is not usable", token);
    error_where(e, "%s", r->path);
    if (json_is_integer(value))
        error_found(e, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    else
        error_found(e, "%s", kind_of(value));
    return error_expected(e, "an integer from 0 to %d", TOKENIZER_ID_MAX);
}

/* Marks an id as taken. False if it was. */
static bool take_id(struct reading *r, int64_t id) {
    uint8_t bit = (uint8_t)(1u << (id & 7));
    if (r->taken[id >> 3] & bit) return false;
    r->taken[id >> 3] |= bit;
    if (id >= r->t->size) r->t->size = (int)id + 1;
    return true;
}

/* ---- the vocabulary ---- */

/* The id of a token, or -1. */
static int32_t vocab_id(const struct reading *r, const char *text, uint64_t bytes) {
    const json_t *value = json_object_getn(r->vocab, text, bytes);
    return value ? (int32_t)json_integer_value(value) : -1;
}

static enum status check_vocab(struct reading *r, struct error *e) {
    if (!json_is_object(r->vocab)) return wrong_kind(r, "the vocabulary", r->vocab, "an object of ids", e);
    r->taken = alloc_array(r->t->sys, TOKENIZER_ID_MAX / 8 + 1, 1, e);
    if (!r->taken) return e->code;
    for (void *at = json_object_iter(r->vocab); at; at = json_object_iter_next(r->vocab, at)) {
        const char *token = json_object_iter_key(at);
        const json_t *value = json_object_iter_value(at);
        if (check_id(r, token, value, e)) return e->code;
        if (!take_id(r, json_integer_value(value))) {
            error_set(e, META, "two tokens have one id, the second is \"%s\"", token);
            error_where(e, "%s", r->path);
            error_found(e, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
            return error_expected(e, "ids that differ");
        }
        if (json_object_iter_key_len(at) > r->longest) r->longest = json_object_iter_key_len(at);
    }
    r->joined = alloc_array(r->t->sys, r->longest + 1, 1, e);
    return e->code;
}

static void read_bytes(struct reading *r) {
    for (int byte = 0; byte < 256; byte++) {
        utf8proc_uint8_t text[4];
        utf8proc_ssize_t n = utf8proc_encode_char(byte_to_alphabet(byte), text);
        r->t->byte_id[byte] = vocab_id(r, (const char *)text, (uint64_t)n);
    }
}

/* A token's bytes from its text in the byte-level alphabet. False if it has other characters: then no text
 * can ever be this token. */
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

/* All tokens by their bytes, for ignore_merges. A token's bytes are never more than its text's. */
static enum status read_words(struct reading *r, struct error *e) {
    struct word_table *words = &r->t->words;
    int16_t byte_of[ALPHABET_END];
    uint64_t text_bytes = 0;
    for (int code = 0; code < ALPHABET_END; code++) byte_of[code] = (int16_t)alphabet_to_byte(code);
    for (void *at = json_object_iter(r->vocab); at; at = json_object_iter_next(r->vocab, at))
        if (!add_u64(text_bytes, json_object_iter_key_len(at), &text_bytes))
            return error_set(e, OVERFLOW, "the vocabulary's texts are too long");
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

/* ---- merges ---- */

static enum status bad_merge(const struct reading *r, uint64_t rank, const char *problem, struct span text,
                             struct error *e) {
    error_set(e, META, "merge %" PRIu64 " %s", rank, problem);
    error_where(e, "%s", r->path);
    return error_found(e, "\"%.*s\"", text.bytes > 120 ? 120 : (int)text.bytes, text.at);
}

static enum status add_merge(struct reading *r, uint64_t rank, struct span left, struct span right,
                             struct error *e) {
    struct merge merge = {vocab_id(r, left.at, left.bytes), vocab_id(r, right.at, right.bytes), -1};
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
    merge.joined = vocab_id(r, joined.at, joined.bytes);
    if (merge.joined < 0) return bad_merge(r, rank, "makes a text that is not in the vocabulary", joined, e);
    merge_table_add(&r->t->merges, merge);
    return OK;
}

/* "left right" */
static enum status add_merge_text(struct reading *r, uint64_t rank, struct span text, struct error *e) {
    const char *space = memchr(text.at, ' ', text.bytes);
    struct span left = {text.at, space ? (uint64_t)(space - text.at) : 0};
    struct span right = {space ? space + 1 : NULL, text.bytes - left.bytes - 1};
    if (!space || memchr(right.at, ' ', right.bytes)) {
        bad_merge(r, rank, "does not have two parts", text, e);
        return error_expected(e, "two tokens and one space between them");
    }
    return add_merge(r, rank, left, right, e);
}

static struct span string_span(const json_t *string) {
    return (struct span){json_string_value(string), json_string_length(string)};
}

static enum status add_merge_json(struct reading *r, uint64_t rank, const json_t *item, struct error *e) {
    if (json_is_string(item)) return add_merge_text(r, rank, string_span(item), e);
    const json_t *left = json_array_get(item, 0), *right = json_array_get(item, 1);
    if (json_array_size(item) == 2 && json_is_string(left) && json_is_string(right))
        return add_merge(r, rank, string_span(left), string_span(right), e);
    error_set(e, META, "merge %" PRIu64 " does not have two parts", rank);
    error_where(e, "%s", r->path);
    error_found(e, "%s of %zu elements", kind_of(item), json_array_size(item));
    return error_expected(e, "\"a b\" or [\"a\", \"b\"]");
}

static enum status read_merges_json(struct reading *r, const json_t *merges, struct error *e) {
    if (!json_is_array(merges)) return wrong_kind(r, "model.merges", merges, "an array", e);
    uint64_t n = json_array_size(merges);
    if (merge_table_make(r->t->sys, &r->t->merges, n, e)) return e->code;
    for (uint64_t i = 0; i < n; i++)
        if (add_merge_json(r, i, json_array_get(merges, i), e)) return e->code;
    return OK;
}

/* The next line without its end, or false. Only "\n" and "\r\n" end lines. */
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

/* Empty lines and version lines are no merges. Nothing else is a comment: "# #" merges two hashes. */
static bool is_merge_line(struct span line) {
    return line.bytes && !(line.bytes >= 8 && !memcmp(line.at, "#version", 8));
}

static enum status read_merges_text(struct reading *r, struct span text, struct error *e) {
    struct span rest = text, line;
    uint64_t n = 0, rank = 0;
    uint64_t valid = utf8_valid_bytes(text.at, text.bytes);
    if (valid < text.bytes) {
        error_set(e, UTF8, "merges are not UTF-8");
        error_where(e, "%s, byte %" PRIu64, r->path, valid);
        return error_found(e, "byte 0x%02x", (unsigned char)text.at[valid]);
    }
    while (next_line(&rest, &line)) n += is_merge_line(line);
    if (merge_table_make(r->t->sys, &r->t->merges, n, e)) return e->code;
    for (rest = text; next_line(&rest, &line);)
        if (is_merge_line(line) && add_merge_text(r, rank++, line, e)) return e->code;
    return OK;
}

/* ---- added tokens ---- */

/* An added token that is also in the vocabulary has its id there; any other has an id of its own. */
static enum status check_added_id(struct reading *r, const struct added_token *token, struct error *e) {
    int32_t in_vocab = vocab_id(r, token->content.at, token->content.bytes);
    if (in_vocab == token->id || (in_vocab < 0 && take_id(r, token->id))) return OK;
    error_set(e, META, "the id of added token \"%s\" clashes", token->content.at);
    error_where(e, "%s", r->path);
    error_found(e, "%d", token->id);
    if (in_vocab >= 0) return error_expected(e, "%d, as in the vocabulary", in_vocab);
    return error_expected(e, "an id that no other token has");
}

static enum status check_added_text(struct reading *r, const json_t *content, struct error *e) {
    if (!json_is_string(content)) return wrong_kind(r, "an added token's content", content, "a string", e);
    uint64_t bytes = json_string_length(content);
    if (bytes >= 1 && bytes <= TOKENIZER_ADDED_BYTES) return OK;
    error_set(e, bytes ? LIMIT : META, "the length of added token \"%.40s\" is not usable",
              json_string_value(content));
    error_where(e, "%s", r->path);
    error_found(e, "%" PRIu64 " bytes", bytes);
    return error_expected(e, "1 to %d bytes", TOKENIZER_ADDED_BYTES);
}

/* content and pattern are the token's own copies, freed by tokenizer_close. */
static enum status copy_added_text(struct reading *r, const json_t *content, struct added_token *token,
                                   struct error *e) {
    struct span text = string_span(content);
    char *copy = copy_text(r->t->sys, text.at, text.bytes, e), *nfc = NULL;
    if (!copy) return e->code;
    token->content = token->pattern = (struct span){copy, text.bytes};
    if (!token->normalized || !r->t->nfc) return OK;
    uint64_t nfc_bytes = 0;
    if (text_to_nfc(r->t->sys, text, &nfc, &nfc_bytes, e)) return e->code;
    if (nfc) token->pattern = (struct span){nfc, nfc_bytes};
    return OK;
}

/* One entry of added_tokens or added_tokens_decoder. */
static enum status add_added(struct reading *r, const json_t *entry, int64_t id, struct error *e) {
    const json_t *content = json_object_get(entry, "content");
    struct added_token *token = &r->t->added[r->t->n_added];
    if (check_added_text(r, content, e)) return e->code;
    r->t->n_added++;
    read_bool(r, entry, "special", "an added token's special", &token->special, e);
    token->normalized = !token->special;
    read_bool(r, entry, "normalized", "an added token's normalized", &token->normalized, e);
    read_bool(r, entry, "lstrip", "an added token's lstrip", &token->lstrip, e);
    read_bool(r, entry, "rstrip", "an added token's rstrip", &token->rstrip, e);
    read_bool(r, entry, "single_word", "an added token's single_word", &token->single_word, e);
    token->id = (int32_t)id;
    if (e->code || copy_added_text(r, content, token, e)) return e->code;
    return check_added_id(r, token, e);
}

static enum status make_added(struct reading *r, uint64_t n, struct error *e) {
    if (n > TOKENIZER_ADDED_MAX) {
        fail(r, LIMIT, "the list of added tokens", "is too long", e);
        error_found(e, "%" PRIu64, n);
        return error_expected(e, "at most %d", TOKENIZER_ADDED_MAX);
    }
    r->t->added = alloc_array(r->t->sys, n, sizeof *r->t->added, e);
    return e->code;
}

static enum status read_added_list(struct reading *r, const json_t *list, struct error *e) {
    if (absent(list)) return OK;
    if (!json_is_array(list)) return wrong_kind(r, "added_tokens", list, "an array", e);
    if (make_added(r, json_array_size(list), e)) return e->code;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i), *id = json_object_get(entry, "id");
        const char *text = json_string_value(json_object_get(entry, "content"));
        if (check_id(r, text ? text : "", id, e)) return e->code;
        if (add_added(r, entry, json_integer_value(id), e)) return e->code;
    }
    return OK;
}

/* {"151643": {"content": "<|endoftext|>", ...}, ...} */
static enum status read_added_decoder(struct reading *r, json_t *decoder, struct error *e) {
    if (!json_is_object(decoder)) return wrong_kind(r, "added_tokens_decoder", decoder, "an object", e);
    if (make_added(r, json_object_size(decoder), e)) return e->code;
    for (void *at = json_object_iter(decoder); at; at = json_object_iter_next(decoder, at)) {
        const char *key = json_object_iter_key(at);
        int64_t id = 0;
        for (const char *c = key; *c && id >= 0; c++)
            id = *c >= '0' && *c <= '9' && id <= TOKENIZER_ID_MAX ? 10 * id + (*c - '0') : -1;
        if (!*key || id < 0 || id > TOKENIZER_ID_MAX) {
            fail(r, META, "an id in added_tokens_decoder", "is not usable", e);
            error_found(e, "\"%s\"", key);
            return error_expected(e, "an integer from 0 to %d", TOKENIZER_ID_MAX);
        }
        if (add_added(r, json_object_iter_value(at), id, e)) return e->code;
    }
    return OK;
}

/* True if some member *_token of a configuration, or an element of its lists of special tokens, is this text.
 */
static bool is_text(const json_t *value, const char *text) {
    if (json_is_object(value)) value = json_object_get(value, "content");
    return json_is_string(value) && !strcmp(json_string_value(value), text);
}

static bool names_special(const json_t *config, const char *text) {
    static const char *const keys[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                       "pad_token", "cls_token", "mask_token"};
    static const char *const lists[] = {"additional_special_tokens", "extra_special_tokens"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (is_text(json_object_get(config, keys[i]), text)) return true;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        const json_t *list = json_object_get(config, lists[i]);
        for (size_t j = 0; j < json_array_size(list); j++)
            if (is_text(json_array_get(list, j), text)) return true;
    }
    return false;
}

/* {"<|endoftext|>": 151643, ...}: the older form, without flags. Which are special the configurations tell.
 */
static enum status read_added_map(struct reading *r, json_t *map, const json_t *config,
                                  const json_t *special_map, struct error *e) {
    if (!json_is_object(map)) return wrong_kind(r, "the document", map, "an object of ids", e);
    if (make_added(r, json_object_size(map), e)) return e->code;
    for (void *at = json_object_iter(map); at; at = json_object_iter_next(map, at)) {
        const char *text = json_object_iter_key(at);
        const json_t *id = json_object_iter_value(at);
        if (check_id(r, text, id, e)) return e->code;
        json_t *entry = json_pack("{s:s, s:b}", "content", text, "special",
                                  names_special(config, text) || names_special(special_map, text));
        if (!entry) return error_set(e, MEMORY, "no memory for an added token");
        add_added(r, entry, json_integer_value(id), e);
        json_decref(entry);
        if (e->code) return e->code;
    }
    return OK;
}

/* ---- the parts of tokenizer.json ---- */

static enum status read_normalizer(struct reading *r, const json_t *normalizer, bool nested,
                                   struct error *e) {
    if (absent(normalizer)) return OK;
    const char *type = read_type(r, normalizer, "normalizer", e);
    if (!type) return e->code;
    if (!strcmp(type, "NFC")) {
        r->t->nfc = true;
        return OK;
    }
    if (nested || strcmp(type, "Sequence")) return unsupported(r, "normalizer type", type, "NFC", e);
    const json_t *list = json_object_get(normalizer, "normalizers");
    if (!json_is_array(list)) return wrong_kind(r, "normalizer.normalizers", list, "an array", e);
    for (size_t i = 0; i < json_array_size(list) && !e->code; i++)
        read_normalizer(r, json_array_get(list, i), true, e);
    return e->code;
}

/* {"type": "Split", "pattern": {"Regex": "..."}, "behavior": "Isolated", "invert": false} */
static enum status read_split(struct reading *r, const json_t *split, struct error *e) {
    const json_t *regex = json_object_get(json_object_get(split, "pattern"), "Regex");
    const json_t *behavior = json_object_get(split, "behavior");
    bool invert = false;
    if (!json_is_string(regex))
        return unsupported(r, "the Split pre-tokenizer's pattern", "not a Regex", "a Regex", e);
    if (!json_is_string(behavior))
        return wrong_kind(r, "the Split pre-tokenizer's behavior", behavior, "a string", e);
    if (strcmp(json_string_value(behavior), "Isolated"))
        return unsupported(r, "the Split pre-tokenizer's behavior", json_string_value(behavior), "Isolated",
                           e);
    if (read_bool(r, split, "invert", "the Split pre-tokenizer's invert", &invert, e)) return e->code;
    if (invert) return unsupported(r, "the Split pre-tokenizer's invert", "true", "false", e);
    return split_compile(r->t, json_string_value(regex), json_string_length(regex), "pre_tokenizer.pattern",
                         e);
}

static enum status read_byte_level(struct reading *r, const json_t *level, bool want_regex, struct error *e) {
    bool prefix = true, regex = true; /* what the reference takes when they are absent */
    read_bool(r, level, "add_prefix_space", "the ByteLevel pre-tokenizer's add_prefix_space", &prefix, e);
    if (read_bool(r, level, "use_regex", "the ByteLevel pre-tokenizer's use_regex", &regex, e))
        return e->code;
    if (prefix) return unsupported(r, "the ByteLevel pre-tokenizer's add_prefix_space", "true", "false", e);
    if (regex != want_regex)
        return unsupported(r, "the ByteLevel pre-tokenizer's use_regex", regex ? "true" : "false",
                           want_regex ? "true where it stands alone" : "false behind a Split", e);
    return regex ? split_compile(r->t, gpt2_pattern, strlen(gpt2_pattern), "pre_tokenizer", e) : OK;
}

/* A Split, then ByteLevel. */
static enum status read_two_steps(struct reading *r, const json_t *first, const json_t *second,
                                  struct error *e) {
    const char *split = read_type(r, first, "pre_tokenizer.pretokenizers[0]", e);
    if (!split) return e->code;
    if (strcmp(split, "Split"))
        return unsupported(r, "pre_tokenizer type", split, "Split, then ByteLevel", e);
    const char *level = read_type(r, second, "pre_tokenizer.pretokenizers[1]", e);
    if (!level) return e->code;
    if (strcmp(level, "ByteLevel"))
        return unsupported(r, "pre_tokenizer type", level, "Split, then ByteLevel", e);
    if (read_split(r, first, e)) return e->code;
    return read_byte_level(r, second, false, e);
}

static enum status read_pre_tokenizer(struct reading *r, const json_t *pre, struct error *e) {
    const char *type = read_type(r, pre, "pre_tokenizer", e);
    if (!type) return e->code;
    const json_t *list = json_object_get(pre, "pretokenizers");
    if (!strcmp(type, "Sequence") && json_array_size(list) == 2)
        return read_two_steps(r, json_array_get(list, 0), json_array_get(list, 1), e);
    if (!strcmp(type, "Sequence") && json_array_size(list) == 1) {
        pre = json_array_get(list, 0);
        type = read_type(r, pre, "pre_tokenizer.pretokenizers[0]", e);
        if (!type) return e->code;
    }
    if (strcmp(type, "ByteLevel"))
        return unsupported(r, "pre_tokenizer type", type, "ByteLevel, or a Sequence of Split and ByteLevel",
                           e);
    return read_byte_level(r, pre, true, e);
}

/* Members of the model that would change ids in ways not reproduced here. */
static enum status check_model(struct reading *r, const json_t *model, struct error *e) {
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const json_t *type = json_object_get(model, "type"), *dropout = json_object_get(model, "dropout");
    bool byte_fallback = false;
    if (!json_is_object(model)) return wrong_kind(r, "model", model, "an object", e);
    if (!absent(type) && !json_is_string(type)) return wrong_kind(r, "model.type", type, "\"BPE\"", e);
    if (!absent(type) && strcmp(json_string_value(type), "BPE"))
        return unsupported(r, "model.type", json_string_value(type), "BPE", e);
    for (int i = 0; i < 2; i++) {
        const json_t *affix = json_object_get(model, affixes[i]);
        if (absent(affix) || (json_is_string(affix) && !json_string_length(affix))) continue;
        return unsupported(r, affixes[i], json_is_string(affix) ? json_string_value(affix) : kind_of(affix),
                           "null", e);
    }
    if (!absent(dropout) && !(json_is_number(dropout) && json_number_value(dropout) == 0))
        return unsupported(r, "model.dropout", "not null", "null", e);
    if (read_bool(r, model, "byte_fallback", "model.byte_fallback", &byte_fallback, e)) return e->code;
    return byte_fallback ? unsupported(r, "model.byte_fallback", "true", "false", e) : OK;
}

/* An unk token outside the vocabulary only matters if some byte has no token. */
static enum status read_unk(struct reading *r, const json_t *unk, struct error *e) {
    if (absent(unk)) return OK;
    if (!json_is_string(unk)) return wrong_kind(r, "model.unk_token", unk, "a string or null", e);
    r->t->unk = vocab_id(r, json_string_value(unk), json_string_length(unk));
    for (int byte = 0; byte < 256 && r->t->unk < 0; byte++) {
        if (r->t->byte_id[byte] >= 0) continue;
        fail(r, META, "model.unk_token", "is not in the vocabulary", e);
        error_found(e, "\"%s\"", json_string_value(unk));
        return error_expected(e, "a token, because byte 0x%02x has none", (unsigned)byte);
    }
    return OK;
}

static enum status read_model(struct reading *r, const json_t *model, struct error *e) {
    if (check_model(r, model, e)) return e->code;
    read_bool(r, model, "ignore_merges", "model.ignore_merges", &r->t->ignore_merges, e);
    if (read_bool(r, model, "fuse_unk", "model.fuse_unk", &r->t->fuse_unk, e)) return e->code;
    r->vocab = json_object_get(model, "vocab");
    if (check_vocab(r, e)) return e->code;
    read_bytes(r);
    if (r->t->ignore_merges && read_words(r, e)) return e->code;
    if (read_unk(r, json_object_get(model, "unk_token"), e)) return e->code;
    return read_merges_json(r, json_object_get(model, "merges"), e);
}

/* ---- parts that do not change ids, but that must hold together ---- */

static bool is_added(const struct tokenizer *t, const char *text) {
    for (int i = 0; i < t->n_added; i++)
        if (!strcmp(t->added[i].content.at, text)) return true;
    return false;
}

/* Each {"SpecialToken": {"id": NAME}} names a member of special_tokens, whose tokens exist. */
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
            found = found && token && (is_added(r->t, token) || vocab_id(r, token, strlen(token)) >= 0);
        }
        if (found) continue;
        fail(r, META, "the post_processor's template", "names a special token that is missing", e);
        return error_found(e, "\"%s\"", name ? name : "");
    }
    return OK;
}

static enum status check_processor(struct reading *r, const json_t *processor, bool nested, struct error *e) {
    if (absent(processor)) return OK;
    const char *type = read_type(r, processor, "post_processor", e);
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

/* The reference's pipelines set both anew for each text, so only nonsense matters here. */
static enum status check_lengths(struct reading *r, const json_t *root, struct error *e) {
    const json_t *truncation = json_object_get(root, "truncation");
    const json_t *strategy = json_object_get(json_object_get(root, "padding"), "strategy");
    const json_t *most = json_object_get(truncation, "max_length"),
                 *stride = json_object_get(truncation, "stride");
    const json_t *fixed = json_object_get(strategy, "Fixed");
    if (!absent(truncation) &&
        (!json_is_integer(most) || json_integer_value(most) < 1 || json_integer_value(stride) < 0 ||
         json_integer_value(stride) >= json_integer_value(most))) {
        fail(r, META, "truncation", "has no usable lengths", e);
        error_found(e, "max_length %" JSON_INTEGER_FORMAT ", stride %" JSON_INTEGER_FORMAT,
                    json_integer_value(most), json_integer_value(stride));
        return error_expected(e, "0 <= stride < max_length");
    }
    if (!fixed || (json_is_integer(fixed) && json_integer_value(fixed) > 0)) return OK;
    fail(r, META, "padding", "has no usable length", e);
    error_found(e, "Fixed %" JSON_INTEGER_FORMAT, json_integer_value(fixed));
    return error_expected(e, "at least 1");
}

static enum status read_document(struct reading *r, const json_t *root, struct error *e) {
    const json_t *version = json_object_get(root, "version");
    if (!json_is_object(root)) return wrong_kind(r, "the document", root, "an object", e);
    if (!absent(version) && !is_text(version, "1.0")) {
        fail(r, VERSION, "the file's version", "is not known", e);
        error_found(e, "%s", json_is_string(version) ? json_string_value(version) : kind_of(version));
        return error_expected(e, "\"1.0\"");
    }
    if (read_normalizer(r, json_object_get(root, "normalizer"), false, e)) return e->code;
    if (read_pre_tokenizer(r, json_object_get(root, "pre_tokenizer"), e)) return e->code;
    if (read_model(r, json_object_get(root, "model"), e)) return e->code;
    if (read_added_list(r, json_object_get(root, "added_tokens"), e)) return e->code;
    if (check_processor(r, json_object_get(root, "post_processor"), false, e)) return e->code;
    return check_lengths(r, root, e);
}

/* Parses a file; its text is gone before the document is used. */
static enum status read_json_file(struct sys *sys, const char *path, json_t **root, struct error *e) {
    char *text = NULL;
    uint64_t bytes = 0;
    *root = NULL;
    if (file_read_text(sys, path, file_bytes_max, &text, &bytes, e)) return e->code;
    json_parse(path, text, bytes, JSON_DEPTH, root, e);
    sys->release(sys, text);
    return e->code;
}

static enum status finish(struct reading *r, struct error *e) {
    struct sys *sys = r->t->sys;
    if (!e->code) added_sets_build(r->t, e);
    sys->release(sys, r->taken);
    sys->release(sys, r->joined);
    return e->code;
}

enum status tokenizer_read_json(struct tokenizer *t, const char *path, struct error *e) {
    struct reading r = {.t = t, .path = path};
    json_t *root = NULL;
    t->path = copy_text(t->sys, path, strlen(path), e);
    if (!t->path || read_json_file(t->sys, path, &root, e)) return e->code;
    read_document(&r, root, e);
    finish(&r, e);
    json_decref(root);
    return e->code;
}

/* ---- vocab.json + merges.txt ---- */

enum { F_VOCAB, F_CONFIG, F_ADDED, F_SPECIAL, N_FILES };

/* The documents of a folder in the older form; optional ones are NULL. */
struct folder {
    char path[N_FILES + 1][4096]; /* the last is merges.txt */
    json_t *root[N_FILES];
};

/* Only Qwen2's tokenizer is known to this form: its files do not say how text is split. */
static enum status check_class(struct reading *r, const json_t *config, struct error *e) {
    const json_t *class = json_object_get(config, "tokenizer_class");
    bool prefix = false;
    if (!absent(class) && !is_text(class, "Qwen2Tokenizer") && !is_text(class, "Qwen2TokenizerFast"))
        return unsupported(r, "tokenizer_class",
                           json_is_string(class) ? json_string_value(class) : kind_of(class),
                           "Qwen2Tokenizer, or a tokenizer.json", e);
    if (read_bool(r, config, "add_prefix_space", "add_prefix_space", &prefix, e)) return e->code;
    return prefix ? unsupported(r, "add_prefix_space", "true", "false", e) : OK;
}

/* One that is there and cannot be opened counts: leaving it out would give other ids, reading it says why. */
static bool file_exists(struct sys *sys, const char *path) {
    int file = sys->open(sys, path);
    if (file >= 0) sys->close(sys, file);
    return file != -ENOENT && file != -ENOTDIR;
}

static enum status read_folder_files(struct sys *sys, struct folder *f, struct error *e) {
    for (int i = 0; i < N_FILES; i++) {
        if (i != F_VOCAB && !file_exists(sys, f->path[i])) continue;
        if (read_json_file(sys, f->path[i], &f->root[i], e)) return e->code;
    }
    return OK;
}

static enum status read_folder_merges(struct reading *r, const char *path, struct error *e) {
    char *text = NULL;
    uint64_t bytes = 0;
    r->path = path;
    if (file_read_text(r->t->sys, path, file_bytes_max, &text, &bytes, e)) return e->code;
    read_merges_text(r, (struct span){text, bytes}, e);
    r->t->sys->release(r->t->sys, text);
    return e->code;
}

static enum status read_folder_added(struct reading *r, const struct folder *f, struct error *e) {
    json_t *decoder = json_object_get(f->root[F_CONFIG], "added_tokens_decoder");
    r->path = f->path[decoder ? F_CONFIG : F_ADDED];
    if (decoder) return read_added_decoder(r, decoder, e);
    if (!f->root[F_ADDED]) return OK;
    return read_added_map(r, f->root[F_ADDED], f->root[F_CONFIG], f->root[F_SPECIAL], e);
}

static enum status read_folder_parts(struct reading *r, const struct folder *f, struct error *e) {
    r->path = f->path[F_CONFIG];
    r->t->nfc = true;
    if (check_class(r, f->root[F_CONFIG], e)) return e->code;
    if (split_compile(r->t, qwen2_pattern, strlen(qwen2_pattern), "Qwen2's pattern", e)) return e->code;
    r->path = f->path[F_VOCAB];
    r->vocab = f->root[F_VOCAB];
    if (check_vocab(r, e)) return e->code;
    read_bytes(r);
    if (read_folder_merges(r, f->path[N_FILES], e)) return e->code;
    return read_folder_added(r, f, e);
}

enum status tokenizer_read_folder(struct tokenizer *t, const char *folder, struct error *e) {
    static const char *const names[] = {"vocab.json", "tokenizer_config.json", "added_tokens.json",
                                        "special_tokens_map.json", "merges.txt"};
    struct reading r = {.t = t, .path = folder};
    struct folder *f = alloc_array(t->sys, 1, sizeof *f, e);
    if (!f) return e->code;
    for (int i = 0; i <= N_FILES; i++) snprintf(f->path[i], sizeof f->path[i], "%s/%s", folder, names[i]);
    t->path = copy_text(t->sys, folder, strlen(folder), e);
    if (t->path && !file_exists(t->sys, f->path[F_VOCAB])) {
        fail(&r, MISSING, "the tokenizer", "has no files here", e);
        error_expected(e, "tokenizer.json, or vocab.json and merges.txt");
    }
    if (!e->code && !read_folder_files(t->sys, f, e)) read_folder_parts(&r, f, e);
    finish(&r, e);
    for (int i = 0; i < N_FILES; i++) json_decref(f->root[i]);
    t->sys->release(t->sys, f);
    return e->code;
}
