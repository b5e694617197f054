/* Device functions shared by the attention kernels (attention.cu, attention_int8.cu). */
#ifndef SLUICE_CUDA_ATTENTION_HEADS_CUH
#define SLUICE_CUDA_ATTENTION_HEADS_CUH

#include "kernels/cuda/operators.h"
#include "kernels/cuda/ptx.cuh"

/* Rows [rows, heads, head_size] of q or of the result. */
struct head_rows {
    char *data;
    int64_t row; /* row stride in bytes */
    int32_t rows, head_size;
    bool half, f16; /* half: bf16 or f16; else f32 */
    bool wide;      /* the adjacent columns that a lane loads or stores are aligned to their size */
};

static inline bool rows_are_aligned(const struct tensor *t, int64_t bytes) {
    return !(reinterpret_cast<uintptr_t>(t->data) % static_cast<uintptr_t>(bytes) || t->row_bytes % bytes);
}

/* Describes q or the result of a call. columns: number of adjacent columns that a lane loads or stores. */
static inline head_rows head_rows_of(const struct tensor *t, int32_t head_size, int32_t columns) {
    head_rows h = {};
    h.data = static_cast<char *>(t->data), h.row = t->row_bytes;
    h.rows = t->dim[0], h.head_size = head_size;
    h.half = t->dtype != DTYPE_F32, h.f16 = t->dtype == DTYPE_F16;
    h.wide = rows_are_aligned(t, columns * (h.half ? 2 : 4)) && head_size % columns == 0;
    return h;
}

/* Return the maximum and the sum over the four lanes that hold columns of the same rows (ptx.cuh). */
__device__ static inline float quad_max(float value) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffff, value, 1));
    return fmaxf(value, __shfl_xor_sync(0xffffffff, value, 2));
}

__device__ static inline float quad_sum(float value) {
    value += __shfl_xor_sync(0xffffffff, value, 1);
    return value + __shfl_xor_sync(0xffffffff, value, 2);
}

/* Stores two adjacent columns of a head's result; values beyond the last row or column are not stored. */
__device__ static inline void store_two(const head_rows &out, int32_t head, int32_t row, int32_t column,
                                        float first, float second) {
    if (row >= out.rows || column >= out.head_size) return;
    int64_t place = static_cast<int64_t>(head) * out.head_size + column;
    if (out.half) {
        uint16_t *to = reinterpret_cast<uint16_t *>(out.data + row * out.row) + place;
        uint32_t both = out.f16 ? pack_f16(first, second) : pack_bf16(first, second);
        if (out.wide) {
            *reinterpret_cast<uint32_t *>(to) = both;
            return;
        }
        to[0] = static_cast<uint16_t>(both);
        if (column + 1 < out.head_size) to[1] = static_cast<uint16_t>(both >> 16);
        return;
    }
    float *to = reinterpret_cast<float *>(out.data + row * out.row) + place;
    if (out.wide) {
        float2 both;
        both.x = first, both.y = second;
        *reinterpret_cast<float2 *>(to) = both;
        return;
    }
    to[0] = first;
    if (column + 1 < out.head_size) to[1] = second;
}

#endif
