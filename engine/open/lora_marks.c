/* Adapters that a prompt names: see lora_marks.h. */
#include "engine/open/lora_marks.h"

#include "engine/base/text.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static const char opening[] = "<lora:";
enum { OPENING_BYTES = sizeof opening - 1 };

/* The mark that begins here: what is between its colon and its end. NULL: this is text. */
static const char *mark_end(const char *at) {
    if (strncmp(at, opening, OPENING_BYTES)) return NULL;
    const char *end = at + OPENING_BYTES + strcspn(at + OPENING_BYTES, "<>\n");
    return *end == '>' ? end : NULL;
}

static bool is_blank(char c) {
    return c == ' ' || c == '\t';
}

static enum status refuse(struct error *e, const char *what, const char *why, const char *at,
                          const char *end) {
    error_set(e, USAGE, "an adapter that the %s names cannot be used: %s", what, why);
    return error_found(e, "%.*s", (int)(end + 1 - at), at);
}

/* Down from the folder alone, whatever links in it do. */
static bool stays_below(const char *name) {
    if (*name == '/') return false;
    for (const char *part = name;; part++) {
        size_t bytes = strcspn(part, "/");
        if (bytes == 2 && !strncmp(part, "..", 2)) return false;
        part += bytes;
        if (!*part) return true;
    }
}

/* A plain decimal number is all of the text: the number alone might be hexadecimal, "inf" and blanks. */
static bool read_strength(const char *text, double *strength) {
    char *end;
    size_t bytes = strlen(text);
    *strength = text_number(text, &end);
    return bytes && strspn(text, "0123456789+-.eE") == bytes && !*end && fabs(*strength) <= SLUICE_SCALE_MAX;
}

/* names: has room for what is between at and end. */
static enum status add_mark(struct lora_marks *marks, const char *what, const char *at, const char *end,
                            char *name, struct error *e) {
    size_t bytes = (size_t)(end - at) - OPENING_BYTES;
    struct lora_mark *mark = &marks->mark[marks->n];
    if (marks->n == SLUICE_LORAS_MAX) {
        refuse(e, what, "there are too many", at, end);
        return error_expected(e, "at most %d", SLUICE_LORAS_MAX);
    }
    memcpy(name, at + OPENING_BYTES, bytes);
    char *colon = memchr(name, ':', bytes);
    *mark = (struct lora_mark){name, 1};
    if (colon) *colon++ = 0;
    if (!*name) return refuse(e, what, "it has no name", at, end);
    if (*name == '|') { /* stable-diffusion.cpp's |high_noise|NAME */
        refuse(e, what, "which of two transformers it is for is told by its file's name", at, end);
        return error_expected(e, "<lora:NAME:S>, NAME as style_high_noise or style_low_noise");
    }
    if (!stays_below(name)) {
        refuse(e, what, "it leads out of --lora-dir", at, end);
        return error_expected(e, "a file in it or in a folder below");
    }
    if (colon && !read_strength(colon, &mark->strength)) {
        refuse(e, what, "how much of it counts is no number", at, end);
        return error_expected(e, "<lora:NAME:S>, S from %g to %g", -SLUICE_SCALE_MAX, SLUICE_SCALE_MAX);
    }
    marks->n++;
    return OK;
}

/* Of the blanks around a mark those on one side go, or both at an end of the text. */
static const char *skip_blanks(const char *text, const char *written, const char *after) {
    bool begins = written == text || is_blank(written[-1]);
    if (begins) after += strspn(after, " \t");
    return after;
}

enum status lora_marks_read(struct sys *sys, const char *what, const char *text, struct lora_marks *marks,
                            struct error *e) {
    size_t bytes = strlen(text) + 1, named = 0;
    *marks = (struct lora_marks){0};
    if (!strstr(text, opening)) return OK;
    marks->text = sys->alloc(sys, LINE_HOST, bytes);
    marks->names = sys->alloc(sys, LINE_HOST, bytes);
    if (!marks->text || !marks->names) return error_set(e, MEMORY, "no memory for the %s", what);
    char *to = marks->text;
    for (const char *at = text; *at && e->code == OK;) {
        const char *end = mark_end(at);
        if (!end) {
            *to++ = *at++;
            continue;
        }
        add_mark(marks, what, at, end, marks->names + named, e);
        named += (size_t)(end - at);
        at = skip_blanks(marks->text, to, end + 1);
        while (!*at && to > marks->text && is_blank(to[-1])) to--;
    }
    *to = 0;
    return e->code;
}

void lora_marks_destroy(struct sys *sys, struct lora_marks *marks) {
    sys->release(sys, marks->text);
    sys->release(sys, marks->names);
    *marks = (struct lora_marks){0};
}
