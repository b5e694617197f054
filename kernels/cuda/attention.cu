/* Attention in one pass over the keys (FlashAttention-2, Dao et al., 2023), with the tensor core instructions
 * of compute capability 8.0, which every later GPU has.
 *
 * A thread block moves some queries of one head over all visible keys, one tile of keys at a time, in order,
 * and keeps results relative to the largest score so far. Scores never go to memory. Keys are never split
 * between blocks: sums have one order, which depends on shapes alone. q, k and v are rounded to bf16 once,
 * here or by their producer. Scores, sums and results are f32; a result may be rounded to bf16 in the last
 * step. Probabilities are rounded to bf16 for their product and summed unrounded.
 *
 * Relative error against double, measured under emulation (normal values, scale 1/sqrt(D)): 3.2e-3 to 3.4e-3
 * (PyTorch 2.15 in bf16 on the CPU: 3.7e-3 to 3.8e-3); 1.5e-3 if the operands are bf16 already.
 *
 * A relative bias is the initial value of the scores, where the fewest registers are in use. */
#include "kernels/cuda/attention.h"

#include "kernels/cuda/attention_heads.cuh"
#include "kernels/cuda/attention_int8.h"

#include <math.h>

struct packed {
    const char *from;
    uint16_t *to;     /* packed keys or values [heads, rows, padded] */
    int64_t row;      /* row stride of the source `from` in bytes */
    enum dtype dtype; /* type of the source `from`: f32, bf16 or f16 */
    bool wide;        /* heads of the source `from` start at multiples of 16 bytes */
};

struct pack_args {
    packed k, v;
    int32_t rows, heads, head_size, padded, block_rows;
};

enum { PACK_THREADS = 256, PACK_ITEMS = 1024 };

/* Loads columns [first, first + 8) of one row of a bf16 or f16 head; columns beyond the head are zeros. */
__device__ static inline uint4 eight_columns(const uint16_t *head, int32_t first, int32_t head_size,
                                             bool wide) {
    if (wide && first + 8 <= head_size) return ld128(head + first);
    uint32_t pair[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int32_t at = first + 2 * i;
        uint32_t low = at < head_size ? head[at] : 0, high = at + 1 < head_size ? head[at + 1] : 0;
        pair[i] = low | high << 16;
    }
    uint4 packed;
    packed.x = pair[0], packed.y = pair[1], packed.z = pair[2], packed.w = pair[3];
    return packed;
}

/* Loads eight columns of one row of an f32 head, rounded to bf16; columns beyond the head are zeros. */
__device__ static inline uint4 eight_columns(const float *head, int32_t first, int32_t head_size, bool wide) {
    float f[8];
    if (wide && first + 8 <= head_size) {
        uint4 low = ld128(head + first), high = ld128(head + first + 4);
        f[0] = __uint_as_float(low.x), f[1] = __uint_as_float(low.y);
        f[2] = __uint_as_float(low.z), f[3] = __uint_as_float(low.w);
        f[4] = __uint_as_float(high.x), f[5] = __uint_as_float(high.y);
        f[6] = __uint_as_float(high.z), f[7] = __uint_as_float(high.w);
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) f[i] = first + i < head_size ? head[first + i] : 0;
    }
    uint4 packed;
    packed.x = pack_bf16(f[0], f[1]), packed.y = pack_bf16(f[2], f[3]);
    packed.z = pack_bf16(f[4], f[5]), packed.w = pack_bf16(f[6], f[7]);
    return packed;
}

