/* Products of 8-bit integers (linear_int8.h), with tensor core instructions of compute capability 8.0.
 *
 * Sums are exact integers, so results do not depend on tile, order or GPU. Only the epilogue rounds, always
 * in the same order. Rotation and quantisation compute in the order of loaders/quantise. A weight therefore
 * has the same codes and scales whether they are stored in a file or computed here, except that stored scales
 * have a lower limit. */
#include "kernels/cuda/linear_int8.h"

#include "kernels/cuda/int8_tiles.h"
#include "kernels/cuda/row_access.cuh"

/* QUANTISE_PIECES: groups of eight columns of a row that a thread keeps in registers. CODE_MOST: largest
 * code. */
enum { QUANTISE_PIECES = 2, QUANTISE_THREADS = 768, CODE_MOST = 127 };

/* Multiplies by the 4 x 4 factor of H (tensor.h) along one base-4 digit of the column number.
 * Bits `bit` and 2 `bit` of the lane number hold the digit. Values a, b, c, d of the four lanes become
 * ((a + b) + (c - d)) / 2, ((a + b) - (c - d)) / 2, ((c + d) + (a - b)) / 2, ((c + d) - (a - b)) / 2. */
__device__ static inline void rotate_across(float v[8], int bit) {
    bool odd = threadIdx.x & bit;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float other = __shfl_xor_sync(~0u, v[i], bit), sum = v[i] + other;
        float difference = odd ? other - v[i] : v[i] - other;
        float across = __shfl_xor_sync(~0u, difference, 2 * bit);
        v[i] = 0.5f * (odd ? sum - across : sum + across);
    }
}

/* Multiplies groups of columns by H. Each lane holds eight adjacent columns; the next lane holds the next
 * eight. The digits of the column number, highest first: two are in the lane number, one is split between
 * lane number and the lane's columns, one is within four columns of a lane. */
__device__ static inline void rotate_eight(float v[8], int32_t group) {
    if (group >= 256) rotate_across(v, 8);
    if (group >= 64) rotate_across(v, 2);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float sum = v[i] + v[i + 4], across = __shfl_xor_sync(~0u, v[i] - v[i + 4], 1);
        v[i] = 0.5f * (sum + across);
        v[i + 4] = 0.5f * (sum - across);
    }
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
        float ab = v[i] + v[i + 1], a_b = v[i] - v[i + 1], cd = v[i + 2] + v[i + 3],
              c_d = v[i + 2] - v[i + 3];
        v[i] = 0.5f * (ab + c_d), v[i + 1] = 0.5f * (ab - c_d);
        v[i + 2] = 0.5f * (a_b + cd), v[i + 3] = 0.5f * (cd - a_b);
    }
}

/* Returns the largest value of the thread block. */
__device__ static inline uint32_t block_most(uint32_t value) {
    SMEM_ARRAY(uint32_t, of_warp, QUANTISE_THREADS / WARP);
    for (int o = WARP / 2; o; o /= 2) value = max(value, __shfl_xor_sync(~0u, value, o));
    if (threadIdx.x % WARP == 0) of_warp[threadIdx.x / WARP] = value;
    __syncthreads();
    for (unsigned i = 0; i < blockDim.x / WARP; i++) value = max(value, of_warp[i]);
    return value;
}

struct quantise_args {
    struct rows from;
    int8_t *codes;
    float *scales;
    int64_t columns;
    int32_t group;
    bool runs_on; /* quantisation blocks cross row boundaries: the matrix is one long row */
};

/* Loads and rotates the thread's groups of eight columns, of the part of a row that begins at column `first`.
 * Columns beyond the row are zeros. */
template <enum dtype D>
__device__ static inline void load_rotated_row(float v[QUANTISE_PIECES][8], const quantise_args &a,
                                               int64_t first) {
    int64_t row = a.runs_on ? 0 : blockIdx.x, start = a.runs_on ? blockIdx.x * a.columns : 0;
#pragma unroll
    for (int p = 0; p < QUANTISE_PIECES; p++) {
        int64_t i = first + 8 * (p * (int64_t)blockDim.x + threadIdx.x);
        if (i < a.columns) {
            weights_load<D, 8>(v[p], a.from, row, start + i, start + a.columns);
        } else {
#pragma unroll
            for (int j = 0; j < 8; j++) v[p][j] = 0;
        }
        rotate_eight(v[p], a.group);
    }
}

