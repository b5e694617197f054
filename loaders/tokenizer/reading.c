/* Opens tokenizers, with helpers for reading tokenizer files of any format: see tokenizer.h and reading.h. */
#include "loaders/tokenizer/reading.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/checked.h"
#include "engine/base/text.h"
#include "loaders/gguf/gguf.h"

const char *reading_kind(const json_t *value) {
    static const char *const names[] = {"an object", "an array", "a string", "an integer",
                                        "a number",  "true",     "false",    "null"};
    return value ? names[json_typeof(value)] : "nothing";
}

const char *reading_shown(const json_t *value) {
    return json_is_string(value) ? json_string_value(value) : reading_kind(value);
}

enum status reading_wrong_kind(const struct reading *r, const char *object, const json_t *value,
                               const char *expected, struct error *e) {
    return reading_fail(e, META, r, "%s has the wrong type" FOUND "%s" EXPECTED "%s", object,
                        reading_kind(value), expected);
}

enum status reading_unsupported(const struct reading *r, const char *object, const char *found,
                                const char *expected, struct error *e) {
    return reading_fail(e, UNSUPPORTED, r, "%s is not supported" FOUND "\"%s\"" EXPECTED "%s", object, found,
                        expected);
}

bool reading_absent(const json_t *value) {
    return !value || json_is_null(value);
}

enum status reading_bool(const struct reading *r, const json_t *object, const char *key, const char *name,
                         bool *out, struct error *e) {
    const json_t *value = json_object_get(object, key);
    if (reading_absent(value)) return OK;
    if (!json_is_boolean(value)) return reading_wrong_kind(r, name, value, "true or false", e);
    *out = json_is_true(value);
    return OK;
}

const char *reading_type(const struct reading *r, const json_t *object, const char *name, struct error *e) {
    const json_t *type = json_object_get(object, "type");
    if (!json_is_object(object))
        reading_wrong_kind(r, name, object, "an object or null", e);
    else if (!json_is_string(type))
        reading_wrong_kind(r, name, type, "a \"type\" that is a string", e);
    return e->code ? NULL : json_string_value(type);
}

