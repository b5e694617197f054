/* Attention: per head, scores of 128 queries at a time, softmax, and the product with the values.
 *
 * Heads lie side by side in rows, oneDNN wants packed matrices (onednn.h), so a few key heads' k and v are
 * packed into the workspace; the copies are O(S D) beside the O(T S D) of the products. Then threads take
 * turns with those heads' chunks of queries, each computing whole chunks alone: two parallel regions for
 * every few heads, where products shared by all threads would need five for every chunk. A lone head with
 * packed rows is used in place, and its products are shared: alone, each thread would copy all of its k and v
 * in every chunk.
 *
 * out may be q: a chunk's queries are dead once they are packed, and no other chunk or head reads them.
 * Invariant: a row of scores is summed in one order, whatever the thread count. */
#include "kernels/cpu/operators.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/weights.h"

#include <omp.h>
#include <string.h>

enum { CHUNK = 128, PIECE = 64 };

/* Workspace for packed heads, and for threads: one of each has it always. At 4224 tokens of head size 128 a
 * head takes 4.3 MB and a thread 2.4. */
static const uint64_t heads_bytes = 4 << 20, workers_bytes = 64 << 20;

struct attention_layout {
    int32_t head_size, keys, chunk, group; /* group: query heads of one key head */
    int32_t heads, workers;                /* key heads packed at once; threads with a chunk each */
    bool in_place;                         /* k and v */
    uint64_t head_bytes;                   /* of a key head's packed k; v has as many */
    uint64_t k, v, worker, end;            /* offsets; worker: of the first */
    uint64_t q, scores, out, sums, scratch, worker_bytes; /* offsets in a worker's part */
};

static bool lone(const struct tensor *t, int32_t head_size) {
    return t->dim[1] == head_size && tensor_packed(t);
}

/* Scores and values, for full chunks and for the last, smaller one (M 0: there is none). */
struct attention_keys {
    struct onednn_key scores[2], values[2];
};

static struct attention_keys cpu_attention_product_keys(const struct attention_layout *l,
                                                        const struct op *op) {
    int32_t rest = op->in[0].dim[0] % l->chunk;
    struct attention_keys keys;
    for (int i = 0; i < 2; i++) {
        int32_t rows = i ? rest : l->chunk, alone = !l->in_place;
        keys.scores[i] = (struct onednn_key){ONEDNN_PRODUCT_T, {rows, l->keys, l->head_size, alone}};
        keys.values[i] = (struct onednn_key){ONEDNN_PRODUCT, {rows, l->head_size, l->keys, alone}};
    }
    return keys;
}

static uint64_t scratch_bytes(const struct cpu *cpu, const struct attention_keys *keys) {
    uint64_t most = 0;
    for (int i = 0; i < 2; i++) {
        if (!keys->scores[i].number[0]) continue;
        uint64_t scores = onednn_facts(cpu->onednn, &keys->scores[i]).scratch_bytes;
        uint64_t values = onednn_facts(cpu->onednn, &keys->values[i]).scratch_bytes;
        most = most > scores ? most : scores;
        most = most > values ? most : values;
    }
    return most;
}

/* As many as have room, at least one. */
static int32_t fitting(uint64_t room, uint64_t each, int32_t most) {
    uint64_t n = each ? room / each : 1;
    return n < 1 ? 1 : n < (uint64_t)most ? (int32_t)n : most;
}

/* As few turns as have room, of equal numbers of heads. */
static void lay_heads(struct attention_layout *l, int32_t key_heads) {
    uint64_t bytes = sizeof(float) * (uint64_t)l->keys * (uint64_t)l->head_size;
    l->head_bytes = align_up(bytes, ARENA_ALIGN);
    int32_t most = fitting(heads_bytes, 2 * l->head_bytes, key_heads);
    int32_t turns = (key_heads + most - 1) / most;
    l->heads = (key_heads + turns - 1) / turns;
}

