#include "models/ltx2_stream.h"
#include "models/row_chunk.h"

#include <math.h>

/* Epsilon of the norms of queries and keys, and of the layer norms at the end. */
static const float ltx2_fixed_eps = 1e-6F;

/* Iterator over chunks of token rows; {0} is before the first chunk. A chunk lies in one range. */
struct ltx2_rows {
    int i_range;
    int32_t first, rows;
};

/* Moves to the next chunk; false after the last. */
static bool ltx2_next(struct context *x, const struct ltx2_stream *s, struct ltx2_rows *at) {
    at->first += at->rows;
    if (at->first == s->range[at->i_range].first + s->range[at->i_range].rows && ++at->i_range == s->n_ranges)
        return false;
    const struct ltx2_range *range = &s->range[at->i_range];
    int32_t left = range->first + range->rows - at->first, chunk = row_chunk(x, range->rows);
    at->rows = left < chunk ? left : chunk;
    return true;
}

static struct tensor ltx2_rows_of(struct tensor all, const struct ltx2_rows *at) {
    return tensor_slice(all, at->first, at->rows);
}

/* RMS norm of rows [n, C], with vectors number `shift` and `scale` of a modulation row; -1: without both. */
static struct tensor ltx2_norm(struct context *x, struct tensor rows, struct tensor modulation, int shift,
                               int scale, float eps) {
    int32_t dim = rows.dim[1];
    struct tensor n = context_operand(x, 2, rows.dim);
    struct modulation m = {0};
    if (scale >= 0)
        m = (struct modulation){.scale = mmdit_chunk(modulation, scale, dim),
                                .shift = mmdit_chunk(modulation, shift, dim)};
    op_rms_norm(x, n, rows, (struct tensor){0}, eps, m);
    return n;
}

/* Returns the rope of a chunk that begins at this token. */
static struct ltx2_rope ltx2_rope_at(struct ltx2_rope rope, int32_t first_token) {
    rope.rotation.axes.first_token = first_token;
    return rope;
}

void ltx2_project(struct context *x, struct tensor out, struct tensor in, const struct linear_weights *w,
                  struct tensor norm, const struct ltx2_rope *rope) {
    uint64_t before = x->scratch->used;
    struct tensor heads = context_unrounded(x, out);
    mmdit_linear(x, heads, in, w);
    op_rms_norm(x, rope ? heads : out, heads, norm, ltx2_fixed_eps, (struct modulation){0});
    if (rope) op_rope(x, out, heads, rope->table, rope->rotation);
    x->scratch->used = before;
}

struct ltx2_kv ltx2_kv_alloc(struct context *x, int32_t rows, int32_t columns, int heads) {
    int32_t dim[] = {rows, columns};
    return (struct ltx2_kv){context_operand(x, 2, dim), context_operand(x, 2, dim), heads};
}

void ltx2_attend(struct context *x, const struct ltx2_attention_weights *w, const struct ltx2_kv *kv,
                 struct ltx2_queries queries) {
    struct tensor q = queries.q, normed = queries.normed;
    bool gated = w->gates.weight.rank;
    /* The gates multiply f32 values, before they are rounded to operands. */
    struct tensor attended = gated ? context_unrounded(x, q) : q;
    if (kv->k.rank)
        op_attention(x, attended, q, kv->k, kv->v,
                     (struct attention_options){.queries = kv->heads,
                                                .keys = kv->heads,
                                                .scale = 1 / sqrtf((float)(q.dim[1] / kv->heads))});
    else
        mmdit_linear(x, attended, normed, &w->v);
    if (gated) {
        struct tensor gates = context_tensor(x, DTYPE_F32, 2, (int32_t[]){normed.dim[0], kv->heads});
        mmdit_linear(x, gates, normed, &w->gates);
        op_glu(x, q, gates, attended, ACTIVATION_SIGMOID_TWICE);
    }
    op_linear(x, queries.tokens, q, w->out.weight,
              (struct epilogue){.bias = w->out.bias, .gate = queries.gate, .residual = queries.tokens});
}

void ltx2_attend_self(struct context *x, const struct ltx2_attention_weights *w, const struct ltx2_stream *s,
                      bool values_only) {
    int32_t T = s->tokens.dim[0], dim = s->tokens.dim[1];
    uint64_t before = x->scratch->used;
    struct ltx2_kv kv = {.heads = s->heads};
    if (!values_only) kv = ltx2_kv_alloc(x, T, dim, s->heads);
    uint64_t mark = x->scratch->used;
    for (struct ltx2_rows at = {0}; !values_only && ltx2_next(x, s, &at); x->scratch->used = mark) {
        struct tensor n = ltx2_norm(x, ltx2_rows_of(s->tokens, &at), s->range[at.i_range].modulation,
                                    PART_SELF, PART_SELF + 1, s->eps);
        struct ltx2_rope rope = ltx2_rope_at(s->rope, at.first);
        ltx2_project(x, ltx2_rows_of(kv.k, &at), n, &w->k, w->k_norm, &rope);
        mmdit_linear(x, ltx2_rows_of(kv.v, &at), n, &w->v);
    }
    for (struct ltx2_rows at = {0}; ltx2_next(x, s, &at); x->scratch->used = mark) {
        struct tensor t = ltx2_rows_of(s->tokens, &at), modulation = s->range[at.i_range].modulation;
        struct tensor n = ltx2_norm(x, t, modulation, PART_SELF, PART_SELF + 1, s->eps);
        struct tensor q = context_operand(x, 2, t.dim), gate = mmdit_chunk(modulation, PART_SELF + 2, dim);
        struct ltx2_rope rope = ltx2_rope_at(s->rope, at.first);
        if (!values_only) ltx2_project(x, q, n, &w->q, w->q_norm, &rope);
        ltx2_attend(x, w, &kv, (struct ltx2_queries){t, n, q, gate});
    }
    x->scratch->used = before;
}

