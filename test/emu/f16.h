/* Rounding to f16 like cvt.rn.f16.f32, for the emulated instructions (C++) and libraries (C). */
#ifndef SLUICE_EMU_F16_H
#define SLUICE_EMU_F16_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* Returns the bits of the nearest f16, ties to even; 65,520 and more give infinity, any NaN gives 0x7FFF. */
static inline uint16_t emu_f16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
    if (value != value) return 0x7fff;
    if (size >= 0x477ff000) return (uint16_t)(sign | 0x7c00);
    if (size < 0x38800000) return (uint16_t)(sign | (uint32_t)rintf(fabsf(value) * 0x1p24f)); /* subnormal */
    return (uint16_t)(sign | (size + 0xfff + (size >> 13 & 1) - 0x38000000) >> 13);
}

#endif
