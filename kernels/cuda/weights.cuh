/* Dequantisation: the only place where the CUDA device converts stored weights to numbers.
 *
 * A thread takes N consecutive values of a row (1, 4 or 8, starting at a multiple of N): these values lie in
 * one block and share a scale. With N = 8, adjacent lanes take adjacent values, starting at a multiple of 8
 * times their number, because lanes decode rotated types together. Codes are unpacked four at a time into the
 * bytes of a word. Arithmetic follows ggml's CPU code (ggml-quants.c) in f32 and in the same order; every
 * rounding is explicit, because FMA contraction would change bits, and subnormals are kept. So values equal
 * ggml's bit for bit, except that NaNs may differ.
 *
 * Blocks start at any byte. Loads are as wide as the block layout allows where all rows are aligned, else
 * single bytes, with the same values. */
#ifndef SLUICE_CUDA_WEIGHTS_CUH
#define SLUICE_CUDA_WEIGHTS_CUH

#include "engine/base/tensor.h"
#include "kernels/cuda/ptx.cuh"

/* All types for which dtype_is_weight is true and dtype_is_rotated is false, as an X-macro for tables of
 * kernels and switches. */
#define UNROTATED_WEIGHT_TYPES(_)                                                                            \
    _(DTYPE_F32)                                                                                             \
    _(DTYPE_F16)                                                                                             \
    _(DTYPE_BF16)                                                                                            \
    _(DTYPE_I8)                                                                                              \
    _(DTYPE_F8_E4M3)                                                                                         \
    _(DTYPE_F8_E5M2)                                                                                         \
    _(DTYPE_Q4_0)                                                                                            \
    _(DTYPE_Q4_1)                                                                                            \
    _(DTYPE_Q5_0)                                                                                            \
    _(DTYPE_Q5_1)                                                                                            \
    _(DTYPE_Q8_0)                                                                                            \
    _(DTYPE_Q2_K)                                                                                            \
    _(DTYPE_Q3_K)                                                                                            \
    _(DTYPE_Q4_K)                                                                                            \
    _(DTYPE_Q5_K)                                                                                            \
    _(DTYPE_Q6_K)                                                                                            \
    _(DTYPE_IQ4_NL)                                                                                          \
    _(DTYPE_IQ4_XS)                                                                                          \
    _(DTYPE_MXFP4)                                                                                           \
    _(DTYPE_NVFP4)                                                                                           \
    _(DTYPE_NVFP4_TILED)                                                                                     \
    _(DTYPE_MXFP8_TILED)                                                                                     \
    _(DTYPE_NVFP4_AWQ)

/* All types for which dtype_is_weight is true. */
#define WEIGHT_TYPES(_)                                                                                      \
    UNROTATED_WEIGHT_TYPES(_)                                                                                \
    _(DTYPE_I8_ROT16)                                                                                        \
    _(DTYPE_I8_ROT64)                                                                                        \
    _(DTYPE_I8_ROT256)                                                                                       \
    _(DTYPE_I4_ROT256)

/* Layout of packed codes of `bits` bits in a quantisation block, from byte `at` on in runs of `run` bytes:
 * the lowest bits of a run are its first `run` codes, the next bits the next `run` codes. */
struct code_layout {
    int at, run, bits; /* bits per code; 0: the block has no such codes */
};

struct block_layout {
    int values, bytes;
    int unit;                     /* alignment in bytes of a block's parts, if the block itself is aligned */
    struct code_layout low, high; /* low and high: lower and upper bits of each code */
    int less;                     /* offset subtracted from a code */
};

