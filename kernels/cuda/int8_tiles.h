/* Tile sizes of the int8 product kernel (linear_int8.cu). Pure functions; no CUDA headers needed. */
#ifndef SLUICE_CUDA_INT8_TILES_H
#define SLUICE_CUDA_INT8_TILES_H

#include <stdint.h>

/* Tile table: _(rows, columns, warps_m, warps_n, stages, blocks, share).
 *
 * rows, columns: part of the result that a thread block computes. warps_m, warps_n: warps along rows and
 * columns. stages: steps of 64 inputs in shared memory. blocks: thread blocks per multiprocessor. share:
 * assumed speed relative to the largest tile, not measured: at full rate on compute capability 8.6 and 8.9,
 * blocks read 12, 16 and 24 bytes per clock and multiprocessor from the L2 cache, which is near its limit.
 *
 * Limits: a lane has rows / warps_m * columns / warps_n / 32 registers of sums, of 255 in total. A thread
 * block must fit into 99 KiB of shared memory, two into 98 KiB. */
#define INT8_TILES(_)                                                                                        \
    _(128, 256, 2, 4, 4, 1, 1.0)                                                                             \
    _(128, 128, 2, 2, 3, 2, 0.85)                                                                            \
    _(64, 128, 2, 2, 3, 2, 0.6)

/* Returns the calculated time of a product [m, k] . [n, k]^T on a GPU with so many multiprocessors, in sums
 * of k that one multiprocessor computes at the largest tile's rate. *tile gets the number of the fastest
 * tile: the unused parts of last tiles and of the last wave of tiles count. */
static inline double int8_product_cost(int32_t m, int32_t n, int multiprocessors, int *tile) {
    double least = 0, cost;
    int64_t tiles;
    int number = 0;
    *tile = 0;
#define COMPARE_TILE(rows, columns, warps_m, warps_n, stages, blocks, share)                                 \
    tiles = (int64_t)((m - 1) / (rows) + 1) * ((n - 1) / (columns) + 1);                                     \
    cost = (double)((tiles - 1) / multiprocessors + 1) * ((rows) * (columns)) / (share);                     \
    if (!number || cost < least) least = cost, *tile = number;                                               \
    number++;
    INT8_TILES(COMPARE_TILE)
#undef COMPARE_TILE
    return least;
}

#endif
