/* Tile sizes of the int8 product kernel (linear_int8.cu). Pure functions; no CUDA headers needed. */
#ifndef SLUICE_CUDA_INT8_TILES_H
#define SLUICE_CUDA_INT8_TILES_H

#include <stdint.h>

/* Tile table: _(rows, columns, warps_m, warps_n, stages, blocks, share).
 *
 * rows, columns: part of the result that a thread block computes. warps_m, warps_n: warps along rows and
 * columns. stages: steps of 64 inputs in shared memory. blocks: thread blocks per multiprocessor. share:
 * speed relative to the largest tile, assumed, not measured. At full rate on compute capability 8.6 and 8.9,
 * the three tiles read 12, 16 and 24 bytes per clock and multiprocessor from the L2 cache, rates
 * near its limit.
 *
 * Limits: a lane needs rows / warps_m * columns / warps_n / 32 of its 255 registers for sums. One thread
 * block must fit into 99 KiB of shared memory, two into 98 KiB. */
#define INT8_TILES(_)                                                                                        \
    _(128, 256, 2, 4, 4, 1, 1.0)                                                                             \
    _(128, 128, 2, 2, 3, 2, 0.85)                                                                            \
    _(64, 128, 2, 2, 3, 2, 0.6)

/* Returns the calculated time of a product [m, k] . [n, k]^T with the fastest tile, and sets *tile to the
 * tile's number. Unit: the time of one output element (a sum over k) on one multiprocessor, at the largest
 * tile's rate. A partly filled tile, or last wave of tiles, takes as long as a full one. */
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
