/* Attention in int8 mode, after SageAttention (Zhang et al., 2024): scores are products of 8-bit integers,
 * results are products of f16 values with f16 sums in a tile of keys and f32 sums over tiles. The structure
 * is attention.cu's: one pass over the keys, tile by tile, in order.
 *
 * Scores. The mean of k over a sample of the keys is subtracted from k. This changes all scores of a query by
 * the same number, so the softmax stays the same. It removes the bias of k's channels, which would take most
 * of the 8 bits. Each row of q and of k then has its own scale, max |row| / 127, and codes
 * round_half_even(value / scale). Sums of products of codes are exact. They start at INT8_ZERO, so that their
 * bits are a float, and one fused multiply-add with the key's scale converts them.
 *
 * Results. Each column of v is divided by a power of two per tile of keys, so that |v| < 1. f16 then keeps
 * the 8 significant bits of bf16, down to 2^-14 of the column's largest value. No sum overflows, because a
 * tile has 64 probabilities of at most 2^(INT8_P_BITS + INT8_LAG). Probabilities are rounded to f16 for the
 * product with v; the softmax sums them in f32. GeForce GPUs compute f16 sums at twice the rate of f32 sums;
 * other GPUs lose nothing.
 *
 * Relative error against double, measured under emulation (nearly normal values, scale 1/sqrt(D), f32
 * operands; test_cuda_attention): 7.6e-3 (bf16 mode: 3.2e-3); with a bias of k's channels of 4 deviations
 * 7.9e-3 (7.4e-3); with every hundredth token 6 times as large 1.2e-2 (4.6e-3).
 *
 * A scale covers one row, or one column of a tile of INT8_KEYS rows. Rounding therefore depends on shapes
 * alone, not on the GPU or on the groups of heads.
 *
 * Non-finite values: in q, the row of the result becomes NaN; in v, the column becomes infinite or NaN; in k,
 * all results of its heads become NaN.
 */
#include "kernels/cuda/attention_int8.h"

#include "kernels/cuda/attention_heads.cuh"

#include <math.h>

/* The float 1.5 * 2^23: adding an integer below 2^22 to its bits adds the integer to its value. Sums of codes
 * are at most 128 * 127^2 = 0.49 * 2^22. INT8_P_BITS, INT8_LAG: powers of two (online_softmax). */
enum { INT8_ZERO_BITS = 0x4B400000, INT8_P_BITS = 5, INT8_LAG = 4 };
#define INT8_ZERO 12582912.0f

/* k or v [S, heads, head_size]. */
struct key_source {
    const char *data;
    int64_t row; /* row stride in bytes */
    bool bf16;   /* false: f32 */
    bool wide;   /* groups of eight columns start at multiples of 16 bytes */
};

struct quantise_args {
    key_source k, v;
    const float *mean; /* [G,D] */
    unsigned char *records;
    int32_t rows, head_size, head, first_head; /* head: compiled head size; first_head: of the group */
};

__device__ static inline float element(const key_source &from, int64_t row, int32_t column) {
    const char *at = from.data + row * from.row;
    return from.bf16 ? cuda_bf16_f32(reinterpret_cast<const uint16_t *>(at)[column])
                     : reinterpret_cast<const float *>(at)[column];
}

enum { MEAN_COLUMNS = WARP, MEAN_PARTS = 8 };

/* Mean of k over at most INT8_MEAN_KEYS evenly spaced keys. MEAN_PARTS threads share a column; each sums
 * every eighth sampled key, in order. The partial sums are then added in order.
 *   grid    ceil(G D / 32)
 *   block   32 x 8; shared 1 KiB; 44 registers (sm_80)
 *   bytes   reads 2,048 G D (4,096 for f32), in segments of 64 bytes (128)
 *   bound   latency: 128 loads of a thread, 8 at a time; about 10 us (calculated) */