/* Rounds eight f16 values to bf16. */
__device__ static inline uint4 bf16_of_f16(uint4 from) {
    const uint32_t pair[4] = {from.x, from.y, from.z, from.w};
    uint32_t to[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        to[i] = pack_bf16(cuda_f16_f32(static_cast<uint16_t>(pair[i])),
                          cuda_f16_f32(static_cast<uint16_t>(pair[i] >> 16)));
    return make_uint4(to[0], to[1], to[2], to[3]);
}

/* Packs k and v into the workspace: bf16, zero-padded, head after head.
 *   grid    ceil(S / rows) x 2 (k, v); as many rows as make 1,024 items of eight columns
 *   block   256; no shared memory; 28 registers (sm_80)
 *   bytes   reads 8 S G D (4 S G D for 2-byte types), writes 4 S G head
 *   bound   memory; share of peak: not measured yet */
__global__ void __launch_bounds__(PACK_THREADS) attention_pack(pack_args a) {
    packed t = blockIdx.y ? a.v : a.k;
    int32_t pieces = a.padded / 8, row_pieces = a.heads * pieces;
    int32_t first = static_cast<int32_t>(blockIdx.x) * a.block_rows;
    int32_t rows = a.rows - first < a.block_rows ? a.rows - first : a.block_rows;
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < rows * row_pieces; i += PACK_THREADS) {
        int64_t row = first + i / row_pieces;
        int32_t head = i % row_pieces / pieces, column = i % pieces * 8;
        const char *from = t.from + row * t.row;
        uint16_t *to = t.to + (static_cast<int64_t>(head) * a.rows + row) * a.padded + column;
        head *= a.head_size;
        if (t.dtype == DTYPE_F32) {
            st128(to,
                  eight_columns(reinterpret_cast<const float *>(from) + head, column, a.head_size, t.wide));
            continue;
        }
        uint4 halves =
            eight_columns(reinterpret_cast<const uint16_t *>(from) + head, column, a.head_size, t.wide);
        st128(to, t.dtype == DTYPE_F16 ? bf16_of_f16(halves) : halves);
    }
}

/* Constants derived from a line of ATTENTION_TILES. */
template <int HEAD_DIM, int BLOCK_M, int BLOCK_N, int WARPS_M, int WARPS_D, int Q_IN_REGISTERS> struct tile {
    static constexpr int head_dim = HEAD_DIM, block_m = BLOCK_M, block_n = BLOCK_N;
    static constexpr int warps_m = WARPS_M, warps_d = WARPS_D, threads = WARP * WARPS_M * WARPS_D;
    static constexpr bool strided = ATTENTION_STRIDED(HEAD_DIM);
    static constexpr int warp_d = HEAD_DIM / WARPS_D; /* columns of a head that one warp computes */
    /* Numbers of m16n8k16 instructions per warp. mma_m: along query rows; mma_n: along keys; mma_d: along
     * output columns; mma_k: along the summed columns. */
    static constexpr int mma_m = BLOCK_M / WARPS_M / 16, mma_n = BLOCK_N / 8, mma_d = warp_d / 8,
                         mma_k = warp_d / 16;
    static constexpr int q_in_registers = Q_IN_REGISTERS, q_in_shared = mma_k - Q_IN_REGISTERS;
    /* Row stride in shared memory, in elements: an odd multiple of 16 bytes, so that eight rows lie in
     * different banks. */
    static constexpr int row = HEAD_DIM + 8;
    static constexpr int rows_bytes = BLOCK_N * row * 2;
    static constexpr int queries_bytes = BLOCK_M * WARPS_D * q_in_shared * 32;
    static constexpr int partial_bytes = WARPS_D > 1 ? BLOCK_M *WARPS_D *BLOCK_N * 4 : 0;
    static constexpr int shared_bytes = 2 * rows_bytes + queries_bytes + partial_bytes;
    /* thread blocks per multiprocessor */
    static constexpr int blocks = threads == 128 && HEAD_DIM <= 128 ? 2 : 1;
    static constexpr bool wide = blocks * (shared_bytes + 1024) > 100 * 1024;
    static_assert(WARPS_D <= 2 || WARPS_D == 4, "partial scores are added in pairs");
    static_assert(shared_bytes <= 99 * 1024, "shared memory per block on 8.6");
};

/* Kernels for wide tiles are left out of code for GPUs that do not use wide tiles (attention.h). */
#ifdef __CUDA_ARCH__
enum { COMPILES_WIDE = ATTENTION_COMPILES_WIDE(__CUDA_ARCH__ / 10) };
#else
enum { COMPILES_WIDE = 1 };
#endif

/* k or v of attention in bf16; heads and rows start at multiples of 16 bytes. */
struct key_rows {
    const uint16_t *data;
    int64_t head; /* strides in elements: from head to head and from row to row */
    int32_t row;
};

struct attend_args {
    head_rows q, out; /* each f32, bf16 or f16; wide: column pairs are aligned */
    key_rows keys, values;
    int32_t n_keys, group, tiles, last; /* last: number of the last thread block of this launch */
    const float *bias;                  /* relative bias [H, T + S - 1], or NULL */
    int64_t bias_row;                   /* row stride of bias in elements */
    bool causal;
    float q_factor, scale; /* q is multiplied by q_factor (the sign of the scale), scores by scale > 0 (for
                              base 2 exponentials) */
    float bias_factor;     /* divides the bias by the scale with which bias and scores are multiplied later */
};

