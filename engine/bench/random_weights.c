#include "engine/bench/random_weights.h"

#include "engine/base/random.h"

#include <math.h>
#include <string.h>

/* Per block type: offsets of the f16 scale and of the f16 minimum, root mean square of the values at scale 1
 * over all codes, and the minimum that centres them. Measured with gguf 0.17's dequantize over 40,000 random
 * blocks. */
static const struct {
    int scale_at, minimum_at; /* byte offsets of scale and minimum in a quantisation block; -1: none */
    double size, minimum;
} halves[N_DTYPES] = {
    [DTYPE_Q4_0] = {0, -1, 4.63, 0},    [DTYPE_Q4_1] = {0, 2, 4.61, -7.5},
    [DTYPE_Q5_0] = {0, -1, 9.25, 0},    [DTYPE_Q5_1] = {0, 2, 9.23, -15.5},
    [DTYPE_Q8_0] = {0, -1, 73.9, 0},    [DTYPE_Q2_K] = {80, 82, 13.87, 1.5},
    [DTYPE_Q3_K] = {108, -1, 43.3, 0},  [DTYPE_Q4_K] = {0, 2, 258.3, 7.5},
    [DTYPE_Q5_K] = {0, 2, 526.8, 15.5}, [DTYPE_Q6_K] = {208, -1, 1364, 0},
    [DTYPE_IQ4_NL] = {0, -1, 67.5, 0},  [DTYPE_IQ4_XS] = {0, -1, 1244, 0},
};

/* Root mean squares of all sixteen E2M1 values, and of the E4M3 scales of random_weights_fill_scales. */
static const double e2m1_size = 2.926, tile_size = 1.0973;
/* Root mean square of all int8 codes, -127 to 127. */
static const double i8_size = 73.6;

/* I4_ROT256: levels of comfy-kitchen 0.2.40 (w4a8_packed.py), and the root mean square of the int8 codes that
 * they give with group scales GROUP_CODE to GROUP_CODE + GROUP_CODES - 1 in E4M3, 80 to 112. */
enum { LEVELS = 16, GROUP_CODE = 0x6a, GROUP_CODES = 5 };
static const float levels[LEVELS] = {-0.980602f, -0.794529f, -0.638165f, -0.500986f, -0.377321f, -0.263187f,
                                     -0.155210f, -0.050720f, 0.052541f,  0.156985f,  0.265284f,  0.379533f,
                                     0.502636f,  0.638953f,  0.794876f,  0.980671f};
static const double i4_size = 53.88;

static uint16_t random_to_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

/* Converts a double to f16 by truncation; values below the normal range are rounded to a subnormal. */
static uint16_t to_f16(double value) {
    int exponent;
    double fraction = frexp(fabs(value), &exponent);
    uint16_t sign = value < 0 ? 0x8000 : 0;
    if (exponent > 16) return sign | 0x7bff;
    if (exponent < -13) return sign | (uint16_t)lrint(ldexp(fabs(value), 24));
    return sign | (uint16_t)((exponent + 14) << 10) | (uint16_t)((int)ldexp(fraction, 11) & 1023);
}

/* Returns the width of the uniform range of random values. A matrix's range depends on the number of inputs
 * that a product sums over. */
static double random_range(const struct tensor *t, double init_scale) {
    double inputs = 1;
    for (int i = 1; i < t->rank; i++) inputs *= t->dim[i];
    return init_scale == 0 ? 0.2 : 2 * init_scale * (t->rank > 1 ? sqrt(3 / inputs) : 0.1);
}

static double random_size(const struct tensor *t, double init_scale) {
    return random_range(t, init_scale) / sqrt(12);
}

static double random_unit(uint64_t *random) {
    return (double)(random_next(random) >> 40) * 0x1p-24;
}

static void fill_random(uint64_t *random, unsigned char *to, uint64_t bytes) {
    for (uint64_t at = 0; at < bytes; at += 8) {
        uint64_t bits = random_next(random);
        memcpy(to + at, &bits, bytes - at < 8 ? bytes - at : 8);
    }
}

/* Value of code 0 to 126 of E4M3, or 0 to 123 of E5M2, without sign. */
static double f8_value(enum dtype dtype, int code) {
    int bits = dtype == DTYPE_F8_E5M2 ? 2 : 3, least = dtype == DTYPE_F8_E5M2 ? -16 : -9;
    int exponent = code >> bits, mantissa = code & ((1 << bits) - 1);
    return exponent ? ldexp((1 << bits) + mantissa, least + exponent - 1) : ldexp(mantissa, least);
}

