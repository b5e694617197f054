/* Replaces <cuda_runtime.h>: declares the CUDA runtime, and the language extensions of CUDA C++ for an
 * ordinary C++ compiler.
 *
 * A kernel is an ordinary function; each of its threads is a fiber (blocks.cc) with indices in emu_thread and
 * emu_place. */
#ifndef SLUICE_EMU_CUDA_RUNTIME_H
#define SLUICE_EMU_CUDA_RUNTIME_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C++" {

#include <math.h>
#include <new>
#include <stdint.h>
#include <string.h>
#include <tuple>
#include <type_traits>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

#define EMU_VECTOR2(name, T, align)                                                                          \
    struct __align__(align) name {                                                                           \
        T x, y;                                                                                              \
    };                                                                                                       \
    static inline name make_##name(T x, T y) {                                                               \
        return name{x, y};                                                                                   \
    }
#define EMU_VECTOR4(name, T, align)                                                                          \
    struct __align__(align) name {                                                                           \
        T x, y, z, w;                                                                                        \
    };                                                                                                       \
    static inline name make_##name(T x, T y, T z, T w) {                                                     \
        return name{x, y, z, w};                                                                             \
    }
EMU_VECTOR2(float2, float, 8)
EMU_VECTOR2(int2, int, 8)
EMU_VECTOR2(uint2, unsigned, 8)
EMU_VECTOR2(ushort2, unsigned short, 4)
EMU_VECTOR2(uchar2, unsigned char, 2)
EMU_VECTOR4(float4, float, 16)
EMU_VECTOR4(int4, int, 16)
EMU_VECTOR4(uint4, unsigned, 16)
EMU_VECTOR4(ushort4, unsigned short, 8)
EMU_VECTOR4(uchar4, unsigned char, 4)

struct uint3 {
    unsigned x, y, z;
};

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned vx = 1, unsigned vy = 1, unsigned vz = 1) : x(vx), y(vy), z(vz) {
    }
};

struct emu_thread {
    uint3 index;
    int number, lane; /* number: thread index in the block; lane: thread index in the warp */
};

struct emu_place {
    uint3 block;
    dim3 block_dim, grid_dim;
};

/* Thread-local storage of model initial-exec: threadIdx reads this variable, and a function call per access
 * would cost more than a kernel. */
#define EMU_THREAD_LOCAL __thread __attribute__((tls_model("initial-exec")))
extern EMU_THREAD_LOCAL const emu_thread *emu_self;
extern EMU_THREAD_LOCAL const emu_place *emu_where;

#define threadIdx (emu_self->index)
#define blockIdx  (emu_where->block)
#define blockDim  (emu_where->block_dim)
#define gridDim   (emu_where->grid_dim)
enum { warpSize = 32 };

extern "C" void emu_check_argument(const char *kernel, int i, const void *pointer);
/* Launches a kernel. Copies the arguments; call(arguments) runs the kernel for the thread of emu_self. */
extern "C" void emu_launch(const char *name, const void *function, dim3 grid, dim3 block, size_t shared_bytes,
                           cudaStream_t stream, void (*call)(void *), const void *arguments, size_t bytes);

template <class T> static inline void emu_check(const char *kernel, int i, const T &value) {
    if constexpr (std::is_pointer<T>::value) emu_check_argument(kernel, i, value);
    (void)kernel, (void)i, (void)value;
}

template <class... P> struct emu_call_of {
    void (*kernel)(P...);
    std::tuple<P...> arguments;
};

template <class... P, class... A>
static inline void emu_launch_of(const char *name, void (*kernel)(P...), dim3 grid, dim3 block,
                                 size_t shared_bytes, cudaStream_t stream, A... arguments) {
    static_assert(sizeof...(P) == sizeof...(A), "a kernel takes as many arguments as it has parameters");
    emu_call_of<P...> call = {kernel, std::tuple<P...>(static_cast<P>(arguments)...)};
    int i = 0;
    (emu_check<P>(name, i++, static_cast<P>(arguments)), ...);
    emu_launch(
        name, reinterpret_cast<const void *>(kernel), grid, block, shared_bytes, stream,
        [](void *at) {
            auto *c = static_cast<emu_call_of<P...> *>(at);
            std::apply(c->kernel, c->arguments);
        },
        &call, sizeof call);
}

