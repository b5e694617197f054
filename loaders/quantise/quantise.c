/* Quantisation to plain number formats and to rotated int8 (ConvRot), and the choice of type: see
 * quantise.h. */
#include "loaders/quantise/quantise.h"

#include "engine/base/convrot.h"
#include "engine/base/wide.h"

#include <math.h>
#include <string.h>
#include <strings.h>

#include "loaders/quantise/blocks.h"

uint16_t quantise_f16(float value) {
    union float_bits f = {.value = value};
    uint32_t sign = f.bits >> 16 & 0x8000, size = f.bits & 0x7fffffff;
    if (size > 0x7f800000) return (uint16_t)(sign | F16_NAN);
    if (size >= 0x477ff000) return (uint16_t)(sign | 0x7c00);
    /* Adding 0.5 to an f32 rounds it to a multiple of f16's smallest subnormal. */
    f.bits = size;
    f.value += 0.5f;
    if (size < 0x38800000) return (uint16_t)(sign | (f.bits - 0x3f000000));
    return (uint16_t)(sign | (size - 0x38000000 + 0xfff + (size >> 13 & 1)) >> 13);
}

static void to_bf16s(const float *from, int64_t n, uint16_t *to) {
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = (union float_bits){.value = from[i]}.bits;
        bool nan = (bits & 0x7fffffff) > 0x7f800000;
        to[i] = (uint16_t)(nan ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
}

/* An eight-bit float type. fraction: fraction bits; least_normal: f32 bits of its least normal number; magic:
 * adding it rounds to the type's subnormals; most, most_code: largest number and its code; nan: code of NaN.
 */
struct eight_bits {
    int fraction;
    uint32_t least_normal;
    float magic;
    float most;
    unsigned char most_code, nan;
};

static const struct eight_bits e4m3 = {3, 0x3c800000, 0x1p14f, 448, 0x7e, 0x7f};
static const struct eight_bits e5m2 = {2, 0x38800000, 0x1p7f, 57344, 0x7b, 0x7e};

/* Converts an f32 to an eight-bit float, rounding to nearest even; overflow gives the type's largest
 * number. */
static unsigned char to_f8(const struct eight_bits *type, float value) {
    union float_bits f = {.value = value}, magic = {.value = type->magic}, most = {.value = type->most};
    uint32_t sign = f.bits >> 24 & 0x80, size = f.bits & 0x7fffffff, code;
    int dropped = 23 - type->fraction;
    if (size > 0x7f800000) return (unsigned char)(sign | type->nan);
    if (size >= most.bits) return (unsigned char)(sign | type->most_code);
    if (size < type->least_normal) {
        f.bits = size;
        f.value += type->magic;
        return (unsigned char)(sign | (f.bits - magic.bits));
    }
    code = (size + (1u << (dropped - 1)) - 1 + (size >> dropped & 1)) >> dropped;
    return (unsigned char)(sign | (code - (type->least_normal >> dropped) + (1u << type->fraction)));
}

/* Rotated int8 (ConvRot): groups of columns are multiplied by the Hadamard matrix H (tensor.h), then stored
 * as int8 codes with one scale per row. Source: comfy-kitchen 0.2.40, quantize_int8_convrot_weight in f32.
 * CODE_MOST: largest int8 code. SCALE_LEAST: smallest row scale, so that a row of zeros does not divide by
 * zero. */
#define CODE_MOST   127.0f
#define SCALE_LEAST 1e-30f
enum { GROUP_MOST = 256 };

/* Returns sqrt(group), by which convrot_rotate multiplies more than H does. */
static float rotation_factor(enum dtype dtype) {
    return dtype == DTYPE_I8_ROT256 ? 16 : dtype == DTYPE_I8_ROT64 ? 8 : 4;
}

/* Returns the bits of the largest magnitude that convrot_rotate gives for a row. As integers, bits have the
 * order of magnitudes. */
static inline __attribute__((always_inline)) uint32_t largest_bits(const float *row, int64_t n, int group) {
    union float_bits rotated[GROUP_MOST];
    uint32_t largest = 0;
    for (int64_t at = 0; at < n; at += group) {
        convrot_rotate(&rotated->value, row + at, group);
        for (int i = 0; i < group; i++) {
            uint32_t magnitude = rotated[i].bits & 0x7fffffff;
            largest = magnitude > largest ? magnitude : largest;
        }
    }
    return largest;
}

/* Writes a row's codes, rounded half to even like PyTorch. scale: the row's scale times rotation_factor. */
static inline __attribute__((always_inline)) void write_codes(int8_t *restrict to, const float *restrict row,
                                                              float scale, int64_t n, int group) {
    float rotated[GROUP_MOST];
    for (int64_t at = 0; at < n; at += group) {
        convrot_rotate(rotated, row + at, group);
        for (int i = 0; i < group; i++) to[at + i] = (int8_t)convrot_code(rotated[i], scale);
    }
}

/* Define largest_16 to largest_256 and codes_16 to codes_256: the functions above for one group size. */
#define ROTATED(group)                                                                                       \
    WIDE static uint32_t largest_##group(const float *row, int64_t n) {                                      \
        return largest_bits(row, n, group);                                                                  \
    }                                                                                                        \
    WIDE static void codes_##group(int8_t *to, const float *row, float scale, int64_t n) {                   \
        write_codes(to, row, scale, n, group);                                                               \
    }
ROTATED(16)
ROTATED(64)
ROTATED(256)

float quantise_row_scale(enum dtype dtype, const float *row, int64_t columns) {
    union float_bits most = {.bits = dtype == DTYPE_I8_ROT256  ? largest_256(row, columns)
                                     : dtype == DTYPE_I8_ROT64 ? largest_64(row, columns)
                                                               : largest_16(row, columns)};
    if (!isfinite(most.value)) return NAN;
    return fmaxf(most.value / rotation_factor(dtype) / CODE_MOST, SCALE_LEAST);
}