/* Position of a GPU lane in attention: query head, first row (of the first 16 rows, the lane has row and row
 * + 8), and the lane's two columns in every eight columns of the warp. */
struct place {
    int32_t head, row, column;
    int lane, warp, part;
};

/* Returns how many keys, from the first on, a query row attends to. Rows beyond the last are computed like
 * the last row, but not stored. */
__device__ static inline int32_t visible(const attend_args &a, int32_t row) {
    int32_t last = row < a.q.rows ? row : a.q.rows - 1;
    return a.causal ? a.n_keys - a.q.rows + last + 1 : a.n_keys;
}

__device__ static inline float half_value(uint16_t half, bool f16) {
    return f16 ? cuda_f16_f32(half) : cuda_bf16_f32(half);
}
__device__ static inline float query_value(const float *from, bool) {
    return *from;
}
__device__ static inline float query_value(const uint16_t *from, bool f16) {
    return half_value(*from, f16);
}
__device__ static inline float2 query_pair(const float *from, bool) {
    return *reinterpret_cast<const float2 *>(from);
}
__device__ static inline float2 query_pair(const uint16_t *from, bool f16) {
    uint32_t pair = *reinterpret_cast<const uint32_t *>(from);
    float2 both;
    both.x = half_value(static_cast<uint16_t>(pair), f16);
    both.y = half_value(static_cast<uint16_t>(pair >> 16), f16);
    return both;
}

/* Loads two adjacent columns of q. WIDE: pairs are aligned to their size, so that one load suffices. */
template <class E, bool WIDE>
__device__ static inline float2 two_queries(const attend_args &a, const place &at, int32_t row,
                                            int32_t column) {
    const E *from = reinterpret_cast<const E *>(a.q.data + row * a.q.row) +
                    static_cast<int64_t>(at.head) * a.q.head_size + column;
    float2 both;
    both.x = both.y = 0;
    if (row < a.q.rows && column < a.q.head_size) {
        if constexpr (WIDE)
            both = query_pair(from, a.q.f16);
        else
            both.x = query_value(from, a.q.f16);
    }
    if (!WIDE && row < a.q.rows && column + 1 < a.q.head_size) both.y = query_value(from + 1, a.q.f16);
    return both;
}

/* A warp's queries as mma operand fragments; the fragments of the first steps are in registers, the rest in
 * shared memory. Each lane reads only its own writes from shared memory, so no barrier is needed. */
template <class T> struct query_fragments {
    uint32_t in_registers[T::mma_m][T::q_in_registers ? T::q_in_registers : 1][4];
    uint4 *in_shared; /* address of this lane's first fragment */
};

/* Loads one fragment of a warp's queries as bf16; all loads are issued before the first conversion, so that
 * loads overlap. */
template <class E, bool WIDE>
__device__ static inline uint4 load_fragment(const attend_args &a, const place &at, int32_t row,
                                             int32_t column) {
    float2 v[4];
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = two_queries<E, WIDE>(a, at, row + i % 2 * 8, column + i / 2 * 8);
    uint32_t f[4];
#pragma unroll
    for (int i = 0; i < 4; i++) f[i] = pack_bf16(v[i].x * a.q_factor, v[i].y * a.q_factor);
    uint4 fragment;
    fragment.x = f[0], fragment.y = f[1], fragment.z = f[2], fragment.w = f[3];
    return fragment;
}

template <class T, class E, bool WIDE>
__device__ static inline void load_queries(query_fragments<T> &q, const attend_args &a, const place &at) {
#pragma unroll
    for (int m = 0; m < T::mma_m; m++) {
#pragma unroll
        for (int step = 0; step < T::q_in_registers; step++) {
            uint4 f = load_fragment<E, WIDE>(a, at, at.row + 16 * m, at.column + 16 * step);
            q.in_registers[m][step][0] = f.x, q.in_registers[m][step][1] = f.y;
            q.in_registers[m][step][2] = f.z, q.in_registers[m][step][3] = f.w;
        }
#pragma unroll 4
        for (int step = 0; step < T::q_in_shared; step++)
            st128(
                q.in_shared + (m * T::q_in_shared + step) * WARP,
                load_fragment<E, WIDE>(a, at, at.row + 16 * m, at.column + 16 * (T::q_in_registers + step)));
    }
}

