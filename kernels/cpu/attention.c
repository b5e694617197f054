/* Attention: per head, up to 128 queries and 512 keys at a time: scores, softmax, product with the values.
 *
 * Heads lie side by side in rows, but oneDNN needs packed matrices (onednn.h). So k and v of a few key heads
 * are packed into the workspace, in oneDNN's own layout if oneDNN reads this layout without copying;
 * otherwise each chunk of queries would copy all of k again. The copies cost O(S D), the products O(T S D).
 * Threads then claim chunks of queries of these heads.
 *
 * A chunk goes over the keys block by block (online softmax, Milakov and Gimelshein 2018; Dao et al. 2022).
 * Per query it keeps the largest score so far, the sum of exponentials relative to it and the sum of values.
 * A larger score rescales both sums. So scores stay in the cache, and the memory per thread does not grow
 * with the number of keys.
 *
 * out may alias q: a chunk's queries are not needed once they are packed, and no other chunk or head reads
 * them. Invariants: chunks and blocks depend on shapes alone; a query's scores are summed in one order. */
#include "kernels/cpu/operators.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/weights.h"

#include <math.h>
#include <string.h>

enum { CHUNK = 128, BLOCK = 512, TILE = 64 };

/* Workspace limit in bytes for packed keys and values of several key heads; at least one head is packed. At
 * 4224 tokens and head size 128 one head takes 4.3 MB. */
static const uint64_t heads_bytes = 4 << 20;

/* Online softmax state of one query. */
struct attention_query {
    float largest, sum; /* largest score so far; sum of e^(scale (score - largest)) */
    bool any;
};

struct attention_layout {
    int32_t head_size, keys, group; /* head size; number of keys; query heads per key head */
    int32_t chunks, chunk; /* number of query chunks; queries per chunk (the last chunk is zero-padded) */
    int32_t block, rows;   /* keys per block of keys; number of keys, zero-padded to whole tiles */
    int32_t heads;         /* key heads that are packed into the workspace at a time */
    enum onednn_kind scores_kind, values_kind;
    uint64_t head_bytes;    /* bytes of one key head's packed keys; its packed values take as many */
    uint64_t k, v, members; /* workspace offsets of packed keys, packed values and the per-thread parts */
    uint64_t q, scores, out, sum, state, scratch; /* offsets within one thread's part of the workspace */
    uint64_t member_bytes;
    struct onednn_key keys_of[4]; /* oneDNN products for scores and for values, with a full and with the last
                                     key block; M 0: unused */
};

static struct onednn_key scores_key(const struct attention_layout *l, int32_t block) {
    return (struct onednn_key){l->scores_kind, {block ? l->chunk : 0, block, l->head_size}};
}

static struct onednn_key values_key(const struct attention_layout *l, int32_t block) {
    return (struct onednn_key){l->values_kind, {block ? l->chunk : 0, l->head_size, block}};
}

static void lay_blocks(const struct cpu *cpu, struct attention_layout *l) {
    struct onednn_key scores = {ONEDNN_PRODUCT_PACKED, {l->chunk, TILE, l->head_size}};
    struct onednn_key values = {ONEDNN_PRODUCT_PACKED, {l->chunk, l->head_size, TILE}};
    bool packs = onednn_packs(cpu->onednn, &scores);
    l->scores_kind = packs ? ONEDNN_PRODUCT_PACKED : ONEDNN_PRODUCT_T;
    l->values_kind = packs && onednn_packs(cpu->onednn, &values) ? ONEDNN_PRODUCT_PACKED : ONEDNN_PRODUCT;
    l->rows = packs ? (l->keys + TILE - 1) / TILE * TILE : l->keys;
    l->block = l->rows < BLOCK ? l->rows : BLOCK;
    int32_t rest = l->rows % l->block;
    l->keys_of[0] = scores_key(l, l->block);
    l->keys_of[1] = values_key(l, l->block);
    l->keys_of[2] = scores_key(l, rest);
    l->keys_of[3] = values_key(l, rest);
}

