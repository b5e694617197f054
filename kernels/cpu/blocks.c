/* Decodes quantised blocks to f32. Layouts and order of multiplications are those of ggml (ggml-quants.c,
 * dequantize_row_*); F8 and E8M0 follow OCP's 8-bit and Microscaling specifications.
 *
 * The decoder of each type first unpacks codes to bytes, then multiplies the codes by one scale per group:
 * two loops that compilers vectorise, with a few hundred bytes in between. Shifts use unsigned numbers and
 * sizes are constants, so no input bytes cause undefined behaviour. */
#include "kernels/cpu/blocks.h"
#include "kernels/cpu/simd.h"

#include <stddef.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

enum { TOGETHER = 256, LANES = 16 };

typedef uint8_t bytes __attribute__((vector_size(LANES), aligned(1), may_alias));
typedef uint64_t pair __attribute__((vector_size(LANES)));

INLINE uint32_t u16_at(const unsigned char *p) {
    return p[0] | (uint32_t)p[1] << 8;
}

INLINE uint32_t u32_at(const unsigned char *p) {
    return u16_at(p) | u16_at(p + 2) << 16;
}

INLINE float f16_at(const unsigned char *p) {
    return half_f16_f32((uint16_t)u16_at(p));
}

/* Multiplies n groups of codes by one scale per group; a group has `each` codes. */
INLINE void scale_codes(float *restrict to, const uint8_t *restrict from, const float *restrict d, int64_t n,
                        int each) {
    for (int64_t g = 0; g < n; g++)
#pragma omp simd
        for (int j = 0; j < each; j++) to[g * each + j] = d[g] * (float)(int8_t)from[g * each + j];
}

/* Multiplies codes by the scale of their group and adds the group's offset m, which may be negative. */
INLINE void scale_and_move_codes(float *restrict to, const uint8_t *restrict from, const float *restrict d,
                                 const float *restrict m, int64_t n, int each) {
    for (int64_t g = 0; g < n; g++)
#pragma omp simd
        for (int j = 0; j < each; j++) to[g * each + j] = d[g] * (float)(int8_t)from[g * each + j] + m[g];
}

/* Unpacks n bytes to 2 n codes: the low halves of all bytes, then the high halves. */
INLINE void split_halves(uint8_t *to, const unsigned char *from, int n) {
    for (int j = 0; j < n; j += LANES) {
        *(bytes *)(to + j) = *(const bytes *)(from + j) & 15;
        *(bytes *)(to + n + j) = *(const bytes *)(from + j) >> 4;
    }
}

INLINE void move_codes(uint8_t *to, int n, uint8_t by) {
    for (int j = 0; j < n; j += LANES) *(bytes *)(to + j) += by;
}

/* Adds `worth` to code j of n if bit `shift` of byte j is set. */
INLINE void add_bits(uint8_t *to, const unsigned char *from, int n, int shift, uint8_t worth) {
    for (int j = 0; j < n; j += LANES)
        *(bytes *)(to + j) |= (*(const bytes *)(from + j) >> shift & 1) * worth;
}

/* Adds 16 to code j of 32 codes if bit j is set. */
INLINE void add_fifth_bits(uint8_t *to, const unsigned char *bits) {
    static const uint8_t bit[LANES] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    for (int j = 0; j < 32; j += LANES) {
        pair eight = {bits[j / 8] * 0x0101010101010101u, bits[j / 8 + 1] * 0x0101010101010101u};
        bytes set = (bytes)(((bytes)eight & *(const bytes *)bit) != 0);
        *(bytes *)(to + j) |= set & 16;
    }
}

typedef int8_t code_table[LANES];

INLINE void look_up(uint8_t *to, const code_table *table, int n) {
#ifdef __clang__
    for (int j = 0; j < n; j++) to[j] = (uint8_t)(*table)[to[j]];
#else
    bytes entries = *(const bytes *)table;
    for (int j = 0; j < n; j += LANES) *(bytes *)(to + j) = __builtin_shuffle(entries, *(bytes *)(to + j));
#endif
}

static const code_table iq4_values = {-127, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  113};
/* Doubled E2M1 values; callers halve the scale. */
static const code_table e2m1_values = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* Destinations of one unpacked block: codes (one per byte), group scales and group offsets. */
struct unpacked {
    uint8_t *code;
    float *d, *m;
};

