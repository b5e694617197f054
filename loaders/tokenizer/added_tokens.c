/* Added tokens: reading them from tokenizer files, and finding them in a text before any split or merge. The
 * search finds the leftmost match, and among matches at the same position the longest, like the Aho-Corasick
 * automaton of Hugging Face tokenizers (LeftmostLongest). Instead of an automaton, a range of a sorted list
 * is narrowed byte by byte: tokens are few and short (TOKENIZER_ADDED_BYTES bounds the work per byte of
 * text), and a table of first bytes skips most positions. Source: Hugging Face tokenizers 0.23,
 * tokenizer/added_vocabulary.rs. A token that a configuration names without a description gets the same
 * flags and id as in transformers 5.23 (observed in files saved by transformers). */
#include "loaders/tokenizer/reading.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                    "pad_token", "cls_token", "mask_token"};
enum { N_NAMES = sizeof names / sizeof *names };

/* Adds an entry of added_tokens or added_tokens_decoder. tokenizer_close frees content and pattern. */
static enum status add_added(struct reading *r, const json_t *entry, int64_t id, struct error *e) {
    const json_t *content = json_object_get(entry, "content");
    struct added_token *token = &r->t->added[r->t->n_added];
    if (!json_is_string(content))
        return reading_wrong_kind(r, "an added token's content", content, "a string", e);
    struct span text = string_span(content);
    if (!text.bytes || text.bytes > TOKENIZER_ADDED_BYTES)
        return error_set(e, text.bytes ? LIMIT : META,
                         "tokenizer: the length of added token \"%.40s\" is invalid" WHERE "%s" FOUND
                         "%" PRIu64 " bytes" EXPECTED "1 to %d bytes",
                         text.at, r->path, text.bytes, TOKENIZER_ADDED_BYTES);
    r->t->n_added++;
    reading_bool(r, entry, "special", "an added token's special", &token->special, e);
    token->normalized = !token->special;
    reading_bool(r, entry, "normalized", "an added token's normalized", &token->normalized, e);
    reading_bool(r, entry, "lstrip", "an added token's lstrip", &token->lstrip, e);
    reading_bool(r, entry, "rstrip", "an added token's rstrip", &token->rstrip, e);
    reading_bool(r, entry, "single_word", "an added token's single_word", &token->single_word, e);
    token->id = (int32_t)id;
    char *copy = e->code ? NULL : copy_text(r->t->sys, text.at, text.bytes, e), *normal = NULL;
    if (!copy) return e->code;
    token->content = token->pattern = (struct span){copy, text.bytes};
    if (token->normalized) {
        if (text_normalize(r->t, &text, &normal, e)) return e->code;
        if (normal) token->pattern = (struct span){normal, text.bytes};
        if (!text.bytes) return reading_fail(e, META, r, "an added token is empty after normalisation");
    }
    int32_t in_vocab = reading_vocab_id(r, token->content);
    if (in_vocab == token->id || (in_vocab < 0 && reading_take_id(r, token->id))) return OK;
    error_set(e, META,
              "tokenizer: the id of added token \"%s\" conflicts with another token" WHERE "%s" FOUND "%d",
              token->content.at, r->path, token->id);
    if (in_vocab >= 0) return error_expected(e, "%d, as in the vocabulary", in_vocab);
    return error_expected(e, "an id that no other token has");
}

enum status added_read_list(struct reading *r, const json_t *list, struct error *e) {
    size_t n = json_array_size(list);
    if (reading_absent(list)) return OK;
    if (!json_is_array(list)) return reading_wrong_kind(r, "added_tokens", list, "an array", e);
    if (n > TOKENIZER_ADDED_MAX)
        return reading_fail(e, LIMIT, r,
                            "the list of added tokens is too long" FOUND "%zu" EXPECTED "at most %d", n,
                            TOKENIZER_ADDED_MAX);
    r->t->added = sys_new(r->t->sys, n, sizeof *r->t->added, "the added tokens", e);
    for (size_t i = 0; i < n && !e->code; i++) {
        const json_t *entry = json_array_get(list, i), *id = json_object_get(entry, "id");
        const char *text = json_string_value(json_object_get(entry, "content"));
        if (reading_check_id(r, text ? text : "", id, e)) return e->code;
        add_added(r, entry, json_integer_value(id), e);
    }
    return e->code;
}

