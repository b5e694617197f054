/* The shared row loops: see simd.h. */
#include "kernels/cpu/simd.h"

#include <stddef.h>
#include <string.h>

WIDE static void widen_bf16(float *restrict to, const uint16_t *restrict from, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = bf16_f32(from[i]);
}

WIDE static void widen_f16(float *restrict to, const uint16_t *restrict from, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = f16_f32(from[i]);
}

void simd_widen(float *to, const void *from, enum dtype dtype, int64_t n) {
    if (dtype == DTYPE_BF16)
        widen_bf16(to, from, n);
    else if (dtype == DTYPE_F16)
        widen_f16(to, from, n);
    else
        memcpy(to, from, (size_t)n * sizeof *to);
}

WIDE static void round_f32(uint16_t *restrict to, const float *restrict from, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = f32_bf16(from[i]);
}

WIDE static void round_f16(uint16_t *restrict to, const uint16_t *restrict from, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = f32_bf16(f16_f32(from[i]));
}

void simd_round(uint16_t *to, const void *from, enum dtype dtype, int64_t n) {
    if (dtype == DTYPE_F16)
        round_f16(to, from, n);
    else
        round_f32(to, from, n);
}

const float *simd_vector(const struct tensor *from, float *to) {
    if (from->rank == 0) return NULL;
    if (from->dtype == DTYPE_F32) return from->data;
    simd_widen(to, from->data, from->dtype, tensor_elements(from));
    return to;
}

WIDE static float dot(const float *a, const float *b, int64_t n) {
    float part[16] = {0};
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int j = 0; j < 16; j++) part[j] += a[i + j] * b[i + j];
    for (int j = 0; i < n; i++, j++) part[j] += a[i] * b[i];
    return sum_16(part);
}

float simd_dot(const float *a, const float *b, int64_t n) {
    return dot(a, b, n);
}

/* to may be from. */
WIDE static void silu(float *to, const float *from, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) to[i] = silu_f32(from[i]);
}

void simd_silu(float *to, const float *from, int64_t n) {
    silu(to, from, n);
}