static int f8_codes(enum dtype dtype) {
    return dtype == DTYPE_F8_E5M2 ? 124 : 127;
}

/* Root mean square of codes 0 to n_codes - 1. */
static double f8_size(enum dtype dtype, int n_codes) {
    double squares = 0;
    for (int i = 0; i < n_codes; i++) squares += f8_value(dtype, i) * f8_value(dtype, i);
    return sqrt(squares / n_codes);
}

/* Chooses between two adjacent values so that the mean square of many choices is size^2. */
static bool takes_upper(uint64_t *random, double size, double lower, double upper) {
    return random_unit(random) * (upper * upper - lower * lower) < size * size - lower * lower;
}

/* Draws 8-bit float codes from 0 to a limit such that the values' root mean square is `size`. */
static void make_f8(uint64_t *random, enum dtype dtype, double size, unsigned char *to, uint64_t bytes) {
    int least = 1;
    while (least + 1 < f8_codes(dtype) && f8_size(dtype, least + 1) <= size) least++;
    double lower = f8_size(dtype, least), upper = f8_size(dtype, least + 1);
    for (uint64_t i = 0; i < bytes; i++) {
        uint64_t n = (uint64_t)(least + takes_upper(random, size, lower, upper)), bits = random_next(random);
        to[i] = (unsigned char)((bits >> 32) % n | (bits & 1) << 7);
    }
}

static unsigned char pick_e4m3(uint64_t *random, double size) {
    int code = 0;
    while (code < 125 && f8_value(DTYPE_F8_E4M3, code + 1) <= size) code++;
    double lower = f8_value(DTYPE_F8_E4M3, code), upper = f8_value(DTYPE_F8_E4M3, code + 1);
    return (unsigned char)(code + takes_upper(random, size, lower, upper));
}

static unsigned char pick_e8m0(uint64_t *random, double size) {
    int exponent;
    frexp(size, &exponent);
    double lower = ldexp(0.5, exponent);
    return (unsigned char)(exponent + 126 + takes_upper(random, size, lower, 2 * lower));
}

/* Writes a block's f16 scale and minimum with a random sign: some types' codes are not symmetric around 0. */
static void set_halves(uint64_t *random, enum dtype dtype, double size, unsigned char *block) {
    double scale = size / halves[dtype].size * (random_next(random) >> 63 ? 1 : -1);
    uint16_t half = to_f16(scale), minimum = to_f16(scale * halves[dtype].minimum);
    memcpy(block + halves[dtype].scale_at, &half, sizeof half);
    if (halves[dtype].minimum_at > 0) memcpy(block + halves[dtype].minimum_at, &minimum, sizeof minimum);
}

static void make_blocks(uint64_t *random, enum dtype dtype, double size, unsigned char *to, uint64_t bytes) {
    uint64_t block_bytes = (uint64_t)dtype_block_bytes(dtype);
    fill_random(random, to, bytes);
    for (uint64_t at = 0; at + block_bytes <= bytes; at += block_bytes)
        if (dtype == DTYPE_MXFP4)
            to[at] = pick_e8m0(random, size / e2m1_size);
        else if (dtype == DTYPE_NVFP4)
            for (int i = 0; i < 4; i++) to[at + (uint64_t)i] = pick_e4m3(random, size / e2m1_size);
        else
            set_halves(random, dtype, size, to + at);
}

static void make_unquantised(uint64_t *random, const struct tensor *shape, double init_scale, void *to,
                             uint64_t bytes) {
    float middle = init_scale == 0 ? 1 : 0, range = (float)random_range(shape, init_scale);
    uint64_t n = bytes / (uint64_t)dtype_block_bytes(shape->dtype);
    for (uint64_t k = 0; k < n; k++) {
        float value = middle + range * ((float)(random_next(random) >> 40) * 0x1p-24f - 0.5f);
        if (shape->dtype == DTYPE_F32)
            ((float *)to)[k] = value;
        else
            ((uint16_t *)to)[k] = shape->dtype == DTYPE_F16 ? to_f16(value) : random_to_bf16(value);
    }
}

