/* Reads added tokens from tokenizer files. A token that a configuration names without a description gets the
 * same flags and id as in transformers 5.23 (observed in files saved by transformers). */
#include "loaders/tokenizer/reading.h"
#include "loaders/alloc_array.h"
#include "loaders/tokenizer/normalize.h"

#include <inttypes.h>
#include <string.h>

static const char *const names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                    "pad_token", "cls_token", "mask_token"};
enum { N_NAMES = sizeof names / sizeof *names };

static enum status check_added_id(struct reading *r, const struct added_token *token, struct error *e) {
    int32_t in_vocab = reading_vocab_id(r, token->content);
    if (in_vocab == token->id || (in_vocab < 0 && reading_take_id(r, token->id))) return OK;
    error_set(e, META,
              "tokenizer: the id of added token \"%s\" conflicts with another token" WHERE "%s" FOUND "%d",
              token->content.at, r->path, token->id);
    if (in_vocab >= 0) return error_expected(e, "%d, as in the vocabulary", in_vocab);
    return error_expected(e, "an id that no other token has");
}

static enum status check_added_text(struct reading *r, const json_t *content, struct error *e) {
    if (!json_is_string(content))
        return reading_wrong_kind(r, "an added token's content", content, "a string", e);
    uint64_t bytes = json_string_length(content);
    if (bytes >= 1 && bytes <= TOKENIZER_ADDED_BYTES) return OK;
    return error_set(e, bytes ? LIMIT : META,
                     "tokenizer: the length of added token \"%.40s\" is invalid" WHERE "%s" FOUND "%" PRIu64
                     " bytes" EXPECTED "1 to %d bytes",
                     json_string_value(content), r->path, bytes, TOKENIZER_ADDED_BYTES);
}

/* Copies content and pattern of a token; tokenizer_close frees them. */
static enum status copy_added_text(struct reading *r, const json_t *content, struct added_token *token,
                                   struct error *e) {
    struct span text = string_span(content);
    char *copy = copy_text(r->t->sys, text.at, text.bytes, e), *normal = NULL;
    if (!copy) return e->code;
    token->content = token->pattern = (struct span){copy, text.bytes};
    if (!token->normalized) return OK;
    if (text_normalize(r->t, &text, &normal, e)) return e->code;
    if (normal) token->pattern = (struct span){normal, text.bytes};
    return text.bytes ? OK : reading_fail(r, META, "an added token", "is empty after normalisation", e);
}

/* Adds an entry of added_tokens or added_tokens_decoder. */
static enum status add_added(struct reading *r, const json_t *entry, int64_t id, struct error *e) {
    const json_t *content = json_object_get(entry, "content");
    struct added_token *token = &r->t->added[r->t->n_added];
    if (check_added_text(r, content, e)) return e->code;
    r->t->n_added++;
    reading_bool(r, entry, "special", "an added token's special", &token->special, e);
    token->normalized = !token->special;
    reading_bool(r, entry, "normalized", "an added token's normalized", &token->normalized, e);
    reading_bool(r, entry, "lstrip", "an added token's lstrip", &token->lstrip, e);
    reading_bool(r, entry, "rstrip", "an added token's rstrip", &token->rstrip, e);
    reading_bool(r, entry, "single_word", "an added token's single_word", &token->single_word, e);
    token->id = (int32_t)id;
    if (e->code || copy_added_text(r, content, token, e)) return e->code;
    return check_added_id(r, token, e);
}

void added_list_token(json_t *list, int64_t id, struct span text, bool special) {
    json_t *entry = json_object();
    json_put(entry, "id", json_integer(id));
    json_put(entry, "content", json_stringn(text.at, text.bytes));
    json_put(entry, "special", json_boolean(special));
    json_put(entry, "normalized", json_false());
    json_push(list, entry);
}

static enum status make_added(struct reading *r, uint64_t n, struct error *e) {
    if (n > TOKENIZER_ADDED_MAX) {
        reading_fail(r, LIMIT, "the list of added tokens", "is too long", e);
        error_found(e, "%" PRIu64, n);
        return error_expected(e, "at most %d", TOKENIZER_ADDED_MAX);
    }
    r->t->added = alloc_array(r->t->sys, n, sizeof *r->t->added, e);
    return e->code;
}

enum status added_read_list(struct reading *r, const json_t *list, struct error *e) {
    if (reading_absent(list)) return OK;
    if (!json_is_array(list)) return reading_wrong_kind(r, "added_tokens", list, "an array", e);
    if (make_added(r, json_array_size(list), e)) return e->code;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i), *id = json_object_get(entry, "id");
        const char *text = json_string_value(json_object_get(entry, "content"));
        if (reading_check_id(r, text ? text : "", id, e)) return e->code;
        if (add_added(r, entry, json_integer_value(id), e)) return e->code;
    }
    return OK;
}

/* Converts a token description to a list entry. Failed allocations are checked when the list is complete. */
static json_t *entry_of(const json_t *token, int64_t id) {
    json_t *entry = json_is_object(token) ? json_copy((json_t *)token) : json_object();
    if (json_is_string(token)) json_count_failure(json_object_set(entry, "content", (json_t *)token));
    json_put(entry, "id", json_integer(id));
    return entry;
}

static enum status read_whole_list(struct reading *r, json_t *list, unsigned failures_before,
                                   struct error *e) {
    if (!list || failed_json_allocations() != failures_before)
        error_set(e, MEMORY, "no memory for added tokens");
    if (!e->code) added_read_list(r, list, e);
    json_decref(list);
    return e->code;
}

