/* The shared row loops: see simd.h. */
#include "kernels/cpu/simd.h"

#include <stddef.h>
#include <string.h>

WIDE static void widen_bf16(float *restrict to, const uint16_t *restrict from, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = bf16_f32(from[i]);
}

WIDE static void widen_f16(float *restrict to, const uint16_t *restrict from, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = f16_f32(from[i]);
}

void simd_widen(float *to, const void *from, enum dtype dtype, int64_t n) {
    if (dtype == DTYPE_BF16)
        widen_bf16(to, from, n);
    else if (dtype == DTYPE_F16)
        widen_f16(to, from, n);
    else
        memcpy(to, from, (size_t)n * sizeof *to);
}

WIDE static void round_f32(uint16_t *restrict to, const float *restrict from, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = f32_bf16(from[i]);
}

WIDE static void round_f16(uint16_t *restrict to, const uint16_t *restrict from, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = f32_bf16(f16_f32(from[i]));
}

void simd_round(uint16_t *to, const void *from, enum dtype dtype, int64_t n) {
    if (dtype == DTYPE_F16)
        round_f16(to, from, n);
    else
        round_f32(to, from, n);
}

enum { PACK_OUTPUTS = 64, PACK_INPUTS = 32, TILE = 16 };

typedef float lanes __attribute__((vector_size(TILE * sizeof(float)), aligned(sizeof(float))));

/* Lanes of two rows d apart when the off-diagonal d x d squares of their tile change places: j of a and
 * TILE + j of b. */
#define UPPER(j, d) ((j) & (d) ? TILE + (j) - (d) : (j))
#define LOWER(j, d) ((j) & (d) ? TILE + (j) : (j) + (d))
#define LANES(of, d)                                                                                         \
    of(0, d), of(1, d), of(2, d), of(3, d), of(4, d), of(5, d), of(6, d), of(7, d), of(8, d), of(9, d),      \
        of(10, d), of(11, d), of(12, d), of(13, d), of(14, d), of(15, d)
#define SWAP_SQUARES(row, d)                                                                                 \
    for (int i = 0; i < TILE; i++) {                                                                         \
        if (i & (d)) continue;                                                                               \
        lanes a = (row)[i], b = (row)[i + (d)];                                                              \
        (row)[i] = __builtin_shufflevector(a, b, LANES(UPPER, d));                                           \
        (row)[i + (d)] = __builtin_shufflevector(a, b, LANES(LOWER, d));                                     \
    }

/* Rows of a tile become columns of to: the compiler finds no such transposition by itself. */
static inline __attribute__((always_inline)) void transpose_tile(float *to, const float *tile) {
    lanes row[TILE];
    for (int i = 0; i < TILE; i++) row[i] = *(const lanes *)(tile + TILE * i);
    SWAP_SQUARES(row, 1)
    SWAP_SQUARES(row, 2)
    SWAP_SQUARES(row, 4)
    SWAP_SQUARES(row, 8)
    for (int i = 0; i < TILE; i++) *(lanes *)(to + PACK_OUTPUTS * i) = row[i];
}

/* inputs (in 16s) of 64 outputs: rows of from, k values apart, become columns of to. */
WIDE static void pack_bf16(float *to, const uint16_t *from, int64_t k, int inputs) {
    float tile[TILE * TILE];
    for (int n = 0; n < PACK_OUTPUTS; n += TILE)
        for (int first = 0; first < inputs; first += TILE) {
            for (int i = 0; i < TILE; i++)
                for (int j = 0; j < TILE; j++) tile[TILE * i + j] = bf16_f32(from[(n + i) * k + first + j]);
            transpose_tile(to + PACK_OUTPUTS * first + n, tile);
        }
}

WIDE static void pack_f16(float *to, const uint16_t *from, int64_t k, int inputs) {
    float tile[TILE * TILE];
    for (int n = 0; n < PACK_OUTPUTS; n += TILE)
        for (int first = 0; first < inputs; first += TILE) {
            for (int i = 0; i < TILE; i++)
                for (int j = 0; j < TILE; j++) tile[TILE * i + j] = f16_f32(from[(n + i) * k + first + j]);
            transpose_tile(to + PACK_OUTPUTS * first + n, tile);
        }
}

void simd_widen_packed(float *to, const struct tensor *from, int threads) {
    int64_t k = from->dim[1], pieces = (k + PACK_INPUTS - 1) / PACK_INPUTS;
    int64_t n = from->dim[0] / PACK_OUTPUTS * pieces;
    const uint16_t *weights = from->data;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t piece = 0; piece < n; piece++) {
        int64_t group = piece / pieces, first = piece % pieces * PACK_INPUTS;
        const uint16_t *rows = weights + group * PACK_OUTPUTS * k + first;
        float *columns = to + (group * k + first) * PACK_OUTPUTS;
        int inputs = (int)(k - first < PACK_INPUTS ? k - first : PACK_INPUTS);
        if (from->dtype == DTYPE_BF16)
            pack_bf16(columns, rows, k, inputs);
        else
            pack_f16(columns, rows, k, inputs);
    }
}

const float *simd_vector(const struct tensor *from, float *to) {
    if (from->rank == 0) return NULL;
    if (from->dtype == DTYPE_F32) return from->data;
    simd_widen(to, from->data, from->dtype, tensor_elements(from));
    return to;
}

WIDE static float dot(const float *a, const float *b, int64_t n) {
    float part[16] = {0};
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int j = 0; j < 16; j++) part[j] += a[i + j] * b[i + j];
    for (int j = 0; i < n; i++, j++) part[j] += a[i] * b[i];
    return sum_16(part);
}

float simd_dot(const float *a, const float *b, int64_t n) {
    return dot(a, b, n);
}

#define ACTIVATE(name, of)                                                                                   \
    WIDE static void name(float *to, const float *from, int64_t n) {                                         \
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++) to[i] = of(from[i]);                             \
    }
ACTIVATE(silu, silu_f32)
ACTIVATE(gelu_tanh, gelu_tanh_f32)
ACTIVATE(gelu_quick, gelu_quick_f32)

void simd_activate(enum activation activation, float *to, const float *from, int64_t n) {
    if (activation == ACTIVATION_SILU)
        silu(to, from, n);
    else if (activation == ACTIVATION_GELU_TANH)
        gelu_tanh(to, from, n);
    else if (activation == ACTIVATION_GELU_QUICK)
        gelu_quick(to, from, n);
    else if (to != from)
        memcpy(to, from, (size_t)n * sizeof *to);
}
