#include "engine/open/prompt_clean.h"

#include "loaders/tokenizer/tokenizer.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <utf8proc.h>

/* Output text of a cleaning step. The buffer may be the buffer of the input, because no step makes a text
 * longer: the write position never passes the read position. */
struct writing {
    char *at;
    size_t bytes;
};

static void put(struct writing *out, const char *from, size_t bytes) {
    memmove(out->at + out->bytes, from, bytes);
    out->bytes += bytes;
}

static void put_code(struct writing *out, int32_t code) {
    utf8proc_uint8_t bytes[4];
    put(out, (const char *)bytes, (size_t)utf8proc_encode_char(code, bytes));
}

enum { REPLACEMENT = 0xFFFD, CODE_MOST = 0x10FFFF };

/* Characters 0x80 to 0x9F of Windows code page 1252. */
static const int32_t code_page[32] = {0x20AC, 0x81,   0x201A, 0x192,  0x201E, 0x2026, 0x2020, 0x2021,
                                      0x2C6,  0x2030, 0x160,  0x2039, 0x152,  0x8D,   0x17D,  0x8F,
                                      0x90,   0x2018, 0x2019, 0x201C, 0x201D, 0x2022, 0x2013, 0x2014,
                                      0x2DC,  0x2122, 0x161,  0x203A, 0x153,  0x9D,   0x17E,  0x178};

static int digit_of(char c, int base) {
    int lower = c | 32, digit = c >= '0' && c <= '9'           ? c - '0'
                                : lower >= 'a' && lower <= 'f' ? lower - 'a' + 10
                                                               : 16;
    return digit < base ? digit : -1;
}

/* Decodes "#38;" or "#x26;". Returns the length read; 0: no number. */
static size_t unescape_number(struct writing *out, const char *text, size_t bytes) {
    int base = bytes > 1 && (text[1] == 'x' || text[1] == 'X') ? 16 : 10;
    size_t first = base == 16 ? 2 : 1, n = first;
    int32_t code = 0;
    for (; n < bytes && digit_of(text[n], base) >= 0; n++)
        if (code <= CODE_MOST) code = code * base + digit_of(text[n], base);
    if (n == first) return 0;
    /* html.unescape drops control characters and codes that are no characters. */
    bool dropped = (code >= 1 && code <= 8) || code == 0xB || (code >= 0xE && code <= 0x1F) || code == 0x7F ||
                   (code >= 0xFDD0 && code <= 0xFDEF) || (code & 0xFFFE) == 0xFFFE;
    if (code >= 0x80 && code <= 0x9F)
        put_code(out, code_page[code - 0x80]);
    else if (!code || (code >= 0xD800 && code <= 0xDFFF) || code > CODE_MOST)
        put_code(out, REPLACEMENT);
    else if (!dropped)
        put_code(out, code);
    return n + (n < bytes && text[n] == ';');
}

/* Decodes "amp;" or "amp". Returns the length read; 0: not a name of the table. */
static size_t unescape_name(struct writing *out, const char *text, size_t bytes) {
    static const struct {
        const char *name;
        bool bare; /* HTML allows the name without a semicolon */
        int32_t code;
    } names[] = {{"amp", true, '&'},  {"lt", true, '<'},     {"gt", true, '>'},
                 {"quot", true, '"'}, {"apos", false, '\''}, {"nbsp", true, 0xA0}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t n = strlen(names[i].name);
        if (n > bytes || memcmp(text, names[i].name, n) != 0) continue;
        bool closed = n < bytes && text[n] == ';';
        if (!closed && !names[i].bare) return 0;
        put_code(out, names[i].code);
        return n + closed;
    }
    return 0;
}

/* Decodes the references of a text. Returns the length of the output. */
static size_t unescape(struct writing *out, const char *text, size_t bytes) {
    size_t from = 0;
    while (from < bytes) {
        const char *sign = memchr(text + from, '&', bytes - from);
        size_t plain = sign ? (size_t)(sign - text) - from : bytes - from;
        put(out, text + from, plain);
        from += plain + 1;
        if (from > bytes) break;
        bool numbered = from < bytes && text[from] == '#';
        size_t n = (numbered ? unescape_number : unescape_name)(out, text + from, bytes - from);
        if (!n) put(out, "&", 1);
        from += n;
    }
    return out->bytes;
}

static bool is_space(int32_t c) {
    return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
           c == 0x3000;
}

/* True for characters that Python's str.strip removes: white space and ASCII separators. */
static bool is_stripped(int32_t c) {
    return is_space(c) || (c >= 0x1C && c <= 0x1F);
}

/* Replaces runs of white space by one blank, strips both ends, and makes quotes straight. Returns the length
 * up to the last character that is not stripped. */
static size_t collapse(struct writing *out, const char *text, size_t bytes) {
    bool spaced = false;
    size_t kept = 0;
    for (size_t i = 0; i < bytes;) {
        utf8proc_int32_t c = 0;
        i += (size_t)utf8proc_iterate((const utf8proc_uint8_t *)text + i, (utf8proc_ssize_t)(bytes - i), &c);
        if (is_space(c) || (!kept && is_stripped(c))) {
            spaced = true;
            continue;
        }
        if (spaced && kept) put(out, " ", 1);
        spaced = false;
        if (c == 0x2BC || (c >= 0x2018 && c <= 0x201B)) c = '\'';
        if (c >= 0x201C && c <= 0x201F) c = '"';
        put_code(out, c);
        if (!is_stripped(c)) kept = out->bytes;
    }
    return kept;
}

enum status prompt_clean(struct sys *sys, const char *text, size_t bytes, char **cleaned,
                         size_t *cleaned_bytes, struct error *e) {
    *cleaned = NULL;
    if (tokenizer_check_text("text", text, bytes, bytes, e) != OK) return e->code;
    char *buffer = sys->alloc(sys, LINE_HOST, bytes + 1);
    if (!buffer) return error_set(e, MEMORY, "no memory for a prompt of %zu bytes", bytes);
    size_t once = unescape(&(struct writing){.at = buffer}, text, bytes);
    size_t twice = unescape(&(struct writing){.at = buffer}, buffer, once);
    *cleaned_bytes = collapse(&(struct writing){.at = buffer}, buffer, twice);
    *cleaned = buffer;
    return OK;
}
