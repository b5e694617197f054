/* One block of WAN's transformers: see wan_block.h. A video has many tokens, so wide intermediates exist
 * for a chunk of rows only; queries, keys and values exist for all rows. */
#include "models/wan_block.h"

#include "models/row_chunk.h"

#include <math.h>

/* The chunk of a range's token rows that is being computed. */
struct wan_rows {
    int32_t first, rows, end, chunk;
};

static struct wan_rows wan_rows_begin(struct context *x, const struct wan_range *range) {
    int32_t chunk = row_chunk(x, range->rows);
    return (struct wan_rows){range->first, chunk, range->first + range->rows, chunk};
}

static bool wan_rows_next(struct wan_rows *at) {
    if (at->end - at->first < at->rows) at->rows = at->end - at->first;
    return at->rows > 0;
}

static struct tensor wan_rows_of(struct tensor all, const struct wan_rows *at) {
    return tensor_slice(all, at->first, at->rows);
}

/* Rows of a chunk-sized buffer that the current chunk fills. */
static struct tensor wan_chunk_rows(struct tensor buffer, const struct wan_rows *at) {
    return tensor_slice(buffer, 0, at->rows);
}

/* Modulation of a range, [1, 6 DIM]: the block's table plus the timestep's row. */
static struct tensor wan_modulation(struct context *x, struct tensor table, const struct wan_range *range) {
    struct tensor sum = context_tensor(x, DTYPE_F32, 2, range->modulation.dim);
    op_add(x, sum, range->modulation, tensor_reshape(table, 2, sum.dim));
    return sum;
}

/* Shift and scale of a norm. part: index of the shift; part + 1: index of the scale. */
static struct affine wan_affine(struct tensor modulation, int part, int32_t dim) {
    return (struct affine){.shift = mmdit_chunk(modulation, part, dim),
                           .scale = mmdit_chunk(modulation, part + 1, dim)};
}

static struct attention_options wan_heads(int32_t dim, int32_t head) {
    return (struct attention_options){
        .queries = dim / head, .keys = dim / head, .scale = 1 / sqrtf((float)head)};
}

/* Queries or keys: RMS norm over all heads together, then rope. heads: f32 scratch in the shape of `out`. */
static void wan_norm_rope(struct context *x, struct tensor out, struct tensor heads, struct tensor norm,
                          const struct wan_block_args *call, const struct wan_rows *at) {
    op_rms_norm(x, heads, heads, norm, call->eps, (struct modulation){0});
    op_rope(x, out, heads, wan_rows_of(call->rope, at),
            (struct rotation){.heads = out.dim[1] / call->head, .pairs = ROPE_INTERLEAVED});
}

/* Computes queries, keys and values of all tokens, chunk by chunk. */
static void wan_project(struct context *x, const struct wan_block_weights *w,
                        const struct wan_block_args *call, struct tensor tokens,
                        const struct tensor modulation[WAN_RANGES], const struct mmdit_qkv *a) {
    int32_t dim = tokens.dim[1];
    for (int i = 0; i < call->n_ranges; i++) {
        uint64_t mark = x->scratch->used;
        struct wan_rows at = wan_rows_begin(x, &call->range[i]);
        struct tensor buffer = context_operand(x, 2, (int32_t[]){at.chunk, dim});
        struct tensor wide = context_tensor(x, DTYPE_F32, 2, (int32_t[]){at.chunk, dim});
        for (; wan_rows_next(&at); at.first += at.rows) {
            struct tensor n = wan_chunk_rows(buffer, &at), heads = wan_chunk_rows(wide, &at);
            op_layer_norm(x, n, wan_rows_of(tokens, &at), wan_affine(modulation[i], 0, dim), call->eps);
            mmdit_linear(x, heads, n, &w->q);
            wan_norm_rope(x, wan_rows_of(a->q, &at), heads, w->q_norm, call, &at);
            mmdit_linear(x, heads, n, &w->k);
            wan_norm_rope(x, wan_rows_of(a->k, &at), heads, w->k_norm, call, &at);
            mmdit_linear(x, wan_rows_of(a->v, &at), n, &w->v);
        }
        x->scratch->used = mark;
    }
}

static void wan_attend(struct context *x, const struct wan_block_weights *w,
                       const struct wan_block_args *call, struct tensor tokens,
                       const struct tensor modulation[WAN_RANGES]) {
    int32_t dim = tokens.dim[1];
    uint64_t before = x->scratch->used;
    struct mmdit_qkv a = {.q = context_operand(x, 2, tokens.dim),
                          .k = context_operand(x, 2, tokens.dim),
                          .v = context_operand(x, 2, tokens.dim)};
    wan_project(x, w, call, tokens, modulation, &a);
    op_attention(x, a.q, a.q, a.k, a.v, wan_heads(dim, call->head));
    for (int i = 0; i < call->n_ranges; i++) {
        const struct wan_range *range = &call->range[i];
        struct tensor t = tensor_slice(tokens, range->first, range->rows);
        op_linear(x, t, tensor_slice(a.q, range->first, range->rows), w->out.weight,
                  (struct epilogue){
                      .bias = w->out.bias, .gate = mmdit_chunk(modulation[i], 2, dim), .residual = t});
    }
    x->scratch->used = before;
}