static struct attention_layout cpu_attention_layout_of(const struct cpu *cpu, const struct op *op) {
    const struct tensor *q = &op->in[0], *k = &op->in[1];
    struct attention_layout l = {
        .head_size = q->dim[1] / op->n, .keys = k->dim[0], .group = q->dim[1] / k->dim[1]};
    /* Uses as few query chunks as possible, of equal size. */
    l.chunks = (q->dim[0] + CHUNK - 1) / CHUNK;
    l.chunk = (q->dim[0] + l.chunks - 1) / l.chunks;
    lay_blocks(cpu, &l);
    /* Packs key heads in as few rounds as the workspace allows, with equally many heads per round. */
    int32_t key_heads = op->n / l.group;
    l.head_bytes = align_up(sizeof(float) * (uint64_t)l.rows * (uint64_t)l.head_size, ARENA_ALIGN);
    uint64_t room = heads_bytes / (2 * l.head_bytes);
    int32_t most = room < 1 ? 1 : room < (uint64_t)key_heads ? (int32_t)room : key_heads;
    int32_t rounds = (key_heads + most - 1) / most;
    l.heads = (key_heads + rounds - 1) / rounds;
    uint64_t used = 0;
    l.k = workspace_take(&used, (uint64_t)l.heads * l.head_bytes);
    l.v = workspace_take(&used, (uint64_t)l.heads * l.head_bytes);
    l.members = used;
    used = 0;
    uint64_t row = sizeof(float) * (uint64_t)l.head_size, chunk = (uint64_t)l.chunk;
    l.q = workspace_take(&used, row * chunk);
    l.scores = workspace_take(&used, sizeof(float) * chunk * (uint64_t)l.block);
    l.out = workspace_take(&used, row * chunk);
    l.sum = workspace_take(&used, row * chunk);
    l.state = workspace_take(&used, sizeof(struct attention_query) * chunk);
    l.scratch = workspace_take(&used, scratch_bytes(cpu, l.keys_of, 4));
    l.member_bytes = used;
    return l;
}

static void attention_cost(const struct cpu *cpu, const struct op *op, struct op_cost *cost) {
    struct attention_layout l = cpu_attention_layout_of(cpu, op);
    for (int i = 0; i < 4; i++) cost_add_primitive(cpu, &l.keys_of[i], cost);
    int64_t chunks = (int64_t)l.heads * l.group * l.chunks;
    cost->workspace_bytes = l.members + l.member_bytes * (uint64_t)cpu_members(cpu, chunks);
}

static enum status attention_prepare(struct cpu *cpu, const struct op *op, struct error *e) {
    struct attention_layout l = cpu_attention_layout_of(cpu, op);
    for (int i = 0; i < 4; i++)
        if (l.keys_of[i].number[0] && onednn_prepare(cpu->onednn, &l.keys_of[i], e)) return e->code;
    return OK;
}

struct attention_work {
    struct cpu *cpu;
    const struct op *op;
    const struct attention_layout *layout;
    int first_head; /* index of the first key head that is packed now */
    char *workspace;
    struct thread_pool_error *failed;
};

/* Copies one head's columns of tensor rows [first, first + n); rows beyond the tensor become zeros. */
static void cpu_attention_pack_rows(const struct tensor *from, int32_t first, int32_t n, int64_t column,
                                    int64_t d, float *to) {
    for (int32_t i = first; i < first + n; i++, to += d)
        if (i < from->dim[0])
            memcpy(to, tensor_row(from, i) + column, (size_t)d * sizeof *to);
        else
            memset(to, 0, (size_t)d * sizeof *to);
}

