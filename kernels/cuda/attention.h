/* Attention's shapes on the CUDA device: what attention.cu is compiled for, and its workspace. Pure functions
 * of the call. */
#ifndef SLUICE_CUDA_ATTENTION_H
#define SLUICE_CUDA_ATTENTION_H

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/cuda/costs.h"
#include "kernels/ops.h"

/* The one table of tiles: _(head_dim, BLOCK_M, BLOCK_N, warps_m, warps_d, q_in_registers).
 *   head_dim  compiled head sizes; others are padded to the next one with zeros
 *   BLOCK_M   queries of a block. A warp has 32 or 16 of them, the instruction's rows twice or once: twice
 *             halves what a warp reads of k and v from shared memory, which is what bounds a GPU whose tensor
 *             cores are as fast as the A100's
 *   BLOCK_N   keys of a tile: so many at a time
 *   warps_m   warps that share the queries
 *   warps_d   warps that share a head, each with its part of the columns: then they add up their scores
 *   q_in_registers   of a warp's q, groups of 16 columns that stay in registers; the others in shared memory
 *
 * What decides: with M rows of 16 a warp, a lane has M * head_dim / warps_d / 2 registers of results,
 * M * BLOCK_N / 2 of scores and 4 * M * q_in_registers of q, of 255 in all. A block must fit into the 99 KiB
 * of shared memory that GPUs of 8.6, 8.9 and 12.0 give it, and for heads of up to 128, where four warps are
 * too few for a multiprocessor, two blocks into the 100 KiB that it has there, 1 KiB of it lost to each. */
#define ATTENTION_TILES(_)                                                                                   \
    _(16, 128, 64, 4, 1, 1)                                                                                  \
    _(32, 128, 64, 4, 1, 2)                                                                                  \
    _(48, 128, 64, 4, 1, 3)                                                                                  \
    _(64, 128, 64, 4, 1, 4)                                                                                  \
    _(80, 128, 64, 4, 1, 0)   /* 40 registers of q are too many beside 80 and 64 */                          \
    _(96, 128, 48, 4, 1, 0)   /* 64 keys: 50 KiB, one block where there are 100 */                           \
    _(112, 128, 32, 4, 1, 0)  /* 48 keys: 50.5 KiB, likewise */                                              \
    _(128, 128, 32, 4, 1, 0)  /* 49 KiB: two blocks are exactly 100 */                                       \
    _(160, 128, 64, 8, 1, 10) /* from here on results of 32 queries are too many registers */                \
    _(192, 128, 64, 8, 1, 10)                                                                                \
    _(256, 128, 32, 8, 1, 8)                                                                                 \
    _(384, 64, 32, 4, 2, 12) /* from here on those of 16 are: two warps share them */                        \
    _(512, 64, 32, 4, 2, 12)                                                                                 \
    _(640, 32, 32, 2, 4, 10) /* from here on those of two warps are, or shared memory: four */               \
    _(1024, 32, 16, 2, 4, 12)

/* Those of the tiles that may be larger where two such blocks fit into a multiprocessor's shared memory: on
 * 8.0, 8.7 and 9.0. Fewer tiles are fewer barriers, row maxima and loads beside the same products. With 64
 * keys heads of 112 would spill there, and those of 128 on 10.0, whose tensor cores are reached otherwise. */
#define ATTENTION_WIDE_TILES(_)                                                                              \
    _(96, 128, 64, 4, 1, 0)                                                                                  \
    _(112, 128, 48, 4, 1, 0)                                                                                 \
    _(128, 128, 64, 4, 1, 0)

/* Whether a GPU has the wide tiles: of its compute capability and the shared memory that it gives a block. A
 * constant of the device: bits follow from it. */
static inline bool attention_is_wide(int major, int shared_bytes) {
    return major < 10 && shared_bytes >= 163 << 10;
}

/* A head's compiled size. */
static inline int32_t attention_padded(int32_t head_size) {
#define FIRST_THAT_HOLDS(head, ...)                                                                          \
    if (head_size <= head) return head;
    ATTENTION_TILES(FIRST_THAT_HOLDS)
#undef FIRST_THAT_HOLDS
    return 0; /* never: the wrapper has checked */
}

/* Blocks of a launch. Where a GPU drives a display too, drivers end kernels that take some seconds. 2^42
 * products for scores and as many for results are less than a tenth of a second on the fastest GPUs, one or
 * two on the slowest, and still some blocks for each multiprocessor. */
static inline int32_t attention_blocks_at_once(int32_t queries, int32_t head, int32_t keys) {
    int64_t most = ((int64_t)1 << 42) / ((int64_t)queries * head * keys);
    return (int32_t)(most < 1 ? 1 : most < 1 << 30 ? most : 1 << 30);
}

/* Queries of a block, of a compiled size of heads. */
static inline int32_t attention_queries(int32_t padded) {
#define QUERIES_OF(head, block_m, ...)                                                                       \
    if (padded == head) return block_m;
    ATTENTION_TILES(QUERIES_OF)
#undef QUERIES_OF
    return 0; /* never: heads are padded to one of these */
}

/* How many launches a call's blocks take. */
static inline int attention_launches(const struct op *op) {
    int32_t padded = attention_padded(op->in[0].dim[1] / op->n), queries = attention_queries(padded);
    int64_t blocks = (int64_t)op->n * ((op->in[0].dim[0] + queries - 1) / queries);
    int32_t most = attention_blocks_at_once(queries, padded, op->in[1].dim[0]);
    return (int)((blocks + most - 1) / most);
}

/* Do a block's threads have whole rows of a tile of keys? Then rows may be any distance apart, which costs
 * registers: not those that heads of more than 128 need. */
#define ATTENTION_STRIDED(head) ((head) <= 128 && ((head) & ((head)-1)) == 0)

/* k and v are read once for every block of queries, 16 bytes at a time. In bf16, in rows that begin at
 * multiples of that, of heads as above or of one head without gaps, they are read where they lie; else they
 * are rounded and padded before, into bf16 head after head: [G, S, head]. q is read once and needs nothing.
 */
struct attention_layout {
    int32_t head; /* compiled */
    bool packs;
    uint64_t keys, values, end;
};

static inline bool attention_packs_rows(const struct tensor *t, int32_t head_size) {
    if (t->dtype != DTYPE_BF16 || head_size != attention_padded(head_size)) return true;
    return ATTENTION_STRIDED(head_size) ? t->row_bytes % 16 != 0 : t->row_bytes != 2 * (int64_t)head_size;
}

static inline bool attention_packs(const struct op *op, int32_t head_size) {
    return attention_packs_rows(&op->in[1], head_size) || attention_packs_rows(&op->in[2], head_size);
}

static inline struct attention_layout cuda_attention_layout(const struct op *op) {
    struct attention_layout l;
    int32_t head_size = op->in[0].dim[1] / op->n, key_heads = op->in[1].dim[1] / head_size;
    l.head = attention_padded(head_size);
    l.packs = attention_packs(op, head_size);
    uint64_t bytes = l.packs ? 2 * (uint64_t)op->in[1].dim[0] * (uint64_t)key_heads * (uint64_t)l.head : 0;
    l.end = 0;
    l.keys = workspace_part(&l.end, bytes);
    l.values = workspace_part(&l.end, bytes);
    return l;
}

#ifdef __cplusplus
}
#endif

#endif
