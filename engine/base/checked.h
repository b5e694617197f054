/* Overflow-checked arithmetic, for numbers that come from files or flags. */
#ifndef SLUICE_BASE_CHECKED_H
#define SLUICE_BASE_CHECKED_H

#include <stdbool.h>
#include <stdint.h>

/* Stores the result and returns true; on overflow returns false and leaves *out unchanged. */
static inline bool add_u64(uint64_t a, uint64_t b, uint64_t *out) {
    return !__builtin_add_overflow(a, b, out);
}

static inline bool multiply_u64(uint64_t a, uint64_t b, uint64_t *out) {
    return !__builtin_mul_overflow(a, b, out);
}

/* Rounds value up to a multiple of align (a power of two). The result must fit into 64 bits. */
static inline uint64_t align_up(uint64_t value, uint64_t align) {
    return (value + align - 1) & ~(align - 1);
}

#endif
