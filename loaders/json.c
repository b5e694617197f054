/* Reads and builds JSON: see json.h. Jansson's value types are used, but not its parser: without memory,
 * Jansson 2.14's parser drops characters and reads beyond the end of strings. Callers could detect the
 * failures only by replacing the allocator of the whole process. Jansson's functions that create and combine
 * values report failures correctly. */
#include "loaders/json.h"

#include <errno.h>
#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "loaders/loaders.h"

static const uint64_t document_bytes_max = 256000000;

static _Thread_local unsigned json_failures;

unsigned failed_json_allocations(void) {
    return json_failures;
}

void json_put(json_t *object, const char *name, json_t *value) {
    json_count_failure(json_object_set_new(object, name, value));
}

void json_push(json_t *array, json_t *value) {
    json_count_failure(json_array_append_new(array, value));
}

void json_count_failure(int failed) {
    json_failures += failed != 0;
}

char *json_to_text(json_t *root, size_t flags, unsigned failures_before) {
    size_t bytes = root && json_failures == failures_before ? json_dumpb(root, NULL, 0, flags) : 0;
    char *text = bytes ? malloc(bytes + 1) : NULL;
    if (text && json_dumpb(root, text, bytes, flags) != bytes) {
        free(text);
        text = NULL;
    }
    if (text) text[bytes] = 0;
    json_decref(root);
    return text;
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

/* Sets an error at byte `at` of a text. what: printf format, may end in FOUND, EXPECTED (error_set). */
#define fail_at(e, code, t, at, what, ...)                                                                   \
    error_set(e, code, what WHERE "%s, byte %" PRIu64, ##__VA_ARGS__, (t)->path, (t)->offset + (at))

/* Position of the quote that ends the string starting at `at`, or the end of the text. */
static uint64_t find_string_end(const struct json_text *t, uint64_t at) {
    for (at++; at < t->bytes && t->text[at] != '"'; at++)
        if (t->text[at] == '\\') at++;
    return at < t->bytes ? at : t->bytes;
}

/* Skips a value: moves *at to the comma or closing bracket after it, or to the end of the text. Checks the
 * nesting depth. Up to the first invalid byte scan_value and the parser count the same depth, so the parser
 * never recurses deeper than the limit. */
static enum status scan_value(const struct json_text *t, uint64_t *at, int depth_limit, struct error *e) {
    int depth = 0;
    for (; *at < t->bytes; (*at)++) {
        char c = t->text[*at];
        if (c == '"') {
            *at = find_string_end(t, *at);
            if (*at == t->bytes) break;
        } else if (c == '{' || c == '[') {
            if (++depth <= depth_limit) continue;
            return fail_at(e, LIMIT, t, *at,
                           "JSON is nested too deeply" EXPECTED "at most %d more levels at this place",
                           depth_limit);
        } else if (c == '}' || c == ']' || c == ',') {
            if (!depth) break;
            if (c != ',') depth--;
        }
    }
    return OK;
}

static void skip_space(const struct json_text *t, uint64_t *at) {
    while (*at < t->bytes && memchr(" \t\r\n", t->text[*at], 4)) (*at)++;
}

/* Returns the next character that is not white space without consuming it; 0 at the end. */
static char peek(const struct json_text *t, uint64_t *at) {
    skip_space(t, at);
    return *at < t->bytes ? t->text[*at] : 0;
}

char json_first_char(const struct json_text *value) {
    uint64_t at = 0;
    return peek(value, &at);
}

static struct json_text slice(const struct json_text *t, uint64_t from, uint64_t to) {
    return (struct json_text){
        .path = t->path, .text = t->text + from, .bytes = to - from, .offset = t->offset + from};
}

enum { SHOWN_BYTES = 24 };

/* Describes the byte at a position for messages. */
static const char *show_byte(const struct json_text *t, uint64_t at, char shown[SHOWN_BYTES]) {
    if (at >= t->bytes) return "the end of the text";
    snprintf(shown, SHOWN_BYTES, "byte 0x%02x", (unsigned char)t->text[at]);
    return shown;
}

static enum status fail_expecting(const struct json_text *t, uint64_t at, const char *expected,
                                  struct error *e) {
    char shown[SHOWN_BYTES];
    return fail_at(e, JSON, t, at, "invalid JSON" FOUND "%s" EXPECTED "%s", show_byte(t, at, shown),
                   expected);
}

enum status json_walk_start(struct json_walk *walk, const struct json_text *object, int depth_limit,
                            struct error *e) {
    *walk = (struct json_walk){.container = *object, .depth_limit = depth_limit - 1};
    if (peek(object, &walk->at) != '{') return fail_expecting(object, walk->at, "an object", e);
    walk->at++;
    return OK;
}

enum status json_walk_array(struct json_walk *walk, const struct json_text *array, int depth_limit,
                            struct error *e) {
    *walk = (struct json_walk){.container = *array, .depth_limit = depth_limit - 1, .array = true};
    if (peek(array, &walk->at) != '[') return fail_expecting(array, walk->at, "an array", e);
    walk->at++;
    return OK;
}

/* Reads a member's name and the colon. Elements of an array get an empty name. */
static enum status walk_name(struct json_walk *walk, struct json_member *member, struct error *e) {
    const struct json_text *t = &walk->container;
    member->name = (struct json_text){.path = t->path};
    if (walk->array) return OK;
    if (peek(t, &walk->at) != '"') return fail_expecting(t, walk->at, "a name in quotes", e);
    uint64_t name = walk->at, quote = find_string_end(t, name);
    if (quote == t->bytes) return fail_expecting(t, quote, "the end of a name", e);
    member->name = slice(t, name, quote + 1);
    walk->at = quote + 1;
    if (peek(t, &walk->at) != ':') return fail_expecting(t, walk->at, "a colon", e);
    walk->at++;
    return OK;
}

bool json_walk_next(struct json_walk *walk, struct json_member *member, struct error *e) {
    const struct json_text *t = &walk->container;
    char c = peek(t, &walk->at);
    if (c == (walk->array ? ']' : '}')) {
        walk->at++;
        skip_space(t, &walk->at);
        if (walk->at < t->bytes) fail_expecting(t, walk->at, "the end of the text", e);
        return false;
    }
    if (walk->begun && c != ',')
        return !fail_expecting(
            t, walk->at, walk->array ? "a comma or a closing bracket" : "a comma or a closing brace", e);
    if (walk->begun) walk->at++;
    walk->begun = true;
    if (walk_name(walk, member, e) != OK) return false;
    skip_space(t, &walk->at);
    uint64_t value = walk->at;
    if (scan_value(t, &walk->at, walk->depth_limit, e) != OK) return false;
    if (walk->at == t->bytes)
        return !fail_expecting(t, walk->at, walk->array ? "the end of an array" : "the end of an object", e);
    member->value = slice(t, value, walk->at);
    return true;
}

/* A document being parsed. The nesting depth must have been checked before, to bound the parser's
 * recursion. */
struct json_reader {
    const struct json_text *t;
    uint64_t at;
    size_t flags;
    struct error *e;
};

static json_t *reader_fail(const struct json_reader *r, enum status code, const char *found) {
    fail_at(r->e, code, r->t, r->at, "invalid JSON" FOUND "%s", found);
    return NULL;
}

/* Reports a syntax error with the character expected at the current position. */
static json_t *reader_expects(const struct json_reader *r, const char *expected) {
    char shown[SHOWN_BYTES];
    fail_at(r->e, JSON, r->t, r->at, "invalid JSON" FOUND "%s instead of %s", show_byte(r->t, r->at, shown),
            expected);
    return NULL;
}

static json_t *reader_no_memory(const struct json_reader *r) {
    error_set(r->e, MEMORY, "no memory to parse %" PRIu64 " bytes of JSON", r->t->bytes);
    return NULL;
}

static int32_t reader_hex(const char *digits, uint64_t bytes) {
    int32_t value = 0;
    if (bytes < 4) return -1;
    for (int i = 0; i < 4; i++) {
        char c = digits[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0) return -1;
        value = value << 4 | digit;
    }
    return value;
}

/* Decodes the escape sequence at `at` (after the backslash, before `end`) to *out and advances both
 * positions. */
static bool reader_unescape(struct json_reader *r, uint64_t end, char **out) {
    static const char letters[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    const char *text = r->t->text, *letter = memchr(letters, text[r->at], sizeof letters - 1);
    if (letter) {
        *(*out)++ = meant[letter - letters];
        r->at++;
        return true;
    }
    int32_t code = text[r->at] == 'u' ? reader_hex(text + r->at + 1, end - r->at - 1) : -1;
    if (code < 0) return reader_fail(r, JSON, "an invalid escape");
    if (!code && !(r->flags & JSON_ALLOW_NUL)) return reader_fail(r, META, "\\u0000 in a string");
    uint64_t next = r->at + 5;
    if (code >= 0xd800 && code < 0xdc00 && end - next >= 6 && text[next] == '\\' && text[next + 1] == 'u') {
        int32_t low = reader_hex(text + next + 2, end - next - 2);
        if (low >= 0xdc00 && low < 0xe000) {
            code = 0x10000 + ((code - 0xd800) << 10 | (low - 0xdc00));
            next += 6;
        }
    }
    if (code >= 0xd800 && code < 0xe000)
        return reader_fail(r, UTF8, "an escaped surrogate without its other half");
    *out += utf8proc_encode_char(code, (utf8proc_uint8_t *)*out);
    r->at = next;
    return true;
}

/* Returns the bytes of a JSON string: a part of the document, or if it has escapes a decoded copy in *made,
 * freed with free. */
struct json_bytes {
    const char *at;
    size_t n;
    char *made;
};

static bool reader_decode(struct json_reader *r, uint64_t end, struct json_bytes *s) {
    char *out = s->made = malloc(end - r->at);
    if (!out) return reader_no_memory(r);
    while (r->at < end) {
        const char *from = r->t->text + r->at, *escape = memchr(from, '\\', end - r->at);
        size_t plain = escape ? (size_t)(escape - from) : end - r->at;
        memcpy(out, from, plain);
        out += plain;
        r->at += plain;
        if (!escape) break;
        r->at++;
        if (!reader_unescape(r, end, &out)) return false;
    }
    s->at = s->made;
    s->n = (size_t)(out - s->made);
    return true;
}

/* Reads the string whose opening quote is at the current position. */
static bool reader_string(struct json_reader *r, struct json_bytes *s) {
    const char *text = r->t->text;
    uint64_t from = ++r->at;
    bool escapes = false;
    while (r->at < r->t->bytes && text[r->at] != '"') {
        if ((unsigned char)text[r->at] < 0x20) return reader_fail(r, JSON, "a control character in a string");
        escapes |= text[r->at] == '\\';
        r->at += text[r->at] == '\\' && r->at + 1 < r->t->bytes ? 2 : 1;
    }
    uint64_t end = r->at, valid = utf8_valid_bytes(text + from, end - from);
    if (valid < end - from) {
        r->at = from + valid;
        return reader_fail(r, UTF8, "bytes that are not UTF-8");
    }
    if (end == r->t->bytes) return reader_expects(r, "the end of a string");
    *s = (struct json_bytes){.at = text + from, .n = end - from};
    r->at = from;
    if (escapes && !reader_decode(r, end, s)) return false;
    r->at = end + 1;
    return true;
}

static bool reader_digits(const struct json_text *t, uint64_t *at) {
    uint64_t from = *at;
    while (*at < t->bytes && t->text[*at] >= '0' && t->text[*at] <= '9') ++*at;
    return *at > from;
}

/* Reads a number; real numbers have a decimal point in any locale. */
static json_t *reader_number(struct json_reader *r) {
    const struct json_text *t = r->t;
    uint64_t from = r->at, end = from + (t->text[from] == '-');
    bool real = r->flags & JSON_DECODE_INT_AS_REAL, good = true;
    if (end < t->bytes && t->text[end] == '0')
        end++;
    else
        good = reader_digits(t, &end);
    if (good && end < t->bytes && t->text[end] == '.') {
        real = true;
        end++;
        good = reader_digits(t, &end);
    }
    if (good && end < t->bytes && (t->text[end] | 32) == 'e') {
        real = true;
        end++;
        if (end < t->bytes && (t->text[end] == '+' || t->text[end] == '-')) end++;
        good = reader_digits(t, &end);
    }
    r->at = end;
    if (!good) return reader_expects(r, "a digit");
    char *digits = strndup(t->text + from, end - from);
    locale_t plain = real ? newlocale(LC_ALL_MASK, "C", NULL) : NULL;
    json_t *number = NULL;
    if (!digits || (real && !plain)) {
        reader_no_memory(r);
    } else {
        errno = 0;
        double value = real ? strtod_l(digits, NULL, plain) : 0;
        long long integer = real ? 0 : strtoll(digits, NULL, 10);
        if (!real && errno == ERANGE && (r->flags & JSON_BIG_INT_AS_REAL)) {
            real = true;
            value = strtod(digits, NULL); /* no decimal point, which would depend on the locale */
        }
        if (real ? isinf(value) : errno == ERANGE)
            reader_fail(r, LIMIT, "a number beyond 64 bits");
        else if (!(number = real ? json_real(value) : json_integer(integer)))
            reader_no_memory(r);
    }
    if (plain) freelocale(plain);
    free(digits);
    return number;
}

static json_t *reader_value(struct json_reader *r);

static bool reader_member(struct json_reader *r, json_t *object) {
    struct json_bytes name = {0};
    json_t *value;
    uint64_t from = r->at;
    bool done = false;
    if (r->at == r->t->bytes || r->t->text[r->at] != '"') return reader_expects(r, "a name in quotes");
    if (!reader_string(r, &name)) goto out;
    bool nul = memchr(name.at, 0, name.n);
    if (nul || json_object_getn(object, name.at, name.n)) {
        fail_at(r->e, nul ? META : DUP, r->t, from, "invalid JSON" FOUND "%s \"%.*s\"",
                nul ? "\\u0000 in the name" : "a duplicate of the name", (int)(name.n < 80 ? name.n : 80),
                name.at);
        goto out;
    }
    if (peek(r->t, &r->at) != ':') {
        reader_expects(r, "a colon");
        goto out;
    }
    r->at++;
    if (!(value = reader_value(r))) goto out;
    done = !json_object_setn_new_nocheck(object, name.at, name.n, value) || reader_no_memory(r);
out:
    free(name.made);
    return done;
}

static json_t *reader_container(struct json_reader *r) {
    bool is_object = r->t->text[r->at++] == '{', read = true;
    char close = is_object ? '}' : ']', next = peek(r->t, &r->at);
    json_t *container = is_object ? json_object() : json_array();
    if (!container) return reader_no_memory(r);
    for (bool first = true; next != close; first = false) {
        if (!first && next != ',') {
            reader_expects(r, is_object ? "a comma or a closing brace" : "a comma or a closing bracket");
            goto failed;
        }
        if (!first) {
            r->at++;
            skip_space(r->t, &r->at);
        }
        if (is_object) {
            read = reader_member(r, container);
        } else {
            json_t *value = reader_value(r);
            read = value && (!json_array_append_new(container, value) || reader_no_memory(r));
        }
        if (!read) goto failed;
        next = peek(r->t, &r->at);
    }
    r->at++;
    return container;
failed:
    json_decref(container);
    return NULL;
}

static json_t *reader_value(struct json_reader *r) {
    static const char *const words[] = {"true", "false", "null"};
    char c = peek(r->t, &r->at);
    if (c == '{' || c == '[') return reader_container(r);
    if (c == '-' || (c >= '0' && c <= '9')) return reader_number(r);
    if (c == '"') {
        struct json_bytes s = {0};
        json_t *string = NULL;
        if (reader_string(r, &s) && !(string = json_stringn_nocheck(s.at, s.n))) reader_no_memory(r);
        free(s.made);
        return string;
    }
    for (int i = 0; i < 3; i++) {
        size_t n = strlen(words[i]);
        if (r->t->bytes - r->at < n || memcmp(r->t->text + r->at, words[i], n)) continue;
        r->at += n;
        return i == 0 ? json_true() : i == 1 ? json_false() : json_null();
    }
    return reader_expects(r, "a value");
}

enum status json_decode(const struct json_text *value, size_t flags, json_t **root, struct error *e) {
    struct json_reader r = {.t = value, .flags = flags, .e = e};
    *root = reader_value(&r);
    if (*root && (peek(value, &r.at), r.at < value->bytes)) {
        json_decref(*root);
        *root = reader_expects(&r, "the end of the text");
    }
    return *root ? OK : e->code;
}

enum status json_parse(const char *path, const char *text, uint64_t bytes, int depth_limit, json_t **root,
                       struct error *e) {
    struct json_text whole = {.path = path, .text = text, .bytes = bytes};
    *root = NULL;
    if (bytes > document_bytes_max)
        return fail_at(e, LIMIT, &whole, 0,
                       "JSON is too long" FOUND "%" PRIu64 " bytes" EXPECTED "at most %" PRIu64, bytes,
                       document_bytes_max);
    if (bytes >= 3 && !memcmp(text, "\xef\xbb\xbf", 3))
        return fail_at(e, JSON, &whole, 0, "JSON starts with a byte order mark");
    uint64_t end = 0;
    if (scan_value(&whole, &end, depth_limit, e) != OK) return e->code;
    char c = peek(&whole, &(uint64_t){0});
    if (c != '{' && c != '[') return fail_expecting(&whole, 0, "an object or an array", e);
    return json_decode(&whole, JSON_BIG_INT_AS_REAL, root, e);
}