/* A row's scale, prepared for divisions. Tiny scales, and their values, are multiplied by `factor`, 2^64, so
 * that remainders are exact. */
struct divisor {
    float factor, scale, inverse;
};

__device__ static inline divisor divisor_of(float scale) {
    divisor d = {scale < 0x1p-64f ? 0x1p64f : 1, 0, 0};
    d.scale = __fmul_rn(scale, d.factor);
    d.inverse = scale > 0 ? __frcp_rn(d.scale) : 0;
    return d;
}

/* Returns the code of a rotated value in the low byte; 0 for scale 0. The quotient is computed with the
 * rounded inverse; one correction by its remainder gives the bits of a division. Adding 1.5 * 2^23 rounds to
 * an integer (nearest even). */
__device__ static inline uint32_t code_of(float value, const divisor &d) {
    const float whole = 12582912;
    value = __fmul_rn(value, d.factor);
    float quotient = __fmul_rn(value, d.inverse);
    quotient = __fmaf_rn(__fmaf_rn(-quotient, d.scale, value), d.inverse, quotient);
    return __float_as_uint(__fadd_rn(fmaxf(fminf(quotient, CODE_MOST), -CODE_MOST), whole)) & 255;
}

/* Stores the codes of the thread's groups of eight columns (load_rotated_row). */
__device__ static inline void store_codes(const quantise_args &a, const float v[QUANTISE_PIECES][8],
                                          int64_t first, const divisor &d) {
#pragma unroll
    for (int p = 0; p < QUANTISE_PIECES; p++) {
        int64_t i = first + 8 * (p * (int64_t)blockDim.x + threadIdx.x);
        if (i >= a.columns) return;
        uint32_t words[2] = {0, 0};
#pragma unroll
        for (int j = 0; j < 8; j++) words[j / 4] |= code_of(v[p][j], d) << 8 * (j % 4);
        *reinterpret_cast<uint2 *>(a.codes + blockIdx.x * a.columns + i) = make_uint2(words[0], words[1]);
    }
}

/* Rotates and quantises a row: its largest magnitude first, then its codes. Rows of more than 12,288 columns
 * are loaded twice, the second time from the cache.
 *   grid    a block per row
 *   block   threads for 16 columns each, 32 to 768; 96 bytes of shared memory
 *   regs    75 to 80 (sm_100), 80 (sm_120)
 *   bytes   reads the row, writes a byte per value; 4.5 shuffles and about 30 other operations per value
 *   bound   memory; share of peak: not measured yet */
template <enum dtype D>
static __global__ void __launch_bounds__(QUANTISE_THREADS, 1) quantise_rows(quantise_args a) {
    int64_t span = 8 * QUANTISE_PIECES * (int64_t)blockDim.x;
    float v[QUANTISE_PIECES][8];
    divisor d = {};
    uint32_t most = 0; /* bits of the largest magnitude; infinity and NaN have larger bits than numbers */
#pragma unroll 1
    for (int stores = 0; stores < 2; stores++) {
#pragma unroll 1
        for (int64_t first = 0; first < a.columns; first += span) {
            if (!stores || span < a.columns) load_rotated_row<D>(v, a, first);
            if (stores) {
                store_codes(a, v, first, d);
                continue;
            }
#pragma unroll
            for (int i = 0; i < 8 * QUANTISE_PIECES; i++)
                most = max(most, __float_as_uint(v[i / 8][i % 8]) & 0x7FFFFFFFu);
        }
        if (stores) return;
        most = block_most(most);
        bool finite = most < 0x7F800000u;
        float scale = __fdiv_rn(__uint_as_float(most), CODE_MOST);
        if (threadIdx.x == 0) a.scales[blockIdx.x] = finite ? scale : __uint_as_float(0x7FFFFFFFu);
        d = divisor_of(finite ? scale : 0);
    }
}

