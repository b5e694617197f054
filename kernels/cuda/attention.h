/* Tile sizes and workspace of CUDA attention (attention.cu). Pure functions of the call. */
#ifndef SLUICE_CUDA_ATTENTION_H
#define SLUICE_CUDA_ATTENTION_H

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/cuda/attention_heads.h"
#include "kernels/cuda/workspace.h"
#include "kernels/ops.h"

/* Tile table: _(head_dim, BLOCK_M, BLOCK_N, warps_m, warps_d, q_in_registers).
 *
 * head_dim: compiled head sizes; other sizes are zero-padded to the next compiled size. BLOCK_M: queries per
 * thread block. A warp has 32 or 16 queries (two or one m16 instruction rows): 32 halve the shared-memory
 * reads of k and v, which are the limit on GPUs with tensor cores as fast as the A100's. BLOCK_N: keys per
 * tile. warps_m: warps that split the queries. warps_d: warps that split the columns of a head; they add
 * their partial scores. q_in_registers: groups of 16 columns of q per warp kept in registers; the rest is in
 * shared memory.
 *
 * Limits: with M instruction rows per warp, a lane has M * head_dim / warps_d / 2 registers of results, M *
 * BLOCK_N / 2 of scores and 4 * M * q_in_registers of q, of 255 in total. A thread block must fit into the 99
 * KiB of shared memory available on compute capability 8.6, 8.9 and 12.0. For heads up to 128, four warps do
 * not fill a multiprocessor, so two thread blocks must fit into a multiprocessor's 100 KiB, with 1 KiB
 * reserved per block. */
#define ATTENTION_TILES(_)                                                                                   \
    _(16, 128, 64, 4, 1, 1)                                                                                  \
    _(32, 128, 64, 4, 1, 2)                                                                                  \
    _(48, 128, 64, 4, 1, 3)                                                                                  \
    _(64, 128, 64, 4, 1, 4)                                                                                  \
    _(80, 128, 64, 4, 1, 0)   /* q: its 40 registers do not fit beside 80 of results and 64 of scores */     \
    _(96, 128, 48, 4, 1, 0)   /* 64 keys per tile take 50 KiB per block: only one block fits into 100 KiB */ \
    _(112, 128, 32, 4, 1, 0)  /* 48 keys per tile take 50.5 KiB per block: only one block fits in 100 KiB */ \
    _(128, 128, 32, 4, 1, 0)  /* 49 KiB and 1 KiB reserved per block: two blocks fill 100 KiB */             \
    _(160, 128, 64, 8, 1, 10) /* heads from 160 columns on: results of 32 queries need too many registers */ \
    _(192, 128, 64, 8, 1, 10)                                                                                \
    _(256, 128, 32, 8, 1, 8)                                                                                 \
    _(384, 64, 32, 4, 2, 12) /* heads from 384 columns on: two warps split the results of 16 queries */      \
    _(512, 64, 32, 4, 2, 12)                                                                                 \
    _(640, 32, 32, 2, 4, 10) /* heads from 640 columns on: four warps, for registers or shared memory */     \
    _(1024, 32, 16, 2, 4, 12)                                                                                \
    _(1152, 16, 16, 1, 4, 8) /* 16 queries, for shared memory: the VAE of Qwen-Image-2.1 */

/* Larger tiles for GPUs with more shared memory per multiprocessor (compute capability 8.0, 8.7, 9.0), where
 * two such blocks fit: fewer barriers, row maxima and loads for the same products. With tiles of 64 keys,
 * heads of 112 would spill registers on these GPUs. Heads of 128 would spill on compute capability 10.0,
 * whose tensor cores use another instruction. */
#define ATTENTION_WIDE_TILES(_)                                                                              \
    _(96, 128, 64, 4, 1, 0)                                                                                  \
    _(112, 128, 48, 4, 1, 0)                                                                                 \
    _(128, 128, 64, 4, 1, 0)

/* True if kernels for wide tiles have a body in code compiled for architecture `arch` (__CUDA_ARCH__ / 10);
 * in other code they trap. A macro, because device code needs a constant and the host the same rule. */
#define ATTENTION_COMPILES_WIDE(arch) ((arch) == 80 || (arch) == 87 || (arch) == 90)

/* True if a GPU uses the wide tiles, from its compute capability, its shared memory per block, and the
 * architecture for which its code was compiled. The two may differ: machine code for 8.0 runs on all 8.x, and
 * the driver compiles PTX for 8.9 to run on 9.0. The choice is a constant of device and build, because
 * results depend on the tile size. */
static inline bool attention_is_wide(int major, int shared_bytes, int compiled_for) {
    return major < 10 && shared_bytes >= 163 << 10 && ATTENTION_COMPILES_WIDE(compiled_for);
}

static inline int32_t attention_padded(int32_t head_size) {
#define FIRST_THAT_HOLDS(head, ...)                                                                          \
    if (head_size <= head) return head;
    ATTENTION_TILES(FIRST_THAT_HOLDS)
#undef FIRST_THAT_HOLDS
    return 0;
}

static inline int32_t attention_queries(int32_t padded) {
#define QUERIES_OF(head, block_m, ...)                                                                       \
    if (padded == head) return block_m;
    ATTENTION_TILES(QUERIES_OF)
#undef QUERIES_OF
    return 0;
}

static inline int attention_launches(const struct op *op) {
    int32_t padded = attention_padded(op->in[0].dim[1] / op->n), queries = attention_queries(padded);
    int64_t blocks = (int64_t)op->n * ((op->in[0].dim[0] + queries - 1) / queries);
    int32_t most = attention_blocks_at_once(queries, padded, op->in[1].dim[0]);
    return (int)((blocks + most - 1) / most);
}

/* True if the threads of a block cover whole rows of a tile of keys. Then rows of k and v may be any distance
 * apart. Heads above 128 have no registers left for this. */
#define ATTENTION_STRIDED(head) ((head) <= 128 && ((head) & ((head)-1)) == 0)

/* Workspace of packed k and v. Every block of queries reads k and v once, 16 bytes at a time. bf16 k and v
 * are read in place if rows start at multiples of 16 bytes. The head size must then be ATTENTION_STRIDED, or
 * there is one head without gaps. Otherwise a kernel rounds and pads k and v to bf16 [G,S,head]. q needs no
 * packing. f16 operands are rounded to bf16 as well, so that one kernel serves all precisions. */
struct attention_layout {
    int32_t head; /* compiled head size */
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