/* Packs 64 keys of one head, transposed to [D,64] (D: head size). */
static void pack_key_tile(const struct tensor *k, int32_t first, int64_t column, int64_t d, float *to) {
    int32_t n = k->dim[0] - first < TILE ? k->dim[0] - first : TILE;
    if (n == TILE) {
        struct tensor keys = {.dtype = DTYPE_F32,
                              .rank = 2,
                              .dim = {TILE, (int32_t)d},
                              .data = tensor_row(k, first) + column,
                              .row_bytes = k->row_bytes,
                              .scale = 1};
        weights_widen_packed(to, &keys);
        return;
    }
    memset(to, 0, (size_t)(TILE * d) * sizeof *to);
    for (int32_t i = 0; i < n; i++)
        for (int64_t j = 0; j < d; j++) to[TILE * j + i] = (tensor_row(k, first + i) + column)[j];
}

/* Thread function: packs tiles of 64 keys of several key heads, one head after another. */
static void pack_tiles(const void *context, int64_t first, int64_t end, int member) {
    (void)member;
    const struct attention_work *w = context;
    const struct attention_layout *l = w->layout;
    int32_t tiles = (l->rows + TILE - 1) / TILE;
    int64_t d = l->head_size;
    for (int64_t i = first; i < end; i++) {
        uint64_t place = (uint64_t)(i / tiles) * l->head_bytes;
        float *k = (float *)(w->workspace + l->k + place), *v = (float *)(w->workspace + l->v + place);
        int32_t row = (int32_t)(i % tiles) * TILE, n = l->rows - row < TILE ? l->rows - row : TILE;
        int32_t block = row / l->block * l->block,
                rows = l->rows - block < l->block ? l->rows - block : l->block;
        int64_t column = (w->first_head + i / tiles) * d;
        if (l->scores_kind == ONEDNN_PRODUCT_PACKED)
            pack_key_tile(&w->op->in[1], row, column, d, k + row * d);
        else
            cpu_attention_pack_rows(&w->op->in[1], row, n, column, d, k + row * d);
        if (l->values_kind == ONEDNN_PRODUCT_PACKED)
            for (int64_t j = 0; j < d; j += TILE) /* values of a block are packed as [D/64,rows,64] */
                cpu_attention_pack_rows(&w->op->in[2], row, n, column + j, TILE,
                                        v + block * d + (row - block) * TILE + j * rows);
        else
            cpu_attention_pack_rows(&w->op->in[2], row, n, column, d, v + row * d);
    }
}

/* Maps floats to integers that sort in the same order, because gcc does not vectorise float comparisons,
 * which may trap. Positive NaN becomes the largest, negative NaN the smallest; either NaN still reaches the
 * sum of exponentials. */
static inline int32_t ordered(float value) {
    int32_t bits = (int32_t)(union float_bits){.value = value}.bits;
    return bits ^ (bits >> 31 & 0x7fffffff);
}

WIDE static float cpu_row_max(const float *s, int64_t n) {
    int32_t max = INT32_MIN;
    for (int64_t i = 0; i < n; i++) max = max > ordered(s[i]) ? max : ordered(s[i]);
    return (union float_bits){.bits = (uint32_t)(max ^ (max >> 31 & 0x7fffffff))}.value;
}

WIDE static float row_exp(float *s, int64_t n, float scale, float offset) {
    float part[16] = {0};
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int j = 0; j < 16; j++) {
            s[i + j] = exp_f32(scale * (s[i + j] - offset));
            part[j] += s[i + j];
        }
    for (int j = 0; i < n; i++, j++) {
        s[i] = exp_f32(scale * (s[i] - offset));
        part[j] += s[i];
    }
    return sum_16(part);
}

/* Updates a query's online softmax with a block of scores. The first n keys are visible; scores of the other
 * keys become 0. Returns the factor for earlier sums. With a negative scale the smallest score counts as the
 * largest. */
