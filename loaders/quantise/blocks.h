/* Quantisers of block types, and the GNU C vectors over eight blocks that they share: lane l of value i is
 * value i of block l. Results are bit-identical on all vector widths, because sums across lanes have a fixed
 * order. Vectors are passed by address, because passing them by value depends on the processor. */
#ifndef SLUICE_LOADERS_QUANTISE_BLOCKS_H
#define SLUICE_LOADERS_QUANTISE_BLOCKS_H

#include <stdint.h>

enum { F16_NAN = 0x7e00 }; /* f16 bits of the scale of a block with a value that is not finite */

/* Rounds to the nearest f16, ties to even; overflow gives infinity, NaN stays NaN. */
uint16_t quantise_f16(float value);

/* Quantise blocks of 32 values. */
void quantise_q4_0(const float *from, int64_t n_blocks, unsigned char *to);
void quantise_q5_0(const float *from, int64_t n_blocks, unsigned char *to);
void quantise_q8_0(const float *from, int64_t n_blocks, unsigned char *to);

/* Quantise blocks of 256 values. */
void quantise_q4_k(const float *from, int64_t n_blocks, unsigned char *to);
void quantise_q5_k(const float *from, int64_t n_blocks, unsigned char *to);
void quantise_q6_k(const float *from, int64_t n_blocks, unsigned char *to);

static inline void put_16(unsigned char *to, uint16_t value) {
    to[0] = (unsigned char)value;
    to[1] = (unsigned char)(value >> 8);
}

enum { LANES = 8 };

typedef float lanes __attribute__((vector_size(4 * LANES)));
typedef int32_t lane_ints __attribute__((vector_size(4 * LANES)));
typedef uint32_t lane_bits __attribute__((vector_size(4 * LANES)));

#define LANES_INLINE static inline __attribute__((always_inline))

/* Compiles a function for three x86-64 instruction sets; the program selects the version at start. Disabled
 * under ThreadSanitizer. */
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__SANITIZE_THREAD__)
#define LANES_WIDE __attribute__((target_clones("default", "avx2", "arch=x86-64-v4")))
#else
#define LANES_WIDE
#endif

/* For each vector lane returns a where the mask is set, else b. */
#define lanes_select(mask, a, b) ((lanes)(((lane_ints)(a) & (mask)) | ((lane_ints)(b) & ~(mask))))

static const float lanes_magic =
    12582912.0f; /* 1.5 * 2^23: adding this number rounds a float to an integer, ties to even */

/* Rounds to the nearest integers, clamped to lo..hi, for |v| < 2^22; otherwise gives any code in lo..hi. */
LANES_INLINE void lanes_round(lane_ints *code, const lanes *v, int lo, int hi) {
    lane_ints q = (lane_ints)((lane_bits)(*v + lanes_magic) - 0x4b400000u), mask = q < lo;
    lane_ints least = {lo, lo, lo, lo, lo, lo, lo, lo}, most = {hi, hi, hi, hi, hi, hi, hi, hi};
    q = (least & mask) | (q & ~mask);
    mask = q > hi;
    *code = (most & mask) | (q & ~mask);
}

/* Rounds to the nearest f16 value; overflow gives the largest. */
LANES_INLINE void lanes_to_f16(lanes *v) {
    lane_bits bits = (lane_bits)*v, sign = bits & 0x80000000u;
    bits ^= sign;
    /* adding and subtracting 0.5 rounds to a multiple of f16's smallest subnormal */
    lanes small = ((lanes)bits + 0.5f) - 0.5f;
    lane_bits normal = (bits + 0xfffu + (bits >> 13 & 1u)) & ~0x1fffu;
    lane_ints is_small = (lane_ints)(bits < 0x38800000u), is_large = (lane_ints)(normal > 0x477fe000u);
    lanes rounded = lanes_select(is_small, small, (lanes)normal);
    lanes most = {65504, 65504, 65504, 65504, 65504, 65504, 65504, 65504};
    rounded = lanes_select(is_large, most, rounded);
    *v = (lanes)((lane_bits)rounded | sign);
}

/* Computes 1/v in each lane; 0 for v = 0. */
LANES_INLINE void lanes_inverse(lanes *to, const lanes *v) {
    lanes zero = {0};
    *to = (lanes)((lane_ints)(1.0f / *v) & (*v != zero));
}

/* Quantises x with the scale 1 / inverse to integer codes from lo to hi; as_float: the same codes as floats.
 */
LANES_INLINE void lanes_code(lane_ints *code, lanes *as_float, const lanes *x, const lanes *inverse, int lo,
                             int hi) {
    lanes v = *x * *inverse;
    lanes_round(code, &v, lo, hi);
    *as_float = __builtin_convertvector(*code, lanes);
}

/* Quantises n values x with the scale 1 / inverse; sums value times code, and code squared. */
LANES_INLINE void lanes_add_up(const lanes *x, int n, const lanes *inverse, int lo, int hi, lanes *products,
                               lanes *squares) {
    *products = *squares = (lanes){0};
    for (int i = 0; i < n; i++) {
        lane_ints code;
        lanes q;
        lanes_code(&code, &q, &x[i], inverse, lo, hi);
        *products += x[i] * q;
        *squares += q * q;
    }
}

/* Sums the squared quantisation errors of n values x with a scale. */
LANES_INLINE void lanes_measure(const lanes *x, int n, const lanes *scale, int lo, int hi, lanes *error) {
    lanes inverse;
    *error = (lanes){0};
    lanes_inverse(&inverse, scale);
    for (int i = 0; i < n; i++) {
        lane_ints code;
        lanes q;
        lanes_code(&code, &q, &x[i], &inverse, lo, hi);
        lanes wrong = x[i] - *scale * q;
        *error += wrong * wrong;
    }
}

/* The value of largest magnitude of n values. */
LANES_INLINE void lanes_extreme(const lanes *x, int n, lanes *extreme) {
    *extreme = x[0];
    for (int i = 1; i < n; i++) {
        lane_bits size = (lane_bits)x[i] & 0x7fffffffu, most = (lane_bits)*extreme & 0x7fffffffu;
        *extreme = lanes_select((lane_ints)(size > most), x[i], *extreme);
    }
}

/* The sum of the eight lanes, in a fixed order. */
LANES_INLINE float lanes_sum(const lanes *v) {
    const lanes a = *v;
    return ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]));
}

/* Loads up to eight blocks of n values; blocks from n_blocks on are set to zeros. Magnitudes are limited to
 * `most`, and are set to 0 below half of f16's smallest number. Returns one bit per block, set if the block
 * has a value that is not finite. */
LANES_INLINE unsigned lanes_load(lanes *x, const float *from, int n, int n_blocks, float most) {
    union {
        float value;
        uint32_t bits;
    } v, limit = {.value = most};
    unsigned broken = 0;
    for (int i = 0; i < n; i++) {
        x[i] = (lanes){0};
        for (int l = 0; l < n_blocks; l++) {
            v.value = from[l * n + i];
            uint32_t size = v.bits & 0x7fffffffu, sign = v.bits & 0x80000000u;
            broken |= (unsigned)(size >= 0x7f800000u) << l;
            size = size > limit.bits ? limit.bits : size < 0x33000000u ? 0 : size;
            v.bits = size | sign;
            x[i][l] = v.value;
        }
    }
    return broken;
}

#endif