__host__ __device__ static constexpr struct block_layout block_layout_of(enum dtype dtype) {
    switch (dtype) {
    case DTYPE_I8:
    case DTYPE_F8_E4M3:
    case DTYPE_F8_E5M2:
    case DTYPE_MXFP8_TILED:
        return {32, 32, 8, {0, 32, 8}, {0, 0, 0}, 0};
    case DTYPE_Q4_0:
        return {32, 18, 2, {2, 16, 4}, {0, 0, 0}, 8};
    case DTYPE_Q4_1:
        return {32, 20, 4, {4, 16, 4}, {0, 0, 0}, 0};
    case DTYPE_Q5_0:
        return {32, 22, 2, {6, 16, 4}, {2, 0, 1}, 16};
    case DTYPE_Q5_1:
        return {32, 24, 4, {8, 16, 4}, {4, 0, 1}, 0};
    case DTYPE_Q8_0:
        return {32, 34, 2, {2, 32, 8}, {0, 0, 0}, 0};
    case DTYPE_Q2_K:
        return {256, 84, 4, {16, 32, 2}, {0, 0, 0}, 0};
    case DTYPE_Q3_K:
        return {256, 110, 2, {32, 32, 2}, {0, 32, 1}, 4};
    case DTYPE_Q4_K:
        return {256, 144, 8, {16, 32, 4}, {0, 0, 0}, 0};
    case DTYPE_Q5_K:
        return {256, 176, 8, {48, 32, 4}, {16, 32, 1}, 0};
    case DTYPE_Q6_K:
        return {256, 210, 2, {0, 64, 4}, {128, 32, 2}, 32};
    case DTYPE_IQ4_NL:
        return {32, 18, 2, {2, 16, 4}, {0, 0, 0}, 0};
    case DTYPE_IQ4_XS:
        return {256, 136, 8, {8, 16, 4}, {0, 0, 0}, 0};
    case DTYPE_MXFP4:
        return {32, 17, 1, {1, 16, 4}, {0, 0, 0}, 0};
    case DTYPE_NVFP4:
        return {64, 36, 4, {4, 8, 4}, {0, 0, 0}, 0};
    case DTYPE_NVFP4_TILED:
    case DTYPE_NVFP4_AWQ:
        return {16, 8, 4, {0, 0, 4}, {0, 0, 0}, 0};
    case DTYPE_I8_ROT16:
        return {16, 16, 8, {0, 16, 8}, {0, 0, 0}, 0};
    case DTYPE_I8_ROT64:
        return {64, 64, 8, {0, 64, 8}, {0, 0, 0}, 0};
    case DTYPE_I8_ROT256:
        return {256, 256, 8, {0, 256, 8}, {0, 0, 0}, 0};
    case DTYPE_I4_ROT256:
        return {256, 128, 4, {0, 0, 4}, {0, 0, 0}, 0};
    default:
        return {};
    }
}

/* True for rotated types (convrot), where each value is a sum over all codes of its block. */
__host__ __device__ static constexpr bool rotated(enum dtype dtype) {
    return dtype == DTYPE_I8_ROT16 || dtype == DTYPE_I8_ROT64 || dtype == DTYPE_I8_ROT256 ||
           dtype == DTYPE_I4_ROT256;
}

/* True for ComfyUI's nvfp4, whose block scales are tiles in a separate tensor. */
__host__ __device__ static constexpr bool nvfp4_tiled(enum dtype dtype) {
    return dtype == DTYPE_NVFP4_TILED || dtype == DTYPE_NVFP4_AWQ;
}

/* True for types without scales inside the block; scales, if any, are in a separate tensor. */
__host__ __device__ static constexpr bool scaled_elsewhere(enum dtype dtype) {
    return dtype == DTYPE_I8 || dtype == DTYPE_F8_E4M3 || dtype == DTYPE_F8_E5M2 || nvfp4_tiled(dtype) ||
           dtype == DTYPE_MXFP8_TILED || rotated(dtype);
}

typedef const unsigned char *block_bytes;

/* Loads N bytes of a block to words, the first byte lowest. If wide, `at` is a multiple of min(N, UNIT). */
template <int N, int UNIT>
__device__ static inline void load_bytes(uint32_t to[(N + 3) / 4], block_bytes at, bool wide) {
    if constexpr (N == 8 && UNIT == 8) {
        if (wide) {
            uint2 v = *reinterpret_cast<const uint2 *>(at);
            to[0] = v.x, to[1] = v.y;
            return;
        }
    } else if constexpr (N >= 4 && UNIT >= 4) {
        if (wide) {
#pragma unroll
            for (int i = 0; i < N; i += 4) to[i / 4] = *reinterpret_cast<const uint32_t *>(at + i);
            return;
        }
    } else if constexpr (N >= 2 && UNIT >= 2) {
        if (wide) {
#pragma unroll
            for (int i = 0; i < N; i += 2) {
                uint32_t two = *reinterpret_cast<const uint16_t *>(at + i);
                to[i / 4] = i % 4 ? to[i / 4] | two << 16 : two;
            }
            return;
        }
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        uint32_t one = at[i];
        to[i / 4] = i % 4 ? to[i / 4] | one << 8 * (i % 4) : one;
    }
}

