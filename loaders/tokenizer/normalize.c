/* Normalisation before splitting: a SentencePiece table, blanks marked as U+2581, or NFC, runs of white space
 * to one blank, and lower case; each step only if the tokenizer files request it. NFC is built on utf8proc's
 * tables. utf8proc_map is not used: it orders combining marks by swapping neighbours, which is quadratic in
 * the length of a run, and allocates outside sys. Here runs are ordered by counting, so normalisation is
 * linear. Like Hugging Face tokenizers, lower case maps each character without context (a final sigma is not
 * special). utf8proc 2.8 implements Unicode 15; tables below add the lower-case letters of later versions,
 * and U+0130, whose lower case is two characters. Compared with the reference (tokenizers 0.23.3, Lowercase)
 * for every code point. */
#include "loaders/tokenizer/tables.h"

#include <inttypes.h>
#include <string.h>

bool code_is_space(int32_t c) {
    return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
           c == 0x3000;
}

bool code_is_word(int32_t c) {
    if (c == 0x200C || c == 0x200D) return true;
    if ((c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
        (c >= 0x1F170 && c <= 0x1F189))
        return true;
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    default:
        return false;
    }
}

/* Marks whose combining class was assigned after Unicode 9, the version by which Hugging Face tokenizers
 * normalise. Hugging Face tokenizers do not reorder or compose these marks. U+11930 is listed because it
 * composes to U+11938 since Unicode 13. */
static const struct code_range {
    utf8proc_int32_t first, last;
} later_marks[] = {
    {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},     {0xC3C, 0xC3C},
    {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},   {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},
    {0xA82C, 0xA82C},   {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50},
    {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x11839, 0x1183A},
    {0x11930, 0x11930}, {0x11938, 0x11938}, {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0},
    {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45},
    {0x11D97, 0x11D97}, {0x11F41, 0x11F42}, {0x16FF0, 0x16FF1}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136},
    {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF},
};

static bool is_later_mark(int32_t code) {
    int low = 0, high = (int)(sizeof later_marks / sizeof *later_marks);
    while (low < high) {
        int middle = (low + high) / 2;
        if (later_marks[middle].last < code)
            low = middle + 1;
        else
            high = middle;
    }
    return low < (int)(sizeof later_marks / sizeof *later_marks) && later_marks[low].first <= code;
}

static int class_of(int32_t code) {
    int class = utf8proc_get_property(code)->combining_class;
    return class && is_later_mark(code) ? 0 : class;
}

/* Canonical decomposition to code points; if `to` is NULL the code points are only counted. */
static uint64_t decompose(struct span text, int32_t *to) {
    uint64_t n = 0;
    for (uint64_t i = 0; i < text.bytes;) {
        int32_t code, parts[8]; /* a canonical decomposition has at most 4 code points */
        int boundary = 0;
        utf8proc_ssize_t got = 1;
        i += code_at(text, i, &code);
        if (is_later_mark(code))
            parts[0] = code;
        else
            got = utf8proc_decompose_char(code, parts, 8, UTF8PROC_DECOMPOSE | UTF8PROC_STABLE, &boundary);
        if (to) memcpy(to + n, parts, (size_t)got * sizeof *parts);
        n += (uint64_t)got;
    }
    return n;
}

/* Orders a run of combining marks by combining class, stably: by insertion if short, else by counting. */
static void order_run(utf8proc_int32_t *run, uint64_t n, utf8proc_int32_t *scratch) {
    if (n <= 16) {
        for (uint64_t i = 1; i < n; i++) {
            utf8proc_int32_t code = run[i];
            uint64_t j = i;
            for (; j > 0 && class_of(run[j - 1]) > class_of(code); j--) run[j] = run[j - 1];
            run[j] = code;
        }
        return;
    }
    uint64_t start[257] = {0};
    for (uint64_t i = 0; i < n; i++) start[class_of(run[i]) + 1]++;
    for (int c = 1; c < 257; c++) start[c] += start[c - 1];
    for (uint64_t i = 0; i < n; i++) scratch[start[class_of(run[i])]++] = run[i];
    memcpy(run, scratch, n * sizeof *run);
}

