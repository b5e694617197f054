/* Attention: per head, scores of 128 queries at a time, softmax, and the product with the values.
 *
 * Heads lie side by side in rows, oneDNN wants packed matrices (onednn.h), so a head's q, k and v are packed
 * into the workspace; the copies are O(S D) beside the O(T S D) of the products. A lone head with packed rows
 * is used in place. out may be q: a chunk's queries are dead once they are packed, and no other chunk or head
 * reads them. Invariant: a row of scores is summed in one order, whatever the thread count. */
#include "kernels/cpu/operators.h"
#include "kernels/cpu/simd.h"

#include <string.h>

enum { CHUNK = 128 };

struct attention_layout {
    int32_t head_size, keys, chunk, group; /* group: query heads of one key head */
    bool packs_k, packs_v;
    uint64_t q, k, v, scores, out, sums, scratch; /* offsets; scratch is last */
};

static bool lone(const struct tensor *t, int32_t head_size) {
    return t->dim[1] == head_size && tensor_packed(t);
}

static struct attention_layout layout_of(const struct op *op) {
    const struct tensor *q = &op->in[0], *k = &op->in[1], *v = &op->in[2];
    struct attention_layout l = {.head_size = q->dim[1] / op->n, .keys = k->dim[0]};
    l.chunk = q->dim[0] < CHUNK ? q->dim[0] : CHUNK;
    l.group = q->dim[1] / k->dim[1];
    l.packs_k = !lone(k, l.head_size);
    l.packs_v = !lone(v, l.head_size);
    uint64_t used = 0, row = sizeof(float) * (uint64_t)l.head_size;
    l.q = workspace_take(&used, row * (uint64_t)l.chunk);
    l.k = workspace_take(&used, l.packs_k ? row * (uint64_t)l.keys : 0);
    l.v = workspace_take(&used, l.packs_v ? row * (uint64_t)l.keys : 0);
    l.scores = workspace_take(&used, sizeof(float) * (uint64_t)l.chunk * (uint64_t)l.keys);
    l.out = workspace_take(&used, row * (uint64_t)l.chunk);
    l.sums = workspace_take(&used, sizeof(float) * (uint64_t)l.chunk);
    l.scratch = used;
    return l;
}

/* Scores and values, for full chunks and for the last, smaller one (M 0: there is none). */
static void product_keys(const struct op *op, struct onednn_key scores[2], struct onednn_key values[2]) {
    struct attention_layout l = layout_of(op);
    int32_t rest = op->in[0].dim[0] % l.chunk;
    for (int i = 0; i < 2; i++) {
        scores[i] = (struct onednn_key){ONEDNN_PRODUCT_T, {i ? rest : l.chunk, l.keys, l.head_size}};
        values[i] = (struct onednn_key){ONEDNN_PRODUCT, {i ? rest : l.chunk, l.head_size, l.keys}};
    }
}

static void attention_cost(const struct cpu *cpu, const struct op *op, struct op_cost *cost) {
    struct onednn_key scores[2], values[2];
    product_keys(op, scores, values);
    uint64_t scratch = 0;
    for (int i = 0; i < 2; i++) {
        cost_add_primitive(cpu, &scores[i], cost, &scratch);
        cost_add_primitive(cpu, &values[i], cost, &scratch);
    }
    cost->workspace_bytes = layout_of(op).scratch + scratch;
}

static enum status attention_prepare(struct cpu *cpu, const struct op *op, struct error *e) {
    struct onednn_key scores[2], values[2];
    product_keys(op, scores, values);
    for (int i = 0; i < 2; i++) {
        if (!scores[i].number[0]) continue;
        if (onednn_prepare(cpu->onednn, &scores[i], e) || onednn_prepare(cpu->onednn, &values[i], e))
            return e->code;
    }
    return OK;
}

/* Columns of one head, rows [first, first + n), packed. */
static void pack_head(const struct cpu *cpu, const struct tensor *from, int32_t first, int32_t n, int head,
                      int32_t head_size, float *to) {
    int64_t d = head_size;
#pragma omp parallel for num_threads(cpu->threads) schedule(static)
    for (int32_t i = 0; i < n; i++)
        memcpy(to + i * d, tensor_row(from, first + i) + head * d, (size_t)d * sizeof *to);
}