template <int UNIT> __device__ static inline float load_f16(block_bytes at, bool wide) {
    uint32_t half;
    load_bytes<2, UNIT>(&half, at, wide);
    return cuda_f16_f32((uint16_t)half);
}

/* Spreads bits 0 to 3 of a word to the lowest bits of its four bytes. */
__device__ static inline uint32_t unpack_bits(uint32_t four) {
    return (four & 15) * 0x00204081 & 0x01010101;
}

/* Loads up to eight 4-bit codes; the first code is in the high half of its byte. */
template <int N, int UNIT>
__device__ static inline void load_nibbles(uint32_t to[(N + 3) / 4], block_bytes at, int first, bool wide) {
    uint32_t bytes;
    load_bytes<(N + 1) / 2, UNIT>(&bytes, at + first / 2, wide);
    if (N == 1) bytes = first % 2 ? bytes << 4 : bytes;
#pragma unroll
    for (int i = 0; i < N; i += 4) {
        uint32_t two = bytes >> 4 * i;
        to[i / 4] = (two >> 4 & 15) | (two & 15) << 8 | (two >> 12 & 15) << 16 | (two >> 8 & 15) << 24;
    }
}

/* Loads the lower bits of codes first to first + N - 1 of a block, one code per byte. */
template <enum dtype D, int N>
__device__ static inline void load_codes(uint32_t to[(N + 3) / 4], block_bytes block, int first, bool wide) {
    constexpr struct block_layout l = block_layout_of(D);
    if constexpr (nvfp4_tiled(D)) {
        load_nibbles<N, l.unit>(to, block, first, wide);
    } else {
        constexpr int per_byte = 8 / l.low.bits;
        int part = first / l.low.run, chunk = part / per_byte, shift = part % per_byte * l.low.bits;
        load_bytes<N, l.unit>(to, block + l.low.at + chunk * l.low.run + first % l.low.run, wide);
#pragma unroll
        for (int i = 0; i < (N + 3) / 4; i++) to[i] = to[i] >> shift & 0x01010101u * ((1u << l.low.bits) - 1);
    }
}

/* Loads whole codes of a block: lower and upper bits combined. */
template <enum dtype D, int N>
__device__ static inline void load_whole_codes(uint32_t to[(N + 3) / 4], block_bytes block, int first,
                                               bool wide) {
    constexpr struct block_layout l = block_layout_of(D);
    load_codes<D, N>(to, block, first, wide);
    if constexpr (l.high.bits && !l.high.run) { /* one upper bit per code */
        uint32_t bits;
        load_bytes<4, l.unit>(&bits, block + l.high.at, wide);
#pragma unroll
        for (int i = 0; i < N; i += 4) to[i / 4] |= unpack_bits(bits >> first >> i) << l.low.bits;
    } else if constexpr (l.high.bits) {
        constexpr int per_byte = 8 / l.high.bits;
        uint32_t high[(N + 3) / 4];
        int part = first / l.high.run, chunk = part / per_byte, shift = part % per_byte * l.high.bits;
        load_bytes<N, l.unit>(high, block + l.high.at + chunk * l.high.run + first % l.high.run, wide);
#pragma unroll
        for (int i = 0; i < (N + 3) / 4; i++)
            to[i] |= (high[i] >> shift & 0x01010101u * ((1u << l.high.bits) - 1)) << l.low.bits;
    }
}

/* Converts E4M3 to f32. E4M3 subnormals become f32 subnormals first, so that one factor serves normal and
 * subnormal values. */
