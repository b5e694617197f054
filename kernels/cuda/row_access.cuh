/* Row access for elementwise kernels: loads and stores of four columns at a time for rows of any type, and
 * the launch grid.
 *
 * A thread has columns 4q to 4q + 3 of a row. A thread loads its four columns at once (16 bytes; 8 for 2-byte
 * types) where all rows are aligned, else one by one. Each thread gets the same values either way. */
#ifndef SLUICE_CUDA_ROW_ACCESS_CUH
#define SLUICE_CUDA_ROW_ACCESS_CUH

#include "kernels/cuda/workspace.h"
#include "kernels/cuda/operators.h"
#include "kernels/cuda/weights.cuh"

struct rows {
    char *data;         /* address of the first row; NULL: absent tensor */
    int64_t step;       /* row stride in bytes; 0: every row is the same row */
    const char *scales; /* first row scale or tile; scale_row and scale as in struct tensor */
    const char *others; /* NVFP4_AWQ: bf16 factors of the columns; I4_ROT256: scales of groups */
    int64_t scale_step; /* tiled types: bytes of the tiles of 128 rows; I4_ROT256: group scales per row */
    int32_t scale_row;
    float scale;
    enum dtype dtype;
    bool wide; /* address and row stride allow loads of four values at once (quantised: aligned blocks) */
};

/* Returns the alignment in bytes that loads of four values need for this type. */
static inline uintptr_t rows_unit(enum dtype dtype) {
    if (dtype == DTYPE_F32) return 16;
    return dtype_is_quantised(dtype) ? (uintptr_t)block_layout_of(dtype).unit : 8;
}

static inline struct rows rows_at(const void *data, int64_t step, enum dtype dtype) {
    bool wide = ((uintptr_t)data | (uintptr_t)step) % rows_unit(dtype) == 0;
    return {static_cast<char *>(const_cast<void *>(data)), step, NULL, NULL, 0, 0, 1, dtype, wide};
}

/* Adds a tensor's quantisation scales to its row access. */
static inline struct rows rows_scaled(struct rows rows, const struct tensor *t) {
    int tiled = dtype_tiled_values(t->dtype);
    const char *scales = static_cast<const char *>(t->scales);
    rows.scales = scales ? scales + tensor_scales_head(t) : NULL;
    if (t->dtype == DTYPE_NVFP4_AWQ) rows.others = scales;
    if (t->dtype == DTYPE_I4_ROT256) {
        rows.others = rows.scales + sizeof(float) * (size_t)t->scale_rows;
        rows.scale_step = tensor_columns(t) / 16;
    }
    rows.scale_row = t->scale_row;
    rows.scale = t->scale;
    if (tiled) rows.scale_step = ((int64_t)tensor_columns(t) / tiled + 3) / 4 * 512;
    return rows;
}

/* Returns access to the rows of a tensor, which may be absent. */
static inline struct rows rows_of(const struct tensor *t) {
    return t->rank ? rows_scaled(rows_at(t->data, t->row_bytes, t->dtype), t) : rows_at(NULL, 0, DTYPE_F32);
}

/* Returns row access to a vector that serves as every row (stride 0). */
static inline struct rows rows_vector(const struct tensor *t) {
    return t->rank ? rows_scaled(rows_at(t->data, 0, t->dtype), t) : rows_at(NULL, 0, DTYPE_F32);
}

/* Returns row access to packed f32 rows; columns 0: every row is the same row. */
static inline struct rows rows_floats(const float *data, int64_t columns) {
    return rows_at(data, columns * (int64_t)sizeof(float), DTYPE_F32);
}

/* Grid: threads in x cover groups of four columns ("quads"), threads and blocks in y cover rows. Register
 * counts in kernel comments are for sm_80. */
enum { ROWS_THREADS = 256 };

struct rows_grid {
    dim3 grid, block;
};