__global__ void __launch_bounds__(MEAN_COLUMNS *MEAN_PARTS)
    attention_mean(key_source k, float *mean, int32_t rows, int32_t columns) {
    SMEM_ARRAY(float, sums, MEAN_COLUMNS *MEAN_PARTS);
    int32_t lane = static_cast<int32_t>(threadIdx.x) % MEAN_COLUMNS,
            part = static_cast<int32_t>(threadIdx.x) / MEAN_COLUMNS;
    int32_t column = static_cast<int32_t>(blockIdx.x) * MEAN_COLUMNS + lane;
    int32_t n = rows < INT8_MEAN_KEYS ? rows : INT8_MEAN_KEYS;
    float sum = 0;
    if (column < columns) {
#pragma unroll 8
        for (int32_t i = part; i < n; i += MEAN_PARTS)
            sum += element(k, (2 * static_cast<int64_t>(i) + 1) * rows / (2 * n), column);
    }
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (part || column >= columns) return;
#pragma unroll
    for (int i = 1; i < MEAN_PARTS; i++) sum += sums[i * MEAN_COLUMNS + lane];
    mean[column] = sum / static_cast<float>(n);
}

enum { QUANTISE_THREADS = 256, PIECE = 8, PIECES = 16, ROW_STEP = QUANTISE_THREADS / PIECES };

/* Loads columns [column, column + 8) of a head's row; columns beyond the head are zeros. */
__device__ static inline void load_piece(float to[PIECE], const key_source &from, int64_t row,
                                         int32_t first_column, int32_t column, int32_t head_size) {
    if (!from.wide || column + PIECE > head_size) {
#pragma unroll
        for (int i = 0; i < PIECE; i++)
            to[i] = column + i < head_size ? element(from, row, first_column + column + i) : 0;
        return;
    }
    const char *at = from.data + row * from.row + (first_column + column) * (from.bf16 ? 2 : 4);
    uint4 low = ld128(at);
    uint32_t word[4] = {low.x, low.y, low.z, low.w};
    if (from.bf16) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            to[2 * i] = __uint_as_float(word[i] << 16),
                   to[2 * i + 1] = __uint_as_float(word[i] & 0xFFFF0000u);
        return;
    }
    uint4 high = ld128(at + 16);
    uint32_t more[4] = {high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < 4; i++) to[i] = __uint_as_float(word[i]), to[4 + i] = __uint_as_float(more[i]);
}

/* Returns the bits of |f|. As integers they are in the order of the magnitudes, with NaN above infinity. */
__device__ static inline uint32_t magnitude(float f) {
    return __float_as_uint(f) & 0x7FFFFFFF;
}

/* Scale of a row whose largest magnitude has the bits `most`, and the factor that converts values to codes.
 * The scale has 22 significant bits, so that its product with INT8_ZERO is exact. Rows of tiny values get
 * factor 0, so their codes are 0; a row with NaN gets scale NaN. */
__device__ static inline float row_scale(uint32_t most, float *factor) {
    float scale = __uint_as_float(__float_as_uint(__uint_as_float(most) / 127) & ~3u);
    *factor = scale > 0x1p-100f ? 1 / scale : 0;
    return scale;
}

/* Returns the codes of four values, the first in the lowest byte. */
__device__ static inline uint32_t four_codes(const float v[4], float factor) {
    uint32_t c[4];
#pragma unroll
    for (int i = 0; i < 4; i++) c[i] = __float_as_uint(fmaf(v[i], factor, INT8_ZERO)) & 0xFF;
    return c[0] | c[1] << 8 | c[2] << 16 | c[3] << 24;
}

/* Quantises 64 rows of a head of k; 16 lanes share a row. */
__device__ static inline void quantise_keys(const quantise_args &a, unsigned char *record, int32_t first_row,
                                            int32_t head) {
    int32_t thread = static_cast<int32_t>(threadIdx.x), column = thread % PIECES * PIECE;
    float mean[PIECE], v[PIECE];
#pragma unroll
    for (int i = 0; i < PIECE; i++)
        mean[i] = column + i < a.head_size ? a.mean[head * a.head_size + column + i] : 0;
    for (int32_t row = thread / PIECES; row < INT8_KEYS; row += ROW_STEP) {
        uint32_t most = 0;
        bool there = first_row + row < a.rows;
        if (there) load_piece(v, a.k, first_row + row, head * a.head_size, column, a.head_size);
#pragma unroll
        for (int i = 0; i < PIECE; i++) {
            v[i] = there ? v[i] - mean[i] : 0;
            most = max(most, magnitude(v[i]));
        }
#pragma unroll
        for (int lanes = PIECES / 2; lanes; lanes /= 2)
            most = max(most, __shfl_xor_sync(0xffffffff, most, lanes));
        float factor, scale = row_scale(most, &factor);
        uint2 codes;
        codes.x = four_codes(v, factor), codes.y = four_codes(v + 4, factor);
        if (column < a.head) *reinterpret_cast<uint2 *>(record + row * a.head + column) = codes;
        if (!column) reinterpret_cast<float *>(record + INT8_KEY_SCALES(a.head))[row] = scale;
    }
}

