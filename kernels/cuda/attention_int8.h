/* Tile sizes and workspace of CUDA attention in int8 mode (attention_int8.cu). Pure functions of the call. */
#ifndef SLUICE_CUDA_ATTENTION_INT8_H
#define SLUICE_CUDA_ATTENTION_INT8_H

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/cuda/attention_heads.h"
#include "kernels/cuda/workspace.h"
#include "kernels/ops.h"

/* INT8_KEYS: keys per tile, also the rows that share the scales of v. INT8_QUERIES: queries per thread block.
 * INT8_MEAN_KEYS: the mean of k is computed from at most this many evenly spaced keys. Subtracting any vector
 * leaves the softmax unchanged, so a sample is enough: the mean of 1,024 keys differs from the mean of all by
 * 3 % of the keys' standard deviation, and it takes one short pass. */
enum { INT8_KEYS = 64, INT8_QUERIES = 128, INT8_MEAN_KEYS = 1024 };

/* Fewest queries and keys for which a call is computed in int8. Quantising k and v moves 7 bytes per value;
 * that takes the time that int8 saves on 320 (RTX 3060) to 490 (RTX 4090) queries (calculated). With few
 * keys, a partly filled last tile is a large share of the time. */
enum { INT8_QUERIES_LEAST = 512, INT8_KEYS_LEAST = 256 };

/* Limit in bytes of the workspace for k and v. If all heads need more, groups of heads run one after the
 * other; a group has at least one key head. */
#define INT8_RECORDS_MAX ((uint64_t)192 << 20)

/* True if a call is computed in int8. Other calls of int8 mode (causal masks and relative biases of text
 * encoders, head sizes outside 64 to 128, short sequences) are computed as in bf16 mode. */
static inline bool attention_is_int8(const struct op *op) {
    int32_t head_size = op->in[0].dim[1] / op->n;
    return op->precision == PRECISION_INT8 && !op->in[3].rank && !op->causal && head_size >= 64 &&
           head_size <= 128 && op->in[0].dim[0] >= INT8_QUERIES_LEAST && op->in[1].dim[0] >= INT8_KEYS_LEAST;
}

/* A tile of keys of one head in the workspace is one record, copied to shared memory unchanged:
 *   codes of k    [INT8_KEYS, head] s8
 *   scales of k   [INT8_KEYS] f32, one per key
 *   values of v   [INT8_KEYS, head] f16
 *   scales of v   [head] f32, one per column
 * Keys beyond the last are zeros. */
#define INT8_KEY_SCALES(head)   (INT8_KEYS * (head))
#define INT8_VALUES(head)       (INT8_KEY_SCALES(head) + INT8_KEYS * 4)
#define INT8_VALUE_SCALES(head) (INT8_VALUES(head) + INT8_KEYS * (head)*2)
#define INT8_RECORD(head)       (INT8_VALUE_SCALES(head) + (head)*4)

struct int8_attention_layout {
    int32_t head;      /* compiled head size: 64, 96 or 128 */
    int32_t key_tiles; /* tiles of keys, records per head */
    int32_t at_once;   /* key heads per group */
    uint64_t mean;     /* mean of k [G,D] */
    uint64_t records;  /* [at_once, key_tiles] */
    uint64_t end;
};

static inline struct int8_attention_layout int8_attention_layout_limited(const struct op *op,
                                                                         uint64_t records_max) {
    struct int8_attention_layout l;
    int32_t head_size = op->in[0].dim[1] / op->n, heads = op->in[1].dim[1] / head_size;
    l.head = head_size <= 64 ? 64 : head_size <= 96 ? 96 : 128;
    l.key_tiles = (op->in[1].dim[0] + INT8_KEYS - 1) / INT8_KEYS;
    uint64_t bytes = (uint64_t)l.key_tiles * INT8_RECORD(l.head);
    int32_t most = bytes >= records_max ? 1 : (int32_t)(records_max / bytes);
    int32_t groups = (heads + most - 1) / most;
    l.at_once = (heads + groups - 1) / groups;
    l.end = 0;
    l.mean = workspace_part(&l.end, sizeof(float) * (uint64_t)op->in[1].dim[1]);
    l.records = workspace_part(&l.end, bytes * (uint64_t)l.at_once);
    return l;
}

static inline struct int8_attention_layout cuda_int8_attention_layout(const struct op *op) {
    return int8_attention_layout_limited(op, INT8_RECORDS_MAX);
}

/* Returns the number of key heads in the group that starts at key head `first` of G. */
static inline int32_t int8_group_heads(const struct int8_attention_layout *l, int32_t G, int32_t first) {
    return G - first < l->at_once ? G - first : l->at_once;
}

/* Returns the number of launches of the attention kernel for n key heads. */
static inline int int8_attention_launches(const struct op *op, const struct int8_attention_layout *l,
                                          int32_t n) {
    int32_t group = op->in[0].dim[1] / op->in[1].dim[1],
            tiles = (op->in[0].dim[0] + INT8_QUERIES - 1) / INT8_QUERIES;
    int32_t most = attention_blocks_at_once(INT8_QUERIES, l->head, op->in[1].dim[0]);
    return (int)(((int64_t)tiles * n * group + most - 1) / most);
}

#ifdef __cplusplus
}
#endif

#endif
