/* Dot product and activations of rows, compiled for several instruction sets (simd.h). */
#include "kernels/cpu/simd.h"

#include <string.h>

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

#define ACTIVATE(name, of)                                                                                   \
    WIDE static void name(float *to, const float *from, int64_t n) {                                         \
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++) to[i] = of(from[i]);                             \
    }
ACTIVATE(silu, silu_f32)
ACTIVATE(gelu_tanh, gelu_tanh_f32)
ACTIVATE(gelu_quick, gelu_quick_f32)
ACTIVATE(gelu_erf, gelu_erf_f32)
ACTIVATE(relu, relu_f32)
ACTIVATE(sigmoid, sigmoid_f32)
ACTIVATE(sigmoid_twice, sigmoid_twice_f32)

void simd_activate(enum activation activation, float *to, const float *from, int64_t n) {
    if (activation == ACTIVATION_SILU)
        silu(to, from, n);
    else if (activation == ACTIVATION_GELU_TANH)
        gelu_tanh(to, from, n);
    else if (activation == ACTIVATION_GELU_QUICK)
        gelu_quick(to, from, n);
    else if (activation == ACTIVATION_GELU_ERF)
        gelu_erf(to, from, n);
    else if (activation == ACTIVATION_RELU)
        relu(to, from, n);
    else if (activation == ACTIVATION_SIGMOID)
        sigmoid(to, from, n);
    else if (activation == ACTIVATION_SIGMOID_TWICE)
        sigmoid_twice(to, from, n);
    else if (to != from)
        memcpy(to, from, (size_t)n * sizeof *to);
}