/* Scales 64 rows of a head of v and rounds them to f16. A thread computes eight columns of four rows. */
__device__ static inline void scale_values(const quantise_args &a, unsigned char *record, int32_t first_row,
                                           int32_t head) {
    constexpr int rows = INT8_KEYS / ROW_STEP, warps = QUANTISE_THREADS / WARP, columns = PIECE * PIECES;
    SMEM_ARRAY(uint32_t, largest, warps * columns);
    int32_t thread = static_cast<int32_t>(threadIdx.x), column = thread % PIECES * PIECE;
    float v[rows][PIECE], scales[PIECE], factors[PIECE];
    uint32_t most[PIECE] = {};
#pragma unroll
    for (int r = 0; r < rows; r++) {
        int32_t row = first_row + thread / PIECES + r * ROW_STEP;
        if (row < a.rows)
            load_piece(v[r], a.v, row, head * a.head_size, column, a.head_size);
        else
#pragma unroll
            for (int i = 0; i < PIECE; i++) v[r][i] = 0;
    }
#pragma unroll
    for (int i = 0; i < PIECE; i++) {
#pragma unroll
        for (int r = 0; r < rows; r++) most[i] = max(most[i], magnitude(v[r][i]));
        most[i] = max(most[i], __shfl_xor_sync(0xffffffff, most[i], PIECES));
        if (thread % WARP < PIECES) largest[thread / WARP * columns + column + i] = most[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < PIECE; i++) {
        for (int w = 0; w < warps; w++) most[i] = max(most[i], largest[w * columns + column + i]);
        /* The power of two above the largest magnitude, limited to 2^-114 to 2^113. */
        uint32_t bits = min(max((most[i] & 0x7F800000) + 0x800000, 13u << 23), 240u << 23);
        scales[i] = __uint_as_float(bits), factors[i] = __uint_as_float(0x7F000000 - bits);
    }
    if (column >= a.head) return;
    uint16_t *values = reinterpret_cast<uint16_t *>(record + INT8_VALUES(a.head));
#pragma unroll
    for (int r = 0; r < rows; r++) {
        uint32_t word[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            word[i] = pack_f16(v[r][2 * i] * factors[2 * i], v[r][2 * i + 1] * factors[2 * i + 1]);
        uint4 four;
        four.x = word[0], four.y = word[1], four.z = word[2], four.w = word[3];
        st128(values + (thread / PIECES + r * ROW_STEP) * a.head + column, four);
    }
    if (thread >= PIECES) return;
    float *to = reinterpret_cast<float *>(record + INT8_VALUE_SCALES(a.head)) + column;
#pragma unroll
    for (int i = 0; i < PIECE; i++) to[i] = scales[i];
}

/* Writes the records of k and v (attention_int8.h).
 *   grid    key tiles x heads of the group x 2 (k, v)
 *   block   256; shared 4 KiB; 64 registers (sm_80)
 *   bytes   reads 4 S G D (8 S G D for f32), writes 3 S G head
 *   bound   memory; share of peak: not measured yet */
__global__ void __launch_bounds__(QUANTISE_THREADS) attention_quantise(quantise_args a) {
    int32_t tile = static_cast<int32_t>(blockIdx.x), head = a.first_head + static_cast<int32_t>(blockIdx.y);
    unsigned char *record =
        a.records + (static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x) * INT8_RECORD(a.head);
    if (blockIdx.z)
        scale_values(a, record, tile * INT8_KEYS, head);
    else
        quantise_keys(a, record, tile * INT8_KEYS, head);
}

/* Constants of a compiled head size. A warp computes 32 queries, two times the 16 rows of an instruction. */
template <int HEAD> struct int8_tile {
    static constexpr int head = HEAD, threads = 4 * WARP;
    static constexpr int mma_m = INT8_QUERIES / 4 / 16, mma_n = INT8_KEYS / 8, mma_d = HEAD / 8,
                         mma_k = HEAD / 32;
    /* Row strides in shared memory: odd multiples of 16 bytes, so that accesses to eight rows use different
     * banks. */
    static constexpr int key_row = HEAD + 16, value_row = 2 * HEAD + 16;
    static constexpr int key_scales = INT8_KEYS * key_row, values = key_scales + INT8_KEYS * 4,
                         value_scales = values + INT8_KEYS * value_row, queries = value_scales + HEAD * 4,
                         factors = queries + INT8_QUERIES * HEAD;
    static constexpr int n_factors = 2 * threads * mma_m, shared_bytes = factors + 2 * n_factors * 4;
    static_assert(2 * (shared_bytes + 1024) <= 100 * 1024, "two thread blocks per multiprocessor of 8.6");
};

struct int8_args {
    head_rows q, out;
    const unsigned char *records;
    int32_t n_keys, key_tiles, group, tiles, first_head; /* first query head of this group of heads */
    int32_t last;                                        /* number of the last thread block of this launch */
    float q_factor;                                      /* sign of the scale */
    float scale;                                         /* > 0; for base 2 exponentials */
};

/* Position of a GPU lane. head: query head in the group of heads. row: the lane's first row; of each 16 rows
 * it holds two, 8 apart. */
struct int8_place {
    int32_t head, row;
    int lane;
};

/* Starts asynchronous copies of ROWS rows of BYTES bytes, contiguous in global memory, to rows STRIDE bytes
 * apart. A thread copies the same piece of every rows_at_once-th row, so that its addresses differ by
 * constants. */
template <int ROWS, int BYTES, int STRIDE, int THREADS>
__device__ static inline void copy_rows_async(unsigned char *shared, const unsigned char *from) {
    constexpr unsigned pieces = BYTES / 16, rows_at_once = THREADS / pieces;
    unsigned row = thread_again() / pieces, piece = thread_again() % pieces;
    shared += row * STRIDE + piece * 16, from += thread_again() * 16;
    if (THREADS % pieces && row >= rows_at_once) return;
#pragma unroll
    for (unsigned i = 0; i < ROWS; i += rows_at_once) {
        if ((ROWS % rows_at_once && i + rows_at_once > ROWS) && row + i >= ROWS) break;
        copy_async_16(shared + i * STRIDE, from + i * BYTES, true);
    }
}

template <class T>
__device__ static inline void copy_keys(unsigned char *shared, const int8_args &a, int32_t tile) {
    const unsigned char *record = a.records + static_cast<int64_t>(tile) * INT8_RECORD(T::head);
    copy_rows_async<INT8_KEYS, T::head, T::key_row, T::threads>(shared, record);
    if (thread_again() < INT8_KEYS / 4)
        copy_async_16(shared + T::key_scales + thread_again() * 16,
                      record + INT8_KEY_SCALES(T::head) + thread_again() * 16, true);
    copy_async_commit();
}

template <class T>
__device__ static inline void copy_values(unsigned char *shared, const int8_args &a, int32_t tile) {
    const unsigned char *record = a.records + static_cast<int64_t>(tile) * INT8_RECORD(T::head);
    copy_rows_async<INT8_KEYS, 2 * T::head, T::value_row, T::threads>(shared + T::values,
                                                                      record + INT8_VALUES(T::head));
    if (thread_again() < T::head / 4)
        copy_async_16(shared + T::value_scales + thread_again() * 16,
                      record + INT8_VALUE_SCALES(T::head) + thread_again() * 16, true);
    copy_async_commit();
}

/* Loads four adjacent columns of a row of q; columns beyond the head and rows beyond the last are zeros. */
template <class E>
__device__ static inline void four_queries(float to[4], const head_rows &q, int32_t head, int32_t row,
                                           int32_t column) {
    const E *from =
        reinterpret_cast<const E *>(q.data + row * q.row) + static_cast<int64_t>(head) * q.head_size + column;
    bool there = row < q.rows;
    if (there && q.wide && column + 4 <= q.head_size) {
        if constexpr (sizeof(E) == 2) {
            uint2 two = *reinterpret_cast<const uint2 *>(from);
            to[0] = __uint_as_float(two.x << 16), to[1] = __uint_as_float(two.x & 0xFFFF0000u);
            to[2] = __uint_as_float(two.y << 16), to[3] = __uint_as_float(two.y & 0xFFFF0000u);
        } else {
            uint4 four = ld128(from);
            to[0] = __uint_as_float(four.x), to[1] = __uint_as_float(four.y);
            to[2] = __uint_as_float(four.z), to[3] = __uint_as_float(four.w);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        bool here = there && column + i < q.head_size;
        if constexpr (sizeof(E) == 2)
            to[i] = here ? cuda_bf16_f32(from[i]) : 0;
        else
            to[i] = here ? from[i] : 0;
    }
}

/* Return the addresses of a lane's first fragment of q and of its factors [m][2]; its row sums [m][2] follow
 * T::n_factors later. All are in shared memory, because registers are scarce. */
template <class T> __device__ static inline uint4 *own_queries(const unsigned char *shared, unsigned thread) {
    return reinterpret_cast<uint4 *>(const_cast<unsigned char *>(shared) + T::queries) +
           thread / WARP * T::mma_m * T::mma_k * WARP + thread % WARP;
}

template <class T> __device__ static inline float *own_factors(const unsigned char *shared, unsigned thread) {
    return reinterpret_cast<float *>(const_cast<unsigned char *>(shared) + T::factors) +
           thread * T::mma_m * 2;
}

/* Quantises a warp's queries to mma operand fragments in shared memory, and stores a factor per row. The sum
 * of products of codes, times the key's scale and the factor, is an exponent of 2. Factors are positive, so
 * that masked keys stay at minus infinity. Each lane reads only its own writes, so no barrier is needed. */
template <class T, class E>
__device__ static inline void load_queries(const unsigned char *shared, const int8_args &a,
                                           const int8_place &at) {
    uint4 *fragments = own_queries<T>(shared, threadIdx.x);
    float *factors = own_factors<T>(shared, threadIdx.x);
#pragma unroll 1
    for (int m = 0; m < T::mma_m; m++) {
        uint32_t codes[T::mma_k][4];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float v[2 * T::mma_k][4];
            uint32_t most = 0;
#pragma unroll
            for (int i = 0; i < 2 * T::mma_k; i++)
                four_queries<E>(v[i], a.q, a.first_head + at.head, at.row + 16 * m + 8 * half,
                                16 * i + at.lane % 4 * 4);
#pragma unroll
            for (int i = 0; i < 2 * T::mma_k; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) most = max(most, magnitude(v[i][j]));
            most = max(most, __shfl_xor_sync(0xffffffff, most, 1));
            most = max(most, __shfl_xor_sync(0xffffffff, most, 2));
            float convert, factor = row_scale(most, &convert) * a.scale;
            factors[T::n_factors + m * 2 + half] = 0;
            factors[m * 2 + half] = factor < 0x1p-126f ? 0x1p-126f : factor; /* NaN stays NaN */
#pragma unroll
            for (int i = 0; i < 2 * T::mma_k; i++)
                codes[i / 2][i % 2 * 2 + half] = four_codes(v[i], convert * a.q_factor);
        }
#pragma unroll
        for (int step = 0; step < T::mma_k; step++) {
            uint4 f;
            f.x = codes[step][0], f.y = codes[step][1], f.z = codes[step][2], f.w = codes[step][3];
            st128(fragments + (m * T::mma_k + step) * WARP, f);
        }
    }
}

/* Computes q k^T of 16 queries and a tile of keys: sums of products of codes, times the keys' scales. */
template <class T>
__device__ static inline void multiply_keys(float (&s)[T::mma_n][4], const unsigned char *shared, int m) {
    unsigned thread = thread_again(), lane = thread % WARP;
    const uint4 *queries = own_queries<T>(shared, thread) + m * T::mma_k * WARP;
    const unsigned char *from = shared + (lane / 16 * 8 + lane % 8) * T::key_row + lane / 8 % 2 * 16;
    int32_t sums[T::mma_n][4];
#pragma unroll
    for (int step = 0; step < T::mma_k; step++) {
        uint4 f = ld128(queries + step * WARP);
        const uint32_t a[4] = {f.x, f.y, f.z, f.w};
#pragma unroll
        for (int n = 0; n < T::mma_n; n += 4) {
            uint32_t b[2][4];
#pragma unroll
            for (int i = 0; i < 2; i++) ldmatrix_x4(b[i], from + (n + 2 * i) * 8 * T::key_row + step * 32);
            auto tiles = reinterpret_cast<const uint32_t(*)[2]>(b);
            if (step)
                mma_s8<4>(sums + n, a, tiles);
            else
                mma_s8_from<4>(INT8_ZERO_BITS, sums + n, a, tiles);
        }
    }
    const float *scales = reinterpret_cast<const float *>(shared + T::key_scales) + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < T::mma_n; n++) {
        float2 two = *reinterpret_cast<const float2 *>(scales + 8 * n);
        float scale[2] = {two.x, two.y};
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[n][i] = fmaf(__int_as_float(sums[n][i]), scale[i % 2], -INT8_ZERO * scale[i % 2]);
    }
}

template <class T> __device__ static inline void mask_scores(float (&s)[T::mma_n][4], int32_t n_keys) {
    int32_t first = static_cast<int32_t>(thread_again()) % 4 * 2;
#pragma unroll
    for (int n = 0; n < T::mma_n; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (8 * n + first + i % 2 >= n_keys) s[n][i] = -INFINITY;
}

/* Converts scores of 16 queries to probabilities, 2^(factor score - top + INT8_P_BITS). `top` is the row's
 * largest exponent so far, or up to INT8_LAG less, so that few tiles change it. Adds the probabilities to the
 * row sums, which cover only the lane's own keys. rescale: on return, the factors for earlier results. */
template <class T>
__device__ static inline void online_softmax(float (&last_top)[2], uint32_t (&p)[T::mma_n][2],
                                             float (&rescale)[2], const float (&s)[T::mma_n][4],
                                             const unsigned char *shared, int m) {
    float *factors = own_factors<T>(shared, thread_again()) + m * 2, *sums = factors + T::n_factors;
    float2 both = *reinterpret_cast<const float2 *>(factors);
    float factor[2] = {both.x, both.y};
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float most = -INFINITY, sum = 0;
#pragma unroll
        for (int n = 0; n < T::mma_n; n++) most = fmaxf(most, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
        most = quad_max(most) * factor[half];
        float top = most > last_top[half] + INT8_LAG ? most : last_top[half], base = INT8_P_BITS - top;
#pragma unroll
        for (int n = 0; n < T::mma_n; n++) {
            float first = exp2_fast(fmaf(s[n][2 * half], factor[half], base));
            float second = exp2_fast(fmaf(s[n][2 * half + 1], factor[half], base));
            sum += first, sum += second;
            p[n][half] = pack_f16(first, second);
        }
        rescale[half] = exp2_fast(last_top[half] - top);
        last_top[half] = top;
        sums[half] = sums[half] * rescale[half] + sum;
    }
}

/* Rescales results, unless all factors of the warp are 1. */
template <class T>
__device__ static inline void rescale_results(float (&o)[T::mma_m][T::mma_d][4],
                                              const float (&rescale)[T::mma_m][2]) {
    bool changes = false;
#pragma unroll
    for (int m = 0; m < T::mma_m; m++) changes = changes || rescale[m][0] != 1 || rescale[m][1] != 1;
    if (!__any_sync(0xffffffff, changes)) return;
#pragma unroll
    for (int m = 0; m < T::mma_m; m++)
#pragma unroll
        for (int n = 0; n < T::mma_d; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) o[m][n][i] *= rescale[m][i / 2];
}

/* Adds p v of a tile to the results o. p: probabilities, in the layout of scores. */
template <class T>
__device__ static inline void multiply_values(float (&o)[T::mma_m][T::mma_d][4],
                                              const uint32_t (&p)[T::mma_m][T::mma_n][2],
                                              const unsigned char *shared) {
    unsigned lane = thread_again() % WARP;
    const unsigned char *from = shared + T::values + lane % 16 * T::value_row + lane / 16 * 16;
    const float *scales = reinterpret_cast<const float *>(shared + T::value_scales) + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < T::mma_d; n += 2) {
        uint32_t sums[T::mma_m][2][2] = {};
#pragma unroll
        for (int step = 0; step < INT8_KEYS / 16; step++) {
            uint32_t b[4];
            ldmatrix_x4_transposed(b, from + step * 16 * T::value_row + n * 16);
#pragma unroll
            for (int m = 0; m < T::mma_m; m++) {
                const uint32_t a[4] = {p[m][2 * step][0], p[m][2 * step][1], p[m][2 * step + 1][0],
                                       p[m][2 * step + 1][1]};
                mma_f16<2>(sums[m], a, reinterpret_cast<const uint32_t(*)[2]>(b));
            }
        }
        __syncwarp(); /* Prevents register spills, as in attend_int8. */
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float2 scale = *reinterpret_cast<const float2 *>(scales + (n + i) * 8);
#pragma unroll
            for (int m = 0; m < T::mma_m; m++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    float2 two = unpack_f16(sums[m][i][half]);
                    float *to = o[m][n + i] + 2 * half;
                    to[0] = fmaf(two.x, scale.x, to[0]), to[1] = fmaf(two.y, scale.y, to[1]);
                }
        }
    }
}

