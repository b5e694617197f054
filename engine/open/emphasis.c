#include "engine/open/emphasis.h"

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

/* Reads text without brackets up to `end`, and the BREAKs in it. */
static void read_run(struct reading *r, const char *end) {
    const char *begin = r->at, *after;
    for (const char *at; (at = find_break(r->at, begin, end, &after)); r->at = after) {
        add_text(r, r->at, (size_t)(at - r->at));
        add_piece(r, true);
    }
    add_text(r, r->at, (size_t)(end - r->at));
    r->at = end;
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

static bool is_escaped(const char *at, const char *end) {
    return at + 1 < end && strchr("()[]\\", at[1]) && at[1];
}

static void read_bracket(struct reading *r) {
    double weight = 0;
    const char *at = r->at, *after = *at == ':' && r->round.n ? read_weight(at, r->end, &weight) : NULL;
    r->at++;
    if (*at == '\\') {
        bool escaped = is_escaped(at, r->end);
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
            read_run(r, end);
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

/* True if ":NUMBER" stands before the closing bracket, as in "(word:1.3)". */
static bool ends_in_weight(const char *from, const char *bracket) {
    const char *colon = bracket;
    while (colon > from && *colon != ':') colon--;
    size_t length = *colon == ':' ? strspn(colon + 1, "0123456789.") : 0;
    return length > 0 && colon + 1 + length == bracket;
}

bool emphasis_detect(const char *text) {
    const char *open = NULL;
    for (; *text; text++) {
        if (*text == '(') open = text;
        if (*text == ')' && open && ends_in_weight(open, text)) return true;
        if (*text == ')') open = NULL;
    }
    return false;
}

void emphasis_destroy(struct sys *sys, struct emphasis *m) {
    sys->release(sys, m->text);
    sys->release(sys, m->piece);
    *m = (struct emphasis){0};
}