static inline struct rows_grid rows_grid_of(int64_t rows, int64_t quads) {
    const int64_t y_most = 65535;
    unsigned x = 1;
    while (x < ROWS_THREADS && x < quads) x *= 2;
    unsigned y = ROWS_THREADS / x;
    int64_t down = (rows + y - 1) / y;
    return {dim3((unsigned)((quads + x - 1) / x), (unsigned)(down < y_most ? down : y_most)), dim3(x, y)};
}

/* Position of a thread in this grid: number of its group of four columns, its first row, and the distance to
 * its next row. */
__device__ static inline int64_t first_quad() {
    return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

__device__ static inline int64_t first_row() {
    return (int64_t)blockIdx.y * blockDim.y + threadIdx.y;
}

__device__ static inline int64_t next_row() {
    return (int64_t)gridDim.y * blockDim.y;
}

/* Loads one value of a row of f32, bf16 or f16. */
__device__ static inline float value_at(const char *data, enum dtype dtype, int64_t i) {
    if (dtype == DTYPE_F32) return reinterpret_cast<const float *>(data)[i];
    uint16_t half = reinterpret_cast<const uint16_t *>(data)[i];
    return dtype == DTYPE_BF16 ? cuda_bf16_f32(half) : cuda_f16_f32(half);
}

/* Loads values i to i + 3 of a row of n values; values beyond n are zeros. */
__device__ static inline float4 four_at(const char *data, enum dtype dtype, bool wide, int64_t i, int64_t n) {
    if (wide && i + 4 <= n && dtype == DTYPE_F32) {
        uint4 v = ld128(data + 4 * i);
        return make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z),
                           __uint_as_float(v.w));
    }
    if (wide && i + 4 <= n) {
        uint2 v = *reinterpret_cast<const uint2 *>(data + 2 * i);
        uint16_t h[4] = {(uint16_t)v.x, (uint16_t)(v.x >> 16), (uint16_t)v.y, (uint16_t)(v.y >> 16)};
        if (dtype == DTYPE_BF16)
            return make_float4(cuda_bf16_f32(h[0]), cuda_bf16_f32(h[1]), cuda_bf16_f32(h[2]),
                               cuda_bf16_f32(h[3]));
        return make_float4(cuda_f16_f32(h[0]), cuda_f16_f32(h[1]), cuda_f16_f32(h[2]), cuda_f16_f32(h[3]));
    }
    return make_float4(i < n ? value_at(data, dtype, i) : 0, i + 1 < n ? value_at(data, dtype, i + 1) : 0,
                       i + 2 < n ? value_at(data, dtype, i + 2) : 0,
                       i + 3 < n ? value_at(data, dtype, i + 3) : 0);
}

/* The functions rows_load... load values i to i + 3 of a row of n values, zeros beyond n. Suffix plain:
 * unquantised type (weight_is_plain); f32: only F32; no suffix: any weight type; of: plain or any type, by
 * template argument. */
__device__ static inline float4 rows_load_plain(const struct rows &rows, int64_t row, int64_t i, int64_t n) {
    return four_at(rows.data + row * rows.step, rows.dtype, rows.wide, i, n);
}

__device__ static inline float4 rows_load_f32(const struct rows &rows, int64_t row, int64_t i, int64_t n) {
    return four_at(rows.data + row * rows.step, DTYPE_F32, rows.wide, i, n);
}

/* Loads values i to i + N - 1 of an unquantised row of n values; values beyond n are zeros. */
template <enum dtype D, int N>
__device__ static inline void load_plain(float to[N], const char *row, int64_t i, int64_t n, bool wide) {
    if constexpr (N == 1) {
        to[0] = i < n ? value_at(row, D, i) : 0;
    } else {
#pragma unroll
        for (int j = 0; j < N; j += 4) {
            float4 v = four_at(row, D, wide, i + j, n);
            to[j] = v.x, to[j + 1] = v.y, to[j + 2] = v.z, to[j + 3] = v.w;
        }
    }
}

/* Loads N values of a quantised row; values beyond n are zeros. Requires N = 1 if quantisation blocks cross
 * row boundaries. */