template <class T>
__device__ static inline void query_fragment(uint32_t to[4], const query_fragments<T> &q, int m, int step) {
    if (step < T::q_in_registers) {
#pragma unroll
        for (int i = 0; i < 4; i++) to[i] = q.in_registers[m][step][i];
    } else {
        uint4 f = ld128(q.in_shared + (m * T::q_in_shared + step - T::q_in_registers) * WARP);
        to[0] = f.x, to[1] = f.y, to[2] = f.z, to[3] = f.w;
    }
}

/* Starts asynchronous copies of rows [first, first + block_n) of a head of k or v; rows from n on become
 * zeros. Rows are `row` elements apart; without T::strided rows are contiguous. */
template <class T>
__device__ static inline void load_rows(uint16_t *shared, const uint16_t *from, int32_t row, int32_t first,
                                        int32_t n) {
    constexpr int pieces = T::head_dim / 8, steps = (T::block_n * pieces + T::threads - 1) / T::threads;
    int item = static_cast<int>(threadIdx.x), valid = n - first < T::block_n ? n - first : T::block_n;
    from += static_cast<int64_t>(first) * (T::strided ? row : T::head_dim);
    if constexpr (T::strided) {
        constexpr int rows = T::threads / pieces;
        int mine = item / pieces, column = item % pieces * 8;
        const uint16_t *at = from + mine * row + column;
        shared += mine * T::row + column;
#pragma unroll
        for (int i = 0; i < steps; i++) {
            if (T::block_n % rows && mine + i * rows >= T::block_n) break;
            bool there = mine + i * rows < valid;
            copy_async_16(shared + i * rows * T::row, there ? at + i * rows * row : from, there);
        }
    } else {
#pragma unroll
        for (int i = 0; i < steps; i++, item += T::threads) {
            if (T::block_n * pieces % T::threads && item >= T::block_n * pieces) break;
            uint16_t *to = shared + item / pieces * T::row + item % pieces * 8;
            copy_async_16(to, from + (item < valid * pieces ? item * 8 : 0), item < valid * pieces);
        }
    }
    copy_async_commit();
}

__device__ static constexpr int tiles_per_mma(int tiles) {
    return tiles % 4 ? 2 : 4;
}

/* Initialises scores with the relative bias; if several warps split a head, one warp does this for all. Rows
 * and keys beyond the last get arbitrary scores, which are masked or not stored. */
template <class T>
__device__ static inline void begin_scores(float (&s)[T::mma_m][T::mma_n][4], const attend_args &a,
                                           const place &at, int32_t first) {
    const float *from = a.bias + at.head * a.bias_row;
    int32_t distance = first + at.lane % 4 * 2 - at.row + a.q.rows - 1;
    int32_t last = a.q.rows + a.n_keys - 2;
#pragma unroll
    for (int m = 0; m < T::mma_m; m++)
#pragma unroll
        for (int n = 0; n < T::mma_n; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int32_t here = min(max(distance - 16 * m + 8 * n + i % 2 - i / 2 * 8, 0), last);
                s[m][n][i] = from[here] * a.bias_factor;
            }
}

/* Adds q k^T over the warp's columns to the scores s; keys: the first column of k. */
template <class T>
__device__ static inline void multiply_keys(float (&s)[T::mma_m][T::mma_n][4], const query_fragments<T> &q,
                                            const uint16_t *keys, int lane) {
    constexpr int N = tiles_per_mma(T::mma_n);
    const uint16_t *from = keys + (lane / 16 * 8 + lane % 8) * T::row + lane / 8 % 2 * 8;
#pragma unroll
    for (int step = 0; step < T::mma_k; step++) {
        uint32_t a[T::mma_m][4];
#pragma unroll
        for (int m = 0; m < T::mma_m; m++) query_fragment<T>(a[m], q, m, step);
#pragma unroll
        for (int n = 0; n < T::mma_n; n += N) {
            uint32_t b[N / 2][4];
#pragma unroll
            for (int i = 0; i < N / 2; i++) ldmatrix_x4(b[i], from + (n + 2 * i) * 8 * T::row + step * 16);
#pragma unroll
            for (int m = 0; m < T::mma_m; m++)
                mma_bf16<N>(s[m] + n, a[m], reinterpret_cast<const uint32_t(*)[2]>(b));
        }
    }
}

/* Adds p v to the results o of the warp's columns. p: probabilities, in the layout of scores; values: first
 * column of v. */