static void lay_worker(struct attention_layout *l, uint64_t scratch) {
    uint64_t used = 0, row = sizeof(float) * (uint64_t)l->head_size, chunk = (uint64_t)l->chunk;
    l->q = workspace_take(&used, row * chunk);
    l->scores = workspace_take(&used, sizeof(float) * chunk * (uint64_t)l->keys);
    l->out = workspace_take(&used, row * chunk);
    l->sums = workspace_take(&used, sizeof(float) * chunk);
    l->scratch = workspace_take(&used, scratch);
    l->worker_bytes = used;
}

static struct attention_layout cpu_attention_layout_of(const struct cpu *cpu, const struct op *op) {
    const struct tensor *q = &op->in[0], *k = &op->in[1], *v = &op->in[2];
    struct attention_layout l = {.head_size = q->dim[1] / op->n, .keys = k->dim[0], .heads = 1};
    l.chunk = q->dim[0] < CHUNK ? q->dim[0] : CHUNK;
    l.group = q->dim[1] / k->dim[1];
    l.in_place = lone(k, l.head_size) && lone(v, l.head_size);
    struct attention_keys keys = cpu_attention_product_keys(&l, op);
    if (!l.in_place) lay_heads(&l, op->n / l.group);
    lay_worker(&l, scratch_bytes(cpu, &keys));
    l.workers = l.in_place ? 1 : fitting(workers_bytes, l.worker_bytes, cpu->threads);
    l.k = workspace_take(&l.end, l.head_bytes * (uint64_t)l.heads);
    l.v = workspace_take(&l.end, l.head_bytes * (uint64_t)l.heads);
    l.worker = workspace_take(&l.end, l.worker_bytes * (uint64_t)l.workers);
    return l;
}

static void attention_cost(const struct cpu *cpu, const struct op *op, struct op_cost *cost) {
    struct attention_layout l = cpu_attention_layout_of(cpu, op);
    struct attention_keys keys = cpu_attention_product_keys(&l, op);
    uint64_t scratch = 0; /* it is in end */
    for (int i = 0; i < 2; i++) {
        cost_add_primitive(cpu, &keys.scores[i], cost, &scratch);
        cost_add_primitive(cpu, &keys.values[i], cost, &scratch);
    }
    cost->workspace_bytes = l.end;
}

static enum status attention_prepare(struct cpu *cpu, const struct op *op, struct error *e) {
    struct attention_layout l = cpu_attention_layout_of(cpu, op);
    struct attention_keys keys = cpu_attention_product_keys(&l, op);
    for (int i = 0; i < 2; i++) {
        if (!keys.scores[i].number[0]) continue;
        if (onednn_prepare(cpu->onednn, &keys.scores[i], e) ||
            onednn_prepare(cpu->onednn, &keys.values[i], e))
            return e->code;
    }
    return OK;
}

/* Columns of one head, rows [first, first + n), packed. */
static void cpu_attention_pack_rows(const struct tensor *from, int32_t first, int32_t n, int head, int64_t d,
                                    float *to) {
    for (int32_t i = 0; i < n; i++)
        memcpy(to + i * d, tensor_row(from, first + i) + head * d, (size_t)d * sizeof *to);
}

static void pack_heads(const struct cpu *cpu, const struct attention_layout *l, const struct op *op,
                       int first_head, int heads, char *workspace) {
    int32_t pieces = (l->keys + PIECE - 1) / PIECE;
    int64_t d = l->head_size;
#pragma omp parallel for num_threads(cpu->threads) schedule(static)
    for (int32_t i = 0; i < heads * pieces; i++) {
        int32_t place = i / pieces, first = i % pieces * PIECE;
        int32_t n = l->keys - first < PIECE ? l->keys - first : PIECE;
        float *k = (float *)(workspace + l->k + (uint64_t)place * l->head_bytes);
        float *v = (float *)(workspace + l->v + (uint64_t)place * l->head_bytes);
        cpu_attention_pack_rows(&op->in[1], first, n, first_head + place, d, k + first * d);
        cpu_attention_pack_rows(&op->in[2], first, n, first_head + place, d, v + first * d);
    }
}

