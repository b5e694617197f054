#include "cli/sanitize.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Decodes the code point at text. *length: its bytes, 0 if malformed. */
static uint32_t decode(const char *text, size_t bytes, size_t *length) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char *c = (const unsigned char *)text;
    size_t n = c[0] < 0x80 ? 1 : c[0] < 0xC2 ? 0 : c[0] < 0xE0 ? 2 : c[0] < 0xF0 ? 3 : 4;
    *length = 0;
    if (n == 0 || n > bytes || c[0] > 0xF4) return 0;
    uint32_t code = n == 1 ? c[0] : c[0] & (0x7Fu >> n);
    for (size_t i = 1; i < n; i++) {
        if ((c[i] & 0xC0) != 0x80) return 0;
        code = code << 6 | (c[i] & 0x3Fu);
    }
    bool surrogate = code >= 0xD800 && code < 0xE000;
    if (!surrogate && code <= 0x10FFFF && (n == 1 || code >= least[n])) *length = n;
    return code;
}

size_t sanitize_utf8_length(const char *text, size_t bytes) {
    size_t length;
    decode(text, bytes, &length);
    return length;
}

/* False for control characters (C0, DEL, C1), Unicode's Bidi_Control, and line and paragraph separators. */
static bool is_plain(uint32_t code) {
    bool control = code < 0x20 || (code >= 0x7F && code < 0xA0);
    bool direction = code == 0x061C || code == 0x200E || code == 0x200F ||
                     (code >= 0x202A && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069);
    return !control && !direction && code != 0x2028 && code != 0x2029;
}

char *sanitize_text(char *text) {
    char *from = text, *to = text, *end = text + strlen(text);
    while (from < end) {
        size_t length;
        uint32_t code = decode(from, (size_t)(end - from), &length);
        bool plain = length && is_plain(code);
        if (!plain) *to = '?';
        if (plain) memmove(to, from, length);
        to += plain ? length : 1;
        from += length ? length : 1;
    }
    *to = 0;
    return text;
}

void sanitize_json(json_t *value) {
    size_t i;
    const char *key;
    json_t *inner;
    if (json_is_string(value)) {
        char *text = strdup(json_string_value(value));
        json_string_set_nocheck(value, text ? sanitize_text(text) : "?");
        free(text);
    }
    json_array_foreach(value, i, inner) sanitize_json(inner);
    json_object_foreach(value, key, inner) sanitize_json(inner);
}

void sanitize_print_json(FILE *to, const char *json) {
    size_t bytes = strlen(json);
    while (bytes) {
        size_t length;
        uint32_t code = decode(json, bytes, &length);
        /* Unescaped control characters can only be line ends between JSON tokens. */
        bool as_is = length && (is_plain(code) || code < 0x20);
        if (as_is) fwrite(json, 1, length, to);
        if (!as_is) fprintf(to, length ? "\\u%04X" : "?", (unsigned)code); /* code is below U+10000 */
        if (!length) length = 1;
        json += length;
        bytes -= length;
    }
    fputc('\n', to);
}
