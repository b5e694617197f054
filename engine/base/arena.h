/* A bump allocator over borrowed memory. With base == NULL it only counts bytes: a dry run measures the
 * memory of a forward function in this way. */
#ifndef SLUICE_BASE_ARENA_H
#define SLUICE_BASE_ARENA_H

#include "engine/base/checked.h"
#include "engine/base/tensor.h"

#include <stddef.h>

/* alignment of every tensor in bytes: vector loads and vendor libraries need at most this */
enum { ARENA_ALIGN = 256 };

struct arena {
    char *base;
    uint64_t bytes; /* size of the memory at base in bytes; UINT64_MAX when the arena only counts */
    uint64_t used, peak;
};

static inline struct arena arena_counting(void) {
    return (struct arena){.bytes = UINT64_MAX};
}

/* Returns an arena that only counts bytes. Each such arena has its own unused address range, so that
 * arena_holds recognises tensors of the arena. */
static inline struct arena arena_counting_apart(void) {
    return (struct arena){.base = (char *)((uintptr_t)1 << 62), .bytes = (uint64_t)1 << 61};
}

static inline bool arena_holds(const struct arena *arena, const void *data) {
    return arena->base && (uintptr_t)data - (uintptr_t)arena->base < arena->peak;
}

/* Allocates a packed tensor with undefined contents. *ok becomes false if the arena is full. */
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