void added_list_token(json_t *list, int64_t id, struct span text, bool special) {
    json_t *entry = json_object();
    json_put(entry, "id", json_integer(id));
    json_put(entry, "content", json_stringn(text.at, text.bytes));
    json_put(entry, "special", json_boolean(special));
    json_put(entry, "normalized", json_false());
    json_push(list, entry);
}

/* Converts a token description to a list entry. Failed allocations are checked when the list is complete. */
static json_t *entry_of(const json_t *token, int64_t id) {
    json_t *entry = json_is_object(token) ? json_copy((json_t *)token) : json_object();
    if (json_is_string(token)) json_count_failure(json_object_set(entry, "content", (json_t *)token));
    json_put(entry, "id", json_integer(id));
    return entry;
}

enum status added_read_new_list(struct reading *r, json_t *list, unsigned failures_before, struct error *e) {
    if (!list || failed_json_allocations() != failures_before)
        error_set(e, MEMORY, "no memory for added tokens");
    if (!e->code) added_read_list(r, list, e);
    json_decref(list);
    return e->code;
}

/* Reads added tokens in the form {"151643": {"content": "<|endoftext|>", ...}, ...}. */
static enum status list_decoder(struct reading *r, json_t *decoder, json_t *list, struct error *e) {
    if (!json_is_object(decoder))
        return reading_wrong_kind(r, "added_tokens_decoder", decoder, "an object", e);
    for (void *at = json_object_iter(decoder); at; at = json_object_iter_next(decoder, at)) {
        const char *key = json_object_iter_key(at);
        int64_t id = 0;
        for (const char *c = key; *c && id >= 0; c++)
            id = *c >= '0' && *c <= '9' && id <= TOKENIZER_ID_MAX ? 10 * id + (*c - '0') : -1;
        if (!*key || id < 0 || id > TOKENIZER_ID_MAX)
            return reading_fail(e, META, r,
                                "an id in added_tokens_decoder is invalid" FOUND "\"%s\"" EXPECTED
                                "an integer from 0 to %d",
                                key, TOKENIZER_ID_MAX);
        json_push(list, entry_of(json_object_iter_value(at), id));
    }
    return OK;
}

enum status added_read_decoder(struct reading *r, json_t *decoder, struct error *e) {
    unsigned json_failures = failed_json_allocations();
    json_t *list = json_array();
    list_decoder(r, decoder, list, e);
    return added_read_new_list(r, list, json_failures, e);
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
    unsigned json_failures = failed_json_allocations();
    json_t *list = json_array();
    for (void *at = json_object_iter(map); at; at = json_object_iter_next(map, at)) {
        const char *text = json_object_iter_key(at);
        bool special = names_special(config, text) || names_special(special_map, text);
        json_push(list, json_pack("{s:s, s:b, s:O}", "content", text, "special", special, "id",
                                  json_object_iter_value(at)));
    }
    return added_read_new_list(r, list, json_failures, e);
}

struct entries {
    json_t *list, *by_text;
};

static json_t *find_entry(const struct entries *in, const json_t *content) {
    return json_object_getn(in->by_text, json_string_value(content), json_string_length(content));
}

static void keep_entry(const struct entries *in, json_t *entry) {
    const json_t *content = json_object_get(entry, "content");
    json_count_failure(json_array_append(in->list, entry));
    if (json_is_string(content))
        json_count_failure(
            json_object_setn(in->by_text, json_string_value(content), json_string_length(content), entry));
}

/* Adds a named token: a text, or a description. A token outside the vocabulary gets the next free id. If a
 * token is named twice the last description wins, unless added_tokens_decoder describes it. */
