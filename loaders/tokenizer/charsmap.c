/* SentencePiece's compiled normalisation table (precompiled_charsmap; nmt_nfkc is NFKC with extensions for
 * machine translation). The table is a little-endian length, a double-array trie of that many bytes, and
 * NUL-terminated texts; values of the trie are offsets of texts. All reachable units are checked on reading,
 * so that normalisation needs no checks. Sources: SentencePiece 0.1.97, normalizer.cc; Darts-clone 0.32. The
 * lookup reproduces Hugging Face tokenizers 0.23 (Precompiled). A grapheme cluster of less than six bytes is
 * looked up as a whole, and the shortest entry with which the cluster starts replaces the whole cluster;
 * otherwise each character is looked up. SentencePiece itself takes the longest entry at each position. */
#include "loaders/alloc_array.h"
#include "loaders/tokenizer/normalize.h"

#include <inttypes.h>
#include <string.h>
#include <utf8proc.h>

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
static uint32_t charsmap_value_of(uint32_t unit) {
    return unit & 0x7FFFFFFF;
}

static enum status charsmap_fail(const char *problem, const char *path, struct error *e) {
    return error_set(e, BOUNDS, "tokenizer: the normalisation table (precompiled_charsmap) %s" WHERE "%s",
                     problem, path);
}

/* Checks that the children and the value of a unit (trie node) lie inside the table. */
static enum status check_unit(const struct charsmap *map, uint32_t block, uint32_t unit, const char *path,
                              struct error *e) {
    if ((block | 0xFF) >= map->n_units) {
        charsmap_fail("has an entry that points outside of the table", path, e);
        error_found(e, "unit %" PRIu32, block | 0xFF);
        return error_expected(e, "%" PRIu32 " units", map->n_units);
    }
    if (!has_leaf(unit) || charsmap_value_of(map->units[block]) < map->n_texts) return OK;
    charsmap_fail("has an entry that refers to a text outside of the table", path, e);
    error_found(e, "byte %" PRIu32, charsmap_value_of(map->units[block]));
    return error_expected(e, "%" PRIu32 " bytes of texts", map->n_texts);
}

/* Visits every reachable unit of the trie once and checks it. reached: one byte per unit; stack: as many
 * indices. */
static enum status check_units(const struct charsmap *map, uint8_t *reached, uint32_t *stack,
                               const char *path, struct error *e) {
    uint32_t n = 0;
    stack[n++] = 0;
    reached[0] = 1;
    while (n) {
        uint32_t at = stack[--n], block = at ^ offset_of(map->units[at]);
        if (check_unit(map, block, map->units[at], path, e)) return e->code;
        for (uint32_t label = 1; label < 256; label++) {
            uint32_t child = block ^ label;
            if (reached[child] || label_of(map->units[child]) != label) continue;
            reached[child] = 1;
            stack[n++] = child;
        }
    }
    return OK;
}

