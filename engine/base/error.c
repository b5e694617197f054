/* Fills and formats four-part errors: implements error.h. */
#include "engine/base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Name and exit class of each status code. */
static const struct {
    const char *name;
    int exit;
} codes[] = {
    [OK] = {"OK", 0},
    [TRUNC] = {"TRUNC", 3},
    [BADMAGIC] = {"BADMAGIC", 3},
    [VERSION] = {"VERSION", 3},
    [LIMIT] = {"LIMIT", 3},
    [OVERFLOW] = {"OVERFLOW", 3},
    [BOUNDS] = {"BOUNDS", 3},
    [OVERLAP] = {"OVERLAP", 3},
    [DUP] = {"DUP", 3},
    [TYPE] = {"TYPE", 3},
    [SHAPE] = {"SHAPE", 3},
    [ALIGN] = {"ALIGN", 3},
    [JSON] = {"JSON", 3},
    [UTF8] = {"UTF8", 3},
    [META] = {"META", 3},
    [MISSING] = {"MISSING", 3},
    [UNUSED] = {"UNUSED", 3},
    [IO] = {"IO", 3},
    [CHANGED] = {"CHANGED", 3},
    [UNSUPPORTED] = {"UNSUPPORTED", 3},
    [INTERNAL] = {"INTERNAL", 1},
    [USAGE] = {"USAGE", 2},
    [BUDGET] = {"BUDGET", 4},
    [DEVICE] = {"DEVICE", 5},
    [MEMORY] = {"MEMORY", 5},
    [OUTPUT] = {"OUTPUT", 6},
    [NONFINITE] = {"NONFINITE", 7},
    [CANCELLED] = {"CANCELLED", 130},
};

enum { N_CODES = sizeof codes / sizeof *codes };

const char *status_name(enum status code) {
    const char *name = (unsigned)code < N_CODES ? codes[code].name : NULL;
    return name ? name : "INTERNAL";
}

/* Copies a text of n bytes. Long text loses its middle, because paths differ at their ends. Control
 * characters become '?': names come from files, and an error is one line. */
static void copy_shortened(char *out, size_t out_bytes, const char *text, size_t n) {
    if (n < out_bytes) {
        memcpy(out, text, n);
        out[n] = 0;
    } else {
        size_t head = (out_bytes - 4) / 2, tail = out_bytes - 4 - head;
        memcpy(out, text, head);
        memcpy(out + head, "...", 3);
        memcpy(out + head + 3, text + n - tail, tail);
        out[out_bytes - 1] = 0;
    }
    for (char *c = out; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
}

enum status error_set(struct error *e, enum status code, const char *format, ...) {
    if (e->code != OK) return e->code;
    memset(e, 0, sizeof *e);
    e->code = code;
    e->exit = codes[code].exit;
    char whole[4 * 4096], head[1024];
    struct {
        char *text;
        size_t bytes;
    } part[] = {{e->what, sizeof e->what},
                {e->where, sizeof e->where},
                {e->found, sizeof e->found},
                {e->expected, sizeof e->expected}};
    va_list args;
    va_start(args, format);
    va_list again;
    va_copy(again, args);
    vsnprintf(whole, sizeof whole, format, again);
    va_end(again);
    size_t n = strlen(whole), from = 0;
    /* Splits a formatted error into its parts. Separators are searched in the format only, because inserted
     * file names may contain any byte. */
    for (size_t at = 0, part_index = 0; from <= n; at++) {
        if (format[at] && (format[at] < 1 || format[at] > 3)) continue;
        size_t to = n;
        if (format[at] && at < sizeof head) {
            memcpy(head, format, at);
            head[at] = 0;
            va_copy(again, args);
            int bytes = vsnprintf(NULL, 0, head, again);
            va_end(again);
            if (bytes >= 0 && (size_t)bytes < n) to = (size_t)bytes;
        }
        copy_shortened(part[part_index].text, part[part_index].bytes, whole + from, to - from);
        if (!format[at]) break;
        part_index = (size_t)format[at];
        from = to + 1;
    }
    va_end(args);
    return code;
}

/* Only the first call fills a field of an error: the innermost function has the most specific text. */
#define FILL_FIELD(field)                                                                                    \
    do {                                                                                                     \
        if (e->field[0]) return e->code;                                                                     \
        char text[4096];                                                                                     \
        va_list args;                                                                                        \
        va_start(args, format);                                                                              \
        vsnprintf(text, sizeof text, format, args);                                                          \
        va_end(args);                                                                                        \
        copy_shortened(e->field, sizeof e->field, text, strlen(text));                                       \
        return e->code;                                                                                      \
    } while (0)

enum status error_where(struct error *e, const char *format, ...) {
    FILL_FIELD(where);
}

enum status error_found(struct error *e, const char *format, ...) {
    FILL_FIELD(found);
}

enum status error_expected(struct error *e, const char *format, ...) {
    FILL_FIELD(expected);
}

enum status error_is_usage(struct error *e) {
    e->exit = codes[USAGE].exit;
    return e->code;
}

char *error_line(const struct error *e, char *out, int out_bytes) {
    int n = snprintf(out, (size_t)out_bytes, "%s", e->what);
    if (e->where[0] && n < out_bytes) n += snprintf(out + n, (size_t)(out_bytes - n), " (%s)", e->where);
    if (e->found[0] && n < out_bytes) n += snprintf(out + n, (size_t)(out_bytes - n), ": found %s", e->found);
    if (e->expected[0] && n < out_bytes)
        snprintf(out + n, (size_t)(out_bytes - n), "%s expected %s", e->found[0] ? "," : ":", e->expected);
    return out;
}
