/* Finds added tokens in a text, before any split or merge: the leftmost match, and among matches at the same
 * position the longest, like the reference's Aho-Corasick automaton (LeftmostLongest). Instead of an
 * automaton, a range of a sorted list is narrowed byte by byte: tokens are few and short
 * (TOKENIZER_ADDED_BYTES bounds the work per byte of text), and a table of first bytes skips most positions.
 * Source: Hugging Face tokenizers 0.23, tokenizer/added_vocabulary.rs. */
#include "loaders/alloc_array.h"
#include "loaders/tokenizer/added_tokens.h"
#include "loaders/tokenizer/normalize.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

static int compare_spans(struct span a, struct span b) {
    int order = memcmp(a.at, b.at, a.bytes < b.bytes ? a.bytes : b.bytes);
    if (order) return order;
    return (a.bytes > b.bytes) - (a.bytes < b.bytes);
}

static int compare_contents(const void *a, const void *b) {
    const struct added_token *const *x = a, *const *y = b;
    return compare_spans((*x)->content, (*y)->content);
}

/* Compares patterns for sorting. Equal patterns (different texts with the same NFC) are ordered special
 * tokens first, then by file order. */
static int compare_patterns(const void *a, const void *b) {
    const struct added_token *x = *(const struct added_token *const *)a,
                             *y = *(const struct added_token *const *)b;
    int order = compare_spans(x->pattern, y->pattern);
    if (order) return order;
    if (x->special != y->special) return x->special ? -1 : 1;
    return (x > y) - (x < y);
}

static enum status check_duplicates(struct tokenizer *t, struct added_token **sorted, struct error *e) {
    for (int i = 0; i < t->n_added; i++) sorted[i] = &t->added[i];
    qsort(sorted, (size_t)t->n_added, sizeof(struct added_token *), compare_contents);
    for (int i = 1; i < t->n_added; i++) {
        if (compare_spans(sorted[i - 1]->content, sorted[i]->content)) continue;
        return error_set(e, DUP,
                         "tokenizer: added token \"%s\" occurs twice" WHERE "%s, added tokens" FOUND
                         "ids %d and %d" EXPECTED "each added token once",
                         sorted[i]->content.at, t->path, sorted[i - 1]->id, sorted[i]->id);
    }
    return OK;
}

static enum status set_build(struct tokenizer *t, bool normalized, struct added_set *set, struct error *e) {
    set->sorted = alloc_array(t->sys, (uint64_t)t->n_added, sizeof(struct added_token *), e);
    if (!set->sorted) return e->code;
    for (int i = 0; i < t->n_added; i++)
        if (t->added[i].normalized == normalized) set->sorted[set->n++] = &t->added[i];
    qsort(set->sorted, (size_t)set->n, sizeof(struct added_token *), compare_patterns);
    int n = 0;
    for (int i = 0; i < set->n; i++) {
        if (n && !compare_spans(set->sorted[n - 1]->pattern, set->sorted[i]->pattern)) continue;
        set->sorted[n++] = set->sorted[i];
        set->starts[(unsigned char)set->sorted[i]->pattern.at[0]] = true;
    }
    set->n = n;
    return OK;
}

enum status added_sets_build(struct tokenizer *t, struct error *e) {
    struct added_token **sorted = alloc_array(t->sys, (uint64_t)t->n_added, sizeof(struct added_token *), e);
    if (!sorted) return e->code;
    if (!check_duplicates(t, sorted, e) && !set_build(t, false, &t->raw, e))
        set_build(t, true, &t->normalized, e);
    t->sys->release(t->sys, sorted);
    return e->code;
}

/* Byte of a pattern at a depth; -1 after its end, so that shorter patterns sort first. */
static int byte_at(const struct added_set *set, int i, uint64_t depth) {
    const struct span *p = &set->sorted[i]->pattern;
    return depth < p->bytes ? (unsigned char)p->at[depth] : -1;
}

/* First index in [low, high) whose byte at depth is not below `byte`. */
static int tokenizer_added_lower_bound(const struct added_set *set, int low, int high, uint64_t depth,
                                       int byte) {
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (byte_at(set, middle, depth) < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The longest pattern that the text starts with; NULL if none. */
static const struct added_token *longest_at(const struct added_set *set, const char *text, uint64_t bytes) {
    const struct added_token *best = NULL;
    int low = 0, high = set->n;
    for (uint64_t depth = 0; depth < bytes; depth++) {
        int byte = (unsigned char)text[depth];
        low = tokenizer_added_lower_bound(set, low, high, depth, byte);
        high = tokenizer_added_lower_bound(set, low, high, depth, byte + 1);
        if (low == high) break;
        if (set->sorted[low]->pattern.bytes == depth + 1) best = set->sorted[low];
    }
    return best;
}

/* Returns the code point that ends (code_before) or starts (code_after) at byte i of a text; 0 at the end of
 * the text. *n: length of the code point in bytes. */
static int32_t code_before(struct span text, uint64_t i, uint64_t *n) {
    utf8proc_int32_t code = 0;
    for (*n = 0; *n < i && *n < 4;) {
        ++*n;
        if (((unsigned char)text.at[i - *n] & 0xC0) != 0x80) break;
    }
    if (*n) utf8proc_iterate((const utf8proc_uint8_t *)text.at + i - *n, (utf8proc_ssize_t)*n, &code);
    return code;
}

static int32_t code_after(struct span text, uint64_t i, uint64_t *n) {
    utf8proc_int32_t code = 0;
    *n = 0;
    if (i < text.bytes)
        *n = (uint64_t)utf8proc_iterate((const utf8proc_uint8_t *)text.at + i,
                                        (utf8proc_ssize_t)(text.bytes - i), &code);
    return code;
}

static bool stands_alone(struct span text, uint64_t start, uint64_t end) {
    uint64_t n;
    if (start > 0 && code_is_word(code_before(text, start, &n))) return false;
    return end == text.bytes || !code_is_word(code_after(text, end, &n));
}

static void strip_left(struct added_search *s) {
    uint64_t n;
    if (s->start < s->taken) s->start = s->taken;
    while (s->start > s->taken && code_is_space(code_before(s->text, s->start, &n))) s->start -= n;
}

static void strip_right(struct added_search *s) {
    uint64_t n;
    if (s->end >= s->white_from && s->end <= s->white_to) {
        s->end = s->white_to;
        return;
    }
    s->white_from = s->end;
    while (s->end < s->text.bytes && code_is_space(code_after(s->text, s->end, &n))) s->end += n;
    s->white_to = s->end;
}

bool added_next(struct added_search *s) {
    while (s->set->n && s->from < s->text.bytes) {
        uint64_t i = s->from++;
        if (!s->set->starts[(unsigned char)s->text.at[i]]) continue;
        const struct added_token *found = longest_at(s->set, s->text.at + i, s->text.bytes - i);
        if (!found) continue;
        s->start = i;
        s->end = i + found->pattern.bytes;
        s->from = s->end; /* shorter matches inside a rejected match do not count */
        if (found->single_word && !stands_alone(s->text, s->start, s->end)) continue;
        if (found->lstrip) strip_left(s);
        if (found->rstrip) strip_right(s);
        bool swallowed = s->start >= s->end; /* skipped: the previous match already includes this match */
        s->taken = s->end;
        s->id = found->id;
        if (!swallowed) return true;
    }
    return false;
}
