/* Launch limit of the attention kernels (attention.cu, attention_int8.cu). */
#ifndef SLUICE_CUDA_ATTENTION_HEADS_H
#define SLUICE_CUDA_ATTENTION_HEADS_H

#include <stdint.h>

/* Thread blocks per launch of an attention kernel. Launches are limited because drivers kill kernels that
 * run for seconds on a GPU with a display. 2^42 multiplications for scores and as many for results take under
 * 0.1 s on the fastest GPUs, 1 to 2 s on the slowest. Each multiprocessor still gets several blocks. */
static inline int32_t attention_blocks_at_once(int32_t queries, int32_t head, int32_t keys) {
    int64_t most = ((int64_t)1 << 42) / ((int64_t)queries * head * keys);
    return (int32_t)(most < 1 ? 1 : most < 1 << 30 ? most : 1 << 30);
}

#endif
