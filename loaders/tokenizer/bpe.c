/* Byte-pair encoding: tables of words and merges, their vocabulary in tokenizer files, and encoding.
 * Encoding: the bytes of a piece become symbols in a linked list; a heap holds the pairs that can merge. The
 * pair of lowest rank merges first, and among equal ranks the leftmost pair. A merge creates at most two new
 * pairs and uses one, so 2n heap entries suffice and a word of n bytes costs O(n log n). Outdated entries
 * stay in the heap and are recognised when popped. Reproduces Word::merge_all of Hugging Face tokenizers 0.23
 * (models/bpe). */
#include "loaders/tokenizer/reading.h"

#include <inttypes.h>
#include <string.h>

/* True for printable Latin-1 bytes, which represent themselves; other bytes become U+0100 and up. */
static bool stands_for_itself(int byte) {
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

int byte_to_alphabet(int byte) {
    if (stands_for_itself(byte)) return byte;
    int code = 256;
    for (int b = 0; b < byte; b++) code += !stands_for_itself(b);
    return code;
}

int alphabet_to_byte(int code) {
    if (code < 0 || code >= TOKENIZER_ALPHABET_END) return -1;
    if (code < 256) return stands_for_itself(code) ? code : -1;
    for (int b = 0; b < 256; b++)
        if (byte_to_alphabet(b) == code) return b;
    return -1;
}

/* Allocates hash slots for n entries, at most half full; sets *mask. */
static uint32_t *make_slots(struct sys *sys, uint64_t n, uint32_t *mask, struct error *e) {
    uint64_t n_slots = 2;
    while (n_slots < 2 * n) n_slots *= 2;
    *mask = (uint32_t)(n_slots - 1);
    return sys_new(sys, n_slots, sizeof(uint32_t), "a hash table of tokens", e);
}

static enum status check_count(uint64_t n, const char *of, struct error *e) {
    if (n < 1u << 28) return OK;
    return error_set(e, LIMIT, "tokenizer: too many %s" FOUND "%llu" EXPECTED "fewer than 2^28", of,
                     (unsigned long long)n);
}

enum status merge_table_make(struct sys *sys, struct merge_table *table, uint64_t n, struct error *e) {
    if (check_count(n, "merges", e)) return e->code;
    table->merges = sys_new(sys, n, sizeof *table->merges, "the merges", e);
    table->slots = make_slots(sys, n, &table->mask, e);
    return e->code;
}

/* The hash slot of a merge pair, or the empty slot where the pair belongs. */
static uint32_t *merge_slot(const struct merge_table *table, int32_t left, int32_t right) {
    uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9E3779B97F4A7C15u;
    uint32_t i = ((uint32_t)(h >> 32) ^ (uint32_t)h) & table->mask;
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
    table->blob = sys_new(sys, blob_bytes, 1, "the texts of tokens", e);
    table->words = sys_new(sys, n, sizeof *table->words, "the tokens", e);
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
    uint64_t h = 0xCBF29CE484222325u;
    for (uint64_t j = 0; j < text.bytes; j++) h = (h ^ (unsigned char)text.at[j]) * 0x100000001B3u;
    uint32_t i = ((uint32_t)(h >> 32) ^ (uint32_t)h) & table->mask;
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

void word_table_to_bytes(struct word_table *table) {
    int16_t byte_of[TOKENIZER_ALPHABET_END];
    uint32_t n = table->n_words;
    for (int code = 0; code < TOKENIZER_ALPHABET_END; code++) byte_of[code] = (int16_t)alphabet_to_byte(code);
    memset(table->slots, 0, ((uint64_t)table->mask + 1) * sizeof *table->slots);
    table->n_words = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct word word = table->words[i];
        struct span text = {table->blob + word.offset, word.bytes};
        bool in_alphabet = utf8_valid_bytes(text.at, text.bytes) == text.bytes;
        word.bytes = 0;
        /* In place: a byte never takes more room than its character. */
        for (uint64_t at = 0; in_alphabet && at < text.bytes;) {
            int32_t code;
            at += code_at(text, at, &code);
            int byte = code < TOKENIZER_ALPHABET_END ? byte_of[code] : -1;
            in_alphabet = byte >= 0;
            if (in_alphabet) table->blob[word.offset + word.bytes++] = (char)byte;
        }
        if (in_alphabet) word_table_add(table, word);
    }
}

const char sentencepiece_bpe[] = "SentencePiece BPE";

enum status bpe_finish_vocab(struct reading *r, struct span suffix, struct error *e) {
    r->joined = sys_new(r->t->sys, r->longest + 1, 1, "merged tokens", e);
    if (e->code || r->t->by_character) return e->code ? e->code : bpe_find_byte_tokens(r, e);
    /* single-byte tokens: 0 to 255 within a piece, 256 to 511 at a piece's end */
    for (int i = 0; i < 512; i++) {
        char text[4 + TOKENIZER_SUFFIX_BYTES];
        uint64_t n = (uint64_t)utf8proc_encode_char(byte_to_alphabet(i & 255), (utf8proc_uint8_t *)text);
        uint64_t end = i < 256 ? 0 : suffix.bytes;
        memcpy(text + n, suffix.at, end);
        (i < 256 ? r->t->byte_id : r->t->last_id)[i & 255] =
            reading_vocab_id(r, (struct span){text, n + end});
    }
    return OK;
}

enum status bpe_read_vocab(struct reading *r, struct span suffix, struct error *e) {
    if (!json_is_object(r->vocab))
        return reading_wrong_kind(r, "the vocabulary", r->vocab, "an object of ids", e);
    if (reading_start_ids(r, e)) return e->code;
    for (void *at = json_object_iter(r->vocab); at; at = json_object_iter_next(r->vocab, at)) {
        const char *token = json_object_iter_key(at);
        const json_t *value = json_object_iter_value(at);
        if (reading_check_id(r, token, value, e)) return e->code;
        if (!reading_take_id(r, json_integer_value(value)))
            return reading_fail(e, META, r,
                                "two tokens have the same id, the second is \"%s\"" FOUND
                                "%" JSON_INTEGER_FORMAT EXPECTED "unique ids",
                                token, json_integer_value(value));
        if (json_object_iter_key_len(at) > r->longest) r->longest = json_object_iter_key_len(at);
    }
    return bpe_finish_vocab(r, suffix, e);
}

enum status bpe_read_unk(struct reading *r, const json_t *unk, struct error *e) {
    if (reading_absent(unk)) return OK;
    if (!json_is_string(unk)) return reading_wrong_kind(r, "model.unk_token", unk, "a string or null", e);
    r->t->unk = reading_vocab_id(r, string_span(unk));
    for (int byte = 0; byte < 256 && r->t->unk < 0; byte++) {
        if (r->t->byte_id[byte] >= 0 && r->t->last_id[byte] >= 0) continue;
        return reading_fail(e, META, r,
                            "model.unk_token is not in the vocabulary" FOUND "\"%s\"" EXPECTED
                            "a token, because byte 0x%02x has none",
                            json_string_value(unk), (unsigned)byte);
    }
    return OK;
}

static enum status bad_merge(const struct reading *r, uint64_t rank, const char *problem, struct span text,
                             struct error *e) {
    return error_set(e, META, "tokenizer: merge rule %" PRIu64 " %s" WHERE "%s" FOUND "\"%.*s\"", rank,
                     problem, r->path, text.bytes > 120 ? 120 : (int)text.bytes, text.at);
}

enum status bpe_add_merge(struct reading *r, uint64_t rank, struct span left, struct span right,
                          struct error *e) {
    struct merge merge = {reading_vocab_id(r, left), reading_vocab_id(r, right), -1};
    if (merge.left < 0 || merge.right < 0)
        return bad_merge(r, rank, "has a part that is not in the vocabulary", merge.left < 0 ? left : right,
                         e);
    if (left.bytes > r->longest || right.bytes > r->longest - left.bytes) {
        bad_merge(r, rank, "makes a text longer than any token", right, e);
        return error_expected(e, "at most %" PRIu64 " bytes", r->longest);
    }
    memcpy(r->joined, left.at, left.bytes);
    memcpy(r->joined + left.bytes, right.at, right.bytes);
    struct span joined = {r->joined, left.bytes + right.bytes};
    merge.joined = reading_vocab_id(r, joined);
    if (merge.joined < 0) return bad_merge(r, rank, "makes a text that is not in the vocabulary", joined, e);
    merge_table_add(&r->t->merges, merge);
    return OK;
}

enum status bpe_add_merge_text(struct reading *r, uint64_t rank, struct span text, struct error *e) {
    const char *space = memchr(text.at, ' ', text.bytes);
    struct span left = {text.at, space ? (uint64_t)(space - text.at) : 0};
    struct span right = {space ? space + 1 : NULL, text.bytes - left.bytes - 1};
    if (!space || memchr(right.at, ' ', right.bytes)) {
        bad_merge(r, rank, "does not have two parts", text, e);
        return error_expected(e, "two tokens and one space between them");
    }
    return bpe_add_merge(r, rank, left, right, e);
}

enum status id_list_push(struct sys *sys, struct id_list *list, int32_t id, struct error *e) {
    if (list->n == list->capacity) {
        uint64_t capacity = list->capacity ? 2 * list->capacity : 64;
        int32_t *ids = sys_new(sys, capacity, sizeof *ids, "token ids", e);
        if (!ids) return e->code;
        if (list->n) memcpy(ids, list->ids, list->n * sizeof *ids);
        sys->release(sys, list->ids);
        list->ids = ids;
        list->capacity = capacity;
    }
    list->ids[list->n++] = id;
    return OK;
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

static void push_pair(const struct merge_table *table, struct bpe_scratch *s, int32_t left) {
    uint32_t found = find_merge(table, s->symbols, left);
    if (!found) return;
    uint64_t entry = (uint64_t)(found - 1) << 32 | (uint32_t)left, i = s->n_heap++;
    for (; i > 0 && s->heap[(i - 1) / 2] > entry; i = (i - 1) / 2) s->heap[i] = s->heap[(i - 1) / 2];
    s->heap[i] = entry;
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
        if (!found || table->merges[found - 1].joined != joined) continue;
        struct bpe_symbol *left = &s->symbols[i], *right = &s->symbols[left->next];
        left->id = joined;
        right->id = -1;
        left->next = right->next;
        if (left->next >= 0) s->symbols[left->next].previous = i;
        if (left->previous >= 0) push_pair(table, s, left->previous);
        push_pair(table, s, i);
    }
}

/* Makes one symbol per byte of the piece. A byte without a token becomes unk, or is dropped if there is no
 * unk token. Returns the number of symbols, at most one per byte. */
static int32_t byte_symbols(const struct tokenizer *t, struct span piece, struct bpe_symbol *symbols) {
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
    return n;
}

/* Makes one symbol per character of the piece; a character without a token becomes one symbol per byte
 * (<0x00> to <0xFF>). Returns the number of symbols, at most one per byte. */
static int32_t character_symbols(const struct tokenizer *t, struct span piece, struct bpe_symbol *symbols) {
    int32_t n = 0;
    for (uint64_t i = 0; i < piece.bytes;) {
        int32_t code;
        struct span character = {piece.at + i, code_at(piece, i, &code)};
        int32_t id = word_table_find(&t->words, character);
        uint64_t n_bytes = id < 0 ? character.bytes : 1;
        for (uint64_t k = 0; k < n_bytes; k++, n++)
            symbols[n] = (struct bpe_symbol){.id = id < 0 ? t->byte_id[(unsigned char)character.at[k]] : id,
                                             .next = n + 1,
                                             .previous = n - 1};
        i += character.bytes;
    }
    return n;
}

enum status bpe_piece(const struct tokenizer *t, struct bpe_scratch *scratch, struct span piece,
                      struct id_list *out, struct error *e) {
    int32_t whole = t->ignore_merges ? word_table_find(&t->words, piece) : -1;
    if (whole >= 0) return id_list_push(t->sys, out, whole, e);
    if (piece.bytes > scratch->capacity) {
        /* Doubles the capacity, so that the total cost stays linear for pieces of growing length. */
        uint64_t capacity = scratch->capacity ? scratch->capacity : 64;
        while (capacity < piece.bytes) capacity *= 2;
        t->sys->release(t->sys, scratch->symbols);
        t->sys->release(t->sys, scratch->heap);
        *scratch = (struct bpe_scratch){0};
        scratch->symbols = sys_new(t->sys, capacity, sizeof *scratch->symbols, "the symbols of a piece", e);
        scratch->heap = sys_new(t->sys, capacity, 2 * sizeof *scratch->heap, "the merges of a piece", e);
        if (e->code) return e->code;
        scratch->capacity = capacity;
    }
    int32_t n = (t->by_character ? character_symbols : byte_symbols)(t, piece, scratch->symbols);
    if (n) scratch->symbols[n - 1].next = -1;
    merge_all(&t->merges, scratch, n);
    for (int32_t i = n ? 0 : -1; i >= 0; i = scratch->symbols[i].next)
        if (id_list_push(t->sys, out, scratch->symbols[i].id, e)) return e->code;
    return OK;
}