static float row_softmax(struct attention_query *query, float *s, int64_t n, int64_t block, float scale) {
    memset(s + n, 0, (size_t)(block - n) * sizeof *s);
    if (n == 0) return 1;
    if (scale < 0)
        for (int64_t i = 0; i < n; i++) s[i] = -s[i];
    scale = fabsf(scale);
    float largest = cpu_row_max(s, n), factor = 0;
    if (query->any) {
        largest = ordered(query->largest) > ordered(largest) ? query->largest : largest;
        factor = exp_f32(scale * (query->largest - largest));
    }
    query->any = true;
    query->largest = largest;
    query->sum = query->sum * factor + row_exp(s, n, scale, largest);
    return factor;
}

WIDE static void row_bias(float *s, const float *bias, float scale, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) s[i] = scale * s[i] + bias[i];
}

/* A chunk of queries of one head, and the head's packed k and v. */
struct chunk {
    int head;
    int32_t first, n;
    const float *k, *v;
};

/* Returns how many keys of the block of keys that starts at first_key are visible to a query. */
static int32_t visible_keys(const struct op *op, int32_t query, int32_t first_key, int32_t block) {
    int32_t n_visible = op->in[1].dim[0];
    if (op->causal) n_visible += query + 1 - op->in[0].dim[0];
    n_visible -= first_key;
    return n_visible < 0 ? 0 : n_visible < block ? n_visible : block;
}

WIDE static void add_scaled(float *restrict sum, const float *restrict more, float factor, int64_t n) {
    for (int64_t i = 0; i < n; i++) sum[i] = sum[i] * factor + more[i];
}

WIDE static void divide_row(float *restrict to, const float *restrict from, float by, int64_t n) {
    float factor = 1.0f / by;
    for (int64_t i = 0; i < n; i++) to[i] = from[i] * factor;
}

/* Returns query chunk i, counted over all query heads that attend to the key heads packed now. */
static struct chunk chunk_of(const struct attention_work *w, int32_t i) {
    const struct attention_layout *l = w->layout;
    int32_t head = i / l->chunks, left;
    uint64_t place = (uint64_t)(head / l->group) * l->head_bytes;
    struct chunk c = {.head = w->first_head * l->group + head, .first = i % l->chunks * l->chunk};
    left = w->op->in[0].dim[0] - c.first;
    c.n = left < 0 ? 0 : left < l->chunk ? left : l->chunk;
    c.k = (const float *)(w->workspace + l->k + place);
    c.v = (const float *)(w->workspace + l->v + place);
    return c;
}

/* Adds one block of keys to the attention results of a query chunk; the first block initialises the sums. */
static enum status run_block(const struct attention_work *w, const struct chunk *c, int32_t first, char *part,
                             struct error *e) {
    const struct attention_layout *l = w->layout;
    float *scores = (float *)(part + l->scores), *sum = (float *)(part + l->sum);
    float *out = first ? (float *)(part + l->out) : sum, factors[CHUNK];
    struct attention_query *query = (struct attention_query *)(part + l->state);
    int64_t d = l->head_size;
    int32_t block = l->rows - first < l->block ? l->rows - first : l->block;
    const struct onednn_key *keys = l->keys_of + (block < l->block ? 2 : 0);
    void *scratch = part + l->scratch;
    struct onednn_operands of_scores = {
        .src = part + l->q, .weights = c->k + first * d, .dst = scores, .scratch = scratch};
    if (onednn_run(w->cpu->onednn, &keys[0], of_scores, e)) return e->code;
    const struct op *op = w->op;
    for (int32_t i = 0; i < c->n; i++) {
        int32_t at = c->first + i, n_visible = visible_keys(op, at, first, block);
        float *row = scores + (int64_t)i * block, scale = op->scale;
        if (op->in[3].rank) { /* the relative bias is added after the scores are scaled */
            int32_t place = op->in[0].dim[0] - 1 - at + first;
            row_bias(row, tensor_row(&op->in[3], c->head) + place, scale, n_visible);
            scale = 1;
        }
        factors[i] = row_softmax(&query[i], row, n_visible, block, scale);
    }
    struct onednn_operands of_out = {
        .src = scores, .weights = c->v + first * d, .dst = out, .scratch = scratch};
    if (onednn_run(w->cpu->onednn, &keys[1], of_out, e)) return e->code;
    for (int32_t i = 0; first && i < c->n; i++) add_scaled(sum + i * d, out + i * d, factors[i], d);
    return OK;
}