template <class T>
__device__ static inline int8_place find_place(const int8_args &a, int32_t block, uint32_t thread) {
    int8_place at;
    block = a.last - block;
    at.head = block / a.tiles, at.lane = static_cast<int>(thread % WARP);
    at.row = block % a.tiles * INT8_QUERIES + static_cast<int>(thread / WARP) * 16 * T::mma_m + at.lane / 4;
    return at;
}

/* Main loop, as in attention.cu: k of the next tile is copied during p v of this tile, and v during q k^T and
 * the softmax. There are two barriers per tile, and one buffer each for k and v. A warp computes q k^T and
 * the softmax of its 32 queries in two halves of 16. This needs fewer registers, and the softmax of one half
 * overlaps the products of the other.
 *   grid    query heads of the group x ceil(T / 128), in launches of at most attention_blocks_at_once
 *   head       64     96    128
 *   block     128    128    128
 *   shared  27136  37504  47872
 *   regs      172    213    253 (sm_89; make sass prints all)
 *   bytes   reads and writes T H D, of 4 or 2 bytes each; reads 3 S head per block, mostly from L2
 *   FLOPs   2 T S H head of 8-bit integers, and as many of f16 with f16 sums
 *   bound   tensor cores: a tile of heads of 128 has 64 IMMA and 128 HMMA among about 1,090 instructions.
 *           The two warps of a scheduler issue 2,180 instructions while a GeForce's tensor cores need
 *           6,144 cycles (the A100's: 3,072). Share of peak: not measured yet; assumed in cards.c */
