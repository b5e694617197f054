/* Kernels of fragments.h. Grids have one block; elementwise kernels use blocks of 256 threads. */
#include "test/device/fragments.h"

#include "kernels/cuda/operators.h"
#include "kernels/cuda/ptx.cuh"

enum { THREADS = 256, SIDE = 16, PRODUCT_STRIDE = 24 };

static cudaStream_t stream_of(struct device *device) {
    return reinterpret_cast<struct cuda *>(device)->compute;
}

/* Loads a lane's fragments, multiplies with `multiply`, and stores the sums. S: type of sums, N per lane. */
template <class S, int N, class F>
__device__ static inline void multiply_fragments(const uint32_t *a, const uint32_t *b, S *d, F multiply) {
    uint32_t b_lane[MMA_TILES][2];
    S d_lane[MMA_TILES][N];
    int lane = threadIdx.x;
    for (int i = 0; i < MMA_TILES; i++) {
        for (int k = 0; k < 2; k++) b_lane[i][k] = b[(lane * MMA_TILES + i) * 2 + k];
        for (int k = 0; k < N; k++) d_lane[i][k] = d[(lane * MMA_TILES + i) * N + k];
    }
    uint32_t a_lane[4] = {a[lane * 4], a[lane * 4 + 1], a[lane * 4 + 2], a[lane * 4 + 3]};
    multiply(d_lane, a_lane, b_lane);
    for (int i = 0; i < MMA_TILES; i++)
        for (int k = 0; k < N; k++) d[(lane * MMA_TILES + i) * N + k] = d_lane[i][k];
}

struct bf16_multiply {
    __device__ void operator()(float (*d)[4], const uint32_t a[4], const uint32_t (*b)[2]) const {
        mma_bf16<MMA_TILES>(d, a, b);
    }
};

struct f16_multiply {
    __device__ void operator()(uint32_t (*d)[2], const uint32_t a[4], const uint32_t (*b)[2]) const {
        mma_f16<MMA_TILES>(d, a, b);
    }
};

struct s8_multiply {
    const int32_t *start;
    __device__ void operator()(int32_t (*d)[4], const uint32_t a[4], const uint32_t (*b)[2]) const {
        if (start)
            mma_s8_from<MMA_TILES>(*start, d, a, b);
        else
            mma_s8<MMA_TILES>(d, a, b);
    }
};

__global__ static void mma(const uint32_t *a, const uint32_t *b, float *d) {
    multiply_fragments<float, 4>(a, b, d, bf16_multiply());
}

__global__ static void mma_halves(const uint32_t *a, const uint32_t *b, uint32_t *d) {
    multiply_fragments<uint32_t, 2>(a, b, d, f16_multiply());
}

__global__ static void mma_integers(const uint32_t *a, const uint32_t *b, int32_t *d, const int32_t *start) {
    multiply_fragments<int32_t, 4>(a, b, d, s8_multiply{start});
}

extern "C" void fragments_mma(struct device *device, const uint32_t *a, const uint32_t *b, float *d) {
    LAUNCH(mma, 1, LANES, 0, stream_of(device), a, b, d);
}

extern "C" void fragments_mma_f16(struct device *device, const uint32_t *a, const uint32_t *b, uint32_t *d) {
    LAUNCH(mma_halves, 1, LANES, 0, stream_of(device), a, b, d);
}

extern "C" void fragments_mma_s8(struct device *device, const uint32_t *a, const uint32_t *b, int32_t *d,
                                 const int32_t *start) {
    LAUNCH(mma_integers, 1, LANES, 0, stream_of(device), a, b, d, start);
}

template <bool transposed>
__global__ static void tiles(const uint16_t *values, const int32_t *row_of, uint32_t *to) {
    SMEM_ARRAY(uint16_t, tile, LANES * TILE_STRIDE);
    int lane = threadIdx.x;
    for (int i = lane; i < LANES * TILE_STRIDE; i += LANES) tile[i] = values[i];
    __syncthreads();
    uint32_t got[4];
    if (transposed)
        ldmatrix_x4_transposed(got, tile + row_of[lane] * TILE_STRIDE);
    else
        ldmatrix_x4(got, tile + row_of[lane] * TILE_STRIDE);
    for (int i = 0; i < 4; i++) to[lane * 4 + i] = got[i];
}

extern "C" void fragments_ldmatrix(struct device *device, const uint16_t *values, const int32_t *row_of,
                                   bool transposed, uint32_t *to) {
    if (transposed)
        LAUNCH((tiles<true>), 1, LANES, 0, stream_of(device), values, row_of, to);
    else
        LAUNCH((tiles<false>), 1, LANES, 0, stream_of(device), values, row_of, to);
}