/* Orders floats as integers: gcc does not vectorise comparisons that may trap. Positive NaN is above all,
 * negative below; either ends up in the sum. */
static inline int32_t ordered(float value) {
    int32_t bits = (int32_t)(union float_bits){.value = value}.bits;
    return bits ^ (bits >> 31 & 0x7fffffff);
}

WIDE static float row_max(const float *s, int64_t n) {
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
    if (scale >= 0) return row_exp(s, n, scale, row_max(s, n));
    for (int64_t i = 0; i < n; i++) s[i] = -s[i];
    return row_exp(s, n, -scale, row_max(s, n));
}

static void softmax(const struct cpu *cpu, const struct op *op, const struct attention_layout *l,
                    int32_t first, int32_t rows, float *scores, float *sums) {
    int32_t hidden = l->keys - op->in[0].dim[0]; /* keys before the first query, if causal */
#pragma omp parallel for num_threads(cpu->threads) schedule(static)
    for (int32_t i = 0; i < rows; i++) {
        int64_t n = op->causal ? hidden + first + i + 1 : l->keys;
        sums[i] = row_softmax(scores + (int64_t)i * l->keys, n, l->keys, op->scale);
    }
}

WIDE static void divide_row(float *restrict to, const float *restrict from, float by, int64_t n) {
    float factor = 1.0f / by;
    for (int64_t i = 0; i < n; i++) to[i] = from[i] * factor;
}

static enum status run_chunk(struct cpu *cpu, const struct op *op, const struct attention_layout *l, int head,
                             int32_t first, const float *k, const float *v, char *workspace,
                             struct error *e) {
    int32_t left = op->in[0].dim[0] - first, rows = left < l->chunk ? left : l->chunk;
    float *q = (float *)(workspace + l->q), *scores = (float *)(workspace + l->scores);
    float *out = (float *)(workspace + l->out), *sums = (float *)(workspace + l->sums);
    struct onednn_key scores_keys[2], values_keys[2];
    product_keys(op, scores_keys, values_keys);
    int part = rows < l->chunk;
    pack_head(cpu, &op->in[0], first, rows, head, l->head_size, q);
    struct onednn_operands of_scores = {
        .src = q, .weights = k, .dst = scores, .scratch = workspace + l->scratch};
    if (onednn_run(cpu->onednn, &scores_keys[part], of_scores, e)) return e->code;
    softmax(cpu, op, l, first, rows, scores, sums);
    struct onednn_operands of_out = {
        .src = scores, .weights = v, .dst = out, .scratch = workspace + l->scratch};
    if (onednn_run(cpu->onednn, &values_keys[part], of_out, e)) return e->code;
    int64_t d = l->head_size;
#pragma omp parallel for num_threads(cpu->threads) schedule(static)
    for (int32_t i = 0; i < rows; i++)
        divide_row(tensor_row(&op->out, first + i) + head * d, out + i * d, sums[i], d);
    return OK;
}

static enum status attention_run(struct cpu *cpu, const struct op *op, char *workspace, struct error *e) {
    struct attention_layout l = layout_of(op);
    const float *k = op->in[1].data, *v = op->in[2].data;
    if (l.packs_k) k = (float *)(workspace + l.k);
    if (l.packs_v) v = (float *)(workspace + l.v);
    for (int head = 0; head < op->n; head++) {
        bool next = head % l.group == 0;
        if (next && l.packs_k)
            pack_head(cpu, &op->in[1], 0, l.keys, head / l.group, l.head_size, (float *)(workspace + l.k));
        if (next && l.packs_v)
            pack_head(cpu, &op->in[2], 0, l.keys, head / l.group, l.head_size, (float *)(workspace + l.v));
        for (int32_t first = 0; first < op->in[0].dim[0]; first += l.chunk)
            if (run_chunk(cpu, op, &l, head, first, k, v, workspace, e)) return e->code;
    }
    return OK;
}

const struct cpu_operator cpu_attention = {attention_cost, attention_prepare, attention_run};
