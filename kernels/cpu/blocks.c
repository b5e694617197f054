/* Blocks to values. Layouts and the order of multiplications are those of ggml (ggml-quants.c,
 * dequantize_row_*); F8 and E8M0 after OCP's 8-bit and Microscaling specifications.
 *
 * Each type first spreads its codes to bytes, then multiplies them, a group with one scale at a time: two
 * loops that compilers vectorise, with a few hundred bytes in between. Shifts are of unsigned numbers, sizes
 * are constants: no bytes can do harm. */
#include "kernels/cpu/blocks.h"
#include "kernels/cpu/simd.h"

#include <stddef.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

enum { K_VALUES = 256, GROUP = 16 };

INLINE uint32_t u16_at(const unsigned char *p) {
    return p[0] | (uint32_t)p[1] << 8;
}

INLINE uint32_t u32_at(const unsigned char *p) {
    return u16_at(p) | u16_at(p + 2) << 16;
}

INLINE float f16_at(const unsigned char *p) {
    return f16_f32((uint16_t)u16_at(p));
}

/* --- codes to values --- */

/* n groups of so many codes with a scale each. */
INLINE void scale_codes(float *to, const int8_t *codes, const float *d, int n, int each) {
    for (int g = 0; g < n; g++)
        for (int j = 0; j < each; j++) to[g * each + j] = d[g] * (float)codes[g * each + j];
}

/* The same, and something added. Taking m away is adding -m. */
INLINE void scale_and_move_codes(float *to, const int8_t *codes, const float *d, const float *m, int n,
                                 int each) {
    for (int g = 0; g < n; g++)
        for (int j = 0; j < each; j++) to[g * each + j] = d[g] * (float)codes[g * each + j] + m[g];
}

/* --- bytes to codes --- */

/* Low halves of n bytes, then high halves. */
INLINE void split_halves(int8_t *codes, const unsigned char *from, int n) {
    for (int j = 0; j < n; j++) codes[j] = (int8_t)(from[j] & 15);
    for (int j = 0; j < n; j++) codes[n + j] = (int8_t)(from[j] >> 4);
}

INLINE void move_codes(int8_t *codes, int n, int by) {
    for (int j = 0; j < n; j++) codes[j] = (int8_t)(codes[j] + by);
}

/* Bit j of bits is worth 16 in code j of 32. */
INLINE void add_fifth_bits(int8_t *codes, const unsigned char *bits) {
    for (int j = 0; j < 32; j++) codes[j] = (int8_t)(codes[j] | (bits[j / 8] >> j % 8 & 1) << 4);
}

typedef uint8_t code_table[16];

/* Codes below 16 to what the table has for them. */
INLINE void look_up(int8_t *codes, const code_table *table, int n) {
#ifdef __clang__
    for (int j = 0; j < n; j++) codes[j] = (int8_t)(*table)[codes[j]];
#else
    typedef uint8_t bytes __attribute__((vector_size(16), aligned(1)));
    bytes entries = *(const bytes *)table;
    for (int j = 0; j < n; j += 16) {
        bytes *at = (bytes *)(codes + j);
        *at = __builtin_shuffle(entries, *at);
    }
#endif
}

static const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  113};
/* Twice an E2M1, whose halves go into the scale. */
static const int8_t e2m1_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* --- blocks of 32 and 64 --- */

WIDE static void decode_q4_0(float *to, const unsigned char *from, int64_t n) {
    for (; n; n--, to += 32, from += 18) {
        int8_t codes[32];
        split_halves(codes, from + 2, 16);
        move_codes(codes, 32, -8);
        scale_codes(to, codes, &(float){f16_at(from)}, 1, 32);
    }
}

WIDE static void decode_q4_1(float *to, const unsigned char *from, int64_t n) {
    for (; n; n--, to += 32, from += 20) {
        int8_t codes[32];
        float d = f16_at(from), m = f16_at(from + 2);
        split_halves(codes, from + 4, 16);
        scale_and_move_codes(to, codes, &d, &m, 1, 32);
    }
}

WIDE static void decode_q5_0(float *to, const unsigned char *from, int64_t n) {
    for (; n; n--, to += 32, from += 22) {
        int8_t codes[32];
        split_halves(codes, from + 6, 16);
        add_fifth_bits(codes, from + 2);
        move_codes(codes, 32, -16);
        scale_codes(to, codes, &(float){f16_at(from)}, 1, 32);
    }
}