void quantise_row_part(enum dtype dtype, float scale, const float *from, int64_t n, int8_t *to) {
    scale *= rotation_factor(dtype);
    if (dtype == DTYPE_I8_ROT256)
        codes_256(to, from, scale, n);
    else if (dtype == DTYPE_I8_ROT64)
        codes_64(to, from, scale, n);
    else
        codes_16(to, from, scale, n);
}

bool quantise_can(enum dtype dtype, int64_t columns) {
    switch (dtype) {
    case DTYPE_F32:
    case DTYPE_F16:
    case DTYPE_BF16:
    case DTYPE_F8_E4M3:
    case DTYPE_F8_E5M2:
    case DTYPE_Q8_0:
    case DTYPE_Q4_0:
    case DTYPE_Q5_0:
    case DTYPE_Q4_K:
    case DTYPE_Q5_K:
    case DTYPE_Q6_K:
    case DTYPE_I8_ROT16:
    case DTYPE_I8_ROT64:
    case DTYPE_I8_ROT256:
        return columns > 0 && columns % dtype_block_values(dtype) == 0;
    default:
        return false;
    }
}

enum dtype quantise_type(const char *name) {
    static const struct {
        const char *name;
        enum dtype dtype;
    } others[] = {
        {"fp32", DTYPE_F32},         {"fp16", DTYPE_F16},
        {"fp8", DTYPE_F8_E4M3},      {"f8", DTYPE_F8_E4M3},
        {"fp8_e4m3", DTYPE_F8_E4M3}, {"fp8_e4m3fn", DTYPE_F8_E4M3},
        {"fp8_e5m2", DTYPE_F8_E5M2}, {"int8_convrot", DTYPE_I8_ROT256},
    };
    for (unsigned i = 0; i < sizeof others / sizeof *others; i++)
        if (!strcasecmp(name, others[i].name)) return others[i].dtype;
    for (int dtype = 0; dtype < N_DTYPES; dtype++)
        if (!strcasecmp(name, dtype_name((enum dtype)dtype)) &&
            quantise_can((enum dtype)dtype, dtype_block_values((enum dtype)dtype)))
            return (enum dtype)dtype;
    return N_DTYPES;
}

void quantise_rows(enum dtype dtype, float scale, const float *from, int64_t rows, int64_t columns,
                   void *to) {
    int64_t n = rows * columns, blocks = n / dtype_block_values(dtype);
    switch (dtype) {
    case DTYPE_F32:
        memcpy(to, from, (size_t)n * sizeof *from);
        break;
    case DTYPE_F16:
        for (int64_t i = 0; i < n; i++) ((uint16_t *)to)[i] = quantise_f16(from[i]);
        break;
    case DTYPE_BF16:
        to_bf16s(from, n, to);
        break;
    case DTYPE_F8_E4M3:
    case DTYPE_F8_E5M2:
        for (int64_t i = 0; i < n; i++)
            ((unsigned char *)to)[i] = to_f8(dtype == DTYPE_F8_E4M3 ? &e4m3 : &e5m2, from[i] / scale);
        break;
    case DTYPE_Q4_0:
        quantise_q4_0(from, blocks, to);
        break;
    case DTYPE_Q5_0:
        quantise_q5_0(from, blocks, to);
        break;
    case DTYPE_Q8_0:
        quantise_q8_0(from, blocks, to);
        break;
    case DTYPE_Q4_K:
        quantise_q4_k(from, blocks, to);
        break;
    case DTYPE_Q5_K:
        quantise_q5_k(from, blocks, to);
        break;
    case DTYPE_Q6_K:
        quantise_q6_k(from, blocks, to);
        break;
    case DTYPE_I8_ROT16:
    case DTYPE_I8_ROT64:
    case DTYPE_I8_ROT256:
        for (int64_t i = 0; i < rows; i++)
            quantise_row_part(dtype, quantise_row_scale(dtype, from + i * columns, columns),
                              from + i * columns, columns, (int8_t *)to + i * columns);
        break;
    default:
        break;
    }
}

float quantise_scale(enum dtype dtype, float largest) {
    float most = dtype == DTYPE_F8_E4M3 ? e4m3.most : dtype == DTYPE_F8_E5M2 ? e5m2.most : 0;
    float scale = most ? largest / most : 1;
    /* Scales outside 2^-100 to 2^100 would lose precision and are replaced by 1. */
    return scale >= 0x1p-100f && scale <= 0x1p100f ? scale : 1;
}

/* Block types of 32 values: the largest f16 (the block's scale is an f16) times the largest code. Block types
 * of 256 values: the largest f16 times the largest value that codes, part scale and part offset reach. */
float quantise_most(enum dtype dtype) {
    const float half = 65504, scale_most = 0x1p100f;
    switch (dtype) {
    case DTYPE_F16:
        return half;
    case DTYPE_F8_E4M3:
        return e4m3.most * scale_most;
    case DTYPE_F8_E5M2:
        return e5m2.most * scale_most;
    case DTYPE_Q8_0:
        return half * 127;
    case DTYPE_Q4_0:
        return half * 7;
    case DTYPE_Q5_0:
        return half * 15;
    case DTYPE_Q4_K:
    case DTYPE_Q5_K:
        return half * 62;
    case DTYPE_Q6_K:
        return half * 30;
    case DTYPE_I8_ROT16:
    case DTYPE_I8_ROT64:
    case DTYPE_I8_ROT256: /* limit that keeps the sums of rotated values over a group finite */
        return scale_most;
    default:
        return INFINITY;
    }
}