#define LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                               \
    emu_launch_of(#kernel, kernel, grid, block, shared_bytes, stream, ##__VA_ARGS__)

template <class... P>
static inline cudaError_t cudaFuncSetAttribute(void (*kernel)(P...), enum cudaFuncAttribute attribute,
                                               int value) {
    return cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel), attribute, value);
}

template <class... P>
static inline cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, void (*kernel)(P...)) {
    return cudaFuncGetAttributes(attributes, reinterpret_cast<const void *>(kernel));
}

/* Shared memory of the current thread block. `site`: the address of a static variable in the kernel, which
 * identifies the __shared__ array. */

extern "C" void *emu_shared_array(const void *site, size_t bytes, const char *name);
extern "C" void *emu_shared_dynamic(void);

#define SMEM_ARRAY(T, name, n)                                                                               \
    static char name##_site;                                                                                 \
    typedef T name##_array[n];                                                                               \
    name##_array &name =                                                                                     \
        *static_cast<name##_array *>(emu_shared_array(&name##_site, sizeof(name##_array), #name))
#define SMEM_DYN(T, name) T *name = static_cast<T *>(emu_shared_dynamic())

#define EMU_AT const char *file = __builtin_FILE(), int line = __builtin_LINE()

extern "C" void emu_syncthreads(const char *file, int line);
extern "C" void emu_syncwarp(uint32_t mask, const char *file, int line);
extern "C" uint64_t emu_shuffle(uint32_t mask, uint64_t value, int from_lane, const char *file, int line);
extern "C" uint32_t emu_ballot(uint32_t mask, bool vote, const char *file, int line);

extern "C" [[noreturn]] void emu_trap(const char *file, int line);

[[noreturn]] static inline void __trap(EMU_AT) {
    emu_trap(file, line);
}

static inline void __syncthreads(EMU_AT) {
    emu_syncthreads(file, line);
}

static inline void __syncwarp(uint32_t mask = 0xFFFFFFFFu, EMU_AT) {
    emu_syncwarp(mask, file, line);
}

/* Returns the source lane of a shuffle; a lane outside its group of `width` lanes reads itself. */
static inline int emu_group_lane(int wanted, int width) {
    int lane = emu_self->lane, first = lane & ~(width - 1);
    return wanted < first || wanted >= first + width ? lane : wanted;
}

template <class T>
static inline T emu_shuffle_of(uint32_t mask, T value, int from_lane, const char *file, int line) {
    static_assert(sizeof(T) <= 8, "");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    bits = emu_shuffle(mask, bits, from_lane, file, line);
    memcpy(&value, &bits, sizeof value);
    return value;
}

template <class T> static inline T __shfl_sync(uint32_t mask, T value, int lane, int width = 32, EMU_AT) {
    return emu_shuffle_of(mask, value, (emu_self->lane & ~(width - 1)) + (lane & (width - 1)), file, line);
}

template <class T> static inline T __shfl_xor_sync(uint32_t mask, T value, int bits, int width = 32, EMU_AT) {
    return emu_shuffle_of(mask, value, emu_group_lane(emu_self->lane ^ bits, width), file, line);
}

template <class T>
static inline T __shfl_down_sync(uint32_t mask, T value, unsigned by, int width = 32, EMU_AT) {
    return emu_shuffle_of(mask, value, emu_group_lane(emu_self->lane + (int)by, width), file, line);
}

template <class T>
static inline T __shfl_up_sync(uint32_t mask, T value, unsigned by, int width = 32, EMU_AT) {
    return emu_shuffle_of(mask, value, emu_group_lane(emu_self->lane - (int)by, width), file, line);
}