static void list_named(struct reading *r, const json_t *value, bool described, struct entries *in,
                       int64_t *next) {
    const json_t *content = json_is_object(value) ? json_object_get(value, "content") : value;
    json_t *entry = find_entry(in, content), *normalized = json_object_get(value, "normalized");
    if (entry && described) return;
    if (entry) {
        json_incref(entry);
    } else {
        int64_t id = json_is_string(content) ? reading_vocab_id(r, string_span(content)) : -1;
        entry = entry_of(value, id >= 0 ? id : (*next)++);
        keep_entry(in, entry);
    }
    json_put(entry, "special", json_true());
    json_put(entry, "normalized", normalized ? json_incref(normalized) : json_false());
    json_decref(entry);
}

enum status added_read_named(struct reading *r, const struct named_tokens *named, struct error *e) {
    json_t *decoder = json_object_get(named->config, "added_tokens_decoder");
    unsigned json_failures = failed_json_allocations();
    json_t *described = json_array();
    struct entries in = {json_array(), json_object()};
    int64_t next = r->t->size;
    if (decoder) list_decoder(r, decoder, described, e);
    for (size_t i = 0; i < json_array_size(described); i++) keep_entry(&in, json_array_get(described, i));
    for (size_t i = 0; i < json_array_size(named->others); i++) {
        json_t *entry = json_array_get(named->others, i);
        if (!find_entry(&in, json_object_get(entry, "content"))) keep_entry(&in, entry);
    }
    for (size_t i = 0; i < N_NAMES; i++) {
        const json_t *value = decoder ? NULL : json_object_get(named->special_map, names[i]);
        if (!value) value = json_object_get(named->config, names[i]);
        if (!value) value = json_object_get(named->defaults, names[i]);
        if (!reading_absent(value)) list_named(r, value, decoder != NULL, &in, &next);
    }
    json_decref(described);
    json_decref(in.by_text);
    return added_read_new_list(r, in.list, json_failures, e);
}

static int compare_spans(struct span a, struct span b) {
    int order = memcmp(a.at, b.at, a.bytes < b.bytes ? a.bytes : b.bytes);
    if (order) return order;
    return (a.bytes > b.bytes) - (a.bytes < b.bytes);
}

static int compare_contents(const void *a, const void *b) {
    const struct added_token *const *x = a, *const *y = b;
    return compare_spans((*x)->content, (*y)->content);
}

/* Compares patterns for sorting. Equal patterns (different texts with the same NFC) are ordered special
 * tokens first, then by file order. */
static int compare_patterns(const void *a, const void *b) {
    const struct added_token *x = *(const struct added_token *const *)a,
                             *y = *(const struct added_token *const *)b;
    int order = compare_spans(x->pattern, y->pattern);
    if (order) return order;
    if (x->special != y->special) return x->special ? -1 : 1;
    return (x > y) - (x < y);
}

static enum status set_build(struct tokenizer *t, bool normalized, struct added_set *set, struct error *e) {
    set->sorted = sys_new(t->sys, (size_t)t->n_added, sizeof(struct added_token *), "the added tokens", e);
    if (!set->sorted) return e->code;
    for (int i = 0; i < t->n_added; i++)
        if (t->added[i].normalized == normalized) set->sorted[set->n++] = &t->added[i];
    qsort(set->sorted, (size_t)set->n, sizeof(struct added_token *), compare_patterns);
    int n = 0;
    for (int i = 0; i < set->n; i++) {
        if (n && !compare_spans(set->sorted[n - 1]->pattern, set->sorted[i]->pattern)) continue;
        set->sorted[n++] = set->sorted[i];
        set->starts[(unsigned char)set->sorted[i]->pattern.at[0]] = true;
    }
    set->n = n;
    return OK;
}