template <class T> __global__ void __launch_bounds__(T::threads, 2) attend_int8(int8_args a) {
    SMEM_DYN(unsigned char, shared);
    int8_place at = find_place<T>(a, static_cast<int32_t>(blockIdx.x), threadIdx.x);
    int32_t record = at.head / a.group * a.key_tiles;
    copy_keys<T>(shared, a, record);
    if (a.q.half)
        load_queries<T, uint16_t>(shared, a, at);
    else
        load_queries<T, float>(shared, a, at);
    float o[T::mma_m][T::mma_d][4] = {};
    float top[T::mma_m][2];
#pragma unroll
    for (int m = 0; m < T::mma_m; m++) top[m][0] = top[m][1] = -INFINITY;
    for (int32_t left = a.n_keys; left > 0; left -= INT8_KEYS, record++) {
        copy_async_wait<0>();
        __syncthreads(); /* the copy of k has arrived; the previous tile of v is no longer used */
        copy_values<T>(shared, a, record);
        uint32_t p[T::mma_m][T::mma_n][2];
        float rescale[T::mma_m][2];
#pragma unroll
        for (int m = 0; m < T::mma_m; m++) {
            float s[T::mma_n][4];
            multiply_keys<T>(s, shared, m);
            if (left < INT8_KEYS) mask_scores<T>(s, left);
            online_softmax<T>(top[m], p[m], rescale[m], s, shared, m);
            __syncwarp(); /* Keeps the compiler from moving instructions up, which would spill registers. */
        }
        copy_async_wait<0>();
        __syncthreads(); /* the copy of v has arrived; k is no longer used */
        if (left > INT8_KEYS) copy_keys<T>(shared, a, record + 1);
        rescale_results<T>(o, rescale);
        multiply_values<T>(o, p, shared);
    }
    /* The lane's position is computed again; keeping it in registers would cause spills. */
    at = find_place<T>(a, block_again(), thread_again());
#pragma unroll
    for (int m = 0; m < T::mma_m; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float share = 1 / quad_sum(own_factors<T>(shared, threadIdx.x)[T::n_factors + m * 2 + half]);
#pragma unroll
            for (int n = 0; n < T::mma_d; n++)
                store_two(a.out, a.first_head + at.head, at.row + 16 * m + 8 * half, 8 * n + at.lane % 4 * 2,
                          o[m][n][2 * half] * share, o[m][n][2 * half + 1] * share);
        }
}

