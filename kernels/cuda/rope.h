/* Workspace and launches of CUDA operators on positions: RoPE, timestep embedding, relative bias. Pure
 * functions. */
#ifndef SLUICE_CUDA_ROPE_H
#define SLUICE_CUDA_ROPE_H

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/cuda/workspace.h"
#include "kernels/ops.h"

/* Returns the bytes of the head norm's weight converted to f32; 0 if the weight is plain. */
static inline uint64_t cuda_rope_bytes(const struct op *op) {
    const struct tensor *norm = &op->in[2];
    return weight_is_plain(norm) ? 0 : align_up(sizeof(float) * (uint64_t)tensor_columns(norm), ARENA_ALIGN);
}

/* Limits of host-computed values per kernel launch, set by the 4 KiB of launch arguments. */
enum {
    ROPE_PAIRS_AT_ONCE = 64,  /* RoPE frequencies (double): heads of 128 take one launch */
    AXIS_PAIRS_AT_ONCE = 768, /* frequencies of a rope axis (f32): LTX's three axes take one launch each */
    TIMES_AT_ONCE = 128,      /* timestep embedding values: the 256 of every model take two launches */
    DISTANCES_AT_ONCE = 1024, /* relative position buckets, one byte each: T5's 512 tokens take one launch */
};

#ifdef __cplusplus
}
#endif

#endif
