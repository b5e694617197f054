#include "engine/open/lora_tags.h"

#include "engine/base/text.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static const char opening[] = "<lora:";
enum { OPENING_BYTES = sizeof opening - 1 };

/* Finds the closing ">" of the tag that begins at `at`; NULL: no tag begins there. */
static const char *tag_end(const char *at) {
    if (strncmp(at, opening, OPENING_BYTES)) return NULL;
    const char *end = at + OPENING_BYTES + strcspn(at + OPENING_BYTES, "<>\n");
    return *end == '>' ? end : NULL;
}

static bool is_blank(char c) {
    return c == ' ' || c == '\t';
}

static enum status refuse(struct error *e, const char *what, const char *why, const char *at,
                          const char *end) {
    return error_set(e, USAGE, "invalid LoRA tag in the %s: %s" FOUND "%.*s", what, why, (int)(end + 1 - at),
                     at);
}

/* True for a relative path without "..": the file is below --lora-dir (symbolic links may lead elsewhere). */
static bool stays_below(const char *name) {
    if (*name == '/') return false;
    for (const char *part = name;; part++) {
        size_t bytes = strcspn(part, "/");
        if (bytes == 2 && !strncmp(part, "..", 2)) return false;
        part += bytes;
        if (!*part) return true;
    }
}

/* Accepts decimal numbers only; text_number alone would take hexadecimal, "inf" and leading blanks. */
static bool read_strength(const char *text, double *strength) {
    char *end;
    size_t bytes = strlen(text);
    *strength = text_number(text, &end);
    return bytes && strspn(text, "0123456789+-.eE") == bytes && !*end && fabs(*strength) <= SLUICE_SCALE_MAX;
}

/* Adds the tag from `at` to `end`. name: memory for the tag's name. */
static enum status add_tag(struct lora_tags *tags, const char *what, const char *at, const char *end,
                           char *name, struct error *e) {
    size_t bytes = (size_t)(end - at) - OPENING_BYTES;
    struct lora_tag *tag = &tags->tag[tags->n];
    if (tags->n == SLUICE_LORAS_MAX) {
        refuse(e, what, "too many tags", at, end);
        return error_expected(e, "at most %d", SLUICE_LORAS_MAX);
    }
    memcpy(name, at + OPENING_BYTES, bytes);
    char *colon = memchr(name, ':', bytes);
    *tag = (struct lora_tag){name, 1};
    if (colon) *colon++ = 0;
    if (!*name) return refuse(e, what, "no name", at, end);
    if (*name == '|') { /* the tag has stable-diffusion.cpp's prefix "|high_noise|" before the name */
        refuse(e, what, "the file's name selects one of two transformers, not the tag", at, end);
        return error_expected(e, "<lora:NAME:S> with a NAME such as style_high_noise or style_low_noise");
    }
    if (!stays_below(name)) {
        refuse(e, what, "the name leads out of --lora-dir", at, end);
        return error_expected(e, "a file in that folder or in a subfolder");
    }
    if (colon && !read_strength(colon, &tag->strength)) {
        refuse(e, what, "the strength is not a number in range", at, end);
        return error_expected(e, "<lora:NAME:S>, S from %g to %g", -SLUICE_SCALE_MAX, SLUICE_SCALE_MAX);
    }
    tags->n++;
    return OK;
}

/* Skips the blanks after a tag if the tag follows a blank or begins the text. */
static const char *skip_blanks(const char *text, const char *written, const char *after) {
    bool begins = written == text || is_blank(written[-1]);
    if (begins) after += strspn(after, " \t");
    return after;
}

enum status lora_tags_read(struct sys *sys, const char *what, const char *text, struct lora_tags *tags,
                           struct error *e) {
    size_t bytes = strlen(text) + 1, named = 0;
    *tags = (struct lora_tags){0};
    if (!strstr(text, opening)) return OK;
    tags->text = sys->alloc(sys, LINE_HOST, bytes);
    tags->names = sys->alloc(sys, LINE_HOST, bytes);
    if (!tags->text || !tags->names) return error_set(e, MEMORY, "no memory for the %s", what);
    char *to = tags->text;
    for (const char *at = text; *at && e->code == OK;) {
        const char *end = tag_end(at);
        if (!end) {
            *to++ = *at++;
            continue;
        }
        add_tag(tags, what, at, end, tags->names + named, e);
        named += (size_t)(end - at);
        at = skip_blanks(tags->text, to, end + 1);
        while (!*at && to > tags->text && is_blank(to[-1])) to--;
    }
    *to = 0;
    return e->code;
}

void lora_tags_destroy(struct sys *sys, struct lora_tags *tags) {
    sys->release(sys, tags->text);
    sys->release(sys, tags->names);
    *tags = (struct lora_tags){0};
}
