/* Sorting what has names: by radix on the eight bytes behind what all names begin with, and only where these
 * are equal by comparing. A file at its limits takes ten times as long as one of a tenth, where comparing all
 * takes fifteen times: most of it waits for names that lie anywhere in the header. */
#include "loaders/gguf/header.h"
#include "loaders/memory.h"

#include <stdlib.h>
#include <string.h>

enum { KEY_BYTES = 8, VALUES = 256 };

/* Things of any size that begin with their names. */
struct things {
    char *at;
    uint64_t n;
    size_t bytes; /* of each */
};

struct key {
    uint64_t key, thing;
};

static const struct gguf_text *name_of(const struct things *t, uint64_t i) {
    return (const struct gguf_text *)(const void *)(t->at + i * t->bytes);
}

/* Bytes that all names begin with. */
static uint64_t shared_bytes(const struct things *t) {
    const struct gguf_text *first = name_of(t, 0);
    uint64_t shared = first->bytes;
    for (uint64_t i = 1; i < t->n; i++) {
        const struct gguf_text *name = name_of(t, i);
        uint64_t same = 0, most = name->bytes < shared ? name->bytes : shared;
        while (same < most && name->text[same] == first->text[same]) same++;
        shared = same;
    }
    return shared;
}

/* Big-endian, so that keys are in the order of their texts; zeros behind a text's end. */
static uint64_t key_of(const struct gguf_text *name, uint64_t from) {
    uint64_t key = 0;
    for (uint64_t i = from; i < from + KEY_BYTES; i++)
        key = key << 8 | (i < name->bytes ? (unsigned char)name->text[i] : 0);
    return key;
}

/* One byte of the keys, the order within equal ones kept. False if all have the same, and nothing moved. */
static bool sort_byte(const struct key *from, struct key *to, uint64_t n, int byte) {
    uint64_t places[VALUES] = {0}, place = 0;
    for (uint64_t i = 0; i < n; i++) places[from[i].key >> 8 * byte & (VALUES - 1)]++;
    if (places[from[0].key >> 8 * byte & (VALUES - 1)] == n) return false;
    for (int i = 0; i < VALUES; i++) {
        uint64_t count = places[i];
        places[i] = place;
        place += count;
    }
    for (uint64_t i = 0; i < n; i++) to[places[from[i].key >> 8 * byte & (VALUES - 1)]++] = from[i];
    return true;
}

static int compare_things(const void *a, const void *b) {
    return gguf_compare_texts(*(const struct gguf_text *)a, *(const struct gguf_text *)b);
}

/* Moves each thing to where its key is, along the cycles of who stands in whose place. */
static void place_things(const struct things *t, struct key *keys, char *spare) {
    for (uint64_t i = 0; i < t->n; i++) {
        uint64_t at = i, from;
        if (keys[i].thing == i) continue;
        memcpy(spare, t->at + i * t->bytes, t->bytes);
        for (; (from = keys[at].thing) != i; at = from) {
            memcpy(t->at + at * t->bytes, t->at + from * t->bytes, t->bytes);
            keys[at].thing = at;
        }
        memcpy(t->at + at * t->bytes, spare, t->bytes);
        keys[at].thing = at;
    }
}

static void sort_equals(const struct things *t, const struct key *keys) {
    for (uint64_t i = 0, end; i < t->n; i = end) {
        for (end = i + 1; end < t->n && keys[end].key == keys[i].key;) end++;
        if (end - i > 1) qsort(t->at + i * t->bytes, end - i, t->bytes, compare_things);
    }
}

enum status gguf_sort(struct sys *sys, void *things, int n, size_t bytes, struct error *e) {
    struct things t = {things, (uint64_t)n, bytes};
    if (n < 2) return OK;
    struct key *keys = alloc_array(sys, 2 * t.n, sizeof *keys, e), *from = keys, *to = keys;
    char *spare = alloc_array(sys, 1, bytes, e);
    if (e->code == OK) {
        uint64_t shared = shared_bytes(&t);
        to += n;
        for (uint64_t i = 0; i < t.n; i++) keys[i] = (struct key){key_of(name_of(&t, i), shared), i};
        for (int byte = 0; byte < KEY_BYTES; byte++) {
            if (!sort_byte(from, to, t.n, byte)) continue;
            struct key *other = from;
            from = to;
            to = other;
        }
        place_things(&t, from, spare);
        sort_equals(&t, from);
    }
    sys->release(sys, spare);
    sys->release(sys, keys);
    return e->code;
}
