/* Byte-pair encoding: the bytes of a piece become symbols in a linked list; a heap holds the pairs that can
 * merge. The pair of lowest rank merges first, and among equal ranks the leftmost pair. A merge creates at
 * most two new pairs and uses one, so 2n heap entries suffice and a word of n bytes costs O(n log n).
 * Outdated entries stay in the heap and are recognised when popped. Reproduces Word::merge_all of Hugging
 * Face tokenizers 0.23 (models/bpe). */
#include "loaders/alloc_array.h"
#include "loaders/tokenizer/bpe.h"

#include <string.h>

#include "engine/base/checked.h"

static uint32_t hash_pair(int32_t left, int32_t right) {
    uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9E3779B97F4A7C15u;
    return (uint32_t)(h >> 32) ^ (uint32_t)h;
}

static uint32_t hash_bytes(const char *at, uint64_t bytes) {
    uint64_t h = 0xCBF29CE484222325u;
    for (uint64_t i = 0; i < bytes; i++) h = (h ^ (unsigned char)at[i]) * 0x100000001B3u;
    return (uint32_t)(h >> 32) ^ (uint32_t)h;
}

/* Allocates hash slots for n entries, at most half full; sets *mask. */
static uint32_t *make_slots(struct sys *sys, uint64_t n, uint32_t *mask, struct error *e) {
    uint64_t n_slots = 2;
    while (n_slots < 2 * n) n_slots *= 2;
    *mask = (uint32_t)(n_slots - 1);
    return alloc_array(sys, n_slots, sizeof(uint32_t), e);
}

static enum status check_count(uint64_t n, const char *of, struct error *e) {
    if (n < 1u << 28) return OK;
    return error_set(e, LIMIT, "tokenizer: too many %s" FOUND "%llu" EXPECTED "fewer than 2^28", of,
                     (unsigned long long)n);
}

enum status merge_table_make(struct sys *sys, struct merge_table *table, uint64_t n, struct error *e) {
    if (check_count(n, "merges", e)) return e->code;
    table->merges = alloc_array(sys, n, sizeof *table->merges, e);
    table->slots = make_slots(sys, n, &table->mask, e);
    return e->code;
}

/* The hash slot of a merge pair, or the empty slot where the pair belongs. */
static uint32_t *merge_slot(const struct merge_table *table, int32_t left, int32_t right) {
    uint32_t i = hash_pair(left, right) & table->mask;
    for (; table->slots[i]; i = (i + 1) & table->mask) {
        const struct merge *m = &table->merges[table->slots[i] - 1];
        if (m->left == left && m->right == right) break;
    }
    return &table->slots[i];
}

void merge_table_add(struct merge_table *table, struct merge merge) {
    table->merges[table->n_merges++] = merge;
    *merge_slot(table, merge.left, merge.right) = table->n_merges;
}

enum status word_table_make(struct sys *sys, struct word_table *table, uint64_t n, uint64_t blob_bytes,
                            struct error *e) {
    if (check_count(n, "tokens", e) || check_count(blob_bytes, "bytes of tokens", e)) return e->code;
    table->blob = alloc_array(sys, blob_bytes, 1, e);
    table->words = alloc_array(sys, n, sizeof *table->words, e);
    table->slots = make_slots(sys, n, &table->mask, e);
    return e->code;
}

void word_table_destroy(struct sys *sys, struct word_table *table) {
    sys->release(sys, table->blob);
    sys->release(sys, table->words);
    sys->release(sys, table->slots);
    *table = (struct word_table){0};
}

static uint32_t *word_slot(const struct word_table *table, struct span text) {
    uint32_t i = hash_bytes(text.at, text.bytes) & table->mask;
    for (; table->slots[i]; i = (i + 1) & table->mask) {
        const struct word *w = &table->words[table->slots[i] - 1];
        if (w->bytes == text.bytes && !memcmp(table->blob + w->offset, text.at, text.bytes)) break;
    }
    return &table->slots[i];
}

int32_t word_table_find(const struct word_table *table, struct span text) {
    uint32_t found = table->slots ? *word_slot(table, text) : 0;
    return found ? table->words[found - 1].id : -1;
}

void word_table_add(struct word_table *table, struct word word) {
    table->words[table->n_words++] = word;
    *word_slot(table, (struct span){table->blob + word.offset, word.bytes}) = table->n_words;
}

enum status id_list_push(struct sys *sys, struct id_list *list, int32_t id, struct error *e) {
    if (list->n == list->capacity) {
        uint64_t capacity = list->capacity ? 2 * list->capacity : 64;
        int32_t *ids = alloc_array(sys, capacity, sizeof *ids, e);
        if (!ids) return e->code;
        if (list->n) memcpy(ids, list->ids, list->n * sizeof *ids);
        sys->release(sys, list->ids);
        list->ids = ids;
        list->capacity = capacity;
    }
    list->ids[list->n++] = id;
    return OK;
}

/* Reserves scratch for a piece of n bytes. Grows by doubling, so that the total cost stays linear for pieces
 * of growing length. */