/* Orders floats as integers: gcc does not vectorise comparisons that may trap. Positive NaN is above all,
 * negative below; either ends up in the sum. */
static inline int32_t ordered(float value) {
    int32_t bits = (int32_t)(union float_bits){.value = value}.bits;
    return bits ^ (bits >> 31 & 0x7fffffff);
}

WIDE static float cpu_row_max(const float *s, int64_t n) {
    int32_t max = INT32_MIN;
    for (int64_t i = 0; i < n; i++) max = max > ordered(s[i]) ? max : ordered(s[i]);
    return (union float_bits){.bits = (uint32_t)(max ^ (max >> 31 & 0x7fffffff))}.value;
}

/* s[i] becomes e^(scale (s[i] - offset)); returns their sum. */
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

/* The scores of one query; only the first n of them count. The division by the sum is left for the result. */
static float row_softmax(float *s, int64_t n, int64_t keys, float scale) {
    memset(s + n, 0, (size_t)(keys - n) * sizeof *s);
    if (scale >= 0) return row_exp(s, n, scale, cpu_row_max(s, n));
    for (int64_t i = 0; i < n; i++) s[i] = -s[i];
    return row_exp(s, n, -scale, cpu_row_max(s, n));
}

WIDE static void row_bias(float *s, const float *bias, float scale, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) s[i] = scale * s[i] + bias[i];
}

static float softmax_row(const struct op *op, int head, int32_t query, float *scores) {
    int64_t keys = op->in[1].dim[0], queries = op->in[0].dim[0];
    int64_t seen = op->causal ? keys - queries + query + 1 : keys;
    if (!op->in[3].rank) return row_softmax(scores, seen, keys, op->scale);
    row_bias(scores, tensor_row(&op->in[3], head) + queries - 1 - query, op->scale, seen);
    return row_softmax(scores, seen, keys, 1);
}

/* Queries of one head, and where its k and v lie. */
struct chunk {
    int head;
    int32_t first;
    const float *k, *v;
};

static void softmax(const struct cpu *cpu, const struct op *op, const struct attention_layout *l,
                    const struct chunk *c, int32_t rows, float *scores, float *sums) {
    if (!l->in_place) {
        for (int32_t i = 0; i < rows; i++)
            sums[i] = softmax_row(op, c->head, c->first + i, scores + (int64_t)i * l->keys);
        return;
    }
#pragma omp parallel for num_threads(cpu->threads) schedule(static)
    for (int32_t i = 0; i < rows; i++)
        sums[i] = softmax_row(op, c->head, c->first + i, scores + (int64_t)i * l->keys);
}

WIDE static void divide_row(float *restrict to, const float *restrict from, float by, int64_t n) {
    float factor = 1.0f / by;
    for (int64_t i = 0; i < n; i++) to[i] = from[i] * factor;
}

static int32_t chunks_of(const struct op *op, const struct attention_layout *l) {
    return (op->in[0].dim[0] + l->chunk - 1) / l->chunk;
}

/* Chunk i of all those of the query heads that share the packed key heads. */
static struct chunk chunk_of(const struct op *op, const struct attention_layout *l, int first_head, int32_t i,
                             const char *workspace) {
    int32_t chunks = chunks_of(op, l), head = i / chunks;
    uint64_t place = (uint64_t)(head / l->group) * l->head_bytes;
    struct chunk c = {.head = first_head * l->group + head, .first = i % chunks * l->chunk};
    c.k = l->in_place ? op->in[1].data : (const void *)(workspace + l->k + place);
    c.v = l->in_place ? op->in[2].data : (const void *)(workspace + l->v + place);
    return c;
}