template <class T>
__device__ static inline void multiply_values(float (&o)[T::mma_m][T::mma_d][4],
                                              const float (&p)[T::mma_m][T::mma_n][4], const uint16_t *values,
                                              int lane) {
    constexpr int N = tiles_per_mma(T::mma_d);
    const uint16_t *from = values + lane % 16 * T::row + lane / 16 * 8;
#pragma unroll
    for (int step = 0; step < T::block_n / 16; step++) {
        uint32_t a[T::mma_m][4];
#pragma unroll
        for (int m = 0; m < T::mma_m; m++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float *pair = p[m][2 * step + i / 2] + i % 2 * 2;
                a[m][i] = pack_bf16(pair[0], pair[1]);
            }
#pragma unroll
        for (int n = 0; n < T::mma_d; n += N) {
            uint32_t b[N / 2][4];
#pragma unroll
            for (int i = 0; i < N / 2; i++)
                ldmatrix_x4_transposed(b[i], from + step * 16 * T::row + (n + 2 * i) * 8);
#pragma unroll
            for (int m = 0; m < T::mma_m; m++)
                mma_bf16<N>(o[m] + n, a[m], reinterpret_cast<const uint32_t(*)[2]>(b));
        }
    }
}

/* If several warps split a head, stores this warp's partial scores in shared memory, where the other warps of
 * the head read them. */
template <class T>
__device__ static inline void store_partial_scores(float4 *partial, const float (&s)[T::mma_m][T::mma_n][4],
                                                   const place &at) {
    float4 *to = partial + at.warp * T::mma_m * T::mma_n * WARP + at.lane;
#pragma unroll
    for (int m = 0; m < T::mma_m; m++)
#pragma unroll
        for (int n = 0; n < T::mma_n; n++) {
            float4 f;
            f.x = s[m][n][0], f.y = s[m][n][1], f.z = s[m][n][2], f.w = s[m][n][3];
            to[(m * T::mma_n + n) * WARP] = f;
        }
}

/* Adds the partial scores of the other warps that split the head: first the partner warp's, then the sum of
 * the remaining two warps. All four warps thus get the same bits without further communication. */
template <class T>
__device__ static inline void add_partial_scores(float (&s)[T::mma_m][T::mma_n][4], const float4 *partial,
                                                 const place &at) {
    constexpr int step = T::mma_m * T::mma_n * WARP;
    const float4 *own = partial + (at.warp ^ 1) * step + at.lane,
                 *first = partial + (at.warp ^ 2) * step + at.lane,
                 *second = partial + (at.warp ^ 3) * step + at.lane;
#pragma unroll
    for (int m = 0; m < T::mma_m; m++)
#pragma unroll
        for (int n = 0; n < T::mma_n; n++) {
            int i = (m * T::mma_n + n) * WARP;
            float4 f = own[i];
            s[m][n][0] += f.x, s[m][n][1] += f.y, s[m][n][2] += f.z, s[m][n][3] += f.w;
            if constexpr (T::warps_d == 4) {
                float4 g = first[i], h = second[i];
                s[m][n][0] += g.x + h.x, s[m][n][1] += g.y + h.y;
                s[m][n][2] += g.z + h.z, s[m][n][3] += g.w + h.w;
            }
        }
}

