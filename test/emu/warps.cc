/* Warp operations: each lane stores its operands, and the last lane to arrive computes the results of all
 * lanes. kernels/cuda/ptx.cuh describes the fragment layouts. */
#include "internal.h"
#include "ptx_emulated.h"

#include <math.h>

struct shuffled {
    uint64_t value, result;
    int from;
};

static void shuffle_all(void *const operands[32], uint32_t mask) {
    for (uint32_t lanes = mask; lanes; lanes &= lanes - 1) {
        auto *to = static_cast<shuffled *>(operands[__builtin_ctz(lanes)]);
        if (!(mask >> to->from & 1))
            refuse("kernel %s: shuffle of lane %d reads absent lane %d, mask %08x", kernel_running(),
                   __builtin_ctz(lanes), to->from, mask);
        to->result = static_cast<shuffled *>(operands[to->from])->value;
    }
}

uint64_t emu_shuffle(uint32_t mask, uint64_t value, int from_lane, const char *file, int line) {
    shuffled s = {value, 0, from_lane};
    warp_meet(mask, shuffle_all, "shuffle", &s, file, line);
    return s.result;
}

struct vote {
    bool yes;
    uint32_t result;
};

static void vote_all(void *const operands[32], uint32_t mask) {
    uint32_t result = 0;
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1) result |= (uint32_t) static_cast<vote *>(operands[i])->yes << i;
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1) static_cast<vote *>(operands[i])->result = result;
}

uint32_t emu_ballot(uint32_t mask, bool yes, const char *file, int line) {
    vote v = {yes, 0};
    warp_meet(mask, vote_all, "vote", &v, file, line);
    return v.result;
}

static void ldmatrix_tiles(void *const operands[32], bool transposed) {
    uint16_t rows[32][8];
    for (int i = 0; i < 32; i++) quiet_copy(rows[i], operands[i], 16);
    for (int lane = 0; lane < 32; lane++) {
        auto *to = static_cast<uint32_t *>(operands[lane]);
        int g = lane / 4, p = lane % 4;
        for (int tile = 0; tile < 4; tile++) {
            const uint16_t(*t)[8] = rows + 8 * tile;
            uint32_t low = transposed ? t[2 * p][g] : t[g][2 * p];
            uint32_t high = transposed ? t[2 * p + 1][g] : t[g][2 * p + 1];
            to[tile] = low | high << 16;
        }
    }
}

static void ldmatrix_straight(void *const operands[32], uint32_t) {
    ldmatrix_tiles(operands, false);
}

static void ldmatrix_transposed(void *const operands[32], uint32_t) {
    ldmatrix_tiles(operands, true);
}

void emu_ldmatrix(uint32_t value[4], bool transposed, const char *file, int line) {
    warp_meet(0xFFFFFFFFu, transposed ? ldmatrix_transposed : ldmatrix_straight, "ldmatrix", value, file,
              line);
}

/* The operand type of an mma with f32 arithmetic: conversion of the two values in a word, and sums. */
struct bf16_type {
    typedef float sums[4];
    static float low(uint32_t two) {
        return emu_bits<float>(two << 16);
    }
    static float high(uint32_t two) {
        return emu_bits<float>(two & 0xFFFF0000u);
    }
    static void load(float to[4], const sums &from) {
        for (int i = 0; i < 4; i++) to[i] = from[i];
    }
    static void store(sums &to, const float from[4]) {
        for (int i = 0; i < 4; i++) to[i] = from[i];
    }
};

/* Sums are rounded to f16 after each instruction. */
struct f16_type {
    typedef uint32_t sums[2];
    static float low(uint32_t two) {
        return cuda_f16_f32((uint16_t)two);
    }
    static float high(uint32_t two) {
        return cuda_f16_f32((uint16_t)(two >> 16));
    }
    static void load(float to[4], const sums &from) {
        for (int i = 0; i < 4; i++) to[i] = i % 2 ? high(from[i / 2]) : low(from[i / 2]);
    }
    static void store(sums &to, const float from[4]) {
        for (int i = 0; i < 2; i++) to[i] = pack_f16(from[2 * i], from[2 * i + 1]);
    }
};

