/* Rotation by ConvRot's matrix H (tensor.h, DTYPE_I8_ROT16) and rounding to 8-bit codes, for activations and
 * weights. */
#ifndef SLUICE_BASE_CONVROT_H
#define SLUICE_BASE_CONVROT_H

#include "engine/base/half.h"
#include "engine/base/tile.h"

/* Shuffle index of the lane whose number differs in bit d. */
#define FLIPPED(i, d) ((i) ^ (d))
#define FLIP(v, d)    __builtin_shufflevector(v, v, SIXTEEN(FLIPPED, d))

/* Multiplies by twice H of four columns along one base-4 digit of the lane index. digit: 1 or 4, the weight
 * of the digit. For 1, lane i becomes x[i] + x[i ^ 1] + x[i ^ 2] - x[i ^ 3]. */
#define ROTATE_LANES(v, digit)                                                                               \
    do {                                                                                                     \
        f32x16 flipped = FLIP(v, digit), less = (v)-flipped;                                                 \
        (v) = ((v) + flipped) + FLIP(less, 2 * (digit));                                                     \
    } while (0)

/* Multiplies by the same matrix along a digit of the vector index: vectors 0, step, 2 step and 3 step. */
static inline __attribute__((always_inline)) void rotate_vectors(f32x16 *v, int step) {
    f32x16 a = v[0] + v[step], b = v[0] - v[step];
    f32x16 c = v[2 * step] + v[3 * step], d = v[2 * step] - v[3 * step];
    v[0] = a + d;
    v[step] = a - d;
    v[2 * step] = b + c;
    v[3 * step] = c - b;
}

/* Multiplies a group of 16, 64 or 256 columns by sqrt(group) H, one base-4 digit of the column number at a
 * time, the highest first. The factor is a power of two, so that it changes no bit of a quotient of rotated
 * values. `to` may be `from`. */
static inline __attribute__((always_inline)) void convrot_rotate(float *to, const float *from, int group) {
    f32x16 v[TILE];
    int n = group / TILE;
    for (int i = 0; i < n; i++) v[i] = *(const f32x16 *)(from + TILE * i);
    for (int i = 0; n > 4 && i < 4; i++) rotate_vectors(v + i, 4);
    for (int i = 0; n > 1 && i < n; i += 4) rotate_vectors(v + i, 1);
    for (int i = 0; i < n; i++) {
        ROTATE_LANES(v[i], 4);
        ROTATE_LANES(v[i], 1);
        *(f32x16 *)(to + TILE * i) = v[i];
    }
}

/* Returns value / scale, rounded half to even and limited to -127..127. Adding 1.5 * 2^23 leaves the rounded
 * integer in the low bits. The limit matters only for subnormal scales, which have too few bits. */
static inline __attribute__((always_inline)) int32_t convrot_code(float value, float scale) {
    int32_t code = (int32_t)((union float_bits){.value = value / scale + 12582912.0f}.bits - 0x4b400000u);
    code = code > 127 ? 127 : code;
    return code < -127 ? -127 : code;
}

#endif