static enum status run_chunk(struct cpu *cpu, const struct op *op, const struct attention_layout *l,
                             struct chunk c, char *part, struct error *e) {
    int32_t left = op->in[0].dim[0] - c.first, rows = left < l->chunk ? left : l->chunk;
    float *q = (float *)(part + l->q), *scores = (float *)(part + l->scores);
    float *out = (float *)(part + l->out), *sums = (float *)(part + l->sums);
    struct attention_keys keys = cpu_attention_product_keys(l, op);
    int last = rows < l->chunk;
    int64_t d = l->head_size;
    cpu_attention_pack_rows(&op->in[0], c.first, rows, c.head, d, q);
    struct onednn_operands of_scores = {
        .src = q, .weights = c.k, .dst = scores, .scratch = part + l->scratch};
    if (onednn_run(cpu->onednn, &keys.scores[last], of_scores, e)) return e->code;
    softmax(cpu, op, l, &c, rows, scores, sums);
    struct onednn_operands of_out = {.src = scores, .weights = c.v, .dst = out, .scratch = part + l->scratch};
    if (onednn_run(cpu->onednn, &keys.values[last], of_out, e)) return e->code;
    for (int32_t i = 0; i < rows; i++)
        divide_row(tensor_row(&op->out, c.first + i) + c.head * d, out + i * d, sums[i], d);
    return OK;
}

/* All queries of the heads that share these key heads. Who takes which chunk is left to chance: its bits are
 * the same. */
static enum status run_heads(struct cpu *cpu, const struct op *op, const struct attention_layout *l,
                             int first_head, int heads, char *workspace, struct error *e) {
    pack_heads(cpu, l, op, first_head, heads, workspace);
#pragma omp parallel for num_threads(l->workers) schedule(dynamic)
    for (int32_t i = 0; i < heads * l->group * chunks_of(op, l); i++) {
        char *part = workspace + l->worker + (uint64_t)omp_get_thread_num() * l->worker_bytes;
        struct error own = {0};
        if (run_chunk(cpu, op, l, chunk_of(op, l, first_head, i, workspace), part, &own) == OK) continue;
#pragma omp critical
        *e = own;
    }
    return e->code;
}

/* Its products want all threads, so it is not inside a parallel region. */
static enum status run_in_place(struct cpu *cpu, const struct op *op, const struct attention_layout *l,
                                char *workspace, struct error *e) {
    for (int32_t i = 0; i < op->n * chunks_of(op, l); i++)
        if (run_chunk(cpu, op, l, chunk_of(op, l, 0, i, workspace), workspace + l->worker, e)) break;
    return e->code;
}

static enum status cpu_attention_run(struct cpu *cpu, const struct op *op, char *workspace, struct error *e) {
    struct attention_layout l = cpu_attention_layout_of(cpu, op);
    if (l.in_place) return run_in_place(cpu, op, &l, workspace, e);
    int key_heads = op->n / l.group;
    for (int head = 0; head < key_heads; head += l.heads) {
        int heads = key_heads - head < l.heads ? key_heads - head : l.heads;
        if (run_heads(cpu, op, &l, head, heads, workspace, e)) break;
    }
    return e->code;
}

const struct cpu_operator cpu_attention = {attention_cost, attention_prepare, cpu_attention_run};

/* One distance of all heads: a row of the table. */
static void bias_column(const struct op *op, int32_t place) {
    const struct tensor *table = &op->in[0];
    int32_t bucket = distance_bucket(place - op->out.dim[1] / 2, table->dim[0], op->max_distance);
    for (int32_t head = 0; head < op->out.dim[0]; head++)
        weights_widen_part(tensor_row(&op->out, head) + place, table, bucket, head, 1);
}

static enum status bias_run(struct cpu *cpu, const struct op *op, char *workspace, struct error *e) {
    (void)workspace;
    (void)e;
#pragma omp parallel for num_threads(cpu->threads) schedule(static)
    for (int32_t place = 0; place < op->out.dim[1]; place++) bias_column(op, place);
    return OK;
}

const struct cpu_operator cpu_relative_bias = {NULL, NULL, bias_run};
