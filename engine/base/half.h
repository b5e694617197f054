/* Conversion between 16-bit and 32-bit floats. */
#ifndef SLUICE_BASE_HALF_H
#define SLUICE_BASE_HALF_H

#include <stdint.h>

union float_bits {
    float value;
    uint32_t bits;
};

static inline float half_bf16_f32(uint16_t h) {
    return (union float_bits){.bits = (uint32_t)h << 16}.value;
}

/* Converts f16 to f32 exactly, including subnormals, infinities and NaN. f16 subnormals are converted from
 * integers, because processors take a hundred times as long to multiply f32 subnormals. */
static inline float half_f16_f32(uint16_t h) {
    uint32_t size = h & 0x7fff;
    union float_bits f = {.bits = (size << 13) + 0x38000000u}, small = {.value = (float)(int)size * 0x1p-24f};
    uint32_t tiny = -(uint32_t)(size < 0x400), whole = -(uint32_t)(size >= 0x7c00);
    f.bits = (f.bits & ~tiny) | (small.bits & tiny) | (0x7f800000u & whole) | (uint32_t)(h & 0x8000) << 16;
    return f.value;
}

/* Rounds f32 to the nearest bf16, ties to even; overflow gives infinity, NaN stays NaN. */
static inline uint16_t half_f32_bf16(float f) {
    uint32_t bits = (union float_bits){.value = f}.bits;
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16, nan = bits >> 16 | 0x40;
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? nan : rounded);
}

#endif