void wan_project_cross_kv(struct context *x, struct wan_cross_kv kv, struct tensor rows,
                          const struct wan_cross_kv_weights *w, float eps) {
    struct tensor heads = context_unrounded(x, kv.k);
    mmdit_linear(x, heads, rows, &w->k);
    op_rms_norm(x, kv.k, heads, w->k_norm, eps, (struct modulation){0});
    mmdit_linear(x, kv.v, rows, &w->v);
}

/* Cross-attention with the same queries to text and to image rows; the two results are added. */
static void wan_cross_attend(struct context *x, const struct wan_block_weights *w,
                             const struct wan_block_args *call, struct tensor t) {
    uint64_t before = x->scratch->used;
    struct attention_options how = wan_heads(t.dim[1], call->head);
    bool both = call->cross[1].k.rank;
    struct tensor n = context_operand(x, 2, t.dim), q = context_operand(x, 2, t.dim);
    struct tensor heads = context_tensor(x, DTYPE_F32, 2, t.dim);
    op_layer_norm(x, n, t, (struct affine){.weight = w->cross_norm.weight, .bias = w->cross_norm.bias},
                  call->eps);
    mmdit_linear(x, heads, n, &w->cross_q);
    op_rms_norm(x, q, heads, w->cross_q_norm, call->eps, (struct modulation){0});
    struct tensor sum = both ? heads : q;
    op_attention(x, sum, q, call->cross[0].k, call->cross[0].v, how);
    if (both) {
        struct tensor other = context_tensor(x, DTYPE_F32, 2, t.dim);
        op_attention(x, other, q, call->cross[1].k, call->cross[1].v, how);
        op_add(x, sum, sum, other);
    }
    op_linear(x, t, sum, w->cross_out.weight, (struct epilogue){.bias = w->cross_out.bias, .residual = t});
    x->scratch->used = before;
}

static void wan_feed_forward(struct context *x, const struct wan_block_weights *w,
                             const struct wan_block_args *call, struct tensor t, struct tensor modulation) {
    int32_t dim = t.dim[1];
    uint64_t before = x->scratch->used;
    struct tensor n = context_operand(x, 2, t.dim);
    struct tensor wide = context_operand(x, 2, (int32_t[]){t.dim[0], w->up.weight.dim[0]});
    op_layer_norm(x, n, t, wan_affine(modulation, 3, dim), call->eps);
    op_linear(x, wide, n, w->up.weight,
              (struct epilogue){.bias = w->up.bias, .activation = ACTIVATION_GELU_TANH});
    op_linear(
        x, t, wide, w->down.weight,
        (struct epilogue){.bias = w->down.bias, .gate = mmdit_chunk(modulation, 5, dim), .residual = t});
    x->scratch->used = before;
}

void wan_block(struct context *x, const struct wan_block_weights *w, const struct wan_block_args *call,
               struct tensor tokens) {
    struct tensor modulation[WAN_RANGES] = {{0}};
    for (int i = 0; i < call->n_ranges; i++)
        modulation[i] = wan_modulation(x, w->modulation, &call->range[i]);
    wan_attend(x, w, call, tokens, modulation);
    for (int i = 0; i < call->n_ranges; i++)
        for (struct wan_rows at = wan_rows_begin(x, &call->range[i]); wan_rows_next(&at);
             at.first += at.rows) {
            wan_cross_attend(x, w, call, wan_rows_of(tokens, &at));
            wan_feed_forward(x, w, call, wan_rows_of(tokens, &at), modulation[i]);
        }
}

void wan_predict(struct context *x, const struct linear_weights *w, struct tensor table,
                 const struct wan_block_args *call, struct tensor tokens, struct tensor prediction) {
    int32_t dim = tokens.dim[1], both[] = {2, dim};
    struct tensor patches = context_tensor(x, DTYPE_F32, 2, (int32_t[]){tokens.dim[0], w->weight.dim[0]});
    for (int i = 0; i < call->n_ranges; i++) {
        uint64_t mark = x->scratch->used;
        struct wan_rows at = wan_rows_begin(x, &call->range[i]);
        struct tensor sum = context_tensor(x, DTYPE_F32, 2, both);
        struct tensor buffer = context_operand(x, 2, (int32_t[]){at.chunk, dim});
        op_copy(x, sum, tensor_reshape(table, 2, both));
        op_add(x, sum, sum, call->range[i].condition);
        struct affine affine = wan_affine(tensor_reshape(sum, 2, (int32_t[]){1, 2 * dim}), 0, dim);
        for (; wan_rows_next(&at); at.first += at.rows) {
            struct tensor n = wan_chunk_rows(buffer, &at);
            op_layer_norm(x, n, wan_rows_of(tokens, &at), affine, call->eps);
            mmdit_linear(x, wan_rows_of(patches, &at), n, w);
        }
        x->scratch->used = mark;
    }
    op_unpatchify(x, latent_planes(prediction), patches,
                  (struct patches){.side = MMDIT_PATCH, .order = PATCH_CHANNELS_LAST}, 1);
}
