/* What kernels need from CUDA besides C++: launch and shared memory macros, and PTX instructions without a
 * C++ equivalent (tensor cores, asynchronous copies, conversions). Kernels include CUDA's runtime through
 * this file alone, and all inline assembly is in it.
 *
 * CONFIG=emu puts test/emu/ first on the include path: its <cuda_runtime.h> runs the same kernels on the CPU
 * and defines its own LAUNCH and SMEM macros, because other compilers cannot parse <<<>>> or extern
 * __shared__; its ptx_emulated.h has an emulation of each function of this file.
 *
 * Fragment layouts of the PTX ISA ("Matrix Fragments for mma.m16n8k16"): lane l has group g = l / 4 and
 * position p = l % 4.
 *   a[4], two bf16 each:  (g, 2p), (g + 8, 2p), (g, 2p + 8), (g + 8, 2p + 8) and the column after each
 *   b[2], two bf16 each:  rows (k) 2p, 2p + 1 of column g; rows 2p + 8, 2p + 9
 *   c, d[4]:              (g, 2p), (g, 2p + 1), (g + 8, 2p), (g + 8, 2p + 1)
 * f16 operands have the same layout. f16 sums c, d[2], two each: (g, 2p), (g + 8, 2p) and the column after
 * each.
 * mma.m16n8k32 of signed bytes has words of four bytes instead of two bf16 ("Matrix Fragments for
 * mma.m16n8k32"), the first in the lowest byte, and the same c and d:
 *   a[4]: (g, 4p), (g + 8, 4p), (g, 4p + 16), (g + 8, 4p + 16) and the three columns after each
 *   b[2]: rows (k) 4p to 4p + 3 of column g; rows 4p + 16 to 4p + 19
 * ldmatrix of rows of 16 bytes therefore loads the fragments of both instructions. */
#ifndef SLUICE_CUDA_PTX_CUH
#define SLUICE_CUDA_PTX_CUH

#include <cuda_runtime.h>

#include <stdint.h>

#ifndef LAUNCH
/* Launches a kernel; put template names in parentheses: LAUNCH((rows<4, true>), ...). Check errors with
 * cudaGetLastError. */
#define LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                               \
    kernel<<<grid, block, shared_bytes, stream>>>(__VA_ARGS__)
/* Declares T name[n] in static shared memory; n is a constant. */
#define SMEM_ARRAY(T, name, n) __shared__ __align__(16) T name[n]
/* Declares T *name in dynamic shared memory, aligned to 16 bytes. Once per kernel. */
#define SMEM_DYN(T, name)                                                                                    \
    extern __shared__ __align__(16) unsigned char smem_dyn[];                                                \
    T *name = reinterpret_cast<T *>(smem_dyn)
#endif

#define KERNEL(...) reinterpret_cast<const void *>(__VA_ARGS__)

enum { WARP = 32 };

#ifdef __CUDACC__

/* 128-bit load and store; the address is a multiple of 16 bytes. */
__device__ static inline uint4 ld128(const void *from) {
    return *static_cast<const uint4 *>(from);
}

__device__ static inline void st128(void *to, uint4 value) {
    *static_cast<uint4 *>(to) = value;
}

__device__ static inline uint32_t shared_address(const void *in_shared) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(in_shared));
}

/* mma: d[i] += a . b[i] for N adjacent 16 x 8 tiles that share a. */
template <int N>
__device__ static inline void mma_bf16(float (*d)[4], const uint32_t a[4], const uint32_t (*b)[2]) {
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
            "{%8, %9}, {%0, %1, %2, %3};"
            : "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[i][0]), "r"(b[i][1]));
}

/* mma in f16: d[i] += a . b[i] for N adjacent 16 x 8 tiles that share a; sums are rounded to f16. */
template <int N>
__device__ static inline void mma_f16(uint32_t (*d)[2], const uint32_t a[4], const uint32_t (*b)[2]) {
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, "
            "{%0, %1};"
            : "+r"(d[i][0]), "+r"(d[i][1])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[i][0]), "r"(b[i][1]));
}