struct shape {
    int values, bytes; /* number of values and of bytes per block */
    int group;         /* number of values that share a scale */
    bool moved;        /* the type has an offset per group */
};

INLINE void decode(float *to, const unsigned char *from, int64_t n,
                   void (*unpack)(struct unpacked, const unsigned char *), struct shape s) {
    uint8_t code[TOGETHER];
    float d[LANES], m[LANES];
    int groups = s.values / s.group;
    for (int64_t count; n > 0; n -= count, to += s.values * count, from += s.bytes * count) {
        count = n < TOGETHER / s.values ? n : TOGETHER / s.values;
        for (int64_t i = 0; i < count; i++)
            unpack((struct unpacked){code + s.values * i, d + groups * i, m + groups * i},
                   from + s.bytes * i);
        if (s.moved)
            scale_and_move_codes(to, code, d, m, count * groups, s.group);
        else
            scale_codes(to, code, d, count * groups, s.group);
    }
}

#define DECODER(name, ...)                                                                                   \
    WIDE static void decode_##name(float *to, const unsigned char *from, int64_t n) {                        \
        decode(to, from, n, unpack_##name, (struct shape){__VA_ARGS__});                                     \
    }

INLINE void unpack_q4_0(struct unpacked to, const unsigned char *from) {
    *to.d = f16_at(from);
    split_halves(to.code, from + 2, 16);
    move_codes(to.code, 32, -8);
}

INLINE void unpack_q4_1(struct unpacked to, const unsigned char *from) {
    *to.d = f16_at(from);
    *to.m = f16_at(from + 2);
    split_halves(to.code, from + 4, 16);
}

INLINE void unpack_q5_0(struct unpacked to, const unsigned char *from) {
    *to.d = f16_at(from);
    split_halves(to.code, from + 6, 16);
    add_fifth_bits(to.code, from + 2);
    move_codes(to.code, 32, -16);
}

INLINE void unpack_q5_1(struct unpacked to, const unsigned char *from) {
    *to.d = f16_at(from);
    *to.m = f16_at(from + 2);
    split_halves(to.code, from + 8, 16);
    add_fifth_bits(to.code, from + 4);
}

INLINE void unpack_q8_0(struct unpacked to, const unsigned char *from) {
    *to.d = f16_at(from);
    memcpy(to.code, from + 2, 32);
}

INLINE void unpack_iq4_nl(struct unpacked to, const unsigned char *from) {
    *to.d = f16_at(from);
    split_halves(to.code, from + 2, 16);
    look_up(to.code, &iq4_values, 32);
}

/* 2^(code - 128), subnormal below 2^-126; unlike OCP's E8M0, 255 is not NaN. */
INLINE float half_e8m0(uint32_t e) {
    return (union float_bits){.bits = e < 2 ? 0x200000u << e : (e - 1) << 23}.value;
}

INLINE void unpack_mxfp4(struct unpacked to, const unsigned char *from) {
    *to.d = half_e8m0(from[0]);
    split_halves(to.code, from + 1, 16);
    look_up(to.code, &e2m1_values, 32);
}

/* Returns half the value of an unsigned E4M3 code; 0x7F gives 0, but 0xFF gives 240. */
INLINE float half_ue4m3(uint32_t code) {
    uint32_t size = code & 0x7f;
    union float_bits f = {.bits = (size << 20) + 0x3b800000u};
    if (size < 8) f.value = (float)size * 0x1p-10f;
    return code == 0x7f ? 0 : f.value;
}