void cuda_quantise_rows(struct int8_matrix to, const struct tensor *from, int32_t group,
                        cudaStream_t stream) {
    quantise_args a = {rows_of(from), to.codes, to.scales, from->dim[1], group, tensor_runs_on(from)};
    int32_t warps = (from->dim[1] - 1) / (8 * QUANTISE_PIECES * WARP) + 1;
    unsigned threads = (unsigned)min(WARP * warps, (int32_t)QUANTISE_THREADS);
    switch (from->dtype) {
#define OF_TYPE(D)                                                                                           \
    case D:                                                                                                  \
        LAUNCH((quantise_rows<D>), (unsigned)from->dim[0], threads, 0, stream, a);                           \
        break;
        UNROTATED_WEIGHT_TYPES(OF_TYPE)
#undef OF_TYPE
    default:
        break;
    }
}

enum { DECODE_THREADS = 256 };

/* Decodes rows of I4_ROT256 to 8-bit codes, eight columns per thread and step.
 *   grid    a block per row
 *   block   DECODE_THREADS threads; no shared memory
 *   regs    29
 *   bytes   reads 0.5625 bytes and writes a byte per value
 *   bound   memory; share of peak: not measured yet */
static __global__ void __launch_bounds__(DECODE_THREADS)
    decode_i4(struct rows from, int8_t *to, int64_t columns) {
    i4_row row = i4_row_of(from, blockIdx.x);
    for (int64_t i = 8 * (int64_t)threadIdx.x; i < columns; i += 8 * DECODE_THREADS) {
        uint32_t codes[2];
        load_i4_codes(codes, row, i, from.wide);
        *reinterpret_cast<uint2 *>(to + blockIdx.x * columns + i) = make_uint2(codes[0], codes[1]);
    }
}

void cuda_decode_i4(int8_t *to, const struct tensor *from, cudaStream_t stream) {
    LAUNCH(decode_i4, (unsigned)from->dim[0], DECODE_THREADS, 0, stream, rows_of(from), to, from->dim[1]);
}

/* BLOCK_K: bytes of a row in shared memory per stage. RASTER: thread blocks compute this many tiles
 * along rows before the next tile along columns, so that concurrent blocks share most of their reads. */
enum { BLOCK_K = 64, RASTER = 8 };

/* Constants derived from a line of INT8_TILES. */
template <int BLOCK_M, int BLOCK_N, int WARPS_M, int WARPS_N, int STAGES, int BLOCKS> struct int8_tile {
    static constexpr int block_m = BLOCK_M, block_n = BLOCK_N, stages = STAGES, blocks = BLOCKS;
    static constexpr int threads = WARP * WARPS_M * WARPS_N, warps_n = WARPS_N;
    static constexpr int warp_m = BLOCK_M / WARPS_M, warp_n = BLOCK_N / WARPS_N;
    static constexpr int mma_m = warp_m / 16, mma_n = warp_n / 8; /* m16n8k32 instructions of a warp */
    static constexpr int stage_bytes = (BLOCK_M + BLOCK_N) * BLOCK_K, shared_bytes = STAGES * stage_bytes;
    /* Row stride in words of sums in shared memory: a fragment's eight rows are in different banks. */
    static constexpr int sums_row = warp_n + 8;
    static constexpr int sums_words = 16 * sums_row;
    /* Rows of sums that a warp stores with one instruction, four columns per lane. */
    static constexpr int store_rows = 4 * WARP / warp_n, stores = 16 / store_rows;
    static_assert(shared_bytes <= 99 * 1024, "shared memory per block on 8.6");
    static_assert(BLOCKS * (shared_bytes + 1024) <= 100 * 1024, "shared memory per multiprocessor on 8.6");
    static_assert(threads / WARP * 2 * sums_words * 4 <= shared_bytes,
                  "sums and residual of 16 rows per warp");
    static_assert(warp_m == 32 || warp_m == 64, "a lane keeps the scales of two rows");
};