template <class T>
__device__ static inline void mask_scores(float (&s)[T::mma_m][T::mma_n][4], const attend_args &a,
                                          const place &at, int32_t first) {
#pragma unroll
    for (int m = 0; m < T::mma_m; m++) {
        int32_t n_visible[2] = {visible(a, at.row + 16 * m), visible(a, at.row + 16 * m + 8)};
#pragma unroll
        for (int n = 0; n < T::mma_n; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (first + 8 * n + at.lane % 4 * 2 + i % 2 >= n_visible[i / 2]) s[m][n][i] = -INFINITY;
    }
}

/* One lane's attention results and sums so far, relative to 2^row_max. row_sum covers only the lane's own
 * keys. */
template <class T> struct accumulators {
    float o[T::mma_m][T::mma_d][4];
    float row_max[T::mma_m][2], row_sum[T::mma_m][2];
};

/* Converts scores to probabilities relative to the new row maximum and rescales earlier results. Most tiles
 * do not raise the maximum; then the rescaling by 1 is skipped. */
template <class T>
__device__ static inline void online_softmax(accumulators<T> &r, float (&s)[T::mma_m][T::mma_n][4],
                                             float scale) {
#pragma unroll
    for (int m = 0; m < T::mma_m; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float most = -INFINITY, sum = 0;
#pragma unroll
            for (int n = 0; n < T::mma_n; n++)
                most = fmaxf(most, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
            float top = fmaxf(r.row_max[m][half], quad_max(most) * scale);
            float base = top == -INFINITY
                             ? 0
                             : top; /* a row without visible keys so far gets probability 0, not NaN */
            float rescale = exp2_fast(r.row_max[m][half] - base);
#pragma unroll
            for (int n = 0; n < T::mma_n; n++)
#pragma unroll
                for (int i = 2 * half; i < 2 * half + 2; i++)
                    sum += s[m][n][i] = exp2_fast(s[m][n][i] * scale - base);
            r.row_max[m][half] = top;
            r.row_sum[m][half] = r.row_sum[m][half] * rescale + sum;
            if (!__any_sync(0xffffffff, rescale != 1)) continue;
#pragma unroll
            for (int n = 0; n < T::mma_d; n++)
                r.o[m][n][2 * half] *= rescale, r.o[m][n][2 * half + 1] *= rescale;
        }
}

template <class T>
__device__ static inline void store_rows(const accumulators<T> &r, const attend_args &a, const place &at) {
#pragma unroll
    for (int m = 0; m < T::mma_m; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float factor = 1 / quad_sum(r.row_sum[m][half]);
#pragma unroll
            for (int n = 0; n < T::mma_d; n++)
                store_two(a.out, at.head, at.row + 16 * m + 8 * half, at.column + 8 * n,
                          r.o[m][n][2 * half] * factor, r.o[m][n][2 * half + 1] * factor);
        }
}

template <class T>
__device__ static inline place find_place(const attend_args &a, int32_t block, uint32_t thread) {
    place at;
    /* Thread blocks compute the last query rows first, because with a causal mask the last rows have the most
     * keys. */
    block = a.last - block;
    at.lane = static_cast<int>(thread % WARP), at.warp = static_cast<int>(thread / WARP);
    at.part = at.warp % T::warps_d;
    at.head = block / a.tiles;
    at.row = block % a.tiles * T::block_m + at.warp / T::warps_d * 16 * T::mma_m + at.lane / 4;
    at.column = at.part * T::warp_d + at.lane % 4 * 2;
    return at;
}

/* Main loop: k of the next tile is copied during the softmax and p v of this tile, v during q k^T: two
 * barriers per tile, one buffer each.
 *   grid    H ceil(T / BLOCK_M), in as many launches as attention_blocks_at_once requires
 *   head_dim   16     32     48     64     80     96    112    128    160    192    256    384    512
 *   BLOCK_M   128    128    128    128    128    128    128    128    128    128    128     64     64
 *   block     128    128    128    128    128    128    128    128    256    256    256    256    256
 *   shared   6144  10240  14336  18432  43008  44544  44032  50176  43008  59392  66560  66560  99328
 *   regs      146    168    203    223    239    235    226    232    227    251    249    248    254 (sm_80)
 *   heads of 640: 32 queries, 256 threads, 99328 bytes, 243 registers; of 1024: 32, 256, 90624, 254; of
 *   1152: 16, 128, 98816, 255
 *   wide tiles: shared                         51200  51712  67584
 *               regs                             255    253    255 (sm_80; make sass prints all)
 *   bytes   reads and writes T H D, of 4 or 2 bytes each; reads 4 S head per block, mostly from L2
 *   FLOPs   4 T S H D; causal: 4 H D times the number of visible pairs. Computed are whole tiles of head_dim
 *   bound   tensor cores, bf16; share of peak: not measured yet */
template <class T> __device__ static inline void attend_block(const attend_args &a) {
    SMEM_DYN(uint16_t, shared);
    uint16_t *keys = shared, *values = keys + T::block_n * T::row, *rest = values + T::block_n * T::row;
    float4 *partial = reinterpret_cast<float4 *>(rest + T::queries_bytes / 2);
    place at = find_place<T>(a, static_cast<int32_t>(blockIdx.x), threadIdx.x);
    int32_t first_row = at.row - at.lane / 4 - at.warp / T::warps_d * 16 * T::mma_m;
    int32_t n_visible = visible(a, first_row + T::block_m - 1);
    int64_t head = at.head / a.group;
    const uint16_t *all_keys = a.keys.data + head * a.keys.head;
    const uint16_t *all_values = a.values.data + head * a.values.head;
    load_rows<T>(keys, all_keys, a.keys.row, 0, a.n_keys);
    query_fragments<T> q;
    q.in_shared = reinterpret_cast<uint4 *>(rest) + at.warp * T::mma_m * T::q_in_shared * WARP + at.lane;
    if (a.q.half && a.q.wide)
        load_queries<T, uint16_t, true>(q, a, at);
    else if (a.q.half)
        load_queries<T, uint16_t, false>(q, a, at);
    else if (a.q.wide)
        load_queries<T, float, true>(q, a, at);
    else
        load_queries<T, float, false>(q, a, at);
    accumulators<T> r = {};
#pragma unroll
    for (int m = 0; m < T::mma_m; m++) r.row_max[m][0] = r.row_max[m][1] = -INFINITY;
    for (int32_t first = 0; first < n_visible; first += T::block_n) {
        copy_async_wait<0>();
        __syncthreads(); /* the copy of k has arrived; the previous tile of v is no longer used */
        load_rows<T>(values, all_values, a.values.row, first, a.n_keys);
        float s[T::mma_m][T::mma_n][4] = {};
        if (a.bias && at.part == 0) begin_scores<T>(s, a, at, first);
        multiply_keys<T>(s, q, keys + at.part * T::warp_d, at.lane);
        if constexpr (T::warps_d > 1) store_partial_scores<T>(partial, s, at);
        copy_async_wait<0>();
        __syncthreads(); /* the copy of v has arrived; k is no longer used; partial scores are written */
        if (first + T::block_n < n_visible)
            load_rows<T>(keys, all_keys, a.keys.row, first + T::block_n, a.n_keys);
        if constexpr (T::warps_d > 1) add_partial_scores<T>(s, partial, at);
        if (first + T::block_n > visible(a, at.row)) mask_scores<T>(s, a, at, first);
        online_softmax<T>(r, s, a.scale);
        multiply_values<T>(r.o, s, values + at.part * T::warp_d, at.lane);
    }
    /* Computes the lane's position again: kept in registers, the position would spill on compute
     * capability 10.0 where two warps split a head. */
    if constexpr (T::warps_d > 1) at = find_place<T>(a, block_again(), thread_again());
    store_rows<T>(r, a, at);
}

/* A kernel for wide tiles traps in code without wide tiles: launching it by mistake is an error instead of a
 * wrong result. */
template <class T> __global__ void __launch_bounds__(T::threads, T::blocks) attend(attend_args a) {
    if constexpr (T::wide && !COMPILES_WIDE)
        __trap();
    else
        attend_block<T>(a);
}

static packed packed_of(const struct tensor *t, int32_t head_size, char *to) {
    packed p = {};
    p.from = static_cast<const char *>(t->data);
    p.to = reinterpret_cast<uint16_t *>(to);
    p.row = t->row_bytes;
    p.dtype = t->dtype;
    p.wide = rows_are_aligned(t, 16) && head_size % (t->dtype == DTYPE_F32 ? 4 : 8) == 0;
    return p;
}

/* Returns rows of k or v: the tensor in place, or the packed copy at `to` in the workspace. */
static key_rows key_rows_of(const struct op *op, const struct tensor *t, const attention_layout *l,
                            const char *to) {
    key_rows rows = {};
    int64_t head_size = op->in[0].dim[1] / op->n;
    rows.data = static_cast<const uint16_t *>(l->packs ? to : t->data);
    rows.row = l->packs ? l->head : static_cast<int32_t>(t->row_bytes / 2);
    rows.head = l->packs ? static_cast<int64_t>(t->dim[0]) * l->head : head_size;
    return rows;
}

static void pack(struct cuda *cuda, const struct op *op, const attention_layout *l, char *workspace) {
    pack_args a = {};
    a.rows = op->in[1].dim[0];
    a.head_size = op->in[0].dim[1] / op->n;
    a.heads = op->in[1].dim[1] / a.head_size;
    a.padded = l->head;
    a.k = packed_of(&op->in[1], a.head_size, workspace + l->keys);
    a.v = packed_of(&op->in[2], a.head_size, workspace + l->values);
    int32_t row_pieces = a.heads * (a.padded / 8);
    a.block_rows = (PACK_ITEMS + row_pieces - 1) / row_pieces;
    unsigned blocks = static_cast<unsigned>((a.rows + a.block_rows - 1) / a.block_rows);
    LAUNCH(attention_pack, dim3(blocks, 2), PACK_THREADS, 0, cuda->compute, a);
}

static attend_args attend_args_of(const struct op *op, const attention_layout *l, const char *workspace) {
    const float log2_e = 1.44269504f;
    const struct tensor *q = &op->in[0];
    attend_args a = {};
    a.q = head_rows_of(q, q->dim[1] / op->n, 2);
    a.out = head_rows_of(&op->out, q->dim[1] / op->n, 2);
    a.keys = key_rows_of(op, &op->in[1], l, workspace + l->keys);
    a.values = key_rows_of(op, &op->in[2], l, workspace + l->values);
    a.n_keys = op->in[1].dim[0], a.group = q->dim[1] / op->in[1].dim[1];
    a.causal = op->causal;
    if (op->in[3].rank) a.bias = static_cast<const float *>(op->in[3].data);
    a.bias_row = op->in[3].row_bytes / 4;
    /* q is multiplied by the sign of the scale (1, -1 or 0), which is exact. The largest score is then also
     * the largest scaled score, and masked keys stay at minus infinity. */
    a.q_factor = op->scale < 0 ? -1.0f : op->scale > 0 ? 1.0f : 0.0f;
    a.scale = op->scale == 0 ? 1.0f : fabsf(op->scale) * log2_e;
    a.bias_factor = log2_e / a.scale;
    return a;
}

template <class T>
static enum status launch(struct cuda *cuda, const struct op *op, attend_args a, struct error *e) {
    if (cuda_allow_shared(KERNEL(attend<T>), T::shared_bytes, "attention", e)) return e->code;
    a.tiles = (a.q.rows + T::block_m - 1) / T::block_m;
    int32_t most = attention_blocks_at_once(T::block_m, T::head_dim, a.n_keys);
    for (int32_t left = a.tiles * op->n; left > 0; left -= most) {
        a.last = left - 1;
        unsigned blocks = static_cast<unsigned>(left < most ? left : most);
        LAUNCH((attend<T>), blocks, T::threads, T::shared_bytes, cuda->compute, a);
    }
    return cuda_launched(op, e);
}

/* Decides once per device whether attention uses wide tiles. The loaded code may have been compiled for
 * another GPU, so its architecture counts as well. One wide kernel is checked for all, because CUDA loads the
 * kernels of a source file as one module. Called by runs, not for plans: loading may compile PTX. */
static enum status choose_tiles(struct cuda *cuda, struct error *e) {
    struct cudaFuncAttributes code;
    int major = 0, shared = 0;
    if (cuda->tiles_chosen) return OK;
    if (cuda_check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, cuda->ordinal),
                   "cudaDeviceGetAttribute (capability)", e) ||
        cuda_check(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, cuda->ordinal),
                   "cudaDeviceGetAttribute (shared memory)", e) ||
        cuda_check(cudaFuncGetAttributes(&code, KERNEL(attend<tile<128, 128, 64, 4, 1, 0>>)),
                   "cudaFuncGetAttributes (attention)", e))
        return e->code;
    cuda->wide_tiles = attention_is_wide(major, shared, code.ptxVersion);
    cuda->tiles_chosen = true;
    return OK;
}