static enum status charsmap_check_parts(struct span blob, uint32_t *trie_bytes, const char *path,
                                        struct error *e) {
    const unsigned char *b = (const unsigned char *)blob.at;
    if (blob.bytes > CHARSMAP_BYTES) {
        return error_set(e, LIMIT,
                         "tokenizer: the normalisation table (precompiled_charsmap) is too long" WHERE
                         "%s" FOUND "%" PRIu64 " bytes" EXPECTED "at most %d",
                         path, blob.bytes, CHARSMAP_BYTES);
    }
    if (blob.bytes < 4) return charsmap_fail("is shorter than its own length", path, e);
    *trie_bytes = (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
    if (*trie_bytes > blob.bytes - 4 || *trie_bytes % 4 || !*trie_bytes) {
        charsmap_fail("has a trie of an invalid length", path, e);
        error_found(e, "%" PRIu32 " bytes", *trie_bytes);
        return error_expected(e, "a multiple of 4, at most %" PRIu64, blob.bytes - 4);
    }
    if (*trie_bytes < blob.bytes - 4 && blob.at[blob.bytes - 1])
        return charsmap_fail("ends within a text", path, e);
    return OK;
}

enum status charsmap_make(struct sys *sys, struct span blob, const char *path, struct charsmap *map,
                          struct error *e) {
    uint32_t trie_bytes = 0;
    if (charsmap_check_parts(blob, &trie_bytes, path, e)) return e->code;
    const unsigned char *b = (const unsigned char *)blob.at + 4;
    map->n_units = trie_bytes / 4;
    map->n_texts = (uint32_t)(blob.bytes - 4 - trie_bytes);
    map->units = alloc_array(sys, map->n_units, sizeof *map->units, e);
    map->texts = copy_text(sys, blob.at + 4 + trie_bytes, map->n_texts, e);
    uint8_t *reached = alloc_array(sys, map->n_units, 1, e);
    uint32_t *stack = alloc_array(sys, map->n_units, sizeof *stack, e);
    for (uint32_t i = 0; i < map->n_units && !e->code; i++, b += 4)
        map->units[i] = (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
    if (!e->code) check_units(map, reached, stack, path, e);
    sys->release(sys, reached);
    sys->release(sys, stack);
    return e->code;
}

void charsmap_destroy(struct sys *sys, struct charsmap *map) {
    sys->release(sys, map->units);
    sys->release(sys, map->texts);
}

/* Finds the shortest entry of the normalisation table with which the text `part` starts, and returns the
 * entry's replacement; NULL: no entry. */
static const char *charsmap_find_entry(const struct charsmap *map, struct span part) {
    uint32_t at = offset_of(map->units[0]);
    for (uint64_t i = 0; i < part.bytes; i++) {
        uint32_t label = (unsigned char)part.at[i];
        if (!label || label_of(map->units[at ^ label]) != label) return NULL;
        at ^= label;
        uint32_t unit = map->units[at];
        at ^= offset_of(unit);
        if (has_leaf(unit)) return map->texts + charsmap_value_of(map->units[at]);
    }
    return NULL;
}

/* True for combining marks that utf8proc 2.8 (Unicode 15) lacks and that can occur in a grapheme cluster of
 * less than six bytes: marks of at most three bytes. */
static bool charsmap_is_later_mark(int32_t code) {
    return code == 0x897 || (code >= 0x1ACF && code <= 0x1ADD) || (code >= 0x1AE0 && code <= 0x1AEB);
}

static bool breaks_between(int32_t before, int32_t code, int32_t *state) {
    return utf8proc_grapheme_break_stateful(before, charsmap_is_later_mark(code) ? 0x301 : code, state);
}

static uint64_t code_at(struct span text, uint64_t i, int32_t *code) {
    return (uint64_t)utf8proc_iterate((const utf8proc_uint8_t *)text.at + i,
                                      (utf8proc_ssize_t)(text.bytes - i), code);
}

/* The end of the grapheme cluster that starts at i. */
static uint64_t cluster_end(struct span text, uint64_t i) {
    int32_t before, code, state = 0;
    i += code_at(text, i, &before);
    while (i < text.bytes) {
        uint64_t n = code_at(text, i, &code);
        if (breaks_between(before, code, &state)) break;
        before = code;
        i += n;
    }
    return i;
}

/* Output buffer for normalised text; if `at` is NULL the bytes are only counted. */
struct output {
    char *at;
    uint64_t bytes;
};

static void charsmap_put(struct output *out, const char *from, uint64_t bytes) {
    if (out->at) memcpy(out->at + out->bytes, from, bytes);
    out->bytes += bytes;
}

static bool put_entry(const struct charsmap *map, struct span part, struct output *out) {
    const char *entry = charsmap_find_entry(map, part);
    if (entry) charsmap_put(out, entry, strlen(entry));
    return entry;
}

/* Normalises a text. False if it exceeds limit bytes: a table may contain texts of any length. */
static bool apply(const struct charsmap *map, struct span text, uint64_t limit, struct output *out) {
    for (uint64_t i = 0; i < text.bytes && out->bytes <= limit;) {
        uint64_t end = cluster_end(text, i);
        bool whole = end - i <= CLUSTER_BYTES && put_entry(map, (struct span){text.at + i, end - i}, out);
        while (!whole && i < end && out->bytes <= limit) {
            int32_t code;
            struct span part = {text.at + i, code_at(text, i, &code)};
            if (!put_entry(map, part, out)) charsmap_put(out, part.at, part.bytes);
            i += part.bytes;
        }
        i = end;
    }
    return out->bytes <= limit;
}

enum status charsmap_apply(struct sys *sys, const struct charsmap *map, struct span *text, char **out,
                           struct error *e) {
    uint64_t limit = GROWTH * text->bytes + 1024;
    struct output to = {0};
    *out = NULL;
    if (!apply(map, *text, limit, &to)) {
        return error_set(e, LIMIT,
                         "the tokenizer's normalisation table makes the text too long" EXPECTED
                         "at most %" PRIu64 " bytes",
                         limit);
    }
    *out = alloc_array(sys, to.bytes, 1, e);
    if (!*out) return e->code;
    to = (struct output){.at = *out};
    apply(map, *text, limit, &to);
    *text = (struct span){*out, to.bytes};
    return OK;
}