static enum status run_chunk(const struct attention_work *w, const struct chunk *c, char *part,
                             struct error *e) {
    const struct attention_layout *l = w->layout;
    const struct op *op = w->op;
    struct attention_query *query = (struct attention_query *)(part + l->state);
    float *sum = (float *)(part + l->sum);
    int64_t d = l->head_size;
    cpu_attention_pack_rows(&op->in[0], c->first, l->chunk, c->head * d, d, (float *)(part + l->q));
    memset(query, 0, (size_t)l->chunk * sizeof *query);
    for (int32_t first = 0; first < l->rows; first += l->block) {
        if (!visible_keys(op, c->first + c->n - 1, first, l->block)) break;
        if (run_block(w, c, first, part, e)) return e->code;
    }
    for (int32_t i = 0; i < c->n; i++)
        divide_row(tensor_row(&op->out, c->first + i) + c->head * d, sum + i * d, query[i].sum, d);
    return OK;
}

static void run_chunks(const void *context, int64_t first, int64_t end, int member) {
    const struct attention_work *w = context;
    char *part = w->workspace + w->layout->members + w->layout->member_bytes * (uint64_t)member;
    for (int64_t i = first; i < end; i++) {
        struct error own = {0};
        struct chunk c = chunk_of(w, (int32_t)i);
        if (c.n && run_chunk(w, &c, part, &own)) thread_pool_error_report(w->failed, &own);
    }
}

static enum status cpu_attention_run(struct cpu *cpu, const struct op *op, char *workspace, struct error *e) {
    struct attention_layout l = cpu_attention_layout_of(cpu, op);
    struct thread_pool_error failed = {ATOMIC_FLAG_INIT, e};
    int32_t key_heads = op->n / l.group, tiles = (l.rows + TILE - 1) / TILE;
    for (int head = 0; head < key_heads && !e->code; head += l.heads) {
        int32_t heads = key_heads - head < l.heads ? key_heads - head : l.heads;
        struct attention_work work = {cpu, op, &l, head, workspace, &failed};
        thread_pool_run(cpu->thread_pool, (int64_t)heads * tiles, pack_tiles, &work);
        thread_pool_run(cpu->thread_pool, (int64_t)heads * l.group * l.chunks, run_chunks, &work);
    }
    return e->code;
}

const struct cpu_operator cpu_attention = {
    .cost = attention_cost, .prepare = attention_prepare, .run = cpu_attention_run};

/* Writes T5's relative bias for a range of distances, which are columns of out, for all heads. */
static void bias_columns(const void *context, int64_t first, int64_t end, int member) {
    (void)member;
    const struct op *op = context;
    const struct tensor *table = &op->in[0];
    for (int64_t place = first; place < end; place++) {
        int32_t distance = (int32_t)place - op->out.dim[1] / 2;
        int32_t bucket = distance_bucket(distance, table->dim[0], op->max_distance);
        for (int32_t head = 0; head < op->out.dim[0]; head++)
            weights_widen_part(tensor_row(&op->out, head) + place, table, bucket, head, 1);
    }
}

static enum status bias_run(struct cpu *cpu, const struct op *op, char *workspace, struct error *e) {
    (void)workspace, (void)e;
    thread_pool_run(cpu->thread_pool, op->out.dim[1], bias_columns, op);
    return OK;
}

const struct cpu_operator cpu_relative_bias = {.run = bias_run};