enum status added_sets_build(struct tokenizer *t, struct error *e) {
    struct added_token **sorted =
        sys_new(t->sys, (size_t)t->n_added, sizeof *sorted, "the check of added tokens", e);
    if (!sorted) return e->code;
    for (int i = 0; i < t->n_added; i++) sorted[i] = &t->added[i];
    qsort(sorted, (size_t)t->n_added, sizeof *sorted, compare_contents);
    for (int i = 1; i < t->n_added && !e->code; i++) {
        if (compare_spans(sorted[i - 1]->content, sorted[i]->content)) continue;
        error_set(e, DUP,
                  "tokenizer: added token \"%s\" occurs twice" WHERE "%s, added tokens" FOUND
                  "ids %d and %d" EXPECTED "each added token once",
                  sorted[i]->content.at, t->path, sorted[i - 1]->id, sorted[i]->id);
    }
    t->sys->release(t->sys, sorted);
    if (!e->code && !set_build(t, false, &t->raw, e)) set_build(t, true, &t->normalized, e);
    return e->code;
}

/* First index in [low, high) whose byte at a depth is not below `byte`. A pattern that ends before the depth
 * counts as -1, so that shorter patterns sort first. */
static int lower_bound(const struct added_set *set, int low, int high, uint64_t depth, int byte) {
    while (low < high) {
        int middle = low + (high - low) / 2;
        const struct span *p = &set->sorted[middle]->pattern;
        if ((depth < p->bytes ? (unsigned char)p->at[depth] : -1) < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The longest pattern that the text starts with; NULL if none. */
static const struct added_token *longest_at(const struct added_set *set, const char *text, uint64_t bytes) {
    const struct added_token *best = NULL;
    int low = 0, high = set->n;
    for (uint64_t depth = 0; depth < bytes; depth++) {
        int byte = (unsigned char)text[depth];
        low = lower_bound(set, low, high, depth, byte);
        high = lower_bound(set, low, high, depth, byte + 1);
        if (low == high) break;
        if (set->sorted[low]->pattern.bytes == depth + 1) best = set->sorted[low];
    }
    return best;
}

/* Returns the code point that ends (code_before) or starts (code_after) at byte i of a text; 0 at the end of
 * the text. *n: length of the code point in bytes. */
static int32_t code_before(struct span text, uint64_t i, uint64_t *n) {
    int32_t code = 0;
    for (*n = 0; *n < i && *n < 4;) {
        ++*n;
        if (((unsigned char)text.at[i - *n] & 0xC0) != 0x80) break;
    }
    if (*n) code_at((struct span){text.at, i}, i - *n, &code);
    return code;
}

static int32_t code_after(struct span text, uint64_t i, uint64_t *n) {
    int32_t code = 0;
    *n = i < text.bytes ? code_at(text, i, &code) : 0;
    return code;
}

bool added_next(struct added_search *s) {
    const struct span text = s->text;
    while (s->set->n && s->from < text.bytes) {
        uint64_t i = s->from++, n;
        if (!s->set->starts[(unsigned char)text.at[i]]) continue;
        const struct added_token *found = longest_at(s->set, text.at + i, text.bytes - i);
        if (!found) continue;
        s->start = i;
        s->end = s->from =
            i + found->pattern.bytes; /* shorter matches inside a rejected match do not count */
        if (found->single_word && ((s->start > 0 && code_is_word(code_before(text, s->start, &n))) ||
                                   (s->end < text.bytes && code_is_word(code_after(text, s->end, &n)))))
            continue;
        if (found->lstrip) {
            if (s->start < s->taken) s->start = s->taken;
            while (s->start > s->taken && code_is_space(code_before(text, s->start, &n))) s->start -= n;
        }
        if (found->rstrip && s->end >= s->white_from && s->end <= s->white_to) {
            s->end = s->white_to;
        } else if (found->rstrip) {
            s->white_from = s->end;
            while (s->end < text.bytes && code_is_space(code_after(text, s->end, &n))) s->end += n;
            s->white_to = s->end;
        }
        bool swallowed = s->start >= s->end; /* the match lies inside the previous match and is skipped */
        s->taken = s->end;
        s->id = found->id;
        if (!swallowed) return true;
    }
    return false;
}
