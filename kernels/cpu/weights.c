/* Conversion of stored weights to f32 or bf16: decoders of blocks, then rows, parts of rows and panels.
 *
 * Layouts of blocks and the order of multiplications are those of ggml (ggml-quants.c, dequantize_row_*); F8
 * and E8M0 follow OCP's 8-bit and Microscaling specifications. The decoder of each type first unpacks codes
 * to bytes, then multiplies the codes by one scale per group: two loops that compilers vectorise, with a few
 * hundred bytes in between. Shifts use unsigned numbers and sizes are constants, so no input bytes cause
 * undefined behaviour. */
#include "kernels/cpu/weights.h"

#include "kernels/cpu/simd.h"
#include "engine/base/tile.h"

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

/* Multiplies codes by the scale of their group and adds the group's offset, which may be negative. */
INLINE void scale_and_move_codes(float *restrict to, const uint8_t *restrict from, const float *restrict d,
                                 const float *restrict m, int64_t n, int each) {
    for (int64_t g = 0; g < n; g++)
#pragma omp simd
        for (int j = 0; j < each; j++) to[g * each + j] = d[g] * (float)(int8_t)from[g * each + j] + m[g];
}

/* Unpacks n bytes to 2 n 4-bit codes: the low halves of all bytes, then the high halves. */
INLINE void split_halves(uint8_t *to, const unsigned char *from, int n) {
    for (int j = 0; j < n; j += LANES) {
        *(bytes *)(to + j) = *(const bytes *)(from + j) & 15;
        *(bytes *)(to + n + j) = *(const bytes *)(from + j) >> 4;
    }
}

INLINE void move_codes(uint8_t *to, int n, uint8_t by) {
    for (int j = 0; j < n; j += LANES) *(bytes *)(to + j) += by;
}

/* Adds `worth` to each of n codes whose bit is set: code j has bit `shift` of byte j. */
INLINE void add_bits(uint8_t *to, const unsigned char *from, int n, int shift, uint8_t worth) {
    for (int j = 0; j < n; j += LANES)
        *(bytes *)(to + j) |= (*(const bytes *)(from + j) >> shift & 1) * worth;
}

/* Adds 16 to each of 32 5-bit codes whose upper bit is set: code j has bit j. */
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

/* Unpacked quantisation block: codes (one per byte), group scales and group offsets. */
struct unpacked {
    uint8_t *code;
    float *d, *m;
};