/* Reads {"151643": {"content": "<|endoftext|>", ...}, ...}. */
static enum status list_decoder(struct reading *r, json_t *decoder, json_t *list, struct error *e) {
    if (!json_is_object(decoder))
        return reading_wrong_kind(r, "added_tokens_decoder", decoder, "an object", e);
    for (void *at = json_object_iter(decoder); at; at = json_object_iter_next(decoder, at)) {
        const char *key = json_object_iter_key(at);
        int64_t id = 0;
        for (const char *c = key; *c && id >= 0; c++)
            id = *c >= '0' && *c <= '9' && id <= TOKENIZER_ID_MAX ? 10 * id + (*c - '0') : -1;
        if (!*key || id < 0 || id > TOKENIZER_ID_MAX) {
            reading_fail(r, META, "an id in added_tokens_decoder", "is invalid", e);
            error_found(e, "\"%s\"", key);
            return error_expected(e, "an integer from 0 to %d", TOKENIZER_ID_MAX);
        }
        json_push(list, entry_of(json_object_iter_value(at), id));
    }
    return OK;
}

enum status added_read_decoder(struct reading *r, json_t *decoder, struct error *e) {
    unsigned json_failures = failed_json_allocations();
    json_t *list = json_array();
    list_decoder(r, decoder, list, e);
    return read_whole_list(r, list, json_failures, e);
}

static bool names_special(const json_t *config, const char *text) {
    static const char *const lists[] = {"additional_special_tokens", "extra_special_tokens"};
    for (size_t i = 0; i < N_NAMES; i++)
        if (reading_is_text(json_object_get(config, names[i]), text)) return true;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        const json_t *list = json_object_get(config, lists[i]);
        for (size_t j = 0; j < json_array_size(list); j++)
            if (reading_is_text(json_array_get(list, j), text)) return true;
    }
    return false;
}

/* Reads {"<|endoftext|>": 151643, ...}, the older format; the configurations name the special tokens. */
enum status added_read_map(struct reading *r, json_t *map, const json_t *config, const json_t *special_map,
                           struct error *e) {
    if (!json_is_object(map)) return reading_wrong_kind(r, "the document", map, "an object of ids", e);
    if (make_added(r, json_object_size(map), e)) return e->code;
    for (void *at = json_object_iter(map); at; at = json_object_iter_next(map, at)) {
        const char *text = json_object_iter_key(at);
        const json_t *id = json_object_iter_value(at);
        if (reading_check_id(r, text, id, e)) return e->code;
        json_t *entry = json_pack("{s:s, s:b}", "content", text, "special",
                                  names_special(config, text) || names_special(special_map, text));
        if (!entry) return error_set(e, MEMORY, "no memory for an added token");
        add_added(r, entry, json_integer_value(id), e);
        json_decref(entry);
        if (e->code) return e->code;
    }
    return OK;
}

struct entries {
    json_t *list, *by_text;
};

static json_t *added_tokens_find_entry(const struct entries *in, const json_t *content) {
    return json_object_getn(in->by_text, json_string_value(content), json_string_length(content));
}

static void keep_entry(const struct entries *in, json_t *entry) {
    const json_t *content = json_object_get(entry, "content");
    json_count_failure(json_array_append(in->list, entry));
    if (json_is_string(content))
        json_count_failure(
            json_object_setn(in->by_text, json_string_value(content), json_string_length(content), entry));
}

/* Id of a named token; a token outside the vocabulary gets the next free id. */
static int64_t id_of(struct reading *r, const json_t *content, int64_t *next) {
    int64_t id = json_is_string(content) ? reading_vocab_id(r, string_span(content)) : -1;
    return id >= 0 ? id : (*next)++;
}

/* Adds a named token: a text, or a description. If a token is named twice the last description wins, unless
 * added_tokens_decoder describes it. */
static void list_named(struct reading *r, const json_t *value, bool described, struct entries *in,
                       int64_t *next) {
    const json_t *content = json_is_object(value) ? json_object_get(value, "content") : value;
    json_t *entry = added_tokens_find_entry(in, content), *normalized = json_object_get(value, "normalized");
    if (entry && described) return;
    if (entry)
        json_incref(entry);
    else
        keep_entry(in, entry = entry_of(value, id_of(r, content, next)));
    json_put(entry, "special", json_true());
    json_put(entry, "normalized", normalized ? json_incref(normalized) : json_false());
    json_decref(entry);
}

/* Adds tokens described in added_tokens_decoder, then tokens derived from the vocabulary. */
static void list_others(const struct named_tokens *named, const json_t *described, struct entries *in) {
    for (size_t i = 0; i < json_array_size(described); i++) keep_entry(in, json_array_get(described, i));
    for (size_t i = 0; i < json_array_size(named->others); i++) {
        json_t *entry = json_array_get(named->others, i);
        if (!added_tokens_find_entry(in, json_object_get(entry, "content"))) keep_entry(in, entry);
    }
}

enum status added_read_named(struct reading *r, const struct named_tokens *named, struct error *e) {
    json_t *decoder = json_object_get(named->config, "added_tokens_decoder");
    unsigned json_failures = failed_json_allocations();
    json_t *described = json_array();
    struct entries in = {json_array(), json_object()};
    int64_t next = r->t->size;
    if (decoder) list_decoder(r, decoder, described, e);
    list_others(named, described, &in);
    for (size_t i = 0; i < N_NAMES; i++) {
        const json_t *value = decoder ? NULL : json_object_get(named->special_map, names[i]);
        if (!value) value = json_object_get(named->config, names[i]);
        if (!value) value = json_object_get(named->defaults, names[i]);
        if (!reading_absent(value)) list_named(r, value, decoder != NULL, &in, &next);
    }
    json_decref(described);
    json_decref(in.by_text);
    return read_whole_list(r, in.list, json_failures, e);
}