__device__ static inline float e4m3_f32(uint32_t code) {
    float size = __uint_as_float((code & 127) << 20) * 0x1p120f;
    uint32_t bits = (code & 127) == 127 ? 0x7FFFFFFF : __float_as_uint(size);
    return __uint_as_float(bits | (code & 128) << 24);
}

/* Converts unsigned E4M3 to f32: 0x7F is 0, the sign bit is ignored (ggml-impl.h). */
__device__ static inline float ue4m3_f32(uint32_t code) {
    return code == 127 ? 0 : __uint_as_float((code & 127) << 20) * 0x1p120f;
}

/* Converts an E8M0 scale to 2^(code - 127); 255 is NaN (OCP Microscaling 1.0). */
__device__ static inline float e8m0_f32(uint32_t code) {
    return __uint_as_float(code == 255 ? 0x7FFFFFFF : code ? code << 23 : 0x00400000);
}

/* Converts an E8M0 scale to 2^(code - 128), for tables of doubled numbers (ggml-impl.h). */
__device__ static inline float e8m0_half_f32(uint32_t code) {
    return __uint_as_float(code < 2 ? 0x00200000u << code : (code - 1) << 23);
}

/* Returns twice the magnitude of an E2M1 code: 0 1 2 3 4 6 8 12. */
__device__ static inline int32_t e2m1_doubled(uint32_t code) {
    return (int32_t)(0xC8643210u >> 4 * (code & 7) & 15);
}

/* ggml's table of 16 values for IQ4 (kvalues_iq4nl). */
__device__ static inline int32_t iq4_number(uint32_t code) {
    uint64_t eight = code & 8 ? 0x7159453526190D01u : 0xF6EADDCFBFAD9881u;
    return (int8_t)(eight >> 8 * (code & 7));
}

template <enum dtype D> __device__ static inline float cuda_number_of(uint32_t code) {
    switch (D) {
    case DTYPE_I8:
    case DTYPE_Q8_0:
        return (float)(int8_t)code;
    case DTYPE_F8_E4M3:
    case DTYPE_MXFP8_TILED:
        return e4m3_f32(code);
    case DTYPE_F8_E5M2: /* an E5M2 code is the upper byte of an f16 */
        return cuda_f16_f32((uint16_t)(code << 8));
    case DTYPE_IQ4_NL:
    case DTYPE_IQ4_XS:
        return (float)iq4_number(code);
    case DTYPE_MXFP4:
    case DTYPE_NVFP4: /* the integer table has no negative zero */
        return (float)(code & 8 ? -e2m1_doubled(code) : e2m1_doubled(code));
    case DTYPE_NVFP4_TILED:
    case DTYPE_NVFP4_AWQ:
        return 0.5f * (code & 8 ? -(float)e2m1_doubled(code) : (float)e2m1_doubled(code));
    default:
        return (float)((int32_t)code - block_layout_of(D).less);
    }
}

/* Factor and offset of the values in a part of a block: value = factor * number + offset, or factor * number
 * - offset. */
struct shared_part {
    float factor, offset;
};

/* Q4_K, Q5_K: 6-bit scales and minima of 8 parts. Parts 0 to 3 are stored whole in the low bits of bytes; the
 * top bits of these bytes are the upper bits of parts 4 to 7. */
__device__ static inline void k_scales(block_bytes scales, int part, uint32_t *scale, uint32_t *minimum) {
    if (part < 4) {
        *scale = scales[part] & 63u;
        *minimum = scales[part + 4] & 63u;
        return;
    }
    uint32_t both = scales[part + 4];
    *scale = (both & 15) | (scales[part - 4] >> 6) << 4;
    *minimum = both >> 4 | (scales[part] >> 6) << 4;
}

/* Q3_K: unpacks 6-bit scales of 16 parts of a block, the lower four bits in 8 bytes, the upper two in 4. */
__device__ static inline int32_t q3_scale(block_bytes scales, int part) {
    uint32_t low = scales[part % 8] >> part / 8 * 4 & 15u, high = scales[8 + part % 4] >> part / 4 * 2 & 3u;
    return (int32_t)(low | high << 4) - 32;
}

