/* Fills and formats four-part errors: implements error.h. */
#include "engine/base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *status_name(enum status code) {
    switch (code) {
    case OK:
        return "OK";
    case TRUNC:
        return "TRUNC";
    case BADMAGIC:
        return "BADMAGIC";
    case VERSION:
        return "VERSION";
    case LIMIT:
        return "LIMIT";
    case OVERFLOW:
        return "OVERFLOW";
    case BOUNDS:
        return "BOUNDS";
    case OVERLAP:
        return "OVERLAP";
    case DUP:
        return "DUP";
    case TYPE:
        return "TYPE";
    case SHAPE:
        return "SHAPE";
    case ALIGN:
        return "ALIGN";
    case JSON:
        return "JSON";
    case UTF8:
        return "UTF8";
    case META:
        return "META";
    case MISSING:
        return "MISSING";
    case UNUSED:
        return "UNUSED";
    case IO:
        return "IO";
    case CHANGED:
        return "CHANGED";
    case UNSUPPORTED:
        return "UNSUPPORTED";
    case INTERNAL:
        return "INTERNAL";
    case USAGE:
        return "USAGE";
    case BUDGET:
        return "BUDGET";
    case DEVICE:
        return "DEVICE";
    case MEMORY:
        return "MEMORY";
    case OUTPUT:
        return "OUTPUT";
    case NONFINITE:
        return "NONFINITE";
    case CANCELLED:
        return "CANCELLED";
    }
    return "INTERNAL";
}

static int error_exit_of(enum status code) {
    switch (code) {
    case OK:
        return 0;
    case INTERNAL:
        return 1;
    case USAGE:
        return 2;
    case BUDGET:
        return 4;
    case DEVICE:
    case MEMORY:
        return 5;
    case OUTPUT:
        return 6;
    case NONFINITE:
        return 7;
    case CANCELLED:
        return 130;
    default:
        return 3;
    }
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
    e->exit = error_exit_of(code);
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
    /* A part ends where the text of the format before the next separator ends. Separators are not searched in
     * the text itself, because file names may contain any byte. */
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
    e->exit = error_exit_of(USAGE);
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
