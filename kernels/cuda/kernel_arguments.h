/* Numbers of host-computed values that fit into the arguments of one kernel launch (4 KiB). */
#ifndef SLUICE_CUDA_KERNEL_ARGUMENTS_H
#define SLUICE_CUDA_KERNEL_ARGUMENTS_H

#include <stdint.h>

enum {
    ROPE_PAIRS_AT_ONCE = 64,  /* frequencies (double) of a RoPE table: heads of 128 take one launch */
    TIMES_AT_ONCE = 128,      /* values of a timestep embedding: the 256 of every model take two launches */
    DISTANCES_AT_ONCE = 1024, /* relative position buckets, one byte each: T5's 512 tokens take one launch */
};

static inline int arguments_launches(int64_t n, int64_t at_once) {
    return (int)((n + at_once - 1) / at_once);
}

#endif
