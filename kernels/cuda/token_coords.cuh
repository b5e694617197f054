/* Positions of an image's tokens on the GPU, and their places in a learned table, by the same steps as
 * token_coords_at and table_place_at of positions.c. */
#ifndef SLUICE_CUDA_TOKEN_COORDS_CUH
#define SLUICE_CUDA_TOKEN_COORDS_CUH

#include "kernels/cuda/operators.h"
#include "kernels/cuda/ptx.cuh"

__device__ static inline int32_t window_part(int32_t window, int32_t first, int32_t of) {
    return of - first < window ? of - first : window;
}

/* Divides in 32 bits: images have fewer than 2^31 tokens, and 64-bit division takes about 100 instructions.
 */
__device__ static inline struct token_coords cuda_token_coords_at(const struct token_order &order,
                                                                  int32_t rows, int32_t columns, uint32_t i) {
    int32_t row = 0, column = 0, window = order.window;
    if (window) {
        row = (int32_t)(i / (uint32_t)(window * columns)) * window;
        i -= (uint32_t)(row * columns);
        rows = window_part(window, row, rows);
        column = (int32_t)(i / (uint32_t)(rows * window)) * window;
        i -= (uint32_t)(rows * column);
        columns = window_part(window, column, columns);
    }
    uint32_t side = order.block > 1 ? (uint32_t)order.block : 1, across = (uint32_t)columns / side;
    uint32_t block = i / (side * side), inside = i % (side * side);
    return {row + (int32_t)(block / across * side + inside / side),
            column + (int32_t)(block % across * side + inside % side)};
}

__device__ static inline struct table_place cuda_table_place_at(int32_t i, int32_t n, int32_t side) {
    float at = (float)(i * (side - 1)) / (float)(n > 1 ? n - 1 : 1);
    int32_t first = (int32_t)at;
    return {first, first + 1 < side ? first + 1 : first, at - (float)first};
}

#endif