static enum status cuda_attention_run(struct cuda *cuda, const struct op *op, char *workspace,
                                      struct error *e) {
    if (attention_is_int8(op)) {
        struct int8_attention_layout layout = cuda_int8_attention_layout(op);
        return cuda_attention_int8_run(cuda, op, &layout, workspace, e);
    }
    attention_layout l = cuda_attention_layout(op);
    if (choose_tiles(cuda, e)) return e->code;
    if (l.packs) pack(cuda, op, &l, workspace);
    if (cuda_launched(op, e)) return e->code;
    attend_args a = attend_args_of(op, &l, workspace);
#define LAUNCH_TILE(head, ...)                                                                               \
    case head:                                                                                               \
        return launch<tile<head, __VA_ARGS__>>(cuda, op, a, e);
    if (cuda->wide_tiles) switch (l.head) {
            ATTENTION_WIDE_TILES(LAUNCH_TILE)
        }
    switch (l.head) { ATTENTION_TILES(LAUNCH_TILE) }
#undef LAUNCH_TILE
    return OK;
}

#define TILE_KERNEL(...) KERNEL(attend<tile<__VA_ARGS__>>),
static const void *const kernels[] = {KERNEL(attention_pack),
                                      ATTENTION_TILES(TILE_KERNEL) ATTENTION_WIDE_TILES(TILE_KERNEL) NULL};
#undef TILE_KERNEL

const struct cuda_operator cuda_attention = {
    NULL, cuda_attention_run, {kernels, cuda_attention_int8_kernels}};