WIDE static void decode_q5_1(float *to, const unsigned char *from, int64_t n) {
    for (; n; n--, to += 32, from += 24) {
        int8_t codes[32];
        float d = f16_at(from), m = f16_at(from + 2);
        split_halves(codes, from + 8, 16);
        add_fifth_bits(codes, from + 4);
        scale_and_move_codes(to, codes, &d, &m, 1, 32);
    }
}

WIDE static void decode_q8_0(float *to, const unsigned char *from, int64_t n) {
    for (; n; n--, to += 32, from += 34)
        scale_codes(to, (const int8_t *)from + 2, &(float){f16_at(from)}, 1, 32);
}

WIDE static void decode_iq4_nl(float *to, const unsigned char *from, int64_t n) {
    for (; n; n--, to += 32, from += 18) {
        int8_t codes[32];
        split_halves(codes, from + 2, 16);
        look_up(codes, (const code_table *)iq4_values, 32);
        scale_codes(to, codes, &(float){f16_at(from)}, 1, 32);
    }
}

/* 2^(e - 128), below 2^-126 subnormal; 255 is no NaN here. */
INLINE float half_e8m0(uint32_t e) {
    return (union float_bits){.bits = e < 2 ? 0x200000u << e : (e - 1) << 23}.value;
}

WIDE static void decode_mxfp4(float *to, const unsigned char *from, int64_t n) {
    for (; n; n--, to += 32, from += 17) {
        int8_t codes[32];
        split_halves(codes, from + 1, 16);
        look_up(codes, (const code_table *)e2m1_values, 32);
        scale_codes(to, codes, &(float){half_e8m0(from[0])}, 1, 32);
    }
}

/* Half of an E4M3 whose sign is not looked at, 0 instead of NaN. */
INLINE float half_ue4m3(uint32_t code) {
    uint32_t size = code & 0x7f;
    union float_bits f = {.bits = (size << 20) + 0x3b800000u};
    if (size < 8) f.value = (float)size * 0x1p-10f;
    return code == 0x7f ? 0 : f.value;
}

WIDE static void decode_nvfp4(float *to, const unsigned char *from, int64_t n) {
    for (; n; n--, to += 64, from += 36) {
        int8_t codes[64];
        float d[4];
        for (int g = 0; g < 4; g++) d[g] = half_ue4m3(from[g]);
        for (int g = 0; g < 4; g++) split_halves(codes + 16 * g, from + 4 + 8 * g, 8);
        look_up(codes, (const code_table *)e2m1_values, 64);
        scale_codes(to, codes, d, 4, 16);
    }
}

/* --- blocks of 256 --- */

/* n codes of two bits at that shift. */
INLINE void take_pairs(int8_t *codes, const unsigned char *from, int n, int shift) {
    for (int j = 0; j < n; j++) codes[j] = (int8_t)(from[j] >> shift & 3);
}

/* 256 codes of two bits: 128 to 32 bytes, 32 at a shift. */
INLINE void spread_pairs(int8_t *codes, const unsigned char *from) {
    for (int half = 0; half < 2; half++)
        for (int g = 0; g < 4; g++) take_pairs(codes + 128 * half + 32 * g, from + 32 * half, 32, 2 * g);
}

WIDE static void decode_q2_k(float *to, const unsigned char *from, int64_t n) {
    for (; n; n--, to += K_VALUES, from += 84) {
        int8_t codes[K_VALUES];
        float d[16], m[16], d_all = f16_at(from + 80), m_all = f16_at(from + 82);
        for (int g = 0; g < 16; g++) d[g] = d_all * (float)(from[g] & 15);
        for (int g = 0; g < 16; g++) m[g] = -(m_all * (float)(from[g] >> 4));
        spread_pairs(codes, from + 16);
        scale_and_move_codes(to, codes, d, m, 16, GROUP);
    }
}

/* 16 scales of 6 bits: the low four in halves of the first 8 bytes, the high two in quarters of the last 4.
 */
INLINE void q3_scales(float *d, const unsigned char *from, float d_all) {
    for (int g = 0; g < 16; g++) {
        int low = from[g % 8] >> g / 8 * 4 & 15, high = from[8 + g % 4] >> g / 4 * 2 & 3;
        d[g] = d_all * (float)((low | high << 4) - 32);
    }
}