template <enum dtype D, int N>
__device__ static inline void load_quantised(float to[N], const char *row, int64_t i, int64_t n, bool wide) {
    constexpr bool bytes = block_layout_of(D).low.bits == 8 && scaled_elsewhere(D) && !rotated(D);
    if (i + N <= n) {
        load_values<D, N>(to, row, i, wide);
        return;
    }
#pragma unroll
    for (int j = 0; j < N; j++)
        to[j] = bytes && i + j < n ? cuda_number_of<D>(reinterpret_cast<block_bytes>(row)[i + j]) : 0;
}

template <int N> __device__ static inline void scale_values(float to[N], float scale) {
#pragma unroll
    for (int j = 0; j < N; j++) to[j] = __fmul_rn(to[j], scale);
}

/* Returns the codes, levels and group scales of a row of I4_ROT256. The levels lie before the row scales. */
__device__ static inline i4_row i4_row_of(const struct rows &rows, int64_t row) {
    int64_t of_row = rows.scale_row + (rows.step ? row : 0);
    return {reinterpret_cast<block_bytes>(rows.data + row * rows.step),
            reinterpret_cast<block_bytes>(rows.others + of_row * rows.scale_step),
            reinterpret_cast<const float *>(rows.scales) - 16};
}

/* Multiplies by the factors of NVFP4_AWQ's columns i to i + N - 1. Single loads: with wide loads
 * quantise_rows spills on 12.0. */
template <int N> __device__ static inline void scale_columns(float to[N], const char *factors, int64_t i) {
#pragma unroll
    for (int j = 0; j < N; j++)
        to[j] = __fmul_rn(to[j], cuda_bf16_f32(reinterpret_cast<const uint16_t *>(factors)[i + j]));
}

/* Loads N (1, 4 or 8) values of a row of any weight type, with scales applied; i is a multiple of N. */
template <enum dtype D, int N>
__device__ static inline void weights_load(float to[N], const struct rows &rows, int64_t row, int64_t i,
                                           int64_t n) {
    const char *from = rows.data + row * rows.step;
    if constexpr (D == DTYPE_F32 || D == DTYPE_F16 || D == DTYPE_BF16)
        load_plain<D, N>(to, from, i, n, rows.wide);
    else if constexpr (D == DTYPE_I4_ROT256) {
        if (i >= n) { /* blocks fill rows, so a thread's values are all present or all absent */
#pragma unroll
            for (int j = 0; j < N; j++) to[j] = 0;
            return;
        }
        load_i4<N>(to, i4_row_of(rows, row), i, rows.wide);
    } else
        load_quantised<D, N>(to, from, i, n, rows.wide);
    if (scaled_elsewhere(D) && rows.scales && i < n) {
        int64_t of_row = rows.scale_row + (rows.step ? row : 0);
        scale_values<N>(to, cuda_row_scale<D>(rows.scales, of_row, i, rows.scale_step));
    }
    if (rows.scale != 1) scale_values<N>(to, rows.scale);
    if constexpr (D == DTYPE_NVFP4_AWQ) {
        if (i < n) scale_columns<N>(to, rows.others, i); /* blocks fill rows: all N columns are present */
    }
    if (i + N <= n) return;
#pragma unroll
    for (int j = 0; j < N; j++)
        to[j] = i + j < n
                    ? to[j]
                    : 0; /* sets values beyond n to 0 again: an infinite scale turns a padding 0 into NaN */
}

/* Like weights_load, with the type dispatched at run time: too slow for inner loops. */
template <int N>
__device__ static inline void weights_load_any(float to[N], const struct rows &rows, int64_t row, int64_t i,
                                               int64_t n) {
    switch (rows.dtype) {
#define OF_TYPE(D)                                                                                           \
    case D:                                                                                                  \
        weights_load<D, N>(to, rows, row, i, n);                                                             \
        return;
        WEIGHT_TYPES(OF_TYPE)
#undef OF_TYPE
    default:
        for (int j = 0; j < N; j++) to[j] = 0;
    }
}