template <class T> struct product {
    typename T::sums *d;
    const uint32_t *a, (*b)[2];
    int n;
};

typedef float row8 __attribute__((vector_size(32), may_alias));

/* How tensor cores sum, as measured on several generations (Fasi, Higham, Mikaitis, Pranesh, "Numerical
 * behavior of NVIDIA tensor cores", 2021): the accumulator and eight exact products are aligned to their
 * largest exponent, truncated and added, and the sum is truncated again. The coarsest tensor cores keep 23
 * fraction bits. */
enum { SUMMED_AT_ONCE = 8, BITS_KEPT = 23 };

/* Rounds a term towards 0 to a multiple of `unit`. */
static inline double cut_off(double value, double unit) {
    return (double)(int64_t)(value / unit) * unit;
}

static inline int exponent_of(double value) {
    return (int)(emu_bits<uint64_t>(value) >> 52 & 2047) - 1023;
}

static float truncated(double value) {
    float nearest = (float)value;
    if (fabs((double)nearest) <= fabs(value) || !isfinite(nearest)) return nearest;
    return emu_bits<float>(emu_bits<uint32_t>(nearest) - 1);
}

static float sum_cut_off(float before, const float *a, const float (*b)[8], int column) {
    double terms[SUMMED_AT_ONCE + 1], sum = 0;
    int most = -1022;
    for (int i = 0; i <= SUMMED_AT_ONCE; i++) {
        terms[i] = i < SUMMED_AT_ONCE ? (double)a[i] * (double)b[i][column] : (double)before;
        if (!isfinite(terms[i])) return before + (float)terms[i];
        if (exponent_of(terms[i]) > most) most = exponent_of(terms[i]);
    }
    if (most < -900) return before; /* accumulator and products of the tensor core are 0 */
    double unit = emu_bits<double>((uint64_t)(most - BITS_KEPT + 1023) << 52);
    for (double term : terms) sum += cut_off(term, unit);
    return truncated(sum);
}

static void add_cut_off(float (*d)[8], const float (*a)[16], const float (*b)[8]) {
    for (int k = 0; k < 16; k += SUMMED_AT_ONCE)
        for (int row = 0; row < 16; row++)
            for (int column = 0; column < 8; column++)
                d[row][column] = sum_cut_off(d[row][column], a[row] + k, b + k, column);
}

__attribute__((always_inline)) static inline void add_rounded(float (*d)[8], const float (*a)[16],
                                                              const float (*b)[8]) {
    const row8 *b_row = reinterpret_cast<const row8 *>(b);
    row8 *d_row = reinterpret_cast<row8 *>(d);
    for (int row = 0; row < 16; row += 4) {
        row8 s0 = d_row[row], s1 = d_row[row + 1], s2 = d_row[row + 2], s3 = d_row[row + 3];
        for (int k = 0; k < 16; k++) {
            s0 += a[row][k] * b_row[k];
            s1 += a[row + 1][k] * b_row[k];
            s2 += a[row + 2][k] * b_row[k];
            s3 += a[row + 3][k] * b_row[k];
        }
        d_row[row] = s0, d_row[row + 1] = s1, d_row[row + 2] = s2, d_row[row + 3] = s3;
    }
}

template <class T>
__attribute__((always_inline)) static inline void mma_tile(const product<T> *const all[32],
                                                           const float (*a)[16], int tile) {
    float b[16][8] __attribute__((aligned(32))), d[16][8] __attribute__((aligned(32)));
    for (int lane = 0; lane < 32; lane++) {
        int g = lane / 4, p = lane % 4 * 2;
        const uint32_t *word = all[lane]->b[tile];
        float sum[4];
        T::load(sum, all[lane]->d[tile]);
        b[p][g] = T::low(word[0]), b[p + 1][g] = T::high(word[0]);
        b[p + 8][g] = T::low(word[1]), b[p + 9][g] = T::high(word[1]);
        d[g][p] = sum[0], d[g][p + 1] = sum[1], d[g + 8][p] = sum[2], d[g + 8][p + 1] = sum[3];
    }
    if (now.truncates)
        add_cut_off(d, a, b);
    else
        add_rounded(d, a, b);
    for (int lane = 0; lane < 32; lane++) {
        int g = lane / 4, p = lane % 4 * 2;
        float sum[4] = {d[g][p], d[g][p + 1], d[g + 8][p], d[g + 8][p + 1]};
        T::store(all[lane]->d[tile], sum);
    }
}

