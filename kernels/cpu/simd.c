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

void simd_widen_all(float *to, const struct tensor *from, int threads) {
    enum { PIECE = 1 << 14 };
    int64_t n = tensor_elements(from), element = dtype_bits(from->dtype) / 8;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < n; i += PIECE)
        simd_widen(to + i, (const char *)from->data + i * element, from->dtype,
                   n - i < PIECE ? n - i : PIECE);
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