/* IQ4_XS: unpacks 6-bit scales of 8 parts of a block, the upper two bits stored before the lower four. */
__device__ static inline int32_t iq4_scale(block_bytes scales, int part, bool wide) {
    uint32_t high, low = scales[2 + part / 2] >> part % 2 * 4 & 15u;
    load_bytes<2, 2>(&high, scales, wide);
    return (int32_t)(low | (high >> 2 * part & 3) << 4) - 32;
}

template <enum dtype D>
__device__ static inline struct shared_part shared_of(block_bytes block, int first, bool wide) {
    constexpr int unit = block_layout_of(D).unit;
    uint32_t scale, minimum;
    switch (D) {
    case DTYPE_Q4_1:
    case DTYPE_Q5_1:
        return {load_f16<unit>(block, wide), load_f16<unit>(block + 2, wide)};
    case DTYPE_Q2_K:
        scale = block[first / 16];
        return {__fmul_rn(load_f16<unit>(block + 80, wide), (float)(scale & 15)),
                __fmul_rn(load_f16<unit>(block + 82, wide), (float)(scale >> 4))};
    case DTYPE_Q3_K:
        return {__fmul_rn(load_f16<unit>(block + 108, wide), (float)q3_scale(block + 96, first / 16)), 0};
    case DTYPE_Q4_K:
    case DTYPE_Q5_K:
        k_scales(block + 4, first / 32, &scale, &minimum);
        return {__fmul_rn(load_f16<unit>(block, wide), (float)scale),
                __fmul_rn(load_f16<unit>(block + 2, wide), (float)minimum)};
    case DTYPE_Q6_K:
        return {__fmul_rn(load_f16<unit>(block + 208, wide), (float)(int8_t)block[192 + first / 16]), 0};
    case DTYPE_IQ4_XS:
        return {__fmul_rn(load_f16<unit>(block, wide), (float)iq4_scale(block + 2, first / 32, wide)), 0};
    case DTYPE_MXFP4:
        return {e8m0_half_f32(block[0]), 0};
    case DTYPE_NVFP4:
        return {0.5f * ue4m3_f32(block[first / 16]), 0};
    default: /* Q4_0, Q5_0, Q8_0, IQ4_NL */
        return {load_f16<unit>(block, wide), 0};
    }
}

template <enum dtype D>
__device__ static inline float cuda_value_of(const struct shared_part &shared, uint32_t code) {
    float v = __fmul_rn(shared.factor, cuda_number_of<D>(code));
    if (D == DTYPE_Q4_1 || D == DTYPE_Q5_1) return __fadd_rn(v, shared.offset);
    if (D == DTYPE_Q2_K || D == DTYPE_Q4_K || D == DTYPE_Q5_K) return __fsub_rn(v, shared.offset);
    return v;
}

/* Values of a rotated block are codes times H (Hadamard-like): row i of H has a minus where an odd number of
 * base-4 digits of i ^ k are 3. Sums of codes are integers that fit 16 bits (cpu/weights.c), hence exact in
 * any order. rotated_factor is the scale factor of H. */
__host__ __device__ static constexpr float rotated_factor(enum dtype dtype) {
    return dtype == DTYPE_I8_ROT16 ? 0.25f : dtype == DTYPE_I8_ROT64 ? 0.125f : 0.0625f;
}

/* Computes sums first to first + N - 1 of a rotated block in one thread: not for inner loops. */
template <int N>
__device__ static inline void rotated_alone(int32_t to[N], block_bytes block, int first, int values) {
#pragma unroll
    for (int i = 0; i < N; i++) to[i] = 0;
#pragma unroll 1
    for (int k = 0; k < values; k++) {
        int32_t code = (int8_t)block[k];
#pragma unroll
        for (int i = 0; i < N; i++) {
            uint32_t apart = (uint32_t)((first + i) ^ k), threes = apart & apart >> 1 & 0x55;
            to[i] += __popc(threes) % 2 ? -code : code;
        }
    }
}