template <class T> __attribute__((always_inline)) static inline void mma_tiles(void *const operands[32]) {
    const product<T> *all[32];
    float a[16][16];
    for (int lane = 0; lane < 32; lane++) {
        all[lane] = static_cast<product<T> *>(operands[lane]);
        int g = lane / 4, p = lane % 4 * 2;
        const uint32_t *word = all[lane]->a;
        a[g][p] = T::low(word[0]), a[g][p + 1] = T::high(word[0]);
        a[g + 8][p] = T::low(word[1]), a[g + 8][p + 1] = T::high(word[1]);
        a[g][p + 8] = T::low(word[2]), a[g][p + 9] = T::high(word[2]);
        a[g + 8][p + 8] = T::low(word[3]), a[g + 8][p + 9] = T::high(word[3]);
    }
    for (int tile = 0; tile < all[0]->n; tile++) mma_tile<T>(all, a, tile);
}

template <class T> __attribute__((target("avx2"))) static void mma_wide(void *const operands[32]) {
    mma_tiles<T>(operands);
}

template <class T> static void mma_any(void *const operands[32]) {
    mma_tiles<T>(operands);
}

template <class T> static void mma_all(void *const operands[32], uint32_t) {
    if (__builtin_cpu_supports("avx2"))
        mma_wide<T>(operands);
    else
        mma_any<T>(operands);
}

void emu_mma(float (*d)[4], const uint32_t *a, const uint32_t (*b)[2], int n, const char *file, int line) {
    product<bf16_type> p = {d, a, b, n};
    warp_meet(0xFFFFFFFFu, mma_all<bf16_type>, "mma", &p, file, line);
}

void emu_mma_f16(uint32_t (*d)[2], const uint32_t *a, const uint32_t (*b)[2], int n, const char *file,
                 int line) {
    product<f16_type> p = {d, a, b, n};
    warp_meet(0xFFFFFFFFu, mma_all<f16_type>, "mma (f16)", &p, file, line);
}

struct product_s8 {
    int32_t (*d)[4];
    const uint32_t *a, (*b)[2];
    int n;
};

/* Unpacks the four signed bytes of a word, the lowest first. */
static inline void unpack_s8(int16_t *to, uint32_t word) {
    for (int i = 0; i < 4; i++) to[i] = (int8_t)(word >> 8 * i);
}

static void mma_s8_tile(const product_s8 *const all[32], const int16_t (*a)[32], int tile) {
    int16_t b[8][32]; /* [column][k] */
    for (int lane = 0; lane < 32; lane++)
        for (int half = 0; half < 2; half++)
            unpack_s8(b[lane / 4] + lane % 4 * 4 + 16 * half, all[lane]->b[tile][half]);
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 4; i++) {
            const int16_t *row = a[lane / 4 + i / 2 * 8], *column = b[lane % 4 * 2 + i % 2];
            int32_t sum = 0;
            for (int k = 0; k < 32; k++) sum += row[k] * column[k];
            all[lane]->d[tile][i] = (int32_t)((uint32_t)all[lane]->d[tile][i] + (uint32_t)sum);
        }
}

static void mma_s8_all(void *const operands[32], uint32_t) {
    const product_s8 *all[32];
    int16_t a[16][32];
    for (int lane = 0; lane < 32; lane++) {
        all[lane] = static_cast<product_s8 *>(operands[lane]);
        for (int i = 0; i < 4; i++)
            unpack_s8(a[lane / 4 + i % 2 * 8] + lane % 4 * 4 + i / 2 * 16, all[lane]->a[i]);
    }
    for (int tile = 0; tile < all[0]->n; tile++) mma_s8_tile(all, a, tile);
}

void emu_mma_s8(int32_t (*d)[4], const uint32_t *a, const uint32_t (*b)[2], int n, const char *file,
                int line) {
    product_s8 p = {d, a, b, n};
    warp_meet(0xFFFFFFFFu, mma_s8_all, "mma_s8", &p, file, line);
}