/* Normalises valid UTF-8 to NFC; outputs as in text_normalize. */
static enum status to_nfc(struct sys *sys, struct span *text, char **out, struct error *e) {
    uint64_t i = 0, n, m = 0, bytes = 0;
    /* Without a byte above 0xCB all code points are below U+0300: such text is already NFC. */
    while (i < text->bytes && (unsigned char)text->at[i] <= 0xCB) i++;
    if (i == text->bytes) return OK;
    n = decompose(*text, NULL);
    int32_t *codes = sys_new(sys, n, 2 * sizeof *codes, "the code points of a text", e);
    char *to = sys_new(sys, n, 4, "a normalised text", e);
    if (e->code) goto out;
    decompose(*text, codes);
    for (i = 0; i < n; i++) {
        uint64_t first = i;
        while (i < n && class_of(codes[i]) != 0) i++;
        if (i - first > 1) order_run(codes + first, i - first, codes + n);
    }
    /* Composes the code points in place. Marks in `later_marks` are not composed, and no characters compose
     * across them. */
    for (i = 0; i < n;) {
        uint64_t first = i;
        while (i < n && !is_later_mark(codes[i])) i++;
        memmove(codes + m, codes + first, (i - first) * sizeof *codes);
        m += (uint64_t)utf8proc_normalize_utf32(codes + m, (utf8proc_ssize_t)(i - first),
                                                UTF8PROC_COMPOSE | UTF8PROC_STABLE);
        for (; i < n && is_later_mark(codes[i]); i++) codes[m++] = codes[i];
    }
    for (i = 0; i < m; i++) bytes += (uint64_t)utf8proc_encode_char(codes[i], (utf8proc_uint8_t *)to + bytes);
    *text = (struct span){*out = to, bytes};
    to = NULL;
out:
    sys->release(sys, codes);
    sys->release(sys, to);
    return e->code;
}

/* Ranges of capital letters, and the lower-case letter of the first capital in each range. */
static const struct capital {
    int32_t first, last, lower;
} capitals[] = {
    {0x1C89, 0x1C89, 0x1C8A},    {0xA7CB, 0xA7CB, 0x264},  {0xA7CC, 0xA7CC, 0xA7CD},
    {0xA7CE, 0xA7CE, 0xA7CF},    {0xA7D2, 0xA7D2, 0xA7D3}, {0xA7D4, 0xA7D4, 0xA7D5},
    {0xA7DA, 0xA7DA, 0xA7DB},    {0xA7DC, 0xA7DC, 0x19B},  {0x10D50, 0x10D65, 0x10D70},
    {0x16EA0, 0x16EB8, 0x16EBB},
};

/* Writes text with normalised white space and case; lower case adds at most half as many bytes. */
static uint64_t fold(const struct tokenizer *t, struct span text, utf8proc_uint8_t *out) {
    uint64_t n = 0;
    bool after_space = false;
    for (uint64_t i = 0; i < text.bytes;) {
        int32_t code;
        i += code_at(text, i, &code);
        bool space = t->one_space && code_is_space(code);
        if (space && after_space) continue;
        after_space = space;
        if (t->lower && code == 0x130) {
            memcpy(out + n, "i\xcc\x87", 3);
            n += 3;
            continue;
        }
        if (space) {
            code = ' ';
        } else if (t->lower && code < 0x80) {
            code = code >= 'A' && code <= 'Z' ? code + 32 : code;
        } else if (t->lower) {
            const struct capital *c = capitals, *end = c + sizeof capitals / sizeof *capitals;
            while (c < end && !(code >= c->first && code <= c->last)) c++;
            code = c < end ? c->lower + (code - c->first) : utf8proc_tolower(code);
        }
        n += (uint64_t)utf8proc_encode_char(code, out + n);
    }
    return n;
}

/* SentencePiece's compiled normalisation table (precompiled_charsmap; nmt_nfkc is NFKC with extensions for
 * machine translation). The table is a little-endian length, a double-array trie of that many bytes, and
 * NUL-terminated texts; values of the trie are offsets of texts. All reachable units are checked on reading,
 * so that normalisation needs no checks. Sources: SentencePiece 0.1.97, normalizer.cc; Darts-clone 0.32. The
 * lookup reproduces Hugging Face tokenizers 0.23 (Precompiled). A grapheme cluster of less than six bytes is
 * looked up as a whole, and the shortest entry with which the cluster starts replaces the whole cluster;
 * otherwise each character is looked up. SentencePiece itself takes the longest entry at each position. */
enum { CHARSMAP_BYTES = 1 << 20, CLUSTER_BYTES = 5, GROWTH = 32 };