/* Loads value i of a row of any weight type. */
__device__ static inline float rows_value(const struct rows &rows, int64_t row, int64_t i) {
    float v;
    weights_load_any<1>(&v, rows, row, i, i + 1);
    return v;
}

__device__ static inline float4 rows_load(const struct rows &rows, int64_t row, int64_t i, int64_t n) {
    float v[4];
    weights_load_any<4>(v, rows, row, i, n);
    return make_float4(v[0], v[1], v[2], v[3]);
}

template <bool PLAIN>
__device__ static inline float4 rows_load_of(const struct rows &rows, int64_t row, int64_t i, int64_t n) {
    return PLAIN ? rows_load_plain(rows, row, i, n) : rows_load(rows, row, i, n);
}

/* Stores four values as bf16 or f16 (nearest even); columns from n on are not written. */
template <enum dtype D>
__device__ static inline void rows_store_half(const struct rows &rows, int64_t row, int64_t i, int64_t n,
                                              float4 v) {
    uint16_t *to = reinterpret_cast<uint16_t *>(rows.data + row * rows.step) + i;
    uint2 both = D == DTYPE_BF16 ? make_uint2(pack_bf16(v.x, v.y), pack_bf16(v.z, v.w))
                                 : make_uint2(pack_f16(v.x, v.y), pack_f16(v.z, v.w));
    if (rows.wide && i + 4 <= n) {
        *reinterpret_cast<uint2 *>(to) = both;
        return;
    }
    if (i < n) to[0] = (uint16_t)both.x;
    if (i + 1 < n) to[1] = (uint16_t)(both.x >> 16);
    if (i + 2 < n) to[2] = (uint16_t)both.y;
    if (i + 3 < n) to[3] = (uint16_t)(both.y >> 16);
}

/* Stores four f32 values; columns from n on are not written. */
__device__ static inline void rows_store(const struct rows &rows, int64_t row, int64_t i, int64_t n,
                                         float4 v) {
    float *to = reinterpret_cast<float *>(rows.data + row * rows.step) + i;
    if (rows.wide && i + 4 <= n) {
        st128(to, make_uint4(__float_as_uint(v.x), __float_as_uint(v.y), __float_as_uint(v.z),
                             __float_as_uint(v.w)));
        return;
    }
    if (i < n) to[0] = v.x;
    if (i + 1 < n) to[1] = v.y;
    if (i + 2 < n) to[2] = v.z;
    if (i + 3 < n) to[3] = v.w;
}

/* Template variants of the bandwidth-critical kernels. ROWS_F32, ROWS_BF16: all rows aligned, columns a
 * multiple of 4, result of that type, so that a load or store is one instruction. ROWS_ANY: checks at run
 * time. f16 results always use ROWS_ANY, because the checks cost memory-bound kernels nothing. Inputs are
 * f32, except vectors. */
enum rows_kind { ROWS_ANY, ROWS_F32, ROWS_BF16 };

/* Chooses a kernel's template variant for its operands. other: the second input, may be absent. */
static inline enum rows_kind rows_kind_of(const struct rows &out, const struct rows &in,
                                          const struct rows &other, int64_t columns) {
    bool wide = out.wide && in.wide && (!other.data || other.wide) && columns % 4 == 0;
    if (!wide || out.dtype == DTYPE_F16) return ROWS_ANY;
    return out.dtype == DTYPE_BF16 ? ROWS_BF16 : ROWS_F32;
}

template <enum rows_kind K>
__device__ static inline float4 rows_load_kind(const struct rows &rows, int64_t row, int64_t i, int64_t n) {
    if constexpr (K == ROWS_ANY) return rows_load_f32(rows, row, i, n);
    uint4 v = ld128(rows.data + row * rows.step + 4 * i);
    return make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z),
                       __uint_as_float(v.w));
}

