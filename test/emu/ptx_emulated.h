/* Emulated instructions of kernels/cuda/ptx.cuh. Memory accesses are inlined into the kernel, where
 * sanitizers check them; exchanges between lanes are in warps.cc, without sanitizers. */
#ifndef SLUICE_EMU_PTX_EMULATED_H
#define SLUICE_EMU_PTX_EMULATED_H

#include <cuda_runtime.h>

#include "f16.h"

extern "C" void emu_misaligned(const char *what, const void *address, const char *file, int line);
/* ldmatrix for one lane. value: on entry the 16 bytes of the lane's row, on return the lane's four words. */
extern "C" void emu_ldmatrix(uint32_t value[4], bool transposed, const char *file, int line);
extern "C" void emu_mma(float (*d)[4], const uint32_t *a, const uint32_t (*b)[2], int n, const char *file,
                        int line);
extern "C" void emu_mma_f16(uint32_t (*d)[2], const uint32_t *a, const uint32_t (*b)[2], int n,
                            const char *file, int line);
extern "C" void emu_mma_s8(int32_t (*d)[4], const uint32_t *a, const uint32_t (*b)[2], int n,
                           const char *file, int line);
extern "C" void emu_async_copy(void *to, uint4 value, const char *file, int line);
extern "C" void emu_async_commit(void);
/* Gets the next copy that must complete if at most n groups may be pending; false: there is none. */
extern "C" bool emu_async_arrived(int n, void **to, uint4 *value);

/* Whether memory accesses are counted; defined in accesses.cc. */
extern "C" bool emu_counts_accesses;
extern "C" void emu_access(const void *address, bool write, const char *file, int line);

static inline void emu_aligned(const void *address, const char *what, const char *file, int line) {
    if (reinterpret_cast<uintptr_t>(address) % 16) emu_misaligned(what, address, file, line);
}

static inline uint4 ld128(const void *from, EMU_AT) {
    emu_aligned(from, "ld128", file, line);
    if (emu_counts_accesses) emu_access(from, false, file, line);
    return *static_cast<const uint4 *>(from);
}

static inline void st128(void *to, uint4 value, EMU_AT) {
    emu_aligned(to, "st128", file, line);
    if (emu_counts_accesses) emu_access(to, true, file, line);
    *static_cast<uint4 *>(to) = value;
}

template <int N>
static inline void mma_bf16(float (*d)[4], const uint32_t a[4], const uint32_t (*b)[2], EMU_AT) {
    emu_mma(d, a, b, N, file, line);
}

template <int N>
static inline void mma_f16(uint32_t (*d)[2], const uint32_t a[4], const uint32_t (*b)[2], EMU_AT) {
    emu_mma_f16(d, a, b, N, file, line);
}

template <int N>
static inline void mma_s8(int32_t (*d)[4], const uint32_t a[4], const uint32_t (*b)[2], EMU_AT) {
    emu_mma_s8(d, a, b, N, file, line);
}

template <int N>
static inline void mma_s8_from(int32_t c, int32_t (*d)[4], const uint32_t a[4], const uint32_t (*b)[2],
                               EMU_AT) {
    for (int i = 0; i < N; i++)
        for (int k = 0; k < 4; k++) d[i][k] = c;
    emu_mma_s8(d, a, b, N, file, line);
}

static inline void emu_ldmatrix_of(uint32_t to[4], const void *row, bool transposed, const char *file,
                                   int line) {
    emu_aligned(row, "ldmatrix_x4", file, line);
    if (emu_counts_accesses) emu_access(row, false, file, line);
    uint4 v = *static_cast<const uint4 *>(row);
    uint32_t value[4] = {v.x, v.y, v.z, v.w};
    emu_ldmatrix(value, transposed, file, line);
    for (int i = 0; i < 4; i++) to[i] = value[i];
}

static inline void ldmatrix_x4(uint32_t to[4], const void *row, EMU_AT) {
    emu_ldmatrix_of(to, row, false, file, line);
}

static inline void ldmatrix_x4_transposed(uint32_t to[4], const void *row, EMU_AT) {
    emu_ldmatrix_of(to, row, true, file, line);
}

/* cp.async: reads the source at once, overwrites the target with garbage, and delivers the data at the wait.
 * CUDA allows the copy at any time in between, so an early overwrite or a missing wait gives a wrong result.
 */
static inline void copy_async_16(void *to_shared, const void *from, bool valid, EMU_AT) {
    emu_aligned(to_shared, "copy_async_16's target", file, line);
    if (emu_counts_accesses) emu_access(to_shared, true, file, line);
    if (emu_counts_accesses && valid) emu_access(from, false, file, line);
    uint4 value = make_uint4(0, 0, 0, 0), gone = make_uint4(~0u, ~0u, ~0u, ~0u);
    if (valid) {
        emu_aligned(from, "copy_async_16's source", file, line);
        value = *static_cast<const uint4 *>(from);
    }
    *static_cast<uint4 *>(to_shared) = gone;
    emu_async_copy(to_shared, value, file, line);
}

static inline int32_t block_again() {
    return static_cast<int32_t>(blockIdx.x);
}

static inline uint32_t thread_again() {
    return threadIdx.x;
}

static inline void copy_async_commit() {
    emu_async_commit();
}

template <int N> static inline void copy_async_wait() {
    void *to;
    uint4 value;
    while (emu_async_arrived(N, &to, &value)) *static_cast<uint4 *>(to) = value;
}

/* exp2 rounded like exp2f, except that subnormal results are flushed to 0. */
static inline float exp2_fast(float x) {
    float y = exp2f(x);
    return y < 0x1p-126f ? 0 : y;
}

static inline uint32_t emu_bf16(float f) {
    uint32_t u = __float_as_uint(f);
    if (f != f) return 0x7FFF; /* cvt converts any NaN to this value */
    return (u + 0x7FFF + (u >> 16 & 1)) >> 16;
}

static inline uint32_t pack_bf16(float low, float high) {
    return emu_bf16(low) | emu_bf16(high) << 16;
}

static inline uint32_t pack_f16(float low, float high) {
    return emu_f16(low) | (uint32_t)emu_f16(high) << 16;
}

static inline float cuda_f16_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 1023;
    if (exponent == 31) return __uint_as_float(sign | 0x7F800000 | fraction << 13);
    if (exponent) return __uint_as_float(sign | (exponent + 112) << 23 | fraction << 13);
    float subnormal = (float)fraction * 0x1p-24f;
    return sign ? -subnormal : subnormal;
}

static inline float2 unpack_f16(uint32_t both) {
    float2 f;
    f.x = cuda_f16_f32((uint16_t)both), f.y = cuda_f16_f32((uint16_t)(both >> 16));
    return f;
}

#endif
