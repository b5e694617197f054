/* Vectors of 16 f32, and the transposition of 16 x 16 values of 32 bits. Compilers split the vectors for
 * narrower instruction sets. The transposition only moves values, so they may have any type. */
#ifndef SLUICE_BASE_TILE_H
#define SLUICE_BASE_TILE_H

enum { TILE = 16 };

typedef float f32x16 __attribute__((vector_size(TILE * sizeof(float)), aligned(sizeof(float)), may_alias));

/* The 16 shuffle indices of(0, d) to of(15, d). */
#define SIXTEEN(of, d)                                                                                       \
    of(0, d), of(1, d), of(2, d), of(3, d), of(4, d), of(5, d), of(6, d), of(7, d), of(8, d), of(9, d),      \
        of(10, d), of(11, d), of(12, d), of(13, d), of(14, d), of(15, d)

/* Shuffle indices that swap the off-diagonal d x d squares of a tile between rows `a` and `b`, d apart. Index
 * j: lane j of row `a`; TILE + j: lane j of row `b`. */
#define UPPER(j, d) ((j) & (d) ? TILE + (j) - (d) : (j))
#define LOWER(j, d) ((j) & (d) ? TILE + (j) : (j) + (d))
#define SWAP_SQUARES(row, d)                                                                                 \
    for (int i = 0; i < TILE; i++) {                                                                         \
        if (i & (d)) continue;                                                                               \
        f32x16 a = (row)[i], b = (row)[i + (d)];                                                             \
        (row)[i] = __builtin_shufflevector(a, b, SIXTEEN(UPPER, d));                                         \
        (row)[i + (d)] = __builtin_shufflevector(a, b, SIXTEEN(LOWER, d));                                   \
    }

/* Transposes a tile in place; compilers do not generate this shuffle sequence themselves. */
static inline __attribute__((always_inline)) void tile_transpose(f32x16 row[TILE]) {
    SWAP_SQUARES(row, 1)
    SWAP_SQUARES(row, 2)
    SWAP_SQUARES(row, 4)
    SWAP_SQUARES(row, 8)
}

#endif