void ltx2_attend_text(struct context *x, const struct ltx2_attention_weights *w, const struct ltx2_stream *s,
                      struct tensor text) {
    int32_t dim = s->tokens.dim[1];
    bool modulated = s->range[0].modulation.dim[1] / dim > PART_TEXT;
    uint64_t before = x->scratch->used;
    struct ltx2_kv kv = ltx2_kv_alloc(x, text.dim[0], dim, s->heads);
    ltx2_project(x, kv.k, text, &w->k, w->k_norm, NULL);
    mmdit_linear(x, kv.v, text, &w->v);
    uint64_t mark = x->scratch->used;
    for (struct ltx2_rows at = {0}; ltx2_next(x, s, &at); x->scratch->used = mark) {
        struct tensor t = ltx2_rows_of(s->tokens, &at), modulation = s->range[at.i_range].modulation;
        struct tensor gate = {0}, q = context_operand(x, 2, t.dim);
        if (modulated) gate = mmdit_chunk(modulation, PART_TEXT + 2, dim);
        struct tensor n = modulated ? ltx2_norm(x, t, modulation, PART_TEXT, PART_TEXT + 1, s->eps)
                                    : ltx2_norm(x, t, modulation, -1, -1, s->eps);
        ltx2_project(x, q, n, &w->q, w->q_norm, NULL);
        ltx2_attend(x, w, &kv, (struct ltx2_queries){t, n, q, gate});
    }
    x->scratch->used = before;
}

void ltx2_feed_forward(struct context *x, const struct linear_weights *up, const struct linear_weights *down,
                       const struct ltx2_stream *s) {
    uint64_t mark = x->scratch->used;
    for (struct ltx2_rows at = {0}; ltx2_next(x, s, &at); x->scratch->used = mark) {
        struct tensor t = ltx2_rows_of(s->tokens, &at), modulation = s->range[at.i_range].modulation;
        struct tensor n = ltx2_norm(x, t, modulation, PART_FEED_FORWARD, PART_FEED_FORWARD + 1, s->eps);
        struct tensor wide = context_operand(x, 2, (int32_t[]){t.dim[0], up->weight.dim[0]});
        op_linear(x, wide, n, up->weight,
                  (struct epilogue){.bias = up->bias, .activation = ACTIVATION_GELU_TANH});
        op_linear(x, t, wide, down->weight,
                  (struct epilogue){.bias = down->bias,
                                    .gate = mmdit_chunk(modulation, PART_FEED_FORWARD + 2, t.dim[1]),
                                    .residual = t});
    }
}

void ltx2_project_cross(struct context *x, const struct ltx2_attention_weights *w,
                        const struct ltx2_stream *s, struct tensor modulation, int part,
                        const struct ltx2_kv *kv) {
    uint64_t mark = x->scratch->used;
    for (struct ltx2_rows at = {0}; ltx2_next(x, s, &at); x->scratch->used = mark) {
        struct tensor n = ltx2_norm(x, ltx2_rows_of(s->tokens, &at), modulation, part + 1, part, s->eps);
        struct ltx2_rope rope = ltx2_rope_at(s->cross_rope, at.first);
        ltx2_project(x, ltx2_rows_of(kv->k, &at), n, &w->k, w->k_norm, &rope);
        mmdit_linear(x, ltx2_rows_of(kv->v, &at), n, &w->v);
    }
}

void ltx2_attend_cross(struct context *x, const struct ltx2_attention_weights *w, const struct ltx2_stream *s,
                       struct tensor modulation, int part, const struct ltx2_kv *kv) {
    uint64_t mark = x->scratch->used;
    for (struct ltx2_rows at = {0}; ltx2_next(x, s, &at); x->scratch->used = mark) {
        struct tensor t = ltx2_rows_of(s->tokens, &at);
        struct tensor n = ltx2_norm(x, t, modulation, part + 1, part, s->eps);
        struct tensor q = context_operand(x, 2, (int32_t[]){at.rows, kv->k.dim[1]});
        struct ltx2_rope rope = ltx2_rope_at(s->cross_rope, at.first);
        ltx2_project(x, q, n, &w->q, w->q_norm, &rope);
        ltx2_attend(x, w, kv, (struct ltx2_queries){t, n, q, mmdit_chunk(modulation, CROSS_GATE, t.dim[1])});
    }
}

struct tensor ltx2_predict(struct context *x, const struct ltx2_stream *s, struct tensor table,
                           const struct linear_weights *w) {
    int32_t dim = s->tokens.dim[1], both[] = {2, dim};
    struct tensor out = context_tensor(x, DTYPE_F32, 2, (int32_t[]){s->tokens.dim[0], w->weight.dim[0]});
    uint64_t mark = x->scratch->used;
    for (struct ltx2_rows at = {0}; ltx2_next(x, s, &at); x->scratch->used = mark) {
        struct tensor sum = context_tensor(x, DTYPE_F32, 2, both);
        struct tensor n = context_operand(x, 2, (int32_t[]){at.rows, dim});
        op_copy(x, sum, table);
        op_add(x, sum, sum, s->range[at.i_range].condition);
        sum = tensor_reshape(sum, 2, (int32_t[]){1, 2 * dim});
        op_layer_norm(x, n, ltx2_rows_of(s->tokens, &at),
                      (struct affine){.shift = mmdit_chunk(sum, 0, dim), .scale = mmdit_chunk(sum, 1, dim)},
                      ltx2_fixed_eps);
        mmdit_linear(x, ltx2_rows_of(out, &at), n, w);
    }
    return out;
}
