#include "cli/fail.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int fail_exit_of(int code) {
    switch (code) {
    case SLUICE_OK:
        return 0;
    case SLUICE_INTERNAL:
        return 1;
    case SLUICE_USAGE:
        return 2;
    case SLUICE_BUDGET:
        return 4;
    case SLUICE_DEVICE:
    case SLUICE_MEMORY:
        return 5;
    case SLUICE_OUTPUT:
        return 6;
    case SLUICE_NONFINITE:
        return 7;
    case SLUICE_CANCELLED:
        return 130;
    default:
        return 3;
    }
}

/* Copies text. Cuts out the middle of a long text: a path's end and a sentence's start matter most. */
static void keep_ends(char *out, size_t out_bytes, const char *text) {
    size_t length = strlen(text);
    if (length < out_bytes) {
        memcpy(out, text, length + 1);
        return;
    }
    size_t tail = (out_bytes - 4) / 2, head = out_bytes - 4 - tail;
    memcpy(out, text, head);
    memcpy(out + head, "...", 3);
    memcpy(out + head + 3, text + length - tail, tail + 1);
}

int fail(struct sluice_error *e, int code, const char *format, ...) {
    memset(e, 0, sizeof *e);
    e->code = code;
    e->exit_code = fail_exit_of(code);
    struct {
        char *text;
        size_t bytes;
    } part[] = {{e->what, sizeof e->what},
                {e->where, sizeof e->where},
                {e->found, sizeof e->found},
                {e->expected, sizeof e->expected}};
    va_list list;
    va_start(list, format);
    char *text = NULL, *from;
    if (vasprintf(&text, format, list) < 0) text = NULL;
    va_end(list);
    if (!(from = text)) return code;
    for (int i = 0; from;) {
        char *to = from + strcspn(from, WHERE FOUND EXPECTED), next = *to;
        *to = 0;
        keep_ends(part[i].text, part[i].bytes, from);
        i = next;
        from = next ? to + 1 : NULL;
    }
    free(text);
    return code;
}

int fail_where(struct sluice_error *e, const char *where) {
    keep_ends(e->where, sizeof e->where, where);
    return e->code;
}

int fail_output(struct sluice_error *e, const char *path, int error_number) {
    char cwd[PATH_MAX], folder[PATH_MAX], text[PATH_MAX + 64];
    const char *slash = strrchr(path, '/'), *why = strerror(error_number);
    bool nowhere = path[0] != '/' && !getcwd(cwd, sizeof cwd) && errno == ENOENT;
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path) : 0, path);
    if (nowhere) {
        why = "the current folder no longer exists";
    } else if (error_number == ENOENT && *folder && access(folder, F_OK)) {
        snprintf(text, sizeof text, "the folder %s does not exist; create it first", folder);
        why = text;
    }
    return fail(e, SLUICE_OUTPUT, "cannot write the output: %s" WHERE "%s", why, path);
}

int fail_value(struct sluice_error *e, const char *flag, const char *found, const char *expected) {
    return fail(e, SLUICE_USAGE, "invalid value" WHERE "%s" FOUND "\"%s\"" EXPECTED "%s", flag, found,
                expected);
}