/* Computes the share of codes k to k + 7 (the bytes of two words) in sums first to first + N - 1. */
template <int N>
__device__ static inline void rotated_alone(int32_t to[N], const uint32_t codes[2], int first, int k) {
#pragma unroll
    for (int i = 0; i < N; i++) to[i] = 0;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        int32_t code = (int8_t)(codes[j / 4] >> 8 * (j % 4));
#pragma unroll
        for (int i = 0; i < N; i++) {
            uint32_t apart = (uint32_t)((first + i) ^ (k + j)), threes = apart & apart >> 1 & 0x55;
            to[i] += __popc(threes) % 2 ? -code : code;
        }
    }
}

/* Unpacks two integers in a word, low + 65536 high. Both integers are added and multiplied in one operation;
 * carries cancel in the end. */
__device__ static inline int32_t pair_low(uint32_t pair) {
    return (int16_t)pair;
}

__device__ static inline int32_t pair_high(uint32_t pair) {
    return (int16_t)((pair - (uint32_t)pair_low(pair)) >> 16);
}

__device__ static inline uint32_t pair_of(int32_t low, int32_t high) {
    return (uint32_t)low + ((uint32_t)high << 16);
}

__device__ static inline uint32_t pair_swapped(uint32_t pair) {
    return pair_of(pair_high(pair), pair_low(pair));
}

/* Rotation along the base-4 digit held in two bits of the lane number: each lane gets the sum of all four,
 * minus twice the value of the lane whose digit differs in both bits. */
__device__ static inline uint32_t rotate_lanes(uint32_t mask, uint32_t own, int bit) {
    uint32_t two = own + __shfl_xor_sync(mask, own, bit);
    uint32_t four = two + __shfl_xor_sync(mask, two, 2 * bit);
    return four - 2 * __shfl_xor_sync(mask, own, 3 * bit);
}

/* Computes sums first to first + 7 of a rotated block. Adjacent lanes hold the block's other groups of eight
 * codes, in order, from a multiple of the number of groups on. `codes`: this lane's codes, one byte each. The
 * lowest base-4 digit lies within four codes; of the next digit, the low bit selects the four and the high
 * bit is the lane's lowest bit. */
template <enum dtype D> __device__ static inline void rotated_sums(int32_t to[8], const uint32_t codes[2]) {
    constexpr int lanes = block_layout_of(D).values / 8;
    uint32_t lane = (threadIdx.y * blockDim.x + threadIdx.x) % WARP;
    uint32_t mask = (uint32_t)(((uint64_t)1 << lanes) - 1) << (lane & ~(uint32_t)(lanes - 1));
    uint32_t x[4];
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = pair_of((int8_t)(codes[0] >> 8 * i), (int8_t)(codes[1] >> 8 * i));
    uint32_t all = x[0] + x[1] + x[2] + x[3];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t y = all - 2 * x[3 - i], other = __shfl_xor_sync(mask, y, 1);
        y += pair_swapped(y) + other - pair_swapped(other);
        if (lanes >= 8) y = rotate_lanes(mask, y, 2);
        if (lanes >= 32) y = rotate_lanes(mask, y, 8);
        to[i] = pair_low(y), to[i + 4] = pair_high(y);
    }
}

/* A row of I4_ROT256. */
struct i4_row {
    block_bytes codes, groups; /* 4-bit codes; E4M3 scales of 16 values each */
    const float *level;        /* 16 levels */
};

/* Returns the 8-bit code of a level: level * scale, rounded to nearest even and limited to -127..127; NaN
 * gives 0. */
__device__ static inline int32_t i4_code(float level, float scale) {
    return max(min(__float2int_rn(__fmul_rn(level, scale)), 127), -127);
}

/* Decodes codes first to first + 7, a multiple of 8, to the bytes of two words. wide: 4-byte aligned. */
__device__ static inline void load_i4_codes(uint32_t to[2], const i4_row &row, int64_t first, bool wide) {
    float scale = e4m3_f32(row.groups[first / 16]);
    uint32_t nibbles;
    load_bytes<4, 4>(&nibbles, row.codes + first / 2, wide);
    to[0] = to[1] = 0;
#pragma unroll
    for (int i = 0; i < 8; i++)
        to[i / 4] |= (uint32_t)(i4_code(row.level[nibbles >> 4 * i & 15], scale) & 255) << 8 * (i % 4);
}