enum status reading_check_id(const struct reading *r, const char *token, const json_t *value,
                             struct error *e) {
    if (json_is_integer(value) && json_integer_value(value) >= 0 &&
        json_integer_value(value) <= TOKENIZER_ID_MAX)
        return OK;
    char number[24];
    snprintf(number, sizeof number, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    return reading_fail(e, META, r,
                        "the id of token \"%s\" is invalid" FOUND "%s" EXPECTED "an integer from 0 to %d",
                        token, json_is_integer(value) ? number : reading_kind(value), TOKENIZER_ID_MAX);
}

bool reading_is_text(const json_t *value, const char *text) {
    if (json_is_object(value)) value = json_object_get(value, "content");
    return json_is_string(value) && !strcmp(json_string_value(value), text);
}

int32_t reading_vocab_id(const struct reading *r, struct span text) {
    if (!r->vocab) return word_table_find(&r->t->words, text);
    const json_t *value = json_object_getn(r->vocab, text.at, text.bytes);
    return value ? (int32_t)json_integer_value(value) : -1;
}

enum status reading_start_ids(struct reading *r, struct error *e) {
    r->taken = sys_new(r->t->sys, TOKENIZER_ID_MAX / 8 + 1, 1, "the set of token ids", e);
    return e->code;
}

bool reading_take_id(struct reading *r, int64_t id) {
    uint8_t bit = (uint8_t)(1u << (id & 7));
    if (r->taken[id >> 3] & bit) return false;
    r->taken[id >> 3] |= bit;
    if (id >= r->t->size) r->t->size = (int)id + 1;
    return true;
}

enum status reading_json_file(struct sys *sys, const char *path, json_t **root, struct error *e) {
    char *text = NULL;
    uint64_t bytes = 0;
    *root = NULL;
    if (file_read_text(sys, path, TOKENIZER_FILE_BYTES, &text, &bytes, e)) return e->code;
    json_parse(path, text, bytes, JSON_DEPTH, root, e);
    sys->release(sys, text);
    return e->code;
}

/* Returns the file's size, or negative errno. *regular: false for a folder. */
static int64_t file_bytes(struct sys *sys, const char *path, bool *regular) {
    struct file_identity identity = {0};
    int file = sys->open(sys, path);
    *regular = false;
    if (file < 0) return file;
    int failed = sys->identify(sys, file, &identity);
    sys->close(sys, file);
    *regular = !failed && identity.regular;
    return failed ? failed : identity.bytes;
}

static bool is_absent(int64_t bytes) {
    return bytes == -ENOENT || bytes == -ENOTDIR;
}

/* Finds tokenizer.json, or else tekken.json, in a folder; or the path itself if it is a file. Returns true
 * also for a file that cannot be opened, because reading it reports the reason. */
static bool find_json(struct sys *sys, const char *path, char *json, int json_bytes) {
    bool regular;
    int64_t bytes = file_bytes(sys, path, &regular);
    if (regular || (bytes < 0 && !is_absent(bytes))) {
        snprintf(json, (size_t)json_bytes, "%s", path);
        return true;
    }
    static const char *const names[] = {"tokenizer.json", "tekken.json"};
    for (int i = 0; i < 2; i++) {
        snprintf(json, (size_t)json_bytes, "%s/%s", path, names[i]);
        if (!is_absent(file_bytes(sys, json, &regular))) return true;
    }
    return false;
}

enum { PATH_BYTES = 4096 };

/* Opens a tokenizer file or folder. stored: content of a spiece.model or of a JSON file that lies inside the
 * file at `path`; NULL: read `path`. */
static enum status open_any(struct sys *sys, const char *path, const struct span *stored,
                            struct tokenizer **tokenizer, struct error *e) {
    char json[PATH_BYTES];
    *tokenizer = NULL;
    struct tokenizer *t = sys_new(sys, 1, sizeof *t, "a tokenizer", e);
    if (!t) return e->code;
    t->sys = sys;
    t->unk = t->pad = -1;
    t->kind = "BPE";
    struct reading r = {.t = t, .path = path};
    bool stored_json = stored && stored->bytes && *stored->at == '{';
    bool spiece = stored ? !stored_json : ends_with(path, ".model");
    bool gguf = !stored && !spiece && gguf_is(sys, path);
    bool is_json = stored_json || (!spiece && !gguf && find_json(sys, path, json, sizeof json));
    if (is_json && !stored) r.path = json;
    t->path = copy_text(sys, r.path, strlen(r.path), e);
    if (e->code)
        goto out;
    else if (spiece)
        tokenizer_read_spiece(&r, stored, NULL, NULL, e);
    else if (gguf)
        tokenizer_read_gguf(&r, e);
    else if (is_json)
        tokenizer_read_json(&r, stored, e);
    else
        tokenizer_read_folder(&r, e);
    if (!e->code) added_sets_build(t, e);
out:
    sys->release(sys, r.taken);
    sys->release(sys, r.joined);
    sys->release(sys, r.scores);
    if (t->unigram.edges) word_table_destroy(sys, &t->words);
    sys->trim(sys);
    if (e->code)
        tokenizer_close(t);
    else
        *tokenizer = t;
    return e->code;
}

enum status tokenizer_open(struct sys *sys, const char *path, struct tokenizer **tokenizer, struct error *e) {
    *tokenizer = NULL;
    if (strlen(path) > PATH_BYTES - 64) return error_set(e, USAGE, "the path of the tokenizer is too long");
    return open_any(sys, path, NULL, tokenizer, e);
}

enum status tokenizer_open_stored(struct sys *sys, const char *path, const void *bytes, uint64_t n,
                                  struct tokenizer **tokenizer, struct error *e) {
    const struct span file = {bytes, n};
    return open_any(sys, path, &file, tokenizer, e);
}

void tokenizer_close(struct tokenizer *t) {
    if (!t) return;
    struct sys *sys = t->sys;
    for (int i = 0; i < t->n_added; i++) {
        if (t->added[i].pattern.at != t->added[i].content.at)
            sys->release(sys, (char *)t->added[i].pattern.at);
        sys->release(sys, (char *)t->added[i].content.at);
    }
    void *const parts[] = {t->added,         t->raw.sorted,    t->normalized.sorted, t->merges.merges,
                           t->merges.slots,  t->path,          t->charsmap.units,    t->charsmap.texts,
                           t->unigram.edges, t->unigram.piece, t->unigram.scores};
    word_table_destroy(sys, &t->words);
    pcre2_code_free(t->split);
    pcre2_code_free(t->resplit);
    pcre2_general_context_free(t->memory);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) sys->release(sys, parts[i]);
    sys->release(sys, t);
}