struct product_args {
    const int8_t *in, *weight;
    const float *in_scales, *weight_scales; /* weight_scales NULL: weight_scale alone */
    float weight_scale;
    int32_t m, n, k;
    struct rows out, bias, gate, residual; /* from the product's first column on; absent: data is NULL */
    enum activation activation;
};

/* Position of a lane: tile of the block, and first row and column of the warp within the result. */
struct product_place {
    int32_t block_row, block_column, row, column;
    int lane, warp, warp_row, warp_column;
};

template <class T> __device__ static inline product_place find_product_place(const product_args &a) {
    product_place at;
    int32_t block = (int32_t)blockIdx.x, down = (a.m - 1) / T::block_m + 1,
            along = (a.n - 1) / T::block_n + 1;
    int32_t first = block / (RASTER * along) * RASTER, rows = min(down - first, (int32_t)RASTER);
    int32_t in_group = block % (RASTER * along);
    at.block_row = (first + in_group % rows) * T::block_m;
    at.block_column = in_group / rows * T::block_n;
    at.lane = (int)threadIdx.x % WARP, at.warp = (int)threadIdx.x / WARP;
    at.warp_row = at.warp / T::warps_n * T::warp_m, at.warp_column = at.warp % T::warps_n * T::warp_n;
    at.row = at.block_row + at.warp_row, at.column = at.block_column + at.warp_column;
    return at;
}

/* Returns the byte offset of a piece. Rows of shared memory have 64 bytes, four pieces of 16. Piece i of row
 * r is at place i ^ (r / 2 % 4). Accesses to one piece of eight rows, or to two whole rows, then use
 * different banks. */
__device__ static inline int swizzled(int row, int piece) {
    return row * BLOCK_K + (piece ^ (row / 2 % 4)) * 16;
}

/* Starts asynchronous copies of N rows of codes, 64 columns each. Rows beyond the last repeat the last row;
 * their sums are not stored. Columns beyond k become zeros. */
template <int N, int THREADS>
__device__ static inline void copy_codes(char *to, const int8_t *codes, int32_t first, int32_t rows,
                                         int32_t column, int32_t k) {
    int piece = (int)threadIdx.x % 4, row = (int)threadIdx.x / 4;
    column += 16 * piece;
    bool inside = column < k;
    to += swizzled(row, piece);
#pragma unroll
    for (int i = 0; i < N; i += THREADS / 4) {
        int64_t from = (int64_t)min(first + row + i, rows - 1) * k + column;
        copy_async_16(to + i * BLOCK_K, codes + (inside ? from : 0), inside);
    }
}

template <class T>
__device__ static inline void copy_stage(char *stage, const product_args &a, const product_place &at,
                                         int32_t column) {
    copy_codes<T::block_m, T::threads>(stage, a.in, at.block_row, a.m, column, a.k);
    copy_codes<T::block_n, T::threads>(stage + T::block_m * BLOCK_K, a.weight, at.block_column, a.n, column,
                                       a.k);
}

/* A warp's operands of one step of 32 columns, as mma fragments. */
template <class T> struct product_fragments { uint32_t a[T::mma_m][4], b[T::mma_n][2]; };

template <class T>
__device__ static inline void load_fragments(product_fragments<T> &f, const char *stage,
                                             const product_place &at, int step) {
    int lane = at.lane;
    const char *rows = stage + at.warp_row * BLOCK_K + swizzled(lane % 16, 2 * step + lane / 16);
    const char *columns = stage + (T::block_m + at.warp_column) * BLOCK_K +
                          swizzled(lane / 16 * 8 + lane % 8, 2 * step + lane / 8 % 2);
#pragma unroll
    for (int m = 0; m < T::mma_m; m++) ldmatrix_x4(f.a[m], rows + 16 * m * BLOCK_K);
#pragma unroll
    for (int n = 0; n < T::mma_n; n += 2) ldmatrix_x4(f.b[n], columns + 8 * n * BLOCK_K);
}

