/* Arithmetic that the compiler vectorises: exp, activations, dot product.
 *
 * Every sum has 16 (f32) or 8 (double) partial sums and one fixed tree over them, for any vector width, so
 * the bits do not depend on the instruction set. Multiplications and additions stay separate (-std=c11 does
 * not contract them), also to keep the bits equal. */
#ifndef SLUICE_CPU_SIMD_H
#define SLUICE_CPU_SIMD_H

#include "engine/base/half.h"
#include "engine/base/wide.h"
#include "kernels/ops.h"

/* e^x for x clamped to [-87, 87]; NaN stays NaN, infinities become NaN. Largest error 0.98 ulp (test_ops, all
 * floats in steps of 97). Coefficients: Cephes expf. Adding the large constant rounds to an integer in the
 * low bits. The clamp compares integers because float comparisons may trap, which keeps gcc from vectorising
 * them. */
static inline float exp_f32(float x) {
    union float_bits clamped = {.value = x};
    uint32_t sign = clamped.bits & 0x80000000u;
    int32_t size = (int32_t)(clamped.bits & 0x7fffffffu), most = 0x42ae0000; /* bits of 87.0f */
    clamped.bits = (uint32_t)(size > most ? most : size) | sign;
    union float_bits shifted = {.value = clamped.value * 1.44269504f + 12582912.0f};
    float n = shifted.value - 12582912.0f;
    float r = clamped.value - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    union float_bits power = {.bits = (shifted.bits << 23) + 0x3f800000u};
    return (p * r * r + r + 1.0f) * power.value + (x - x);
}

static inline float silu_f32(float x) {
    return x / (1.0f + exp_f32(-x));
}

/* Computes v/2 (1 + tanh u) as v sigmoid(2 u), which has no cancellation where tanh is near -1. Beyond 16 the
 * sigmoid is constant and nothing overflows. Like silu_f32 and gelu_quick_f32, the result is within 1.2e-7
 * |x| of the exact value (test_ops, floats in steps of 97). */
static inline float gelu_tanh_f32(float x) {
    union float_bits near = {.value = x};
    uint32_t sign = near.bits & 0x80000000u;
    int32_t size = (int32_t)(near.bits & 0x7fffffffu), most = 0x41800000; /* bits of 16.0f */
    near.bits = (uint32_t)(size > most ? most : size) | sign;
    float v = near.value;
    return x / (1.0f + exp_f32(-v * (1.59576912f + 0.0713548163f * (v * v))));
}

static inline float gelu_quick_f32(float x) {
    return x / (1.0f + exp_f32(-1.702f * x));
}

/* GELU x Phi(x). Phi(-v) = e^(-v^2/2) R(u) with u = 0.4 v / (1 + 0.4 v) and a polynomial R. R is fitted for
 * this file on 0 <= v <= 16, with an error of at most 5.3e-9 of Phi; R is in u, not 1 - u, so no bits are
 * lost around 0. Within 1.2e-7 |x| of the exact value, and within 1.2e-5 relative down to -12, where v/2 (1 +
 * erf) has cancelled to nothing. */
static inline float gelu_erf_f32(float x) {
    union float_bits size = {.value = x}, near = size, above = size;
    uint32_t most = 0x41800000; /* bits of 16.0f */
    size.bits &= 0x7fffffffu;
    near.bits = size.bits > most ? most : size.bits;
    above.bits &= ~(uint32_t)((int32_t)above.bits >> 31); /* max(x, 0) */
    float v = near.value, u = 0.4f * v / (1.0f + 0.4f * v);
    float r = -0.0329076312f;
    r = r * u + 0.0949816853f;
    r = r * u - 0.0513618737f;
    r = r * u - 0.0213265568f;
    r = r * u - 0.107653387f;
    r = r * u + 0.0505359732f;
    r = r * u + 0.565101922f;
    r = r * u - 0.997354865f;
    r = r * u + 0.5f;
    return above.value - size.value * (r * exp_f32(-0.5f * (v * v)));
}

static inline float relu_f32(float x) {
    return x < 0 ? 0 : x;
}

/* Within 1.2e-7 of the exact value (test_ops, floats in steps of 97). */
static inline float sigmoid_f32(float x) {
    return 1.0f / (1.0f + exp_f32(-x));
}

static inline float sigmoid_twice_f32(float x) {
    return 2.0f / (1.0f + exp_f32(-x));
}

static inline float sum_16(const float *part) {
    float s[8];
    for (int i = 0; i < 8; i++) s[i] = part[i] + part[i + 8];
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

static inline double sum_8(const double *part) {
    return ((part[0] + part[4]) + (part[2] + part[6])) + ((part[1] + part[5]) + (part[3] + part[7]));
}

/* Returns the dot product of n values. */
float simd_dot(const float *a, const float *b, int64_t n);
/* Applies an activation to n values; `to` equals `from` or does not overlap it. */
void simd_activate(enum activation activation, float *to, const float *from, int64_t n);

#endif
