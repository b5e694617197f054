/* Conditionings that a session keeps: see conditionings.h. */
#include "engine/api/conditionings.h"

#include <string.h>

uint64_t conditioning_bytes(int64_t n_values) {
    return sizeof(struct conditioning) + (uint64_t)n_values * sizeof(float);
}

/* Where the list points to the one of that key, or to its end. */
static struct conditioning **place_of(struct conditionings *c, const uint8_t key[CONDITIONING_KEY_BYTES]) {
    struct conditioning **at = &c->first;
    while (*at && memcmp((*at)->key, key, CONDITIONING_KEY_BYTES) != 0) at = &(*at)->next;
    return at;
}

const struct conditioning *conditionings_find(struct conditionings *c,
                                              const uint8_t key[CONDITIONING_KEY_BYTES]) {
    struct conditioning **at = place_of(c, key), *found = *at;
    if (!found) return NULL;
    *at = found->next;
    found->next = c->first;
    c->first = found;
    return found;
}

void conditionings_shrink(struct conditionings *c, uint64_t bytes) {
    while (c->bytes > bytes) {
        struct conditioning **last = &c->first;
        while ((*last)->next) last = &(*last)->next;
        c->bytes -= conditioning_bytes((*last)->n_values);
        c->sys->release(c->sys, *last);
        *last = NULL;
    }
}

float *conditionings_keep(struct conditionings *c, const uint8_t key[CONDITIONING_KEY_BYTES],
                          int64_t n_values) {
    uint64_t bytes = conditioning_bytes(n_values);
    if (bytes > c->limit_bytes || *place_of(c, key)) return NULL;
    conditionings_shrink(c, c->limit_bytes - bytes);
    struct conditioning *kept = c->sys->alloc(c->sys, LINE_HOST, bytes);
    if (!kept) return NULL;
    kept->n_values = n_values;
    kept->next = c->first;
    memcpy(kept->key, key, sizeof kept->key);
    c->first = kept;
    c->bytes += bytes;
    return kept->values;
}