template <class T>
__device__ static inline void multiply(int32_t (&sum)[T::mma_m][T::mma_n][4], const product_fragments<T> &f) {
#pragma unroll
    for (int m = 0; m < T::mma_m; m++) mma_s8<T::mma_n>(sum[m], f.a[m], f.b);
}

/* Computes a warp's sums. The operands of each step of 32 columns are loaded to registers during the previous
 * step. There is one barrier per stage of 64 columns. */
template <class T>
__device__ static inline void multiply_all(int32_t (&sum)[T::mma_m][T::mma_n][4], char *shared,
                                           const product_args &a, const product_place &at) {
    int32_t steps = (a.k - 1) / BLOCK_K + 1;
#pragma unroll
    for (int s = 0; s < T::stages; s++) {
        if (s < steps) copy_stage<T>(shared + s * T::stage_bytes, a, at, s * BLOCK_K);
        copy_async_commit();
    }
    copy_async_wait<T::stages - 1>();
    __syncthreads(); /* the first stage has arrived */
    product_fragments<T> f[2];
    load_fragments<T>(f[0], shared, at, 0);
    char *stage = shared;
#pragma unroll 1
    for (int32_t t = 0; t < steps; t++) {
        char *next = stage + T::stage_bytes;
        if (next == shared + T::shared_bytes) next = shared;
        load_fragments<T>(f[1], stage, at, 1);
        multiply<T>(sum, f[0]);
        copy_async_wait<T::stages - 2>();
        __syncthreads(); /* the next stage has arrived; this stage is in registers */
        if (t + T::stages < steps) copy_stage<T>(stage, a, at, (t + T::stages) * BLOCK_K);
        copy_async_commit();
        if (t + 1 < steps) load_fragments<T>(f[0], next, at, 0);
        multiply<T>(sum, f[1]);
        stage = next;
    }
    copy_async_wait<0>();
    __syncthreads(); /* shared memory is free for sums */
}

/* Scales, bias and gate of a lane's four columns, and the scales of two of the warp's rows. */
struct product_factors {
    float4 scale, bias, gate;
    float in_scale[2];
};