WIDE static void decode_q3_k(float *to, const unsigned char *from, int64_t n) {
    for (; n; n--, to += K_VALUES, from += 110) {
        int8_t codes[K_VALUES];
        float d[16];
        q3_scales(d, from + 96, f16_at(from + 108));
        spread_pairs(codes, from + 32);
        for (int g = 0; g < 8; g++)
            for (int j = 0; j < 32; j++)
                codes[32 * g + j] = (int8_t)(codes[32 * g + j] - ((from[j] >> g & 1) ? 0 : 4));
        scale_codes(to, codes, d, 16, GROUP);
    }
}

/* 8 scales and 8 minima of 6 bits in 12 bytes: the first four in whole bytes, the others' low halves in the
 * last four, their high bits on top of the first four. */
INLINE void q4_scales(float *d, float *m, const unsigned char *from) {
    float d_all = f16_at(from), m_all = f16_at(from + 2);
    const unsigned char *s = from + 4;
    for (int g = 0; g < 4; g++) {
        d[g] = d_all * (float)(s[g] & 63);
        m[g] = -(m_all * (float)(s[g + 4] & 63));
        d[g + 4] = d_all * (float)((s[g + 8] & 15) | s[g] >> 6 << 4);
        m[g + 4] = -(m_all * (float)(s[g + 8] >> 4 | s[g + 4] >> 6 << 4));
    }
}

WIDE static void decode_q4_k(float *to, const unsigned char *from, int64_t n) {
    for (; n; n--, to += K_VALUES, from += 144) {
        int8_t codes[K_VALUES];
        float d[8], m[8];
        q4_scales(d, m, from);
        for (int g = 0; g < 4; g++) split_halves(codes + 64 * g, from + 16 + 32 * g, 32);
        scale_and_move_codes(to, codes, d, m, 8, 32);
    }
}

WIDE static void decode_q5_k(float *to, const unsigned char *from, int64_t n) {
    for (; n; n--, to += K_VALUES, from += 176) {
        int8_t codes[K_VALUES];
        float d[8], m[8];
        q4_scales(d, m, from);
        for (int g = 0; g < 4; g++) split_halves(codes + 64 * g, from + 48 + 32 * g, 32);
        for (int g = 0; g < 8; g++)
            for (int j = 0; j < 32; j++)
                codes[32 * g + j] = (int8_t)(codes[32 * g + j] | (from[16 + j] >> g & 1) << 4);
        scale_and_move_codes(to, codes, d, m, 8, 32);
    }
}

WIDE static void decode_q6_k(float *to, const unsigned char *from, int64_t n) {
    for (; n; n--, to += K_VALUES, from += 210) {
        int8_t codes[K_VALUES], high[K_VALUES];
        float d[16], d_all = f16_at(from + 208);
        for (int g = 0; g < 16; g++) d[g] = d_all * (float)(int8_t)from[192 + g];
        for (int half = 0; half < 2; half++) split_halves(codes + 128 * half, from + 64 * half, 64);
        spread_pairs(high, from + 128);
        for (int j = 0; j < K_VALUES; j++) codes[j] = (int8_t)((codes[j] | high[j] << 4) - 32);
        scale_codes(to, codes, d, 16, GROUP);
    }
}

WIDE static void decode_iq4_xs(float *to, const unsigned char *from, int64_t n) {
    for (; n; n--, to += K_VALUES, from += 136) {
        int8_t codes[K_VALUES];
        float d[8], d_all = f16_at(from);
        uint32_t high = u16_at(from + 2), low = u32_at(from + 4);
        for (int g = 0; g < 8; g++)
            d[g] = d_all * (float)((int)((low >> 4 * g & 15) | (high >> 2 * g & 3) << 4) - 32);
        for (int g = 0; g < 8; g++) split_halves(codes + 32 * g, from + 8 + 16 * g, 16);
        look_up(codes, (const code_table *)iq4_values, K_VALUES);
        scale_codes(to, codes, d, 8, 32);
    }
}

/* --- types without scales of their own --- */

/* A subnormal is a small whole number: to multiply what f32 would hold as a subnormal takes processors a
 * hundred times as long. */
INLINE float e4m3_f32(uint32_t code) {
    uint32_t size = code & 0x7f;
    union float_bits f = {.bits = (size << 20) + 0x3c000000u}, small = {.value = (float)(int)size * 0x1p-9f};
    f.bits = size < 8 ? small.bits : f.bits;
    f.bits = size == 0x7f ? 0x7fc00000u : f.bits;
    f.bits |= (code & 0x80) << 24;
    return f.value;
}