/* Like load_rotated, for I4_ROT256. */
template <int N>
__device__ static inline void load_i4(float to[N], const i4_row &row, int64_t first, bool wide) {
    constexpr int size = block_layout_of(DTYPE_I4_ROT256).values;
    int32_t sums[N];
    if constexpr (N == 8) {
        uint32_t codes[2];
        load_i4_codes(codes, row, first, wide);
        rotated_sums<DTYPE_I4_ROT256>(sums, codes);
    } else {
        int64_t start = first / size * size;
#pragma unroll
        for (int i = 0; i < N; i++) sums[i] = 0;
#pragma unroll 1
        for (int k = 0; k < size; k += 8) {
            uint32_t codes[2];
            int32_t part[N];
            load_i4_codes(codes, row, start + k, wide);
            rotated_alone<N>(part, codes, (int)(first - start), k);
#pragma unroll
            for (int i = 0; i < N; i++) sums[i] += part[i];
        }
    }
#pragma unroll
    for (int i = 0; i < N; i++) to[i] = (float)sums[i] * rotated_factor(DTYPE_I4_ROT256);
}

/* Like load_values, for rotated types: groups of 8 values are decoded by all lanes of a block together,
 * smaller groups by one thread. */
template <enum dtype D, int N>
__device__ static inline void load_rotated(float to[N], const char *row, int64_t first, bool wide) {
    constexpr int size = block_layout_of(D).values;
    block_bytes block = reinterpret_cast<block_bytes>(row) + first / size * size;
    int in_block = (int)(first % size);
    int32_t sums[N];
    if constexpr (N == 8) {
        uint32_t codes[2];
        load_codes<D, 8>(codes, block, in_block, wide);
        rotated_sums<D>(sums, codes);
    } else {
        rotated_alone<N>(sums, block, in_block, size);
    }
#pragma unroll
    for (int i = 0; i < N; i++) to[i] = (float)sums[i] * rotated_factor(D);
}

/* Decodes values first to first + N - 1, all present, of a row of quantisation blocks, without scales from
 * separate tensors. */
template <enum dtype D, int N>
__device__ static inline void load_values(float to[N], const char *row, int64_t first, bool wide) {
    constexpr struct block_layout l = block_layout_of(D);
    if constexpr (rotated(D)) {
        load_rotated<D, N>(to, row, first, wide);
        return;
    }
    block_bytes block = reinterpret_cast<block_bytes>(row) + first / l.values * l.bytes;
    int in_block = (int)(first % l.values);
    uint32_t codes[(N + 3) / 4];
    struct shared_part shared = {};
    load_whole_codes<D, N>(codes, block, in_block, wide);
    if constexpr (!scaled_elsewhere(D)) shared = shared_of<D>(block, in_block, wide);
#pragma unroll
    for (int i = 0; i < N; i++) {
        uint32_t code = codes[i / 4] >> 8 * (i % 4) & 255;
        to[i] = scaled_elsewhere(D) ? cuda_number_of<D>(code) : cuda_value_of<D>(shared, code);
    }
}

/* Returns the scale code of a block when scales are stored in tiles of 128 rows by 4 blocks (cuBLAS's layout
 * for block-scaled products): groups of four blocks of 32 rows in sequence, four such sets interleaved. step:
 * bytes of the tiles of 128 rows. */
__device__ static inline uint32_t tile_code(const char *tiles, int64_t row, int64_t block, int64_t step) {
    int64_t at = row / 128 * step + block / 4 * 512 + row % 32 * 16 + row % 128 / 32 * 4 + block % 4;
    return reinterpret_cast<block_bytes>(tiles)[at];
}

/* Returns the scale from a separate tensor for the part of a row that contains value `first`. */
template <enum dtype D>
__device__ static inline float cuda_row_scale(const char *scales, int64_t row, int64_t first, int64_t step) {
    switch (D) {
    case DTYPE_NVFP4_TILED:
    case DTYPE_NVFP4_AWQ:
        return e4m3_f32(tile_code(scales, row, first / 16, step));
    case DTYPE_MXFP8_TILED:
        return e8m0_f32(tile_code(scales, row, first / 32, step));
    default:
        return reinterpret_cast<const float *>(scales)[row];
    }
}

#endif