/* mma of signed bytes, as mma_bf16: d[i] += a . b[i], exact as long as sums fit 32 bits. */
template <int N>
__device__ static inline void mma_s8(int32_t (*d)[4], const uint32_t a[4], const uint32_t (*b)[2]) {
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                     "{%8, %9}, {%0, %1, %2, %3};"
                     : "+r"(d[i][0]), "+r"(d[i][1]), "+r"(d[i][2]), "+r"(d[i][3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[i][0]), "r"(b[i][1]));
}

/* As mma_s8, but d[i] = c + a . b[i] with a scalar c, which saves initialising d with 4 N moves. */
template <int N>
__device__ static inline void mma_s8_from(int32_t c, int32_t (*d)[4], const uint32_t a[4],
                                          const uint32_t (*b)[2]) {
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                     "{%8, %9}, {%10, %10, %10, %10};"
                     : "=r"(d[i][0]), "=r"(d[i][1]), "=r"(d[i][2]), "=r"(d[i][3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[i][0]), "r"(b[i][1]), "r"(c));
}

/* Loads four 8 x 8 tiles of 2-byte values from shared memory. Lane l passes the address of row l % 8 of tile
 * l / 8, a multiple of 16. Lane l gets from each tile element (l / 4, 2 (l % 4)) and the next element in the
 * row. */
__device__ static inline void ldmatrix_x4(uint32_t to[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row))
                 : "memory");
}

/* As ldmatrix_x4, transposed: lane l gets element (2 (l % 4), l / 4) of each tile and the element below. */
__device__ static inline void ldmatrix_x4_transposed(uint32_t to[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row))
                 : "memory");
}

/* Reads blockIdx.x and threadIdx.x again from special registers: values derived from them occupy no registers
 * before this point. */
__device__ static inline int32_t block_again() {
    int32_t x;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(x));
    return x;
}

__device__ static inline uint32_t thread_again() {
    uint32_t x;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
    return x;
}

/* Starts an asynchronous copy of 16 bytes from global to shared memory, both at multiples of 16. If valid is
 * false, writes zeros; `from` is not read but must be a valid pointer. */
__device__ static inline void copy_async_16(void *to_shared, const void *from, bool valid) {
    int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to_shared)), "l"(from),
                 "r"(bytes)
                 : "memory");
}

/* Commits this thread's copies since the last commit as one group. */
__device__ static inline void copy_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most N of this thread's groups are in flight. Other threads' copies also need a barrier. */
template <int N> __device__ static inline void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* Returns 2^x; relative error at most 2^-22 (PTX ISA, ex2.approx); -infinity gives 0, subnormal results
 * become 0. */
__device__ static inline float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Rounds two floats to bf16 (nearest even) and packs them into one word, the first in the low half. */
__device__ static inline uint32_t pack_bf16(float low, float high) {
    uint32_t both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

/* Rounds two floats to f16 (nearest even) and packs them as pack_bf16 does. */
__device__ static inline uint32_t pack_f16(float low, float high) {
    uint32_t both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

/* Returns the two f16 values of a word, the low half first. */
__device__ static inline float2 unpack_f16(uint32_t both) {
    float2 f;
    asm("{\n\t.reg .f16 low, high;\n\tmov.b32 {low, high}, %2;\n\tcvt.f32.f16 %0, low;\n\tcvt.f32.f16 %1, "
        "high;\n\t}"
        : "=f"(f.x), "=f"(f.y)
        : "r"(both));
    return f;
}

__device__ static inline float cuda_f16_f32(uint16_t h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}

#else
#include "ptx_emulated.h"
#endif

__device__ static inline float cuda_bf16_f32(uint16_t h) {
    return __uint_as_float(static_cast<uint32_t>(h) << 16);
}

__device__ static inline uint16_t cuda_f32_bf16(float f) {
    return static_cast<uint16_t>(pack_bf16(f, 0));
}

#endif