INLINE float e5m2_f32(uint32_t code) {
    return f16_f32((uint16_t)(code << 8));
}

WIDE static void decode_f16(float *restrict to, const unsigned char *restrict from, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = f16_f32((uint16_t)u16_at(from + 2 * i));
}

WIDE static void decode_bf16(float *restrict to, const unsigned char *restrict from, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = bf16_f32((uint16_t)u16_at(from + 2 * i));
}

WIDE static void decode_e4m3(float *restrict to, const unsigned char *restrict from, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = e4m3_f32(from[i]);
}

WIDE static void decode_e5m2(float *restrict to, const unsigned char *restrict from, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = e5m2_f32(from[i]);
}

WIDE static void decode_i8(float *restrict to, const unsigned char *restrict from, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = (float)(int8_t)from[i];
}

static void decode_f32(float *to, const unsigned char *from, int64_t n) {
    memcpy(to, from, (size_t)n * sizeof *to);
}

/* Blocks of 16 in 8 bytes, the first of two in the high half. Zeros have signs. */
WIDE static void decode_e2m1(float *restrict to, const unsigned char *restrict from, int64_t n) {
    for (int64_t i = 0; i < 16 * n; i++) {
        uint32_t code = from[i / 2] >> (i % 2 ? 0 : 4) & 15, size = code & 7;
        union float_bits f = {.bits = (size << 22) + 0x3f000000u};
        f.bits = size < 2 ? (size ? 0x3f000000u : 0) : f.bits;
        f.bits |= (code & 8) << 28;
        to[i] = f.value;
    }
}

static void decode_tiled_e4m3(float *to, const unsigned char *from, int64_t n) {
    decode_e4m3(to, from, 32 * n);
}

block_decoder *blocks_decoder(enum dtype dtype) {
    static block_decoder *const decoders[N_DTYPES] = {
        [DTYPE_F32] = decode_f32,          [DTYPE_F16] = decode_f16,
        [DTYPE_BF16] = decode_bf16,        [DTYPE_I8] = decode_i8,
        [DTYPE_F8_E4M3] = decode_e4m3,     [DTYPE_F8_E5M2] = decode_e5m2,
        [DTYPE_Q4_0] = decode_q4_0,        [DTYPE_Q4_1] = decode_q4_1,
        [DTYPE_Q5_0] = decode_q5_0,        [DTYPE_Q5_1] = decode_q5_1,
        [DTYPE_Q8_0] = decode_q8_0,        [DTYPE_Q2_K] = decode_q2_k,
        [DTYPE_Q3_K] = decode_q3_k,        [DTYPE_Q4_K] = decode_q4_k,
        [DTYPE_Q5_K] = decode_q5_k,        [DTYPE_Q6_K] = decode_q6_k,
        [DTYPE_IQ4_NL] = decode_iq4_nl,    [DTYPE_IQ4_XS] = decode_iq4_xs,
        [DTYPE_MXFP4] = decode_mxfp4,      [DTYPE_NVFP4] = decode_nvfp4,
        [DTYPE_NVFP4_TILED] = decode_e2m1, [DTYPE_MXFP8_TILED] = decode_tiled_e4m3,
    };
    return decoders[dtype];
}

/* --- scales in tiles --- */

INLINE float e8m0_f32(uint32_t code) {
    return (union float_bits){.bits = code == 255 ? 0x7fc00000u : code ? code << 23 : 0x400000u}.value;
}

INLINE uint32_t tile_byte(const unsigned char *row, int64_t block) {
    return row[block / 4 * BLOCKS_TILE_BYTES + block % 4];
}

WIDE static void scale_nvfp4(float *to, const unsigned char *row, int64_t first, int64_t n) {
    for (int64_t i = first; i < first + n; i++, to += 16) {
        float d = e4m3_f32(tile_byte(row, i));
        for (int j = 0; j < 16; j++) to[j] *= d;
    }
}

WIDE static void scale_mxfp8(float *to, const unsigned char *row, int64_t first, int64_t n) {
    for (int64_t i = first; i < first + n; i++, to += 32) {
        float d = e8m0_f32(tile_byte(row, i));
        for (int j = 0; j < 32; j++) to[j] *= d;
    }
}

void blocks_scale(enum dtype dtype, float *to, const unsigned char *row, int64_t first, int64_t n) {
    if (dtype == DTYPE_NVFP4_TILED)
        scale_nvfp4(to, row, first, n);
    else
        scale_mxfp8(to, row, first, n);
}
