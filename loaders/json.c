/* JSON from files: see json.h. */
#include "loaders/json.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t document_bytes_max = 256000000;

static enum status fail_at(const struct json_text *t, uint64_t at, enum status code, const char *what,
                           struct error *e) {
    error_set(e, code, "%s", what);
    return error_where(e, "%s, byte %" PRIu64, t->path, t->offset + at);
}

/* The place of the quote that ends the string beginning at `at`, or the text's end. */
static uint64_t find_string_end(const struct json_text *t, uint64_t at) {
    for (at++; at < t->bytes && t->text[at] != '"'; at++)
        if (t->text[at] == '\\') at++;
    return at < t->bytes ? at : t->bytes;
}

/* Moves *at to the comma or closing bracket behind a value, or to the text's end. Up to the first byte that
 * is not JSON the depth counted here is the parser's, so the parser never goes deeper than was allowed here.
 */
static enum status scan_value(const struct json_text *t, uint64_t *at, int depth_limit, struct error *e) {
    int depth = 0;
    for (; *at < t->bytes; (*at)++) {
        char c = t->text[*at];
        if (c == '"') {
            *at = find_string_end(t, *at);
            if (*at == t->bytes) break;
        } else if (c == '{' || c == '[') {
            if (++depth <= depth_limit) continue;
            fail_at(t, *at, LIMIT, "JSON is nested too deeply", e);
            return error_expected(e, "at most %d more levels here", depth_limit);
        } else if (c == '}' || c == ']' || c == ',') {
            if (!depth) break;
            if (c != ',') depth--;
        }
    }
    return OK;
}

/* Jansson gives lone surrogates the code of a syntax error; only its text tells them apart. */
static bool is_lone_surrogate(const json_error_t *failure) {
    return !strncmp(failure->text, "invalid Unicode '", 17);
}

static enum status code_of(const json_error_t *failure) {
    switch (json_error_code(failure)) {
    case json_error_unknown:
    case json_error_out_of_memory:
        return MEMORY;
    case json_error_stack_overflow:
    case json_error_numeric_overflow:
        return LIMIT;
    case json_error_invalid_utf8:
        return UTF8;
    case json_error_duplicate_key:
        return DUP;
    case json_error_null_character:
    case json_error_null_byte_in_key:
        return META;
    default:
        return is_lone_surrogate(failure) ? UTF8 : JSON;
    }
}

static enum status load(const struct json_text *t, size_t flags, json_t **root, struct error *e) {
    json_error_t failure = {0};
    bool done = json_load_watched(t->text, t->bytes, flags | JSON_REJECT_DUPLICATES, root, &failure);
    if (*root) return OK;
    enum status code = done ? code_of(&failure) : MEMORY;
    if (code == MEMORY) return error_set(e, MEMORY, "no memory to parse %" PRIu64 " bytes of JSON", t->bytes);
    uint64_t at = failure.position > 0 ? (uint64_t)failure.position : 0;
    fail_at(t, at, code, "invalid JSON", e);
    return error_found(e, "%s", failure.text);
}

enum status json_decode(const struct json_text *value, size_t flags, json_t **root, struct error *e) {
    return load(value, flags | JSON_DECODE_ANY, root, e);
}

enum status json_parse(const char *path, const char *text, uint64_t bytes, int depth_limit, json_t **root,
                       struct error *e) {
    struct json_text whole = {.path = path, .text = text, .bytes = bytes};
    *root = NULL;
    if (bytes > document_bytes_max) {
        fail_at(&whole, 0, LIMIT, "JSON is too long", e);
        error_found(e, "%" PRIu64 " bytes", bytes);
        return error_expected(e, "at most %" PRIu64, document_bytes_max);
    }
    if (bytes >= 3 && !memcmp(text, "\xef\xbb\xbf", 3))
        return fail_at(&whole, 0, JSON, "JSON starts with a byte order mark", e);
    uint64_t end = 0;
    if (scan_value(&whole, &end, depth_limit, e) != OK) return e->code;
    return load(&whole, 0, root, e);
}

static void skip_space(const struct json_text *t, uint64_t *at) {
    while (*at < t->bytes && memchr(" \t\r\n", t->text[*at], 4)) (*at)++;
}

/* The next character that is no white space, left unread; 0 at the end. */
static char peek(const struct json_text *t, uint64_t *at) {
    skip_space(t, at);
    return *at < t->bytes ? t->text[*at] : 0;
}

json_t *json_string_of(const char *text) {
    json_t *string = json_string(text);
    if (string) return string;
    char *ascii = strdup(text);
    for (char *c = ascii; c && *c; c++)
        if (*c & 0x80) *c = '?';
    string = ascii ? json_string(ascii) : NULL;
    free(ascii);
    return string;
}

char json_first_char(const struct json_text *value) {
    uint64_t at = 0;
    return peek(value, &at);
}

static struct json_text slice(const struct json_text *t, uint64_t from, uint64_t to) {
    return (struct json_text){
        .path = t->path, .text = t->text + from, .bytes = to - from, .offset = t->offset + from};
}

static enum status fail_expecting(const struct json_text *t, uint64_t at, const char *expected,
                                  struct error *e) {
    fail_at(t, at, JSON, "invalid JSON", e);
    if (at == t->bytes)
        error_found(e, "the end of the text");
    else
        error_found(e, "byte 0x%02x", (unsigned char)t->text[at]);
    return error_expected(e, "%s", expected);
}

enum status json_walk_start(struct json_walk *walk, const struct json_text *object, int depth_limit,
                            struct error *e) {
    *walk = (struct json_walk){.object = *object, .depth_limit = depth_limit - 1};
    if (peek(object, &walk->at) != '{') return fail_expecting(object, walk->at, "an object", e);
    walk->at++;
    return OK;
}

/* Takes the closing brace, behind which only white space may stand. */
static void finish_walk(struct json_walk *walk, struct error *e) {
    walk->at++;
    skip_space(&walk->object, &walk->at);
    if (walk->at < walk->object.bytes) fail_expecting(&walk->object, walk->at, "the end of the text", e);
}

static enum status take_member(struct json_walk *walk, struct json_member *member, struct error *e) {
    const struct json_text *t = &walk->object;
    if (peek(t, &walk->at) != '"') return fail_expecting(t, walk->at, "a name in quotes", e);
    uint64_t name = walk->at, quote = find_string_end(t, name);
    if (quote == t->bytes) return fail_expecting(t, quote, "the end of a name", e);
    member->name = slice(t, name, quote + 1);
    walk->at = quote + 1;
    if (peek(t, &walk->at) != ':') return fail_expecting(t, walk->at, "a colon", e);
    walk->at++;
    skip_space(t, &walk->at);
    uint64_t value = walk->at;
    if (scan_value(t, &walk->at, walk->depth_limit, e) != OK) return e->code;
    if (walk->at == t->bytes) return fail_expecting(t, walk->at, "the end of an object", e);
    member->value = slice(t, value, walk->at);
    return OK;
}

bool json_walk_next(struct json_walk *walk, struct json_member *member, struct error *e) {
    char c = peek(&walk->object, &walk->at);
    if (c == '}') {
        finish_walk(walk, e);
        return false;
    }
    if (walk->begun && c != ',') {
        fail_expecting(&walk->object, walk->at, "a comma or a closing brace", e);
        return false;
    }
    if (walk->begun) walk->at++;
    walk->begun = true;
    return take_member(walk, member, e) == OK;
}