template <enum rows_kind K>
__device__ static inline void rows_store_kind(struct rows rows, int64_t row, int64_t i, int64_t n, float4 v) {
    if constexpr (K != ROWS_ANY) rows.wide = true, n = i + 4;
    if (K == ROWS_BF16 || (K == ROWS_ANY && rows.dtype == DTYPE_BF16))
        rows_store_half<DTYPE_BF16>(rows, row, i, n, v);
    else if (K == ROWS_ANY && rows.dtype == DTYPE_F16)
        rows_store_half<DTYPE_F16>(rows, row, i, n, v);
    else
        rows_store(rows, row, i, n, v);
}

/* Launches the template instance of a kernel for the row kind (ROWS_F32, ROWS_BF16 or ROWS_ANY). */
#define LAUNCH_ROWS(kernel, kind, g, stream, ...)                                                            \
    do {                                                                                                     \
        if ((kind) == ROWS_F32)                                                                              \
            LAUNCH((kernel<ROWS_F32>), g.grid, g.block, 0, stream, __VA_ARGS__);                             \
        else if ((kind) == ROWS_BF16)                                                                        \
            LAUNCH((kernel<ROWS_BF16>), g.grid, g.block, 0, stream, __VA_ARGS__);                            \
        else                                                                                                 \
            LAUNCH((kernel<ROWS_ANY>), g.grid, g.block, 0, stream, __VA_ARGS__);                             \
    } while (0)
#define ROWS_KERNELS(kernel) KERNEL(kernel<ROWS_ANY>), KERNEL(kernel<ROWS_F32>), KERNEL(kernel<ROWS_BF16>)

/* Returns x sigmoid(inner). CUDA's expf is within 2 ulp; the division is correctly rounded. */
__device__ static inline float gated_by(float x, float inner) {
    return x / (1.0f + expf(-inner));
}

/* Computes (1 + tanh(u)) / 2 as sigmoid(2 u), which has no cancellation where tanh is near -1. The constant
 * is 2 sqrt(2/pi). */
__device__ static inline float gelu_tanh(float x) {
    return gated_by(x, 1.59576912f * (x + 0.044715f * (x * x * x)));
}

/* GELU by erff, which is within 2 ulp in CUDA. erfcf would not cancel where erf is near -1, but needs ten
 * more registers. */
__device__ static inline float gelu_erf(float x) {
    return 0.5f * x * (1.0f + erff(0.707106781f * x));
}

__device__ static inline float4 activate_four(float4 v, enum activation activation) {
    switch (activation) {
    case ACTIVATION_NONE:
        break;
    case ACTIVATION_SILU:
        return make_float4(gated_by(v.x, v.x), gated_by(v.y, v.y), gated_by(v.z, v.z), gated_by(v.w, v.w));
    case ACTIVATION_GELU_TANH:
        return make_float4(gelu_tanh(v.x), gelu_tanh(v.y), gelu_tanh(v.z), gelu_tanh(v.w));
    case ACTIVATION_GELU_QUICK:
        return make_float4(gated_by(v.x, 1.702f * v.x), gated_by(v.y, 1.702f * v.y),
                           gated_by(v.z, 1.702f * v.z), gated_by(v.w, 1.702f * v.w));
    case ACTIVATION_GELU_ERF:
        return make_float4(gelu_erf(v.x), gelu_erf(v.y), gelu_erf(v.z), gelu_erf(v.w));
    case ACTIVATION_RELU:
        return make_float4(v.x < 0 ? 0 : v.x, v.y < 0 ? 0 : v.y, v.z < 0 ? 0 : v.z, v.w < 0 ? 0 : v.w);
    case ACTIVATION_SIGMOID:
        return make_float4(gated_by(1, v.x), gated_by(1, v.y), gated_by(1, v.z), gated_by(1, v.w));
    case ACTIVATION_SIGMOID_TWICE:
        return make_float4(gated_by(2, v.x), gated_by(2, v.y), gated_by(2, v.z), gated_by(2, v.w));
    }
    return v;
}

__device__ static inline float4 add_four(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

__device__ static inline float4 multiply_four(float4 a, float4 b) {
    return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w);
}

__device__ static inline float4 all_four(float v) {
    return make_float4(v, v, v, v);
}

#endif
