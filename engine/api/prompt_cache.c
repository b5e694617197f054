#include "engine/api/prompt_cache.h"

#include <string.h>

uint64_t prompt_cache_entry_bytes(int64_t n_values) {
    return sizeof(struct prompt_cache_entry) + (uint64_t)n_values * sizeof(float);
}

/* The pointer in the list that points to the entry with the key, or the list's terminating NULL pointer. */
static struct prompt_cache_entry **find_link(struct prompt_cache *c,
                                             const uint8_t key[PROMPT_CACHE_KEY_BYTES]) {
    struct prompt_cache_entry **at = &c->first;
    while (*at && memcmp((*at)->key, key, PROMPT_CACHE_KEY_BYTES) != 0) at = &(*at)->next;
    return at;
}

const struct prompt_cache_entry *prompt_cache_get(struct prompt_cache *c,
                                                  const uint8_t key[PROMPT_CACHE_KEY_BYTES]) {
    struct prompt_cache_entry **at = find_link(c, key), *found = *at;
    if (!found) return NULL;
    *at = found->next;
    found->next = c->first;
    c->first = found;
    return found;
}

void prompt_cache_evict(struct prompt_cache *c, uint64_t bytes) {
    while (c->bytes > bytes) {
        struct prompt_cache_entry **last = &c->first;
        while ((*last)->next) last = &(*last)->next;
        c->bytes -= prompt_cache_entry_bytes((*last)->n_values);
        c->sys->release(c->sys, *last);
        *last = NULL;
    }
}

float *prompt_cache_insert(struct prompt_cache *c, const uint8_t key[PROMPT_CACHE_KEY_BYTES],
                           int64_t n_values) {
    uint64_t bytes = prompt_cache_entry_bytes(n_values);
    if (bytes > c->limit_bytes || *find_link(c, key)) return NULL;
    prompt_cache_evict(c, c->limit_bytes - bytes);
    struct prompt_cache_entry *entry = c->sys->alloc(c->sys, LINE_HOST, bytes);
    if (!entry) return NULL;
    entry->n_values = n_values;
    entry->next = c->first;
    memcpy(entry->key, key, sizeof entry->key);
    c->first = entry;
    c->bytes += bytes;
    return entry->values;
}
