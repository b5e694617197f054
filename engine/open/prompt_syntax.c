/* Parses emphasis, LoRA tags and quoted parts of prompts: implements prompt_syntax.h. */
#include "engine/open/prompt_syntax.h"

#include "engine/base/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Open brackets of one kind, round or square. first: index of the first piece inside each bracket. */
struct brackets {
    int first[EMPHASIS_BRACKETS_MAX], n;
};

/* State of the parser. The first pass only counts bytes and pieces. */
struct reading {
    struct emphasis *emphasis;
    bool counts;
    const char *at, *end;
    struct brackets round, square;
    size_t bytes;
    int n_pieces, n_brackets;
    bool divided; /* the next text starts a new piece, because a bracket or BREAK precedes the text */
};

static const double round_weight = 1.1, square_weight = 1 / 1.1;

static bool is_space(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* True for ASCII letters, digits, underscore and all non-ASCII bytes. BREAK is a keyword only between other
 * characters. */
static bool is_word_char(char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_' ||
           (unsigned char)c >= 0x80;
}

static void add_piece(struct reading *r, bool breaks) {
    if (!r->counts)
        r->emphasis->piece[r->n_pieces] =
            (struct emphasis_piece){.first = r->bytes, .weight = 1, .breaks = breaks};
    r->n_pieces++;
    r->divided = breaks;
}

static void add_text(struct reading *r, const char *text, size_t bytes) {
    if (!bytes) return;
    if (!r->n_pieces || r->divided) add_piece(r, false);
    if (!r->counts) {
        memcpy(r->emphasis->text + r->bytes, text, bytes);
        r->emphasis->piece[r->n_pieces - 1].bytes += bytes;
    }
    r->bytes += bytes;
}

static void weigh(struct reading *r, int first, double weight) {
    for (int i = first; i < r->n_pieces && !r->counts; i++) r->emphasis->piece[i].weight *= weight;
}

static void open_bracket(struct reading *r, struct brackets *of) {
    of->first[of->n++] = r->n_pieces;
    r->divided = true;
}

static void close_bracket(struct reading *r, struct brackets *of, double weight) {
    weigh(r, of->first[--of->n], weight);
    r->divided = true;
}

/* Finds the next keyword BREAK at or after `from`, with the white space around it. *after: end of the white
 * space. NULL: no BREAK. */
static const char *find_break(const char *from, const char *begin, const char *end, const char **after) {
    static const char word[] = "BREAK";
    const size_t n = sizeof word - 1;
    for (const char *at = from; at + n <= end; at++) {
        if (memcmp(at, word, n) != 0 || (at > begin && is_word_char(at[-1])) ||
            (at + n < end && is_word_char(at[n])))
            continue;
        *after = at + n;
        while (*after < end && is_space(**after)) ++*after;
        while (at > from && is_space(at[-1])) at--;
        return at;
    }
    return NULL;
}

/* Reads a weight such as ": 1.3 )" at `at`. Returns the position after the weight; NULL: no weight. */
static const char *read_weight(const char *at, const char *end, double *weight) {
    char number[32];
    size_t n = 0;
    bool digits = false;
    int points = 0;
    for (at++; at < end && is_space(*at); at++) continue;
    for (; at < end && n + 1 < sizeof number && strchr("+-.0123456789", *at) && *at; at++) {
        if ((*at == '+' || *at == '-') && n) return NULL;
        digits |= *at >= '0' && *at <= '9';
        points += *at == '.';
        number[n++] = *at;
    }
    number[n] = 0;
    while (at < end && is_space(*at)) at++;
    if (!digits || points > 1 || at == end || *at != ')') return NULL;
    *weight = text_number(number, NULL);
    return at + 1;
}

static void read_bracket(struct reading *r) {
    double weight = 0;
    const char *at = r->at, *after = *at == ':' && r->round.n ? read_weight(at, r->end, &weight) : NULL;
    r->at++;
    if (*at == '\\') {
        bool escaped = at + 1 < r->end && strchr("()[]\\", at[1]) && at[1];
        r->at += escaped;
        add_text(r, at + escaped, escaped);
    } else if (*at == '(') {
        open_bracket(r, &r->round);
    } else if (*at == '[') {
        open_bracket(r, &r->square);
    } else if (after) {
        close_bracket(r, &r->round, weight);
        r->at = after;
    } else if (*at == ')' && r->round.n) {
        close_bracket(r, &r->round, round_weight);
    } else if (*at == ']' && r->square.n) {
        close_bracket(r, &r->square, square_weight);
    } else {
        add_text(r, at, 1);
    }
}

static enum status read_all(struct reading *r, const char *text, size_t bytes, struct error *e) {
    static const char special[] = "\\()[]:";
    r->end = text + bytes;
    for (r->at = text; r->at < r->end;) {
        const char *end = r->at;
        while (end < r->end && !(strchr(special, *end) && *end)) end++;
        if (end > r->at) {
            /* adds the text up to the next special character, and the BREAK keywords in this text */
            const char *begin = r->at, *after;
            for (const char *at; (at = find_break(r->at, begin, end, &after)); r->at = after) {
                add_text(r, r->at, (size_t)(at - r->at));
                add_piece(r, true);
            }
            add_text(r, r->at, (size_t)(end - r->at));
            r->at = end;
            continue;
        }
        r->n_brackets += *r->at == '(' || *r->at == '[';
        if (r->n_brackets > EMPHASIS_BRACKETS_MAX) {
            return error_set(e, USAGE,
                             "the prompt has too many emphasis brackets" EXPECTED
                             "at most %d, or --prompt-weights off",
                             EMPHASIS_BRACKETS_MAX);
        }
        read_bracket(r);
    }
    while (r->round.n) weigh(r, r->round.first[--r->round.n], round_weight);
    while (r->square.n) weigh(r, r->square.first[--r->square.n], square_weight);
    return OK;
}

/* Merges adjacent pieces of equal weight. */
static void merge(struct emphasis *m) {
    int n = 0;
    for (int i = 0; i < m->n_pieces; i++) {
        struct emphasis_piece *last = n ? &m->piece[n - 1] : NULL, *one = &m->piece[i];
        if (last && !last->breaks && !one->breaks && last->weight == one->weight)
            last->bytes += one->bytes;
        else
            m->piece[n++] = *one;
    }
    m->n_pieces = n;
}

static enum status check_weights(const struct emphasis *m, struct error *e) {
    for (int i = 0; i < m->n_pieces; i++) {
        if (m->piece[i].breaks || fabs(m->piece[i].weight) <= EMPHASIS_WEIGHT_MAX) continue;
        int bytes = m->piece[i].bytes < 40 ? (int)m->piece[i].bytes : 40;
        return error_set(e, USAGE,
                         "emphasis weight out of range in the prompt" WHERE "\"%.*s\"" FOUND "%g" EXPECTED
                         "%d to %d, or --prompt-weights off",
                         bytes, m->text + m->piece[i].first, m->piece[i].weight, -EMPHASIS_WEIGHT_MAX,
                         EMPHASIS_WEIGHT_MAX);
    }
    return OK;
}

enum status emphasis_read(struct sys *sys, const char *text, size_t bytes, struct emphasis *m,
                          struct error *e) {
    *m = (struct emphasis){0};
    struct reading *r = sys->alloc(sys, LINE_HOST, sizeof *r);
    if (!r) goto out;
    memset(r, 0, sizeof *r);
    r->counts = true;
    if (read_all(r, text, bytes, e) != OK) goto out;
    m->text = sys->alloc(sys, LINE_HOST, r->bytes + 1);
    m->piece = sys->alloc(sys, LINE_HOST, (size_t)(r->n_pieces + 1) * sizeof *m->piece);
    if (!m->text || !m->piece) goto out;
    memset(r, 0, sizeof *r);
    r->emphasis = m;
    read_all(r, text, bytes, e);
    m->n_pieces = r->n_pieces;
    merge(m);
    check_weights(m, e);
out:
    if (e->code == OK && (!r || !m->text || !m->piece))
        error_set(e, MEMORY, "no memory for a prompt of %zu bytes", bytes);
    sys->release(sys, r);
    return e->code;
}

bool emphasis_detect(const char *text) {
    const char *open = NULL;
    for (; *text; text++) {
        if (*text == '(') open = text;
        if (*text != ')' || !open) continue;
        const char *colon = text; /* the last colon inside the brackets */
        while (colon > open && *colon != ':') colon--;
        size_t length = *colon == ':' ? strspn(colon + 1, "0123456789.") : 0;
        if (length > 0 && colon + 1 + length == text) return true;
        open = NULL;
    }
    return false;
}

void emphasis_destroy(struct sys *sys, struct emphasis *m) {
    sys->release(sys, m->text);
    sys->release(sys, m->piece);
    *m = (struct emphasis){0};
}

static const char opening[] = "<lora:";
enum { OPENING_BYTES = sizeof opening - 1 };

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
    if (colon) {
        /* only decimal numbers are strengths: text_number alone would accept hexadecimal, "inf" and leading
         * blanks */
        char *after;
        bool decimal = *colon && !colon[strspn(colon, "0123456789+-.eE")];
        tag->strength = text_number(colon, &after);
        if (!decimal || *after || !(fabs(tag->strength) <= SLUICE_SCALE_MAX)) {
            refuse(e, what, "the strength is not a number in range", at, end);
            return error_expected(e, "<lora:NAME:S>, S from %g to %g", -SLUICE_SCALE_MAX, SLUICE_SCALE_MAX);
        }
    }
    tags->n++;
    return OK;
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
        const char *end = NULL; /* closing ">" of the tag that starts at `at` */
        if (!strncmp(at, opening, OPENING_BYTES))
            end = at + OPENING_BYTES + strcspn(at + OPENING_BYTES, "<>\n");
        if (!end || *end != '>') {
            *to++ = *at++;
            continue;
        }
        add_tag(tags, what, at, end, tags->names + named, e);
        named += (size_t)(end - at);
        /* a tag after a blank or at the beginning is removed with the blanks that follow it */
        bool blank_before = to == tags->text || is_blank(to[-1]);
        at = end + 1 + (blank_before ? strspn(end + 1, " \t") : 0);
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

static bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

void quotes_mask(const char *text, size_t bytes, char *masked) {
    size_t word_end = 0; /* end of the last word with an apostrophe */
    if (bytes) memcpy(masked, text, bytes);
    for (size_t i = 1; i + 1 < bytes; i++) {
        if (text[i] != '\'' || i <= word_end || !is_letter(text[i - 1]) || !is_letter(text[i + 1])) continue;
        masked[i] = 'a';
        for (word_end = i + 1; word_end < bytes && is_letter(text[word_end]);) word_end++;
    }
}

/* Length in bytes of the quoted part at the beginning of a text; 0: the text does not begin with one. */
static size_t quoted_bytes(const char *text, size_t bytes) {
    static const struct {
        const char *open, *close;
    } quotes[] = {{"'", "'"}, {"\"", "\""}, {"‘", "’"}, {"“", "”"}};
    for (size_t k = 0; k < sizeof quotes / sizeof *quotes; k++) {
        size_t n = strlen(quotes[k].open); /* as long as `close` */
        if (bytes < n || memcmp(text, quotes[k].open, n) != 0) continue;
        for (size_t i = n; i + n <= bytes; i++) {
            if (!memcmp(text + i, quotes[k].close, n)) return i + n;
            if (!memcmp(text + i, quotes[k].open, n)) return 0;
        }
    }
    return 0;
}

size_t quotes_piece(const char *text, const char *masked, size_t at, size_t bytes, bool *quoted) {
    size_t n = quoted_bytes(masked + at, bytes - at), end = at;
    *quoted = n > 0;
    if (n) return n;
    while (end < bytes && !quoted_bytes(masked + end, bytes - end)) end++;
    *quoted = quoted_bytes(text + at, end - at) > 0;
    return end - at;
}