struct shape {
    int values, bytes; /* values and bytes per quantisation block */
    int group;         /* number of values that share a scale (a group) */
    bool moved;        /* the quantised type has an offset per group */
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

/* Decodes an E8M0 scale to 2^(code - 128), subnormal below 2^-126. Unlike in OCP's E8M0, 255 is not NaN. */
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

/* NVFP4: 16 values are stored in 8 bytes: the low halves of all bytes, then the high halves. */
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

/* Unpacks 256 two-bit codes: 32 bytes have 128 codes, the lowest two bits of all bytes first. */
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

/* Q4_K, Q5_K: unpacks 8 scales and 8 minima of 6 bits in 12 bytes. Numbers 0 to 3 are the low six bits of the
 * first eight bytes. Numbers 4 to 7 have their low four bits in the last four bytes, and their high two bits
 * at the top of the first eight bytes. */
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

/* Scales of one row of I4_ROT256. */
struct i4_scales {
    float level[LANES];         /* the 16 values of the 4-bit codes */
    const unsigned char *group; /* E4M3 scales of 16 values each */
    float row;
};

static struct i4_scales i4_scales_of(const struct tensor *w, int64_t row) {
    const unsigned char *scales = w->scales, *rows = scales + tensor_scales_head(w);
    struct i4_scales s;
    memcpy(s.level, scales, sizeof s.level);
    memcpy(&s.row, rows + (w->scale_row + row) * (int64_t)sizeof s.row, sizeof s.row);
    s.group =
        rows + w->scale_rows * (int64_t)sizeof s.row + (w->scale_row + row) * (tensor_columns(w) / LANES);
    return s;
}

/* Makes n tables of 16 int8 codes, one per group with scale d: level * d, rounded to nearest even and limited
 * to -127..127. d is not NaN. Adding 1.5 * 2^23 leaves the integer in the low bits. */
INLINE void i4_tables(uint8_t *restrict to, const float *restrict level, const float *restrict d, int64_t n) {
    for (int64_t g = 0; g < n; g++)
#pragma omp simd
        for (int j = 0; j < LANES; j++) {
            float v = level[j] * d[g];
            v = v < 127 ? v : 127;
            v = v > -127 ? v : -127;
            uint32_t bits = (union float_bits){.value = v + 12582912.0f}.bits;
            to[LANES * g + j] = (uint8_t)bits;
        }
}

/* Decodes groups of 16 4-bit codes to int8; a NaN scale gives 0. from, group: first code and group scale. */
WIDE static void decode_i4(int8_t *restrict to, const unsigned char *restrict from, const float *level,
                           const unsigned char *group, int64_t groups) {
    for (int64_t count; groups > 0; groups -= count, group += count) {
        code_table tables[LANES];
        float d[LANES];
        count = groups < LANES ? groups : LANES;
        decode_e4m3(d, group, count);
        for (int64_t g = 0; g < count; g++) d[g] = d[g] == d[g] ? d[g] : 0;
        i4_tables((uint8_t *)tables, level, d, count);
        for (int64_t g = 0; g < count; g++, to += LANES, from += LANES / 2) {
            uint64_t both;
            memcpy(&both, from, sizeof both);
            bytes all = (bytes)(pair){both, 0}, low = all & 15, high = all >> 4;
            *(bytes *)to =
                __builtin_shufflevector(low, high, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            look_up((uint8_t *)to, (const code_table *)&tables[g], LANES);
        }
    }
}

float weights_int8_row(int8_t *to, const struct tensor *w, int64_t row) {
    const unsigned char *from = (const unsigned char *)w->data + row * w->row_bytes;
    float scale = 1;
    if (w->dtype == DTYPE_I4_ROT256) {
        struct i4_scales s = i4_scales_of(w, row);
        decode_i4(to, from, s.level, s.group, w->dim[1] / LANES);
        return s.row * w->scale;
    }
    memcpy(to, from, (size_t)w->dim[1]);
    if (w->scales)
        memcpy(&scale, (const char *)w->scales + (w->scale_row + row) * (int64_t)sizeof scale, sizeof scale);
    return scale * w->scale;
}

#define ROTATED_DECODER(group, factor)                                                                       \
    WIDE static void decode_i8_rot##group(float *restrict to, const unsigned char *restrict from,            \
                                          int64_t n) {                                                       \
        for (int64_t i = 0; i < n; i++) rotate_codes(to + i * group, from + i * group, group, factor);       \
    }
ROTATED_DECODER(16, 0x1p-2f)
ROTATED_DECODER(64, 0x1p-3f)
ROTATED_DECODER(256, 0x1p-4f)

/* Decodes blocks first to first + n - 1 of a row of I4_ROT256, without the row's scale. from: address of
 * block `first`. */
static void decode_i4_blocks(float *to, const unsigned char *from, const struct i4_scales *s, int64_t first,
                             int64_t n) {
    enum { VALUES = 256 };
    for (int64_t i = 0; i < n; i++) {
        int8_t codes[VALUES];
        decode_i4(codes, from + i * (VALUES / 2), s->level, s->group + (first + i) * (VALUES / LANES),
                  VALUES / LANES);
        decode_i8_rot256(to + i * VALUES, (const unsigned char *)codes, 1);
    }
}

/* Decodes n consecutive blocks to f32. Types without blocks have one value per block. */
typedef void block_decoder(float *to, const unsigned char *from, int64_t n);

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
    [DTYPE_NVFP4_AWQ] = decode_e2m1,
    [DTYPE_MXFP8_TILED] = decode_tiled_e4m3,
    [DTYPE_I8_ROT16] = decode_i8_rot16,
    [DTYPE_I8_ROT64] = decode_i8_rot64,
    [DTYPE_I8_ROT256] = decode_i8_rot256,
};

INLINE float e8m0_f32(uint32_t code) {
    return (union float_bits){.bits = code == 255 ? 0x7fc00000u : code ? code << 23 : 0x400000u}.value;
}

enum { TILE_BYTES = 512 };