float random_weights_scale(const struct tensor *shape, double init_scale) {
    double size = random_size(shape, init_scale);
    switch (shape->dtype) {
    case DTYPE_F8_E4M3:
    case DTYPE_F8_E5M2:
        return (float)(size / f8_size(shape->dtype, f8_codes(shape->dtype)));
    case DTYPE_I8:
    case DTYPE_I8_ROT16:
    case DTYPE_I8_ROT64:
    case DTYPE_I8_ROT256:
        return (float)(size / i8_size);
    case DTYPE_I4_ROT256:
        return (float)(size / i4_size);
    case DTYPE_NVFP4_TILED:
    case DTYPE_NVFP4_AWQ:
        return (float)(size / (e2m1_size * tile_size));
    default:
        return 1;
    }
}

void random_weights_fill(uint64_t *random, const struct tensor *shape, double init_scale, void *to,
                         uint64_t bytes) {
    double size = random_size(shape, init_scale) / (double)shape->scale;
    switch (shape->dtype) {
    case DTYPE_F32:
    case DTYPE_F16:
    case DTYPE_BF16:
        make_unquantised(random, shape, init_scale, to, bytes);
        break;
    case DTYPE_F8_E4M3:
    case DTYPE_F8_E5M2:
        make_f8(random, shape->dtype, size, to, bytes);
        break;
    case DTYPE_MXFP8_TILED:
        make_f8(random, DTYPE_F8_E4M3, INFINITY, to, bytes);
        break;
    case DTYPE_I8:
    case DTYPE_I8_ROT16:
    case DTYPE_I8_ROT64:
    case DTYPE_I8_ROT256:
        for (uint64_t i = 0; i < bytes; i++)
            ((int8_t *)to)[i] = (int8_t)((int)(random_next(random) % 255) - 127);
        break;
    case DTYPE_NVFP4_TILED:
    case DTYPE_NVFP4_AWQ:
    case DTYPE_I4_ROT256:
        fill_random(random, to, bytes);
        break;
    default:
        make_blocks(random, shape->dtype, size, to, bytes);
    }
}

/* Fills levels, row scales and group scales; bytes counts all three. */
static void fill_i4_scales(uint64_t *random, const struct tensor *shape, void *to, uint64_t bytes) {
    float *rows = (float *)to + LEVELS;
    memcpy(to, levels, sizeof levels);
    for (int32_t i = 0; i < shape->scale_rows; i++)
        rows[i] = shape->scale * (float)(0.75 + 0.5 * random_unit(random));
    unsigned char *group = (unsigned char *)(rows + shape->scale_rows), *end = (unsigned char *)to + bytes;
    while (group < end) *group++ = (unsigned char)(GROUP_CODE + random_next(random) % GROUP_CODES);
}

void random_weights_fill_scales(uint64_t *random, const struct tensor *shape, double init_scale, void *to,
                                uint64_t bytes) {
    enum { TILE_CODE = 0x34, TILE_CODES = 9 }; /* E4M3 codes for scales from 0.75 to 1.5 */
    if (shape->dtype == DTYPE_I4_ROT256) {
        fill_i4_scales(random, shape, to, bytes);
        return;
    }
    unsigned char *codes = (unsigned char *)to + tensor_scales_head(shape);
    for (int32_t i = 0; i < tensor_columns(shape) && shape->dtype == DTYPE_NVFP4_AWQ; i++)
        ((uint16_t *)to)[i] = random_to_bf16((float)(0.75 + 0.5 * random_unit(random)));
    bytes -= (uint64_t)tensor_scales_head(shape);
    bool nvfp4 = shape->dtype == DTYPE_NVFP4_TILED || shape->dtype == DTYPE_NVFP4_AWQ;
    double size = random_size(shape, init_scale) / f8_size(DTYPE_F8_E4M3, f8_codes(DTYPE_F8_E4M3));
    for (uint64_t i = 0; i < bytes && nvfp4; i++)
        codes[i] = (unsigned char)(TILE_CODE + random_next(random) % TILE_CODES);
    for (uint64_t i = 0; i < bytes && shape->dtype == DTYPE_MXFP8_TILED; i++)
        codes[i] = pick_e8m0(random, size);
    for (uint64_t i = 0; i < bytes / sizeof(float) && !dtype_tiled_values(shape->dtype); i++)
        ((float *)to)[i] = shape->scale * (float)(0.75 + 0.5 * random_unit(random));
}
