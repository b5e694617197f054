/* What a library's door keeps of each shape: a table by key, open addressing, at most half full.
 *
 * An entry begins with its key, whose first number is an int32_t that is never 0, and whose bytes are all
 * meaningful. It grows when something is prepared, never in a run. Addresses of entries hold until then. */
#ifndef SLUICE_CUDA_KEYS_H
#define SLUICE_CUDA_KEYS_H

#include "engine/base/sys.h"

#include <stdint.h>
#include <string.h>

struct keys {
    struct sys *sys;
    char *entries;
    size_t key_bytes, entry_bytes;
    uint64_t n, capacity; /* a power of two, or 0 */
};

/* NULL where the place is free. */
static inline void *keys_at(const struct keys *keys, uint64_t i) {
    char *entry = keys->entries + i * keys->entry_bytes;
    int32_t first;
    memcpy(&first, entry, sizeof first);
    return first ? entry : NULL;
}

/* Where the key is, or the free place where it belongs. */
static inline uint64_t keys_place(const struct keys *keys, const void *key) {
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    for (size_t i = 0; i < keys->key_bytes; i++)
        hash = (hash ^ ((const unsigned char *)key)[i]) * 0x100000001b3u;
    uint64_t at = (hash ^ hash >> 32) & (keys->capacity - 1);
    for (void *entry; (entry = keys_at(keys, at)) && memcmp(entry, key, keys->key_bytes) != 0;)
        at = (at + 1) & (keys->capacity - 1);
    return at;
}

/* NULL: it is not there. */
static inline void *keys_find(const struct keys *keys, const void *key) {
    return keys->capacity ? keys_at(keys, keys_place(keys, key)) : NULL;
}

static inline void *keys_put(struct keys *keys, const void *entry) {
    char *to = keys->entries + keys_place(keys, entry) * keys->entry_bytes;
    memcpy(to, entry, keys->entry_bytes);
    keys->n++;
    return to;
}

/* A copy of an entry whose key is not there yet; NULL: no memory. */
static inline void *keys_add(struct keys *keys, const void *entry) {
    enum { CAPACITY = 64 };
    if (2 * (keys->n + 1) > keys->capacity) {
        struct keys bigger = *keys;
        bigger.n = 0;
        bigger.capacity = keys->capacity ? 2 * keys->capacity : CAPACITY;
        bigger.entries = (char *)keys->sys->alloc(keys->sys, LINE_HOST, bigger.capacity * keys->entry_bytes);
        if (!bigger.entries) return NULL;
        for (uint64_t i = 0; i < keys->capacity; i++)
            if (keys_at(keys, i)) keys_put(&bigger, keys_at(keys, i));
        keys->sys->release(keys->sys, keys->entries);
        *keys = bigger;
    }
    return keys_put(keys, entry);
}

#endif
