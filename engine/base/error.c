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

/* Formats into out. Long text loses its middle, because paths differ at their ends. Control characters become
 * '?': names come from files, and an error is one line. */
static void print_shortened(char *out, size_t out_bytes, const char *format, va_list args) {
    char whole[4096];
    vsnprintf(whole, sizeof whole, format, args);
    size_t n = strlen(whole);
    if (n < out_bytes) {
        memcpy(out, whole, n + 1);
    } else {
        size_t head = (out_bytes - 4) / 2, tail = out_bytes - 4 - head;
        memcpy(out, whole, head);
        memcpy(out + head, "...", 3);
        memcpy(out + head + 3, whole + n - tail, tail + 1);
    }
    for (char *c = out; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
}

enum status error_set(struct error *e, enum status code, const char *what, ...) {
    if (e->code != OK) return e->code;
    memset(e, 0, sizeof *e);
    e->code = code;
    e->exit = error_exit_of(code);
    va_list args;
    va_start(args, what);
    print_shortened(e->what, sizeof e->what, what, args);
    va_end(args);
    return code;
}

/* Only the first call fills a field of an error: the innermost function has the most specific text. */
#define FILL_FIELD(field)                                                                                    \
    do {                                                                                                     \
        if (e->field[0]) return e->code;                                                                     \
        va_list args;                                                                                        \
        va_start(args, format);                                                                              \
        print_shortened(e->field, sizeof e->field, format, args);                                            \
        va_end(args);                                                                                        \
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