static key_source key_source_of(const struct tensor *t, int32_t head_size) {
    key_source s = {};
    s.data = static_cast<const char *>(t->data), s.row = t->row_bytes;
    s.bf16 = t->dtype == DTYPE_BF16;
    s.wide = rows_are_aligned(t, 16) && head_size % (s.bf16 ? 8 : 4) == 0;
    return s;
}

template <class T>
static enum status launch_group(struct cuda *cuda, int8_args a, int32_t heads, struct error *e) {
    if (cuda_allow_shared(KERNEL(attend_int8<T>), T::shared_bytes, "int8 attention", e)) return e->code;
    int32_t most = attention_blocks_at_once(INT8_QUERIES, T::head, a.n_keys);
    for (int32_t left = a.tiles * heads; left > 0; left -= most) {
        a.last = left - 1;
        unsigned blocks = static_cast<unsigned>(left < most ? left : most);
        LAUNCH((attend_int8<T>), blocks, T::threads, T::shared_bytes, cuda->compute, a);
    }
    return OK;
}

enum status cuda_attention_int8_run(struct cuda *cuda, const struct op *op,
                                    const struct int8_attention_layout *l, char *workspace, struct error *e) {
    const float log2_e = 1.44269504f;
    const struct tensor *q = &op->in[0], *k = &op->in[1];
    int32_t head_size = q->dim[1] / op->n, heads = k->dim[1] / head_size;
    quantise_args quantise = {};
    quantise.k = key_source_of(k, head_size), quantise.v = key_source_of(&op->in[2], head_size);
    quantise.mean = reinterpret_cast<const float *>(workspace + l->mean);
    quantise.records = reinterpret_cast<unsigned char *>(workspace + l->records);
    quantise.rows = k->dim[0], quantise.head_size = head_size, quantise.head = l->head;
    int8_args a = {};
    a.q = head_rows_of(q, head_size, 4), a.out = head_rows_of(&op->out, head_size, 2);
    a.records = quantise.records;
    a.n_keys = k->dim[0], a.key_tiles = l->key_tiles;
    a.group = op->n / heads, a.tiles = (q->dim[0] + INT8_QUERIES - 1) / INT8_QUERIES;
    /* With a scale of 0, q_factor 0 makes the codes of q 0, and so all scores. */
    a.q_factor = op->scale < 0 ? -1.0f : op->scale > 0 ? 1.0f : 0.0f;
    a.scale = op->scale == 0 ? 1.0f : fabsf(op->scale) * log2_e;
    unsigned mean_blocks = static_cast<unsigned>((k->dim[1] + MEAN_COLUMNS - 1) / MEAN_COLUMNS);
    LAUNCH(attention_mean, mean_blocks, MEAN_COLUMNS * MEAN_PARTS, 0, cuda->compute, quantise.k,
           reinterpret_cast<float *>(workspace + l->mean), k->dim[0], k->dim[1]);
    for (int32_t first = 0; first < heads; first += l->at_once) {
        int32_t n = int8_group_heads(l, heads, first);
        quantise.first_head = first, a.first_head = first * a.group;
        LAUNCH(attention_quantise, dim3(static_cast<unsigned>(l->key_tiles), static_cast<unsigned>(n), 2),
               QUANTISE_THREADS, 0, cuda->compute, quantise);
        enum status status = l->head == 64   ? launch_group<int8_tile<64>>(cuda, a, n * a.group, e)
                             : l->head == 96 ? launch_group<int8_tile<96>>(cuda, a, n * a.group, e)
                                             : launch_group<int8_tile<128>>(cuda, a, n * a.group, e);
        if (status) return status;
    }
    return cuda_launched(op, e);
}

const void *const cuda_attention_int8_kernels[] = {
    KERNEL(attention_mean),
    KERNEL(attention_quantise),
    KERNEL(attend_int8<int8_tile<64>>),
    KERNEL(attend_int8<int8_tile<96>>),
    KERNEL(attend_int8<int8_tile<128>>),
    NULL,
};