/* NVFP4: 16 values are 8 bytes, low halves first. */
INLINE void unpack_nvfp4(struct unpacked to, const unsigned char *from) {
    for (int g = 0; g < 4; g++) to.d[g] = half_ue4m3(from[g]);
    for (int j = 0; j < 32; j += 16) {
        bytes all = *(const bytes *)(from + 4 + j), low = all & 15, high = all >> 4;
        *(bytes *)(to.code + 2 * j) =
            __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
        *(bytes *)(to.code + 2 * j + 16) =
            __builtin_shufflevector(low, high, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
    }
    look_up(to.code, &e2m1_values, 64);
}

/* Unpacks 256 two-bit codes: 128 codes per 32 bytes, 32 per shift. */
INLINE void split_quarters(uint8_t *to, const unsigned char *from) {
    for (int j = 0; j < 64; j += LANES)
        for (int shift = 0; shift < 8; shift += 2)
            *(bytes *)(to + j / 32 * 128 + 16 * shift + j % 32) = *(const bytes *)(from + j) >> shift & 3;
}

INLINE void unpack_q2_k(struct unpacked to, const unsigned char *from) {
    float d = f16_at(from + 80), m = f16_at(from + 82);
    for (int g = 0; g < 16; g++) to.d[g] = d * (float)(from[g] & 15);
    for (int g = 0; g < 16; g++) to.m[g] = -(m * (float)(from[g] >> 4));
    split_quarters(to.code, from + 16);
}

/* Q3_K: 16 6-bit scales; low four bits in halves of the first 8 bytes, high two in quarters of the last 4. */
INLINE void q3_scales(float *d, const unsigned char *from, float d_all) {
    for (int g = 0; g < 16; g++) {
        int low = from[g % 8] >> g / 8 * 4 & 15, high = from[8 + g % 4] >> g / 4 * 2 & 3;
        d[g] = d_all * (float)((low | high << 4) - 32);
    }
}

/* Q3_K: a clear third bit subtracts 4 from the code. */
INLINE void unpack_q3_k(struct unpacked to, const unsigned char *from) {
    q3_scales(to.d, from + 96, f16_at(from + 108));
    split_quarters(to.code, from + 32);
    for (int g = 0; g < 8; g++) add_bits(to.code + 32 * g, from, 32, g, 4);
    move_codes(to.code, 256, -4);
}

/* Q4_K, Q5_K: 8 scales and 8 minima of 6 bits in 12 bytes. Numbers 0 to 3 are the low six bits of the first
 * eight bytes. Numbers 4 to 7 have their low four bits in the last four bytes and their high two bits in the
 * top bits of the first eight bytes. */
INLINE void q4_scales(struct unpacked to, const unsigned char *from) {
    float d = f16_at(from), m = f16_at(from + 2);
    const unsigned char *s = from + 4;
    for (int g = 0; g < 4; g++) {
        to.d[g] = d * (float)(s[g] & 63);
        to.m[g] = -(m * (float)(s[g + 4] & 63));
        to.d[g + 4] = d * (float)((s[g + 8] & 15) | s[g] >> 6 << 4);
        to.m[g + 4] = -(m * (float)(s[g + 8] >> 4 | s[g + 4] >> 6 << 4));
    }
}

INLINE void unpack_q4_k(struct unpacked to, const unsigned char *from) {
    q4_scales(to, from);
    for (int g = 0; g < 4; g++) split_halves(to.code + 64 * g, from + 16 + 32 * g, 32);
}

INLINE void unpack_q5_k(struct unpacked to, const unsigned char *from) {
    q4_scales(to, from);
    for (int g = 0; g < 4; g++) split_halves(to.code + 64 * g, from + 48 + 32 * g, 32);
    for (int g = 0; g < 8; g++) add_bits(to.code + 32 * g, from + 16, 32, g, 16);
}

INLINE void unpack_q6_k(struct unpacked to, const unsigned char *from) {
    uint8_t high[256];
    float d = f16_at(from + 208);
    for (int g = 0; g < 16; g++) to.d[g] = d * (float)(int8_t)from[192 + g];
    for (int half = 0; half < 2; half++) split_halves(to.code + 128 * half, from + 64 * half, 64);
    split_quarters(high, from + 128);
    for (int j = 0; j < 256; j += LANES)
        *(bytes *)(to.code + j) = (*(bytes *)(to.code + j) | *(bytes *)(high + j) << 4) - 32;
}

INLINE void unpack_iq4_xs(struct unpacked to, const unsigned char *from) {
    uint32_t high = u16_at(from + 2), low = u32_at(from + 4);
    float d = f16_at(from);
    for (int g = 0; g < 8; g++)
        to.d[g] = d * (float)((int)((low >> 4 * g & 15) | (high >> 2 * g & 3) << 4) - 32);
    for (int g = 0; g < 8; g++) split_halves(to.code + 32 * g, from + 8 + 16 * g, 16);
    look_up(to.code, &iq4_values, 256);
}

DECODER(q4_0, 32, 18, 32, false)
DECODER(q4_1, 32, 20, 32, true)
DECODER(q5_0, 32, 22, 32, false)
DECODER(q5_1, 32, 24, 32, true)
DECODER(q8_0, 32, 34, 32, false)
DECODER(iq4_nl, 32, 18, 32, false)
DECODER(mxfp4, 32, 17, 32, false)
DECODER(nvfp4, 64, 36, 16, false)
DECODER(q2_k, 256, 84, 16, true)
DECODER(q3_k, 256, 110, 16, false)
DECODER(q4_k, 256, 144, 32, true)
DECODER(q5_k, 256, 176, 32, true)
DECODER(q6_k, 256, 210, 16, false)
DECODER(iq4_xs, 256, 136, 32, false)

/* E4M3 subnormals are computed as small integers: f32 subnormals are a hundred times slower on CPUs. */
INLINE float e4m3_f32(uint32_t code) {
    uint32_t size = code & 0x7f;
    union float_bits f = {.bits = (size << 20) + 0x3c000000u}, small = {.value = (float)(int)size * 0x1p-9f};
    uint32_t tiny = -(uint32_t)(size < 8);
    f.bits = (f.bits & ~tiny) | (small.bits & tiny) | (0x7fc00000u & -(uint32_t)(size == 0x7f));
    f.bits |= (code & 0x80) << 24;
    return f.value;
}

INLINE float e5m2_f32(uint32_t code) {
    return half_f16_f32((uint16_t)(code << 8));
}

WIDE static void decode_f16(float *restrict to, const unsigned char *restrict from, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = half_f16_f32((uint16_t)u16_at(from + 2 * i));
}

WIDE static void decode_bf16(float *restrict to, const unsigned char *restrict from, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = half_bf16_f32((uint16_t)u16_at(from + 2 * i));
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

/* Unpacks 16 codes from 8 bytes, the high half of each byte first. */
INLINE void split_pairs(uint8_t *to, const unsigned char *from) {
    uint64_t both;
    memcpy(&both, from, sizeof both);
    bytes all = (bytes)(pair){both, 0}, high = all >> 4, low = all & 15;
    *(bytes *)to = __builtin_shufflevector(high, low, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}

/* Decodes E2M1 values without scales; zeros keep their sign. */
WIDE static void decode_e2m1(float *restrict to, const unsigned char *restrict from, int64_t n) {
    static const code_table doubled = {0, 1, 2, 3, 4, 6, 8, 12, 0, 1, 2, 3, 4, 6, 8, 12};
    uint8_t code[TOGETHER], size[TOGETHER];
    for (int64_t count; n > 0; n -= count, to += LANES * count, from += LANES / 2 * count) {
        count = n < TOGETHER / LANES ? n : TOGETHER / LANES;
        for (int64_t i = 0; i < count; i++) split_pairs(code + LANES * i, from + LANES / 2 * i);
        memcpy(size, code, (size_t)(LANES * count));
        look_up(size, &doubled, (int)(LANES * count));
#pragma omp simd
        for (int64_t j = 0; j < LANES * count; j++) {
            union float_bits f = {.value = 0.5f * (float)size[j]};
            f.bits |= (uint32_t)(code[j] & 8) << 28;
            to[j] = f.value;
        }
    }
}

static void decode_tiled_e4m3(float *to, const unsigned char *from, int64_t n) {
    decode_e4m3(to, from, 32 * n);
}

/* Rotates by a 4 x 4 matrix over the highest base-4 digit of the index, which becomes the lowest digit. */
INLINE void rotate_digit(int16_t *restrict to, const int16_t *restrict from, int quarter) {
    for (int i = 0; i < quarter; i++) {
        int16_t a = from[i], b = from[quarter + i], c = from[2 * quarter + i], d = from[3 * quarter + i];
        to[4 * i] = (int16_t)((a + b) + (c - d));
        to[4 * i + 1] = (int16_t)((a + b) - (c - d));
        to[4 * i + 2] = (int16_t)((a - b) + (c + d));
        to[4 * i + 3] = (int16_t)((c + d) - (a - b));
    }
}

/* Decodes a convrot block. After one rotation per base-4 digit of the index, all values are back in place.
 * Codes are summed as integers, without the factor 1/sqrt(group) of the rotation matrix. Sums of 256 codes
 * (136 with one sign, 120 with the other) fit 16 bits, so the sums are exact in any order. */
INLINE void rotate_codes(float *restrict to, const unsigned char *restrict from, int group, float factor) {
    int16_t codes[256], turned[256];
    for (int i = 0; i < group; i++) codes[i] = (int8_t)from[i];
    for (int left = group; left > 1; left /= 16) {
        rotate_digit(turned, codes, group / 4);
        if (left == 4)
            memcpy(codes, turned, sizeof *codes * (size_t)group);
        else
            rotate_digit(codes, turned, group / 4);
    }
    for (int i = 0; i < group; i++) to[i] = (float)codes[i] * factor;
}

#define ROTATED_DECODER(group, factor)                                                                       \
    WIDE static void decode_i8_rot##group(float *restrict to, const unsigned char *restrict from,            \
                                          int64_t n) {                                                       \
        for (int64_t i = 0; i < n; i++) rotate_codes(to + i * group, from + i * group, group, factor);       \
    }
ROTATED_DECODER(16, 0x1p-2f)
ROTATED_DECODER(64, 0x1p-3f)
ROTATED_DECODER(256, 0x1p-4f)

block_decoder *blocks_decoder(enum dtype dtype) {
    static block_decoder *const decoders[N_DTYPES] = {
        [DTYPE_F32] = decode_f32,
        [DTYPE_F16] = decode_f16,
        [DTYPE_BF16] = decode_bf16,
        [DTYPE_I8] = decode_i8,
        [DTYPE_F8_E4M3] = decode_e4m3,
        [DTYPE_F8_E5M2] = decode_e5m2,
        [DTYPE_Q4_0] = decode_q4_0,
        [DTYPE_Q4_1] = decode_q4_1,
        [DTYPE_Q5_0] = decode_q5_0,
        [DTYPE_Q5_1] = decode_q5_1,
        [DTYPE_Q8_0] = decode_q8_0,
        [DTYPE_Q2_K] = decode_q2_k,
        [DTYPE_Q3_K] = decode_q3_k,
        [DTYPE_Q4_K] = decode_q4_k,
        [DTYPE_Q5_K] = decode_q5_k,
        [DTYPE_Q6_K] = decode_q6_k,
        [DTYPE_IQ4_NL] = decode_iq4_nl,
        [DTYPE_IQ4_XS] = decode_iq4_xs,
        [DTYPE_MXFP4] = decode_mxfp4,
        [DTYPE_NVFP4] = decode_nvfp4,
        [DTYPE_NVFP4_TILED] = decode_e2m1,
        [DTYPE_MXFP8_TILED] = decode_tiled_e4m3,
        [DTYPE_I8_ROT16] = decode_i8_rot16,
        [DTYPE_I8_ROT64] = decode_i8_rot64,
        [DTYPE_I8_ROT256] = decode_i8_rot256,
    };
    return decoders[dtype];
}

INLINE float e8m0_f32(uint32_t code) {
    return (union float_bits){.bits = code == 255 ? 0x7fc00000u : code ? code << 23 : 0x400000u}.value;
}

INLINE uint32_t tile_byte(const unsigned char *row, int64_t block) {
    return row[block / 4 * BLOCKS_TILE_BYTES + block % 4];
}

WIDE static void scale_nvfp4(float *to, const unsigned char *row, int64_t first, int64_t n) {
    for (int64_t i = first; i < first + n; i++, to += 16) {
        float d = e4m3_f32(tile_byte(row, i));
#pragma omp simd
        for (int j = 0; j < 16; j++) to[j] *= d;
    }
}

WIDE static void scale_mxfp8(float *to, const unsigned char *row, int64_t first, int64_t n) {
    for (int64_t i = first; i < first + n; i++, to += 32) {
        float d = e8m0_f32(tile_byte(row, i));
#pragma omp simd
        for (int j = 0; j < 32; j++) to[j] *= d;
    }
}

void blocks_scale(enum dtype dtype, float *to, const unsigned char *row, int64_t first, int64_t n) {
    if (dtype == DTYPE_NVFP4_TILED)
        scale_nvfp4(to, row, first, n);
    else
        scale_mxfp8(to, row, first, n);
}