__device__ static inline product_factors load_factors(const product_args &a, int32_t row, int32_t column,
                                                      int lane) {
    product_factors f;
    float scale[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        scale[i] = a.weight_scales && column + i < a.n
                       ? __fmul_rn(a.weight_scales[column + i], a.weight_scale)
                       : a.weight_scale;
    f.scale = make_float4(scale[0], scale[1], scale[2], scale[3]);
    f.bias = a.bias.data ? rows_load_plain(a.bias, 0, column, a.n) : all_four(0);
    f.gate = a.gate.data ? rows_load_plain(a.gate, 0, column, a.n) : all_four(1);
#pragma unroll
    for (int i = 0; i < 2; i++) f.in_scale[i] = a.in_scales[min(row + lane + WARP * i, a.m - 1)];
    return f;
}

__device__ static inline float4 float4_of(uint4 words) {
    return make_float4(__uint_as_float(words.x), __uint_as_float(words.y), __uint_as_float(words.z),
                       __uint_as_float(words.w));
}

__device__ static inline uint4 words_of(float4 v) {
    return make_uint4(__float_as_uint(v.x), __float_as_uint(v.y), __float_as_uint(v.z), __float_as_uint(v.w));
}

/* Returns four sums of a row as scaled products with bias. m: index of the row's group of 16 rows; row: index
 * of the row; both within the warp. */
__device__ static inline float4 scaled_sums(uint4 sums, const product_factors &f, int m, int row) {
    float in_scale = __shfl_sync(~0u, f.in_scale[m / 2], row % WARP);
    float4 v = make_float4((float)(int32_t)sums.x, (float)(int32_t)sums.y, (float)(int32_t)sums.z,
                           (float)(int32_t)sums.w);
    v = multiply_four(multiply_four(v, all_four(in_scale)), f.scale);
    return add_four(v, f.bias);
}

/* Loads the residual of a lane's columns in the 16 rows of an instruction. */
template <class T>
__device__ static inline void load_residual(float4 (&to)[T::stores], const product_args &a, int32_t row,
                                            int32_t column) {
    if (!a.residual.data) return;
    /* One branch, so that all loads are in flight at once. */
    bool wide = a.residual.wide && column + 4 <= a.n;
    if (wide) {
#pragma unroll
        for (int i = 0; i < T::stores; i++)
            if (row + i * T::store_rows < a.m)
                to[i] = rows_load_kind<ROWS_F32>(a.residual, row + i * T::store_rows, column, a.n);
        return;
    }
#pragma unroll
    for (int i = 0; i < T::stores; i++)
        if (row + i * T::store_rows < a.m)
            to[i] = rows_load_f32(a.residual, row + i * T::store_rows, column, a.n);
}

/* Stores 16 rows of products. from: the lane's first sums in shared memory; the residual follows the warp's
 * sums, in the same order. row: result row of the lane's first sums. */
template <class T>
__device__ static inline void store_sixteen(const uint32_t *from, const product_args &a,
                                            const product_factors &f, int m, int row_in_warp, int32_t row,
                                            int32_t column) {
#pragma unroll 2
    for (int i = 0; i < T::stores; i++, from += T::store_rows * T::sums_row) {
        float4 v = scaled_sums(ld128(from), f, m, row_in_warp + i * T::store_rows);
        v = activate_four(v, a.activation);
        if (a.gate.data) v = multiply_four(f.gate, v);
        if (a.residual.data) v = add_four(float4_of(ld128(from + T::sums_words)), v);
        if (row + i * T::store_rows < a.m && column < a.n)
            rows_store_kind<ROWS_ANY>(a.out, row + i * T::store_rows, column, a.n, v);
    }
}

/* Epilogue: sums pass through the warp's part of shared memory, 16 rows at a time, so that each lane stores
 * four adjacent columns. Meanwhile the residual of the next 16 rows is loaded. The residual may alias out,
 * because the same lane reads and writes a value. */
template <class T>
__device__ static inline void store_products(const int32_t (&sum)[T::mma_m][T::mma_n][4], char *shared,
                                             const product_args &a, const product_place &at) {
    constexpr int lanes = T::warp_n / 4; /* lanes of a row */
    int first = at.lane / lanes;
    uint32_t *sums = reinterpret_cast<uint32_t *>(shared) + at.warp * 2 * T::sums_words;
    uint32_t *to = sums + at.lane / 4 * T::sums_row + at.lane % 4 * 2;
    uint32_t *mine = sums + first * T::sums_row + at.lane % lanes * 4;
    int32_t column = at.column + at.lane % lanes * 4;
    product_factors f = load_factors(a, at.row, column, at.lane);
    float4 residual[T::stores] = {};
    load_residual<T>(residual, a, at.row + first, column);
#pragma unroll
    for (int m = 0; m < T::mma_m; m++) {
        int32_t row = at.row + 16 * m + first;
        __syncwarp(); /* the last 16 rows have been read */
#pragma unroll
        for (int n = 0; n < T::mma_n; n++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                *reinterpret_cast<uint2 *>(to + 8 * i * T::sums_row + 8 * n) =
                    make_uint2((uint32_t)sum[m][n][2 * i], (uint32_t)sum[m][n][2 * i + 1]);
        if (a.residual.data) {
#pragma unroll
            for (int i = 0; i < T::stores; i++)
                st128(mine + T::sums_words + i * T::store_rows * T::sums_row, words_of(residual[i]));
            if (m + 1 < T::mma_m) load_residual<T>(residual, a, row + 16, column);
        }
        __syncwarp();
        store_sixteen<T>(mine, a, f, m, 16 * m + first, row, column);
    }
}

/* The product in . weight^T with its epilogue.
 *   grid    ceil(m / rows) ceil(n / columns)
 *   tile     128x256  128x128   64x128
 *   block        256      128      128
 *   shared     98304    49152    36864
 *   regs         234      240      154 (sm_80, 86, 89, 90); 244, 248, 160 (sm_120)
 *   bytes   reads k (m + n) and 4 (m + n); writes 4 m n, or 2 m n for bf16; reads 4 m n of a residual
 *   FLOPs   2 m n k
 *   loop    144 instructions per stage of 64 columns: 64 IMMA, 16 LDSM, 6 LDGSTS, one barrier
 *   bound   tensor cores, s8. Clocks per stage of the largest tile on 8.6 and 8.9: tensor cores 2,048, shared
 *           memory 704, instructions 288 per scheduler, L2 12 bytes a clock. Start and epilogue take about
 *           6,000 clocks per tile. The calculated share of peak is 0.95 at k = 3,840 and 0.98 at 10,240, if
 *           tiles fill the last wave; not measured yet */
template <class T>
static __global__ void __launch_bounds__(T::threads, T::blocks) multiply_int8(product_args a) {
    SMEM_DYN(char, shared);
    product_place at = find_product_place<T>(a);
    int32_t sum[T::mma_m][T::mma_n][4] = {};
    multiply_all<T>(sum, shared, a, at);
    store_products<T>(sum, shared, a, at);
}

/* Returns access to an f32, f16 or bf16 tensor from column `first` on; for an absent tensor, data is NULL. */
static struct rows plain_rows(const struct tensor *t, int32_t first, int64_t step) {
    if (!t->rank) return rows_of(t);
    return rows_at(static_cast<char *>(t->data) + dtype_bytes(t->dtype, first), step, t->dtype);
}

static product_args product_args_of(const struct int8_product *p) {
    const struct epilogue *e = p->epilogue;
    struct tensor absent = {};
    product_args a = {};
    a.in = p->in.codes, a.in_scales = p->in.scales;
    a.weight = p->weight.codes, a.weight_scales = p->weight.scales, a.weight_scale = p->weight_scale;
    a.m = p->m, a.n = p->n, a.k = p->k;
    a.out = p->stage ? rows_floats(p->stage, p->n) : plain_rows(p->out, p->first, p->out->row_bytes);
    a.bias = plain_rows(&e->bias, p->first, 0);
    a.gate = plain_rows(p->finishes ? &absent : &e->gate, p->first, 0);
    a.residual = p->finishes ? rows_of(&absent) : plain_rows(&e->residual, p->first, e->residual.row_bytes);
    a.activation = p->finishes ? ACTIVATION_NONE : e->activation;
    return a;
}

template <class T> static enum status launch(struct cuda *cuda, const product_args &a, struct error *e) {
    if (cuda_allow_shared(KERNEL(multiply_int8<T>), T::shared_bytes, "int8 product", e)) return e->code;
    unsigned blocks = (unsigned)((a.m - 1) / T::block_m + 1) * (unsigned)((a.n - 1) / T::block_n + 1);
    LAUNCH((multiply_int8<T>), blocks, T::threads, T::shared_bytes, cuda->compute, a);
    return OK;
}

/* The tile depends on the number of multiprocessors; the result does not depend on the tile. */
enum status cuda_int8_product(struct cuda *cuda, const struct int8_product *product, struct error *e) {
    product_args a = product_args_of(product);
    int tile, number = 0;
    int8_product_cost(a.m, a.n, cuda->multiprocessors, &tile);
#define LAUNCH_TILE(rows, columns, warps_m, warps_n, stages, blocks, share)                                  \
    if (tile == number++)                                                                                    \
        return launch<int8_tile<rows, columns, warps_m, warps_n, stages, blocks>>(cuda, a, e);
    INT8_TILES(LAUNCH_TILE)
#undef LAUNCH_TILE
    return OK;
}

#define QUANTISE_KERNEL(D) KERNEL(quantise_rows<D>),
#define TILE_KERNEL(rows, columns, warps_m, warps_n, stages, blocks, share)                                  \
    KERNEL(multiply_int8<int8_tile<rows, columns, warps_m, warps_n, stages, blocks>>),
const void *const cuda_int8_kernels[] = {UNROTATED_WEIGHT_TYPES(QUANTISE_KERNEL) KERNEL(decode_i4),
                                         INT8_TILES(TILE_KERNEL) NULL};
