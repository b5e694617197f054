/* Rotation, quantisation and packing of the rows of int8 products. */
#include "kernels/cpu/int8.h"

#include "engine/base/convrot.h"
#include "kernels/cpu/simd.h"

#include <math.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

/* Bits of |value|. As integers they have the order of the magnitudes; infinity and NaN are the largest. */
INLINE int32_t magnitude_bits(float value) {
    return (int32_t)((union float_bits){.value = value}.bits & 0x7fffffffu);
}

INLINE int32_t rotate_row(float *to, const float *from, int64_t k, int group) {
    int32_t largest[TILE] = {0}, all = 0;
    for (int64_t i = 0; i < k; i += group) {
        convrot_rotate(to + i, from + i, group);
        for (int j = 0; j < group; j += TILE)
#pragma omp simd
            for (int l = 0; l < TILE; l++) {
                int32_t magnitude = magnitude_bits(to[i + j + l]);
                largest[l] = magnitude > largest[l] ? magnitude : largest[l];
            }
    }
    for (int l = 0; l < TILE; l++) all = largest[l] > all ? largest[l] : all;
    return all;
}

/* Define rotate_16, rotate_64 and rotate_256: rotate a row and return magnitude_bits of its largest value. */
#define ROTATOR(group)                                                                                       \
    WIDE static int32_t rotate_##group(float *to, const float *from, int64_t k) {                            \
        return rotate_row(to, from, k, group);                                                               \
    }
ROTATOR(16)
ROTATOR(64)
ROTATOR(256)

/* Writes the codes of rotated values, plus `zero` modulo 256. */
WIDE static void write_codes(uint8_t *restrict to, const float *restrict from, float scale, int64_t n,
                             uint8_t zero) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) to[i] = (uint8_t)(convrot_code(from[i], scale) + zero);
}

float int8_quantise_row(uint8_t *codes, float *rotated, const float *from, int64_t k, int32_t group,
                        uint8_t zero) {
    enum { FINITE_MOST = 0x7f7fffff }; /* bits of FLT_MAX */
    int32_t largest = group == 256  ? rotate_256(rotated, from, k)
                      : group == 64 ? rotate_64(rotated, from, k)
                                    : rotate_16(rotated, from, k);
    float scale = (union float_bits){.bits = (uint32_t)largest}.value / 127;
    if (largest <= FINITE_MOST && scale > 0) {
        write_codes(codes, rotated, scale, k, zero);
        return group == 256 ? scale * 0x1p-4f : group == 64 ? scale * 0x1p-3f : scale * 0x1p-2f;
    }
    memset(codes, zero, (size_t)k);
    return largest <= FINITE_MOST ? 0 : NAN;
}

/* Transposes tiles of 16 x 16 units; a unit is four codes. */
WIDE static void pack_rows(uint8_t *to, const uint8_t *codes, int64_t k) {
    for (int64_t j = 0; j < k; j += INT8_BLOCK, to += INT8_BLOCK * INT8_BLOCK) {
        f32x16 row[TILE];
        for (int i = 0; i < TILE; i++) row[i] = *(const f32x16 *)(const void *)(codes + i * k + j);
        tile_transpose(row);
        for (int i = 0; i < TILE; i++) *(f32x16 *)(void *)(to + 4 * INT8_BLOCK * i) = row[i];
    }
}

WIDE static int32_t sum_codes(const uint8_t *codes, int64_t n) {
    int32_t sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) sum += (int8_t)codes[i];
    return sum;
}

int32_t int8_sum(const uint8_t *codes, int64_t n) {
    return sum_codes(codes, n);
}

void int8_pack_rows(uint8_t *to, const uint8_t *codes, int64_t k) {
    pack_rows(to, codes, k);
}

WIDE static void scale_sums(float *to, const void *sums, const int32_t *weight_sums,
                            const float *weight_scales, float scale, int64_t n) {
    const union float_bits *from = sums;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        int32_t sum = (int32_t)(from[i].bits - INT8_ZERO * (uint32_t)weight_sums[i]);
        to[i] = (float)sum * weight_scales[i] * scale;
    }
}

void int8_scale_sums(float *to, const void *sums, const int32_t *weight_sums, const float *weight_scales,
                     float scale, int64_t n) {
    scale_sums(to, sums, weight_sums, weight_scales, scale, n);
}
