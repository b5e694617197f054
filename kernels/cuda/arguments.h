/* What the host computes for a kernel and hands it as an argument: how much of it a launch takes. A kernel
 * has 4 KiB of arguments. */
#ifndef SLUICE_CUDA_ARGUMENTS_H
#define SLUICE_CUDA_ARGUMENTS_H

#include <stdint.h>

enum {
    ROPE_PAIRS_AT_ONCE = 64,  /* frequencies of a rope table, in double: heads of 128 take one launch */
    TIMES_AT_ONCE = 128,      /* values of a timestep's embedding: the 256 of every model take two */
    DISTANCES_AT_ONCE = 1024, /* buckets of distances, a byte each: T5's longest prompt of 512 takes one */
};

static inline int arguments_launches(int64_t n, int64_t at_once) {
    return (int)((n + at_once - 1) / at_once);
}

#endif