static uint32_t offset_of(uint32_t unit) {
    return (unit >> 10) << ((unit & 1u << 9) >> 6);
}
static uint32_t label_of(uint32_t unit) {
    return unit & (1u << 31 | 0xFF);
}
static bool has_leaf(uint32_t unit) {
    return unit >> 8 & 1;
}
static uint32_t value_of(uint32_t unit) {
    return unit & 0x7FFFFFFF;
}
static uint32_t little_32(const char *at) {
    const unsigned char *b = (const unsigned char *)at;
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

#define charsmap_fail(e, code, path, what, ...)                                                              \
    error_set(e, code, "tokenizer: the normalisation table (precompiled_charsmap) " what WHERE "%s",         \
              ##__VA_ARGS__, path)

/* Visits every reachable unit (node) of the trie once, and checks that its children and its value lie inside
 * the table. reached: one byte per unit; stack: as many indices. */
static enum status check_units(const struct charsmap *map, uint8_t *reached, uint32_t *stack,
                               const char *path, struct error *e) {
    uint32_t n = 0;
    stack[n++] = 0;
    reached[0] = 1;
    while (n) {
        uint32_t at = stack[--n], unit = map->units[at], block = at ^ offset_of(unit);
        if ((block | 0xFF) >= map->n_units)
            return charsmap_fail(e, BOUNDS, path,
                                 "has an entry that points outside of the table" FOUND
                                 "unit %" PRIu32 EXPECTED "%" PRIu32 " units",
                                 block | 0xFF, map->n_units);
        if (has_leaf(unit) && value_of(map->units[block]) >= map->n_texts)
            return charsmap_fail(e, BOUNDS, path,
                                 "has an entry that refers to a text outside of the table" FOUND
                                 "byte %" PRIu32 EXPECTED "%" PRIu32 " bytes of texts",
                                 value_of(map->units[block]), map->n_texts);
        for (uint32_t label = 1; label < 256; label++) {
            uint32_t child = block ^ label;
            if (reached[child] || label_of(map->units[child]) != label) continue;
            reached[child] = 1;
            stack[n++] = child;
        }
    }
    return OK;
}

enum status charsmap_make(struct sys *sys, struct span blob, const char *path, struct charsmap *map,
                          struct error *e) {
    if (blob.bytes > CHARSMAP_BYTES)
        return error_set(e, LIMIT,
                         "tokenizer: the normalisation table (precompiled_charsmap) is too long" WHERE
                         "%s" FOUND "%" PRIu64 " bytes" EXPECTED "at most %d",
                         path, blob.bytes, CHARSMAP_BYTES);
    if (blob.bytes < 4) return charsmap_fail(e, BOUNDS, path, "is shorter than its own length");
    uint32_t trie_bytes = little_32(blob.at);
    if (trie_bytes > blob.bytes - 4 || trie_bytes % 4 || !trie_bytes)
        return charsmap_fail(e, BOUNDS, path,
                             "has a trie of an invalid length" FOUND "%" PRIu32 " bytes" EXPECTED
                             "a multiple of 4, at most %" PRIu64,
                             trie_bytes, blob.bytes - 4);
    if (trie_bytes < blob.bytes - 4 && blob.at[blob.bytes - 1])
        return charsmap_fail(e, BOUNDS, path, "ends within a text");
    map->n_units = trie_bytes / 4;
    map->n_texts = (uint32_t)(blob.bytes - 4 - trie_bytes);
    map->units = sys_new(sys, map->n_units, sizeof *map->units, "a normalisation table", e);
    map->texts = sys_new(sys, (size_t)map->n_texts + 1, 1, "a normalisation table", e);
    uint8_t *reached = sys_new(sys, map->n_units, 1, "the check of a normalisation table", e);
    uint32_t *stack = sys_new(sys, map->n_units, sizeof *stack, "the check of a normalisation table", e);
    if (!e->code) {
        memcpy(map->texts, blob.at + 4 + trie_bytes, map->n_texts);
        for (uint32_t i = 0; i < map->n_units; i++) map->units[i] = little_32(blob.at + 4 + 4 * i);
        check_units(map, reached, stack, path, e);
    }
    sys->release(sys, reached);
    sys->release(sys, stack);
    return e->code;
}

/* Output buffer for normalised text; if `at` is NULL the bytes are only counted. */
struct normal {
    char *at;
    uint64_t bytes;
};

static void put(struct normal *out, const char *from, uint64_t bytes) {
    if (out->at) memcpy(out->at + out->bytes, from, bytes);
    out->bytes += bytes;
}

/* Finds the shortest entry of the table with which `part` starts, and writes the entry's replacement. False
 * if there is no entry. */
static bool put_entry(const struct charsmap *map, struct span part, struct normal *out) {
    uint32_t at = offset_of(map->units[0]);
    for (uint64_t i = 0; i < part.bytes; i++) {
        uint32_t label = (unsigned char)part.at[i];
        if (!label || label_of(map->units[at ^ label]) != label) return false;
        at ^= label;
        uint32_t unit = map->units[at];
        at ^= offset_of(unit);
        if (!has_leaf(unit)) continue;
        const char *entry = map->texts + value_of(map->units[at]);
        put(out, entry, strlen(entry));
        return true;
    }
    return false;
}

/* The end of the grapheme cluster that starts at i. */
static uint64_t cluster_end(struct span text, uint64_t i) {
    int32_t before, code, state = 0;
    i += code_at(text, i, &before);
    while (i < text.bytes) {
        uint64_t n = code_at(text, i, &code);
        /* Combining marks that utf8proc 2.8 (Unicode 15) lacks and that can occur in a cluster of less than
         * six bytes: marks of at most three bytes. U+0301 stands for them. */
        bool later =
            code == 0x897 || (code >= 0x1ACF && code <= 0x1ADD) || (code >= 0x1AE0 && code <= 0x1AEB);
        if (utf8proc_grapheme_break_stateful(before, later ? 0x301 : code, &state)) break;
        before = code;
        i += n;
    }
    return i;
}

/* Normalises a text with the table. False if the output exceeds `limit` bytes: a table may contain texts of
 * any length. */
static bool apply(const struct charsmap *map, struct span text, uint64_t limit, struct normal *out) {
    for (uint64_t i = 0; i < text.bytes && out->bytes <= limit;) {
        uint64_t end = cluster_end(text, i);
        bool whole = end - i <= CLUSTER_BYTES && put_entry(map, (struct span){text.at + i, end - i}, out);
        while (!whole && i < end && out->bytes <= limit) {
            int32_t code;
            struct span part = {text.at + i, code_at(text, i, &code)};
            if (!put_entry(map, part, out)) put(out, part.at, part.bytes);
            i += part.bytes;
        }
        i = end;
    }
    return out->bytes <= limit;
}

/* Replaces every blank by U+2581; outputs as in text_normalize. */
static enum status mark_blanks(struct sys *sys, struct span *text, char **out, struct error *e) {
    static const char mark[] = "\xe2\x96\x81";
    uint64_t blanks = 0, n = 0;
    for (uint64_t i = 0; i < text->bytes; i++) blanks += text->at[i] == ' ';
    if (!blanks) return OK;
    char *to = *out = sys_new(sys, text->bytes + 2 * blanks, 1, "a normalised text", e);
    if (!to) return e->code;
    for (uint64_t i = 0; i < text->bytes; i++) {
        bool blank = text->at[i] == ' ';
        memcpy(to + n, blank ? mark : text->at + i, blank ? sizeof mark - 1 : 1);
        n += blank ? sizeof mark - 1 : 1;
    }
    *text = (struct span){to, n};
    return OK;
}

enum status text_normalize(const struct tokenizer *t, struct span *text, char **out, struct error *e) {
    *out = NULL;
    if (t->charsmap.units) {
        uint64_t limit = GROWTH * text->bytes + 1024;
        struct normal to = {0};
        if (!apply(&t->charsmap, *text, limit, &to))
            return error_set(e, LIMIT,
                             "the tokenizer's normalisation table makes the text too long" EXPECTED
                             "at most %" PRIu64 " bytes",
                             limit);
        *out = sys_new(t->sys, to.bytes, 1, "a normalised text", e);
        if (!*out) return e->code;
        to = (struct normal){.at = *out};
        apply(&t->charsmap, *text, limit, &to);
        *text = (struct span){*out, to.bytes};
        return OK;
    }
    if (t->marks_blanks) return mark_blanks(t->sys, text, out, e);
    if (t->nfc && to_nfc(t->sys, text, out, e)) return e->code;
    if (!t->one_space && !t->lower) return OK;
    char *folded = sys_new(t->sys, text->bytes / 2 + text->bytes, 1, "a normalised text", e);
    if (folded) *text = (struct span){folded, fold(t, *text, (utf8proc_uint8_t *)folded)};
    t->sys->release(t->sys, *out);
    *out = folded;
    return e->code;
}