static enum status scratch_reserve(struct sys *sys, struct bpe_scratch *scratch, uint64_t n,
                                   struct error *e) {
    if (n <= scratch->capacity) return OK;
    uint64_t capacity = scratch->capacity ? scratch->capacity : 64;
    while (capacity < n) capacity *= 2;
    sys->release(sys, scratch->symbols);
    sys->release(sys, scratch->heap);
    *scratch = (struct bpe_scratch){0};
    scratch->symbols = alloc_array(sys, capacity, sizeof *scratch->symbols, e);
    scratch->heap = alloc_array(sys, capacity, 2 * sizeof *scratch->heap, e);
    if (!e->code) scratch->capacity = capacity;
    return e->code;
}

static void heap_push(struct bpe_scratch *s, uint64_t entry) {
    uint64_t i = s->n_heap++;
    for (; i > 0 && s->heap[(i - 1) / 2] > entry; i = (i - 1) / 2) s->heap[i] = s->heap[(i - 1) / 2];
    s->heap[i] = entry;
}

static uint64_t heap_pop(struct bpe_scratch *s) {
    uint64_t top = s->heap[0], last = s->heap[--s->n_heap];
    uint64_t i = 0;
    for (uint64_t child; (child = 2 * i + 1) < s->n_heap; i = child) {
        if (child + 1 < s->n_heap && s->heap[child + 1] < s->heap[child]) child++;
        if (s->heap[child] >= last) break;
        s->heap[i] = s->heap[child];
    }
    s->heap[i] = last;
    return top;
}

/* The merge of symbol i with its right neighbour as rank + 1; 0 if there is none. */
static uint32_t find_merge(const struct merge_table *table, const struct bpe_symbol *symbols, int32_t i) {
    if (symbols[i].id < 0 || symbols[i].next < 0) return 0;
    return *merge_slot(table, symbols[i].id, symbols[symbols[i].next].id);
}

static void push_pair(const struct merge_table *table, struct bpe_scratch *s, int32_t i) {
    uint32_t found = find_merge(table, s->symbols, i);
    if (found) heap_push(s, (uint64_t)(found - 1) << 32 | (uint32_t)i);
}

/* Merges symbol i with its right neighbour and pushes the two new pairs. */
static void join_symbols(const struct merge_table *table, struct bpe_scratch *s, int32_t i, int32_t joined) {
    struct bpe_symbol *left = &s->symbols[i], *right = &s->symbols[left->next];
    left->id = joined;
    right->id = -1;
    left->next = right->next;
    if (left->next >= 0) s->symbols[left->next].previous = i;
    if (left->previous >= 0) push_pair(table, s, left->previous);
    push_pair(table, s, i);
}

static void merge_all(const struct merge_table *table, struct bpe_scratch *s, int32_t n) {
    s->n_heap = 0;
    for (int32_t i = 0; i + 1 < n; i++) push_pair(table, s, i);
    while (s->n_heap) {
        uint64_t entry = heap_pop(s);
        int32_t i = (int32_t)(entry & 0xFFFFFFFFu), joined = table->merges[entry >> 32].joined;
        uint32_t found = find_merge(table, s->symbols, i);
        /* The symbols of a pair may have changed since the pair was pushed on the heap. Like Hugging Face
         * tokenizers, checks only that the merged token is still the same. */
        if (found && table->merges[found - 1].joined == joined) join_symbols(table, s, i, joined);
    }
}

/* Makes one symbol per byte. A byte without a token becomes unk, or is dropped if there is no unk token. */
static int32_t symbols_of(const struct tokenizer *t, struct span piece, struct bpe_symbol *symbols) {
    int32_t n = 0;
    bool after_unk = false;
    for (uint64_t i = 0; i < piece.bytes; i++) {
        const int32_t *ids = i + 1 < piece.bytes ? t->byte_id : t->last_id;
        int32_t id = ids[(unsigned char)piece.at[i]];
        bool is_unk = id < 0;
        if (is_unk) id = t->unk;
        if (id < 0 || (is_unk && after_unk && t->fuse_unk)) continue;
        after_unk = is_unk;
        symbols[n] = (struct bpe_symbol){.id = id, .next = n + 1, .previous = n - 1};
        n++;
    }
    if (n) symbols[n - 1].next = -1;
    return n;
}

enum status bpe_piece(const struct tokenizer *t, struct bpe_scratch *scratch, struct span piece,
                      struct id_list *out, struct error *e) {
    if (t->ignore_merges) {
        int32_t whole = word_table_find(&t->words, piece);
        if (whole >= 0) return id_list_push(t->sys, out, whole, e);
    }
    if (scratch_reserve(t->sys, scratch, piece.bytes, e)) return e->code;
    int32_t n = symbols_of(t, piece, scratch->symbols);
    merge_all(&t->merges, scratch, n);
    for (int32_t i = n ? 0 : -1; i >= 0; i = scratch->symbols[i].next)
        if (id_list_push(t->sys, out, scratch->symbols[i].id, e)) return e->code;
    return OK;
}