/* Bytes of heap per byte of a tokenizer file. Jansson needs most for short tokens without white space.
 * Measured (Jansson 2.14, glibc 2.36, x86-64, November 2026) with 151,643 tokens and 151,387 merges: 11.8
 * with merges as pairs without white space (5.9 MB), 6.3 with merges as pairs, indented as in released files
 * (12.0 MB), 7.3 with merges as texts (5.3 MB). With 32,100 unigram pieces: 12.3 plus 2.2 MB as JSON without
 * white space (0.6 MB), 3 as spiece.model (0.6 MB). With CLIP's 49,408 tokens and merges: 3.5 (2.5 MB). With
 * Mistral's 131,072 tokens: 5.6 as tokenizer.json (17.1 MB), below 1 as tekken.json (19.3 MB). 16
 * leaves a margin for shorter tokens; TOKENIZER_HEAP_BYTES covers the bit set of ids and small files. A file
 * of empty arrays would need more, but is not a tokenizer. */
enum { HEAP_PER_BYTE = 16 };

uint64_t tokenizer_open_bytes(struct sys *sys, const char *path) {
    static const char *const names[] = {"vocab.json",        "merges.txt",   "tokenizer_config.json",
                                        "added_tokens.json", "spiece.model", "special_tokens_map.json",
                                        "tokenizer.model"};
    char name[PATH_BYTES];
    uint64_t sum = 0;
    bool regular;
    if (strlen(path) > PATH_BYTES - 64) return 0;
    /* The loader allocates and counts the GGUF header; only the added tokens use Jansson's memory. */
    if (gguf_is(sys, path)) return TOKENIZER_HEAP_BYTES;
    bool json = find_json(sys, path, name, sizeof name);
    for (size_t i = 0; i < (json ? 1 : sizeof names / sizeof *names); i++) {
        if (!json) snprintf(name, sizeof name, "%s/%s", path, names[i]);
        int64_t bytes = file_bytes(sys, name, &regular);
        if (bytes > 0 && !add_u64(sum, (uint64_t)bytes, &sum)) return UINT64_MAX;
    }
    return multiply_u64(sum, HEAP_PER_BYTE, &sum) && add_u64(sum, TOKENIZER_HEAP_BYTES, &sum) ? sum
                                                                                              : UINT64_MAX;
}

int tokenizer_size(const struct tokenizer *t) {
    return t->size;
}

const char *tokenizer_kind(const struct tokenizer *t) {
    return t->kind;
}

int tokenizer_special(const struct tokenizer *t, const char *text) {
    for (int i = 0; i < t->n_added; i++)
        if (!strcmp(t->added[i].content.at, text)) return t->added[i].id;
    return -1;
}

int tokenizer_pad(const struct tokenizer *t) {
    return t->pad;
}

void tokenizer_set_pad(struct tokenizer *t, int id) {
    t->pad = id;
}