/* Returns the scale code of a block of a type with tiled scales. row: the row's scales in its first tile. */
INLINE uint32_t tile_byte(const unsigned char *row, int64_t block) {
    return row[block / 4 * TILE_BYTES + block % 4];
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

enum { BLOCK_MOST = 256, PIECE = 1024 };

bool weights_are(const struct tensor *w, enum dtype dtype) {
    return w->dtype == dtype && tensor_packed(w) && !w->scales && w->scale == 1;
}

WIDE static void multiply(float *to, float factor, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] *= factor;
}

/* Start of some values of a weight: their row, the first byte of the row (of the tensor, if blocks cross
 * rows), and the number of blocks before the values. */
struct place {
    int64_t row;
    const unsigned char *line;
    int64_t block;
};

/* Multiplies by the bf16 factors of NVFP4_AWQ's columns, from column `first` on. */
WIDE static void scale_columns(float *restrict to, const unsigned char *restrict factors, int64_t first,
                               int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] *= half_bf16_f32((uint16_t)u16_at(factors + 2 * (first + i)));
}

static void widen_blocks(float *to, const struct tensor *w, struct place at, int64_t n) {
    int64_t values = n * dtype_block_values(w->dtype);
    const unsigned char *from = at.line + at.block * dtype_block_bytes(w->dtype);
    if (w->dtype == DTYPE_I4_ROT256) {
        struct i4_scales s = i4_scales_of(w, at.row);
        decode_i4_blocks(to, from, &s, at.block, n);
        multiply(to, s.row, values);
        if (w->scale != 1) multiply(to, w->scale, values);
        return;
    }
    decoders[w->dtype](to, from, n);
    if (dtype_tiled_values(w->dtype)) {
        /* Scales of 128 rows x 4 blocks form a tile of 32 groups: group r has 4 block scales each of rows r,
         * r + 32, r + 64 and r + 96. Source: cuBLAS 13, "1D block scaling factors layout". */
        int64_t blocks = tensor_columns(w) / dtype_tiled_values(w->dtype), row = w->scale_row + at.row;
        const unsigned char *scales = (const unsigned char *)w->scales + tensor_scales_head(w) +
                                      row / 128 * ((blocks + 3) / 4) * TILE_BYTES + row % 32 * 16 +
                                      row % 128 / 32 * 4;
        (w->dtype == DTYPE_MXFP8_TILED ? scale_mxfp8 : scale_nvfp4)(to, scales, at.block, n);
    } else if (w->scales) {
        float scale; /* row scales in f32, one per row, at any address */
        memcpy(&scale, (const char *)w->scales + (w->scale_row + at.row) * (int64_t)sizeof scale,
               sizeof scale);
        multiply(to, scale, values);
    }
    if (w->scale != 1) multiply(to, w->scale, values);
    if (w->dtype == DTYPE_NVFP4_AWQ) scale_columns(to, w->scales, at.block * LANES, values);
}

/* Converts n values of a weight to f32, from value `first` on, counted from address at.line. */
static void widen_line(float *to, const struct tensor *w, struct place at, int64_t first, int64_t n) {
    int64_t values = dtype_block_values(w->dtype);
    float block[BLOCK_MOST];
    while (n > 0) {
        int64_t skip = first % values, done = skip ? 0 : n / values * values;
        at.block = first / values;
        if (done) {
            widen_blocks(to, w, at, done / values);
        } else {
            widen_blocks(block, w, at, 1);
            done = values - skip < n ? values - skip : n;
            memcpy(to, block + skip, (size_t)done * sizeof *to);
        }
        to += done, first += done, n -= done;
    }
}

void weights_widen_part(float *to, const struct tensor *w, int64_t row, int64_t first, int64_t n) {
    bool whole = !tensor_runs_on(w);
    struct place at = {row, (const unsigned char *)w->data + (whole ? row * w->row_bytes : 0), 0};
    widen_line(to, w, at, first + (whole ? 0 : row * tensor_columns(w)), n);
}

void weights_widen(float *to, const struct tensor *w, int64_t first, int64_t rows) {
    int64_t columns = tensor_columns(w);
    if (tensor_packed(w) && !w->scales) {
        widen_line(to, w, (struct place){0, w->data, 0}, first * columns, rows * columns);
        return;
    }
    for (int64_t i = 0; i < rows; i++) weights_widen_part(to + i * columns, w, first + i, 0, columns);
}