static inline int __any_sync(uint32_t mask, int vote, EMU_AT) {
    return emu_ballot(mask, vote != 0, file, line) != 0;
}

static inline uint32_t __ballot_sync(uint32_t mask, int vote, EMU_AT) {
    return emu_ballot(mask, vote != 0, file, line);
}

static inline int __all_sync(uint32_t mask, int vote, EMU_AT) {
    return emu_ballot(mask, vote != 0, file, line) == mask;
}

template <class To, class From> static inline To emu_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

static inline float __uint_as_float(unsigned u) {
    return emu_bits<float>(u);
}
static inline float __int_as_float(int i) {
    return emu_bits<float>(i);
}
static inline unsigned __float_as_uint(float f) {
    return emu_bits<unsigned>(f);
}
static inline int __float_as_int(float f) {
    return emu_bits<int>(f);
}
/* Converts to int: rounds to nearest even, saturates, and maps NaN to 0, as on the device. */
static inline int __float2int_rn(float f) {
    return f != f ? 0 : f >= 0x1p31f ? INT32_MAX : f < -0x1p31f ? INT32_MIN : (int)rintf(f);
}
static inline int __float2int_rd(float f) {
    return __float2int_rn(floorf(f));
}
static inline unsigned __float2uint_rn(float f) {
    return f != f || f < 0 ? 0 : f >= 0x1p32f ? UINT32_MAX : (unsigned)rintf(f);
}
static inline float __fmul_rn(float a, float b) {
    return a * b;
}
static inline float __fadd_rn(float a, float b) {
    return a + b;
}
static inline float __fsub_rn(float a, float b) {
    return a - b;
}
static inline float __fdiv_rn(float a, float b) {
    return a / b;
}
static inline float __fdividef(float a, float b) {
    return a / b;
}
static inline float __fsqrt_rn(float a) {
    return sqrtf(a);
}
static inline float __frcp_rn(float a) {
    return 1 / a;
}
static inline float __fmaf_rn(float a, float b, float c) {
    return fmaf(a, b, c);
}
static inline double __dmul_rn(double a, double b) {
    return a * b;
}
static inline double __dadd_rn(double a, double b) {
    return a + b;
}
static inline float rsqrtf(float a) {
    return 1 / sqrtf(a);
}
static inline double rsqrt(double a) {
    return 1 / sqrt(a);
}
static inline int __popc(unsigned u) {
    return __builtin_popcount(u);
}
static inline int __clz(int i) {
    return i ? __builtin_clz((unsigned)i) : 32;
}
static inline int __ffs(int i) {
    return __builtin_ffs(i);
}
static inline unsigned __umulhi(unsigned a, unsigned b) {
    return (unsigned)((uint64_t)a * b >> 32);
}

template <class T> static inline T __ldg(const T *from) {
    return *from;
}
template <class T> static inline T __ldcs(const T *from) {
    return *from;
}
template <class T> static inline void __stcs(T *to, T value) {
    *to = value;
}

#define EMU_MIN_MAX(T)                                                                                       \
    static inline T min(T a, T b) {                                                                          \
        return b < a ? b : a;                                                                                \
    }                                                                                                        \
    static inline T max(T a, T b) {                                                                          \
        return a < b ? b : a;                                                                                \
    }
EMU_MIN_MAX(int)
EMU_MIN_MAX(unsigned)
EMU_MIN_MAX(long)
EMU_MIN_MAX(unsigned long)
EMU_MIN_MAX(long long)
EMU_MIN_MAX(unsigned long long)
/* min and max ignore a NaN operand, as on the device. */
static inline float min(float a, float b) {
    return fminf(a, b);
}
static inline float max(float a, float b) {
    return fmaxf(a, b);
}
static inline double min(double a, double b) {
    return fmin(a, b);
}
static inline double max(double a, double b) {
    return fmax(a, b);
}

} /* extern "C++" */
#endif

#endif
