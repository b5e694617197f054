/* A bump allocator over memory that somebody else owns. With base == NULL it only counts: that is how the dry
 * device learns how much a forward needs. */
#ifndef SLUICE_BASE_ARENA_H
#define SLUICE_BASE_ARENA_H

#include "engine/base/checked.h"
#include "engine/base/tensor.h"

#include <stddef.h>

/* Every tensor starts at a multiple of this: what the widest vector load and the libraries ask for. */
enum { ARENA_ALIGN = 256 };

struct arena {
    char *base;
    uint64_t bytes; /* of base; UINT64_MAX when counting */
    uint64_t used, peak;
};

static inline struct arena arena_counting(void) {
    return (struct arena){.bytes = UINT64_MAX};
}

/* Counts too, at addresses that are nobody's: what lies in it can be told from everything else by where it
 * lies. Nothing is ever there. */
static inline struct arena arena_counting_apart(void) {
    return (struct arena){.base = (char *)((uintptr_t)1 << 62), .bytes = (uint64_t)1 << 61};
}

static inline bool arena_holds(const struct arena *arena, const void *data) {
    return arena->base && (uintptr_t)data - (uintptr_t)arena->base < arena->peak;
}

/* A packed tensor of these dimensions; its contents are undefined. *ok becomes false when the arena is full.
 */
static inline struct tensor arena_tensor(struct arena *arena, enum dtype dtype, int rank, const int32_t *dim,
                                         bool *ok) {
    struct tensor t = tensor_make(NULL, dtype, rank, dim);
    uint64_t bytes = align_up((uint64_t)tensor_bytes(&t), ARENA_ALIGN);
    if (bytes > arena->bytes - arena->used) {
        *ok = false;
        return t;
    }
    if (arena->base) t.data = arena->base + arena->used;
    arena->used += bytes;
    if (arena->used > arena->peak) arena->peak = arena->used;
    return t;
}

#endif