WIDE static void round_values(uint16_t *restrict to, const float *restrict from, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = half_f32_bf16(from[i]);
}

void weights_round(uint16_t *to, const struct tensor *w, int64_t first, int64_t rows) {
    float piece[PIECE];
    int64_t columns = tensor_columns(w);
    for (int64_t row = first; row < first + rows; row++)
        for (int64_t i = 0; i < columns; i += PIECE, to += PIECE) {
            int64_t n = columns - i < PIECE ? columns - i : PIECE;
            weights_widen_part(piece, w, row, i, n);
            round_values(to, piece, n);
            to += n - PIECE;
        }
}

const float *weights_vector(const struct tensor *w, float *to) {
    if (w->rank == 0) return NULL;
    if (weights_are(w, DTYPE_F32)) return w->data;
    weights_widen(to, w, 0, 1);
    return to;
}

enum { PACK_OUTPUTS = 64, PACK_INPUTS = 256, TILE_ROW = PACK_INPUTS + TILE };

/* Transposes a 16 x 16 tile of floats. */
static inline __attribute__((always_inline)) void transpose_tile(float *to, const float *tile) {
    f32x16 row[TILE];
    for (int i = 0; i < TILE; i++) row[i] = *(const f32x16 *)(tile + TILE_ROW * i);
    tile_transpose(row);
    for (int i = 0; i < TILE; i++) *(f32x16 *)(to + PACK_OUTPUTS * i) = row[i];
}

/* Transposes 16 outputs x inputs (a multiple of 16); rows are TILE_ROW apart. */
WIDE static void transpose_rows(float *to, const float *rows, int inputs) {
    for (int i = 0; i < inputs; i += TILE) transpose_tile(to + PACK_OUTPUTS * i, rows + i);
}

/* Packs f16 or bf16 directly, without decoding blocks, in half the time. */
#define PACK_HALVES(name, as_f32)                                                                            \
    WIDE static void name(float *to, const uint16_t *from, int64_t k, int inputs) {                          \
        float tile[TILE * TILE_ROW];                                                                         \
        for (int n = 0; n < PACK_OUTPUTS; n += TILE)                                                         \
            for (int first = 0; first < inputs; first += TILE) {                                             \
                for (int i = 0; i < TILE; i++)                                                               \
                    for (int j = 0; j < TILE; j++)                                                           \
                        tile[TILE_ROW * i + j] = as_f32(from[(n + i) * k + first + j]);                      \
                transpose_tile(to + PACK_OUTPUTS * first + n, tile);                                         \
            }                                                                                                \
    }
PACK_HALVES(pack_bf16, half_bf16_f32)
PACK_HALVES(pack_f16, half_f16_f32)

/* Packs a part of a weight matrix, 64 outputs x inputs, from output `first` and input `input` on. */
static void pack_piece(float *to, const struct tensor *w, int64_t first, int64_t input, int inputs) {
    enum { HALVES = 32 };
    int64_t k = w->dim[1];
    const uint16_t *halves = (const uint16_t *)w->data + first * k + input;
    if (!weights_are(w, DTYPE_BF16) && !weights_are(w, DTYPE_F16)) {
        float rows[TILE * TILE_ROW];
        for (int n = 0; n < PACK_OUTPUTS; n += TILE) {
            for (int i = 0; i < TILE; i++)
                weights_widen_part(rows + TILE_ROW * i, w, first + n + i, input, inputs);
            transpose_rows(to + n, rows, inputs);
        }
        return;
    }
    for (int i = 0, n; i < inputs; i += n) {
        n = inputs - i < HALVES ? inputs - i : HALVES;
        (w->dtype == DTYPE_BF16 ? pack_bf16 : pack_f16)(to + PACK_OUTPUTS * i, halves + i, k, n);
    }
}

void weights_widen_packed(float *to, const struct tensor *w) {
    int64_t k = w->dim[1];
    for (int64_t first = 0; first < w->dim[0]; first += PACK_OUTPUTS)
        for (int64_t input = 0; input < k; input += PACK_INPUTS) {
            int inputs = (int)(k - input < PACK_INPUTS ? k - input : PACK_INPUTS);
            pack_piece(to + first * k + input * PACK_OUTPUTS, w, first, input, inputs);
        }
}
