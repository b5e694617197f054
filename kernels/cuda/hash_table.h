/* Hash table of library objects by shape: open addressing, at most half full.
 *
 * An entry starts with its key. The key's first int32_t is never 0 and all bytes of the key are significant.
 * The table grows only in prepare(), never in run(); entry addresses are valid until the table grows. */
#ifndef SLUICE_CUDA_HASH_TABLE_H
#define SLUICE_CUDA_HASH_TABLE_H

#include "engine/base/sys.h"

#include <stdint.h>
#include <string.h>

struct hash_table {
    struct sys *sys;
    char *entries;
    size_t key_bytes, entry_bytes;
    uint64_t n, capacity; /* number of used entries; number of allocated entries, a power of two or 0 */
};

/* Returns hash table entry i, or NULL if the entry is unused. */
static inline void *hash_table_at(const struct hash_table *table, uint64_t i) {
    char *entry = table->entries + i * table->entry_bytes;
    int32_t first;
    memcpy(&first, entry, sizeof first);
    return first ? entry : NULL;
}

/* Returns the index of the entry with this key, or of the unused entry where the key belongs. */
static inline uint64_t hash_table_place(const struct hash_table *table, const void *key) {
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    for (size_t i = 0; i < table->key_bytes; i++)
        hash = (hash ^ ((const unsigned char *)key)[i]) * 0x100000001b3u;
    uint64_t at = (hash ^ hash >> 32) & (table->capacity - 1);
    for (void *entry; (entry = hash_table_at(table, at)) && memcmp(entry, key, table->key_bytes) != 0;)
        at = (at + 1) & (table->capacity - 1);
    return at;
}

static inline void *hash_table_find(const struct hash_table *table, const void *key) {
    return table->capacity ? hash_table_at(table, hash_table_place(table, key)) : NULL;
}

static inline void *hash_table_put(struct hash_table *table, const void *entry) {
    char *to = table->entries + hash_table_place(table, entry) * table->entry_bytes;
    memcpy(to, entry, table->entry_bytes);
    table->n++;
    return to;
}

/* Adds a copy of an entry, whose key is new, to the hash table. Returns NULL if memory is short. */
static inline void *hash_table_add(struct hash_table *table, const void *entry) {
    enum { CAPACITY = 64 };
    if (2 * (table->n + 1) > table->capacity) {
        struct hash_table bigger = *table;
        bigger.n = 0;
        bigger.capacity = table->capacity ? 2 * table->capacity : CAPACITY;
        bigger.entries =
            (char *)table->sys->alloc(table->sys, LINE_HOST, bigger.capacity * table->entry_bytes);
        if (!bigger.entries) return NULL;
        for (uint64_t i = 0; i < table->capacity; i++)
            if (hash_table_at(table, i)) hash_table_put(&bigger, hash_table_at(table, i));
        table->sys->release(table->sys, table->entries);
        *table = bigger;
    }
    return hash_table_put(table, entry);
}

#endif