template <bool transposed> __global__ static void product(const uint16_t *a, const uint16_t *b, float *d) {
    SMEM_ARRAY(uint16_t, a_tile, SIDE * PRODUCT_STRIDE);
    SMEM_ARRAY(uint16_t, b_tile, SIDE * PRODUCT_STRIDE);
    int lane = threadIdx.x, row = lane / 2, half = lane % 2 * 8;
    copy_async_16(a_tile + row * PRODUCT_STRIDE + half, a + row * SIDE + half, true);
    copy_async_16(b_tile + row * PRODUCT_STRIDE + half, b + row * SIDE + half, true);
    copy_async_commit();
    copy_async_wait<0>();
    __syncthreads();
    uint32_t a_lane[4], b_lane[2][2];
    float sum[2][4] = {};
    ldmatrix_x4(a_lane, a_tile + lane % 16 * PRODUCT_STRIDE + lane / 16 * 8);
    if (transposed)
        ldmatrix_x4_transposed(&b_lane[0][0],
                               b_tile + (lane / 8 % 2 * 8 + lane % 8) * PRODUCT_STRIDE + lane / 16 * 8);
    else
        ldmatrix_x4(&b_lane[0][0], b_tile + (lane / 16 * 8 + lane % 8) * PRODUCT_STRIDE + lane / 8 % 2 * 8);
    mma_bf16<2>(sum, a_lane, b_lane);
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 4; k++)
            d[(lane / 4 + k / 2 * 8) * SIDE + i * 8 + lane % 4 * 2 + k % 2] = sum[i][k];
}

extern "C" void fragments_product(struct device *device, const uint16_t *a, const uint16_t *b,
                                  bool transposed, float *d) {
    if (transposed)
        LAUNCH((product<true>), 1, LANES, 0, stream_of(device), a, b, d);
    else
        LAUNCH((product<false>), 1, LANES, 0, stream_of(device), a, b, d);
}

/* Thread i copies chunk i of two groups, and uses the first while the second may be in flight. */
__global__ static void copy(const uint32_t *from, const int32_t *valid, uint32_t *to) {
    SMEM_ARRAY(uint32_t, chunks, CHUNKS * 4);
    int n = CHUNKS / 2, i = threadIdx.x, other = n - 1 - i;
    copy_async_16(chunks + i * 4, from + i * 4, valid[i]);
    copy_async_commit();
    copy_async_16(chunks + (n + i) * 4, from + (n + i) * 4, valid[n + i]);
    copy_async_commit();
    copy_async_wait<1>();
    __syncthreads();
    st128(to + other * 4, ld128(chunks + other * 4));
    copy_async_wait<0>();
    __syncthreads();
    st128(to + (n + other) * 4, ld128(chunks + (n + other) * 4));
}

extern "C" void fragments_copy(struct device *device, const uint32_t *from, const int32_t *valid,
                               uint32_t *to) {
    LAUNCH(copy, 1, CHUNKS / 2, 0, stream_of(device), from, valid, to);
}

__global__ static void exp2_each(const float *from, float *to, int32_t n) {
    int32_t i = blockIdx.x * THREADS + threadIdx.x;
    if (i < n) to[i] = exp2_fast(from[i]);
}

extern "C" void fragments_exp2(struct device *device, const float *from, float *to, int32_t n) {
    LAUNCH(exp2_each, (n + THREADS - 1) / THREADS, THREADS, 0, stream_of(device), from, to, n);
}

__global__ static void pack_each(const float *low, const float *high, uint32_t *to, int32_t n) {
    int32_t i = blockIdx.x * THREADS + threadIdx.x;
    if (i < n) to[i] = pack_bf16(low[i], high[i]);
}

extern "C" void fragments_pack(struct device *device, const float *low, const float *high, uint32_t *to,
                               int32_t n) {
    LAUNCH(pack_each, (n + THREADS - 1) / THREADS, THREADS, 0, stream_of(device), low, high, to, n);
}

__global__ static void pack_f16_each(const float *low, const float *high, uint32_t *to, int32_t n) {
    int32_t i = blockIdx.x * THREADS + threadIdx.x;
    if (i < n) to[i] = pack_f16(low[i], high[i]);
}

extern "C" void fragments_pack_f16(struct device *device, const float *low, const float *high, uint32_t *to,
                                   int32_t n) {
    LAUNCH(pack_f16_each, (n + THREADS - 1) / THREADS, THREADS, 0, stream_of(device), low, high, to, n);
}

__global__ static void f16_each(const uint16_t *from, float *to, int32_t n) {
    int32_t i = blockIdx.x * THREADS + threadIdx.x;
    if (i < n) to[i] = cuda_f16_f32(from[i]);
}

extern "C" void fragments_f16(struct device *device, const uint16_t *from, float *to, int32_t n) {
    LAUNCH(f16_each, (n + THREADS - 1) / THREADS, THREADS, 0, stream_of(device), from, to, n);
}

__global__ static void unpack_f16_each(const uint16_t *from, float *to, int32_t n) {
    int32_t i = blockIdx.x * THREADS + threadIdx.x;
    if (2 * i >= n) return;
    float2 both =
        unpack_f16(static_cast<uint32_t>(from[2 * i]) | static_cast<uint32_t>(from[2 * i + 1]) << 16);
    to[2 * i] = both.x, to[2 * i + 1] = both.y;
}

extern "C" void fragments_unpack_f16(struct device *device, const uint16_t *from, float *to, int32_t n) {
    LAUNCH(unpack_f16_each, (n / 2 + THREADS - 1) / THREADS, THREADS, 0, stream_of(device), from, to, n);
}
