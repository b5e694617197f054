/* Anima: Cosmos-Predict2's transformer (diffusers: CosmosTransformer3DModel) over the tokens of one image.
 *
 * A block has three parts without biases: self-attention with rope, cross-attention to the text, and a
 * feed-forward. Each part has a layer norm with a shift, a scale and a gate: a low-rank product of the
 * timestep's embedding plus a row that all parts share. These depend on the timestep alone and can be
 * hoisted. Keys and values of cross-attention depend on the prompt alone. The text is padded with rows of
 * zeros; their keys and values are 0, and attention includes them. Rope positions: (0, y, x), with a larger
 * theta for y and x. Input patches are ordered (channel, y, x), and a padding mask of zeros is their last
 * channel. Output patches are ordered (y, x, channel). Source: diffusers 0.42,
 * models/transformers/transformer_cosmos.py; checkpoint names of the authors: loaders/single_file_utils.py,
 * convert_cosmos_transformer_checkpoint_to_diffusers. */
#include "models/mmdit.h"
#include "models/row_chunk.h"
#include "models/slots.h"

#include <math.h>

/* Indices into component.dims. */
enum {
    DIM,
    CAPTION,
    IN,
    PATCH,
    LOW_RANK,
    FEED_FORWARD,
    HEAD,
    HEADS,
    LATENT,
    LAYERS,
    TWO_DIM,
    THREE_DIM,
};

/* Epsilon of the norms of queries and keys: the default of diffusers' Attention. Other programs use 1e-6. */
static const float anima_head_eps = 1e-5F;

/* Parts of a block; rope axes; columns of the padding mask in a patch. */
enum { ANIMA_PARTS = 3, ANIMA_AXES = 3, MASK_COLUMNS = MMDIT_PATCH * MMDIT_PATCH };

struct anima_settings {
    double rope_scale[ANIMA_AXES]; /* of the axes t, y, x: an axis of d dimensions multiplies theta by
                                    * rope_scale^(d / (d - 2)) */
    int head;
};

struct anima_state {
    struct tensor tokens; /* [T, DIM] */
    /* Keys and values of the text, for each layer: [LAYERS, text rows, DIM], rows rounded up to a multiple of
     * 8; shared by the lanes of a prompt. */
    struct tensor keys, values;
    struct tensor rope; /* [T, HEAD/2, 2]; shared by all lanes, as everything below */
    /* Conditioning by timestep: one row per evaluation if hoisted, else one row. */
    struct tensor time;             /* normed embedding: [rows, DIM] */
    struct tensor shared;           /* row that all shifts, scales and gates share: [rows, THREE_DIM] */
    struct tensor modulation;       /* shift, scale, gate of all parts: [3 LAYERS, rows, THREE_DIM] */
    struct tensor final_modulation; /* shift and scale: [rows, TWO_DIM] */
};

/* A low-rank linear layer: up . down . silu(time). */
struct low_rank_weights {
    struct tensor down, up;
};
struct anima_modulation_weights {
    struct low_rank_weights part[ANIMA_PARTS]; /* self-attention, cross-attention, feed-forward */
};

/* clang-format off */
#define TIME_EMBEDDER(X, S)                                                                                  \
    X##MATRIX(S, in, DIM, DIM, "time_embed.t_embedder.linear_1", "t_embedder.1.linear_1")                    \
    X##MATRIX(S, out, THREE_DIM, DIM, "time_embed.t_embedder.linear_2", "t_embedder.1.linear_2")             \
    X##VECTOR(S, norm, DIM, "time_embed.norm", "t_embedding_norm")
struct time_weights { TIME_EMBEDDER(FIELD_, ) };
WEIGHT_TABLE(anima_time_table, TIME_EMBEDDER, time_weights, "", "");

#define EMBEDDER(X, S) X##MATRIX(S, patch, DIM, IN, "patch_embed.proj", "x_embedder.proj.1")
struct embedder_weights { EMBEDDER(FIELD_, ) };
WEIGHT_TABLE(anima_embedder_table, EMBEDDER, embedder_weights, "", "");

#define MODULATION(X, S)                                                                                     \
    X##MATRIX(S, part[0].down, LOW_RANK, DIM, "norm1.linear_1", "adaln_modulation_self_attn.1")              \
    X##MATRIX(S, part[0].up, THREE_DIM, LOW_RANK, "norm1.linear_2", "adaln_modulation_self_attn.2")          \
    X##MATRIX(S, part[1].down, LOW_RANK, DIM, "norm2.linear_1", "adaln_modulation_cross_attn.1")             \
    X##MATRIX(S, part[1].up, THREE_DIM, LOW_RANK, "norm2.linear_2", "adaln_modulation_cross_attn.2")         \
    X##MATRIX(S, part[2].down, LOW_RANK, DIM, "norm3.linear_1", "adaln_modulation_mlp.1")                    \
    X##MATRIX(S, part[2].up, THREE_DIM, LOW_RANK, "norm3.linear_2", "adaln_modulation_mlp.2")
WEIGHT_TABLE(anima_modulation_table, MODULATION, anima_modulation_weights,
             "transformer_blocks.%d.", "blocks.%d.");

#define FINAL_MODULATION(X, S)                                                                               \
    X##MATRIX(S, down, LOW_RANK, DIM, "norm_out.linear_1", "final_layer.adaln_modulation.1")                 \
    X##MATRIX(S, up, TWO_DIM, LOW_RANK, "norm_out.linear_2", "final_layer.adaln_modulation.2")
WEIGHT_TABLE(anima_final_modulation_table, FINAL_MODULATION, low_rank_weights, "", "");

#define TEXT_KV(X, S)                                                                                        \
    X##MATRIX(S, k, DIM, CAPTION, "to_k", "k_proj")                                                          \
    X##VECTOR(S, k_norm, HEAD, "norm_k", "k_norm")                                                           \
    X##MATRIX(S, v, DIM, CAPTION, "to_v", "v_proj")
struct text_kv_weights { TEXT_KV(FIELD_, ) };
WEIGHT_TABLE(anima_text_kv_table, TEXT_KV, text_kv_weights,
             "transformer_blocks.%d.attn2.", "blocks.%d.cross_attn.");

#define LAYER(X, S)                                                                                          \
    X##MATRIX(S, q, DIM, DIM, "attn1.to_q", "self_attn.q_proj")                                              \
    X##MATRIX(S, k, DIM, DIM, "attn1.to_k", "self_attn.k_proj")                                              \
    X##MATRIX(S, v, DIM, DIM, "attn1.to_v", "self_attn.v_proj")                                              \
    X##VECTOR(S, q_norm, HEAD, "attn1.norm_q", "self_attn.q_norm")                                           \
    X##VECTOR(S, k_norm, HEAD, "attn1.norm_k", "self_attn.k_norm")                                           \
    X##MATRIX(S, out, DIM, DIM, "attn1.to_out.0", "self_attn.output_proj")                                   \
    X##MATRIX(S, cross_q, DIM, DIM, "attn2.to_q", "cross_attn.q_proj")                                       \
    X##VECTOR(S, cross_q_norm, HEAD, "attn2.norm_q", "cross_attn.q_norm")                                    \
    X##MATRIX(S, cross_out, DIM, DIM, "attn2.to_out.0", "cross_attn.output_proj")                            \
    X##MATRIX(S, up, FEED_FORWARD, DIM, "ff.net.0.proj", "mlp.layer1")                                       \
    X##MATRIX(S, down, DIM, FEED_FORWARD, "ff.net.2", "mlp.layer2")
struct layer_weights { LAYER(FIELD_, ) };
WEIGHT_TABLE(anima_layer_table, LAYER, layer_weights, "transformer_blocks.%d.", "blocks.%d.");

#define FINAL(X, S) X##MATRIX(S, linear, PATCH, DIM, "proj_out", "final_layer.linear")
struct final_weights { FINAL(FIELD_, ) };
WEIGHT_TABLE(anima_final_table, FINAL, final_weights, "", "");
/* clang-format on */

static void anima_forward_time(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct time_weights *w = weights;
    const struct anima_state *state = scope->lane->state;
    struct tensor time = scope_rows(state->time, scope), h = context_tensor(x, DTYPE_F32, 2, time.dim);
    for (int32_t i = 0; i < time.dim[0]; i++)
        op_timestep(x, tensor_slice(time, i, 1), scope->timesteps[i], TIMESTEP_USUAL);
    op_linear_few(x, h, time, w->in, (struct tensor){0}, ACTIVATION_NONE);
    op_linear_few(x, scope_rows(state->shared, scope), h, w->out, (struct tensor){0}, ACTIVATION_SILU);
    op_rms_norm(x, time, time, w->norm, mmdit_norm_eps, (struct modulation){0});
}

/* Computes out = up . down . silu(time) for each row of the timestep's embedding. */
static void anima_modulate(struct context *x, const struct low_rank_weights *w, struct tensor out,
                           const struct visit_scope *scope) {
    const struct anima_state *state = scope->lane->state;
    struct tensor h = context_tensor(x, DTYPE_F32, 2, (int32_t[]){out.dim[0], w->down.dim[0]});
    op_linear_few(x, h, scope_rows(state->time, scope), w->down, (struct tensor){0}, ACTIVATION_SILU);
    op_linear_few(x, out, h, w->up, (struct tensor){0}, ACTIVATION_NONE);
}

/* Shift, scale and gate of a part of this layer: [rows, THREE_DIM]. */
static struct tensor anima_part_rows(const struct visit_scope *scope, int part) {
    struct tensor all = ((const struct anima_state *)scope->lane->state)->modulation;
    struct tensor rows = tensor_slice(all, ANIMA_PARTS * scope->number + part, 1);
    return scope_rows(tensor_reshape(rows, 2, all.dim + 1), scope);
}

static void anima_forward_modulation(struct context *x, const void *weights,
                                     const struct visit_scope *scope) {
    const struct anima_modulation_weights *w = weights;
    const struct anima_state *state = scope->lane->state;
    for (int i = 0; i < ANIMA_PARTS; i++) {
        struct tensor rows = anima_part_rows(scope, i);
        anima_modulate(x, &w->part[i], rows, scope);
        op_add(x, rows, rows, scope_rows(state->shared, scope));
    }
}

static void anima_forward_final_modulation(struct context *x, const void *weights,
                                           const struct visit_scope *scope) {
    const struct anima_state *state = scope->lane->state;
    struct tensor rows = scope_rows(state->final_modulation, scope);
    anima_modulate(x, weights, rows, scope);
    op_add(x, rows, rows, tensor_slice_columns(scope_rows(state->shared, scope), 0, rows.dim[1]));
}

static void anima_forward_embedder(struct context *x, const void *weights, const struct visit_scope *scope) {
    static const struct patches layout = {.side = MMDIT_PATCH, .order = PATCH_CHANNELS_FIRST};
    const struct embedder_weights *w = weights;
    const struct anima_state *state = scope->lane->state;
    int32_t in = w->patch.dim[1], first = in - MASK_COLUMNS;
    struct tensor patches = context_tensor(x, DTYPE_F32, 2, (int32_t[]){state->tokens.dim[0], in});
    op_patchify(x, tensor_slice_columns(patches, 0, first), latent_planes(scope->lane->latent), layout);
    /* The padding mask is 0. The sines of timestep 0 are the zeros; no operator fills with a constant. */
    struct tensor row = context_tensor(x, DTYPE_F32, 2, (int32_t[]){1, 2 * MASK_COLUMNS});
    op_timestep(x, row, 0, TIMESTEP_USUAL);
    op_broadcast_row(x, tensor_slice_columns(patches, first, MASK_COLUMNS),
                     tensor_slice_columns(row, MASK_COLUMNS, MASK_COLUMNS));
    op_linear(x, state->tokens, patches, w->patch, (struct epilogue){0});
}

static void anima_fill_rope(struct context *x, const struct visit_scope *scope) {
    const struct anima_settings *settings = scope->settings;
    const struct anima_state *state = scope->lane->state;
    struct tensor latent = scope->lane->latent;
    int across = 2 * (settings->head / 6);
    struct rope_options rope = {
        .theta = 10000,
        .n_axes = ANIMA_AXES,
        .axis_dim = {settings->head - 2 * across, across, across},
        .f32_frequencies = true,
        .n_grids = 1,
        .grid = {{.extent = {latent.dim[1], latent.dim[2] / MMDIT_PATCH, latent.dim[3] / MMDIT_PATCH}}},
    };
    for (int i = 0; i < ANIMA_AXES; i++) {
        double dim = rope.axis_dim[i];
        rope.theta_factor[i] = pow(settings->rope_scale[i], dim / (dim - 2));
    }
    op_rope_table(x, state->rope, &rope);
}

/* Keys or values of the text for this layer. */
static struct tensor anima_text_rows(struct tensor all, const struct visit_scope *scope) {
    struct tensor rows = tensor_reshape(tensor_slice(all, scope->number, 1), 2, all.dim + 1);
    return tensor_slice(rows, 0, scope->lane->text.dim[0]);
}

static void anima_forward_text_kv(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct text_kv_weights *w = weights;
    const struct anima_state *state = scope->lane->state;
    struct tensor k = anima_text_rows(state->keys, scope), heads = context_unrounded(x, k);
    if (!scope->number) anima_fill_rope(x, scope);
    op_linear(x, heads, scope->lane->text, w->k, (struct epilogue){0});
    op_rms_norm(x, k, heads, w->k_norm, anima_head_eps, (struct modulation){0});
    op_linear(x, anima_text_rows(state->values, scope), scope->lane->text, w->v, (struct epilogue){0});
}

static struct affine anima_affine(struct tensor modulation, int32_t dim) {
    return (struct affine){.shift = mmdit_chunk(modulation, 0, dim),
                           .scale = mmdit_chunk(modulation, 1, dim)};
}

static struct attention_options anima_heads(struct tensor q, struct tensor norm) {
    int32_t head = norm.dim[0], heads = q.dim[1] / head;
    return (struct attention_options){.queries = heads, .keys = heads, .scale = 1 / sqrtf((float)head)};
}

/* Computes queries or keys of self-attention: linear layer, then norm and rope of each head. */
static void anima_project_heads(struct context *x, struct tensor out, struct tensor n, struct tensor weight,
                                struct tensor norm, struct tensor rope) {
    uint64_t mark = x->scratch->used;
    struct rotation rotation = {
        .heads = out.dim[1] / norm.dim[0], .pairs = ROPE_HALVES, .norm = norm, .eps = anima_head_eps};
    struct tensor heads = context_unrounded(x, out);
    op_linear(x, heads, n, weight, (struct epilogue){0});
    op_rope(x, out, heads, rope, rotation);
    x->scratch->used = mark;
}

static void anima_attend(struct context *x, const struct layer_weights *w, struct tensor tokens,
                         struct tensor modulation, struct tensor rope) {
    int32_t dim = tokens.dim[1];
    uint64_t mark = x->scratch->used;
    struct tensor n = context_operand(x, 2, tokens.dim), q = context_operand(x, 2, tokens.dim);
    struct tensor k = context_operand(x, 2, tokens.dim), v = context_operand(x, 2, tokens.dim);
    op_layer_norm(x, n, tokens, anima_affine(modulation, dim), mmdit_norm_eps);
    anima_project_heads(x, q, n, w->q, w->q_norm, rope);
    anima_project_heads(x, k, n, w->k, w->k_norm, rope);
    op_linear(x, v, n, w->v, (struct epilogue){0});
    op_attention(x, q, q, k, v, anima_heads(q, w->q_norm));
    op_linear(x, tokens, q, w->out,
              (struct epilogue){.gate = mmdit_chunk(modulation, 2, dim), .residual = tokens});
    x->scratch->used = mark;
}

static void anima_cross_attend(struct context *x, const struct layer_weights *w, struct tensor tokens,
                               struct tensor modulation, const struct visit_scope *scope) {
    const struct anima_state *state = scope->lane->state;
    int32_t dim = tokens.dim[1];
    uint64_t mark = x->scratch->used;
    struct tensor n = context_operand(x, 2, tokens.dim), q = context_operand(x, 2, tokens.dim);
    struct tensor heads = context_unrounded(x, q);
    op_layer_norm(x, n, tokens, anima_affine(modulation, dim), mmdit_norm_eps);
    op_linear(x, heads, n, w->cross_q, (struct epilogue){0});
    op_rms_norm(x, q, heads, w->cross_q_norm, anima_head_eps, (struct modulation){0});
    op_attention(x, q, q, anima_text_rows(state->keys, scope), anima_text_rows(state->values, scope),
                 anima_heads(q, w->cross_q_norm));
    op_linear(x, tokens, q, w->cross_out,
              (struct epilogue){.gate = mmdit_chunk(modulation, 2, dim), .residual = tokens});
    x->scratch->used = mark;
}

static void anima_feed_forward(struct context *x, const struct layer_weights *w, struct tensor tokens,
                               struct tensor modulation) {
    int32_t dim = tokens.dim[1];
    uint64_t mark = x->scratch->used;
    struct tensor n = context_operand(x, 2, tokens.dim);
    struct tensor wide = context_operand(x, 2, (int32_t[]){tokens.dim[0], w->up.dim[0]});
    op_layer_norm(x, n, tokens, anima_affine(modulation, dim), mmdit_norm_eps);
    op_linear(x, wide, n, w->up, (struct epilogue){.activation = ACTIVATION_GELU_ERF});
    op_linear(x, tokens, wide, w->down,
              (struct epilogue){.gate = mmdit_chunk(modulation, 2, dim), .residual = tokens});
    x->scratch->used = mark;
}

/* Updates the tokens in place. Queries, keys and values of self-attention exist for all rows, the
 * intermediates of the other two parts for a chunk of rows. */
static void anima_forward_layer(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct layer_weights *w = weights;
    const struct anima_state *state = scope->lane->state;
    int32_t T = state->tokens.dim[0], chunk = row_chunk(x, T);
    anima_attend(x, w, state->tokens, anima_part_rows(scope, 0), state->rope);
    for (int32_t first = 0; first < T; first += chunk) {
        struct tensor t = tensor_slice(state->tokens, first, T - first < chunk ? T - first : chunk);
        anima_cross_attend(x, w, t, anima_part_rows(scope, 1), scope);
        anima_feed_forward(x, w, t, anima_part_rows(scope, 2));
    }
}

static void anima_forward_final(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct final_weights *w = weights;
    const struct anima_state *state = scope->lane->state;
    struct tensor tokens = state->tokens, n = context_operand(x, 2, tokens.dim);
    struct tensor patches = context_tensor(x, DTYPE_F32, 2, (int32_t[]){tokens.dim[0], w->linear.dim[0]});
    op_layer_norm(x, n, tokens, anima_affine(scope_rows(state->final_modulation, scope), tokens.dim[1]),
                  mmdit_norm_eps);
    op_linear(x, patches, n, w->linear, (struct epilogue){0});
    op_unpatchify(x, latent_planes(scope->lane->prediction), patches,
                  (struct patches){.side = MMDIT_PATCH, .order = PATCH_CHANNELS_LAST}, 1);
}

BLOCK(anima_kind_time, "time", "time_embed", anima_time_table, time_weights, anima_forward_time,
      .update_rate = UPDATE_PER_TIMESTEP, .never_quantised = true);
BLOCK(anima_kind_embedder, "embedder", "patch_embed", anima_embedder_table, embedder_weights,
      anima_forward_embedder, .never_quantised = true);
BLOCK(anima_kind_modulation, "modulation", "transformer_blocks.%d.modulation", anima_modulation_table,
      anima_modulation_weights, anima_forward_modulation, .update_rate = UPDATE_PER_TIMESTEP);
BLOCK(anima_kind_text_kv, "text_kv", "transformer_blocks.%d.text_kv", anima_text_kv_table, text_kv_weights,
      anima_forward_text_kv, .update_rate = UPDATE_PER_PROMPT);
BLOCK(anima_kind_layer, "layer", "transformer_blocks.%d", anima_layer_table, layer_weights,
      anima_forward_layer);
BLOCK(anima_kind_final_modulation, "final_modulation", "norm_out", anima_final_modulation_table,
      low_rank_weights, anima_forward_final_modulation, .update_rate = UPDATE_PER_TIMESTEP,
      .never_quantised = true);
BLOCK(anima_kind_final, "final", "proj_out", anima_final_table, final_weights, anima_forward_final,
      .never_quantised = true);

/* True for all Cosmos transformers. anima_refuse rejects Cosmos 1.0, Predict2.5 and Transfer2.5; other models
 * than Anima lack its text adapter, which is a separate component. */
static bool anima_probe(const struct tensor_index *index) {
    return (index_find(index, "x_embedder.proj.1.weight") &&
            index_find(index, "blocks.0.adaln_modulation_self_attn.1.weight")) ||
           (index_find(index, "patch_embed.proj.weight") &&
            index_find(index, "transformer_blocks.0.norm1.linear_1.weight") &&
            index_find(index, "time_embed.t_embedder.linear_1.weight"));
}

static enum status anima_refuse(const struct component *c, struct error *e) {
    static const struct similar_architecture relatives[] = {
        {"learnable_pos_embed.", "Cosmos 1.0, with learned positions"},
        {"extra_pos_embedder.", "Cosmos 1.0, with learned positions"},
        {"crossattn_proj.", "Cosmos-Predict2.5"},
        {"img_context_proj.", "Cosmos-Transfer2.5"},
        {0}};
    return component_refuse_similar(c, relatives, "Anima", e);
}

static enum status anima_configure(struct component *c, const struct config *config, struct error *e) {
    const int32_t *d = c->dims;
    /* Heads of 12 columns have rope axes of 4, the least for the exponent d / (d - 2) of rope_scale.
     * anima_blocks lists three blocks per layer and four others. */
    enum { HEAD_LEAST = 12, HEAD_MOST = 512, LAYERS_MOST = (FAMILY_BLOCKS_MAX - 4) / 3 };
    (void)config;
    if (d[DIM] % d[HEAD] == 0 && d[HEAD] % 2 == 0 && d[HEAD] >= HEAD_LEAST && d[HEAD] <= HEAD_MOST &&
        d[PATCH] % MASK_COLUMNS == 0 && d[IN] == d[PATCH] + MASK_COLUMNS && d[LAYERS] >= 1 &&
        d[LAYERS] <= LAYERS_MOST)
        return OK;
    return error_set(
        e, SHAPE,
        "unsupported Cosmos transformer: not the sizes of Anima" WHERE "%s" FOUND
        "width %d, head %d, %d columns of input patches, %d of output patches, %d layers" EXPECTED
        "a width that is a multiple of an even head size from %d to %d, %d more columns in input patches "
        "than in output patches, 1 to %d layers",
        c->index.sources[0].path, d[DIM], d[HEAD], d[IN], d[PATCH], d[LAYERS], HEAD_LEAST, HEAD_MOST,
        MASK_COLUMNS, LAYERS_MOST);
}

/* Lists the keys and values and the modulations of a layer before the layer, because visits have this order
 * if nothing is hoisted. */
static int anima_blocks(const struct component *c, struct block_ref *refs) {
    int n = 0;
    refs[n++] = (struct block_ref){.kind = &anima_kind_time};
    refs[n++] = (struct block_ref){.kind = &anima_kind_embedder};
    for (int i = 0; i < c->dims[LAYERS]; i++) {
        refs[n++] = (struct block_ref){.kind = &anima_kind_text_kv, .number = i};
        refs[n++] = (struct block_ref){.kind = &anima_kind_modulation, .number = i};
        refs[n++] = (struct block_ref){.kind = &anima_kind_layer, .number = i};
    }
    refs[n++] = (struct block_ref){.kind = &anima_kind_final_modulation};
    refs[n++] = (struct block_ref){.kind = &anima_kind_final};
    return n;
}

static void anima_declare_shared(const struct component *c, const struct lane *lane, int32_t tokens,
                                 struct arena *arena, bool *ok) {
    struct anima_state *s = lane->state;
    const int32_t *d = c->dims;
    int32_t rows = lane->hoisted ? lane->hoisted : 1;
    s->rope = arena_tensor(arena, DTYPE_F32, 3, (int32_t[]){tokens, d[HEAD] / 2, 2}, ok);
    s->time = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){rows, d[DIM]}, ok);
    s->shared = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){rows, d[THREE_DIM]}, ok);
    s->modulation =
        arena_tensor(arena, DTYPE_F32, 3, (int32_t[]){ANIMA_PARTS * d[LAYERS], rows, d[THREE_DIM]}, ok);
    s->final_modulation = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){rows, d[TWO_DIM]}, ok);
}

static void anima_declare(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                          struct arena *pictures, bool *ok) {
    enum { ALIGNED = 8 };
    const int32_t *d = c->dims;
    (void)pictures;
    for (int i = 0; i < n_lanes; i++) {
        struct anima_state *s = lanes[i].state;
        int first = lane_first_of_prompt(lanes, i);
        int32_t tokens[] = {mmdit_token_count(lanes[i].latent, MMDIT_PATCH), d[DIM]};
        if (i)
            *s = *(const struct anima_state *)lanes[first == i ? 0 : first].state;
        else
            anima_declare_shared(c, &lanes[0], tokens[0], arena, ok);
        s->tokens = arena_tensor(arena, DTYPE_F32, 2, tokens, ok);
        if (first != i) continue;
        int32_t kv[] = {d[LAYERS], (lanes[i].text.dim[0] + ALIGNED - 1) / ALIGNED * ALIGNED, d[DIM]};
        s->keys = arena_tensor(arena, lanes[i].operand, 3, kv, ok);
        s->values = arena_tensor(arena, lanes[i].operand, 3, kv, ok);
    }
}

/* accum_: counters of training; pos_embedder: rope's frequencies, which are computed here. */
static const char *const anima_ignorable[] = {"accum_", "pos_embedder.", NULL};
static const char *const anima_architectures[] = {"cosmos", NULL};

/* Published sizes: Anima 1.0, 2 B parameters. */
static const struct dimension anima_dimensions[] = {
    {"heads", 16, 1, 1024, .place = HEADS, .key = "num_attention_heads"},
    {"head_dim", 128, 12, 512, .place = HEAD,
     OF_TENSOR(1, 0, "transformer_blocks.0.attn1.norm_q.weight", "blocks.0.self_attn.q_norm.weight"),
     .key = "attention_head_dim"},
    {"layers", 28, 1, 300, .place = LAYERS, OF_BLOCKS("transformer_blocks.", "blocks."), .key = "num_layers"},
    {"low_rank", 256, 1, 65536, .place = LOW_RANK,
     OF_TENSOR(2, 0, "transformer_blocks.0.norm1.linear_1.weight",
               "blocks.0.adaln_modulation_self_attn.1.weight"),
     .key = "adaln_lora_dim"},
    {"latent_channels", 16, 1, 1024, .place = LATENT, .key = "in_channels"},
    {"adapter_dim", 1024, 8, 65536, .place = CAPTION,
     OF_TENSOR(2, 1, "transformer_blocks.0.attn2.to_k.weight", "blocks.0.cross_attn.k_proj.weight"),
     .key = "text_embed_dim"},
    {.place = LATENT, .key = "out_channels"},
    {.place = DIM, OF_TENSOR(2, 0, "patch_embed.proj.weight", "x_embedder.proj.1.weight")},
    {.place = IN, OF_TENSOR(2, 1, "patch_embed.proj.weight", "x_embedder.proj.1.weight")},
    {.place = PATCH, OF_TENSOR(2, 0, "proj_out.weight", "final_layer.linear.weight")},
    {.place = FEED_FORWARD,
     OF_TENSOR(2, 0, "transformer_blocks.0.ff.net.0.proj.weight", "blocks.0.mlp.layer1.weight")},
};

#define SETTING(key, field, type_, published, least, most)                                                   \
    { {key}, offsetof(struct anima_settings, field), type_, published, least, most }
static const struct setting anima_settings_rows[] = {
    SETTING("rope_scale.0", rope_scale[0], SETTING_DOUBLE, 1, 0.01, 100),
    SETTING("rope_scale.1", rope_scale[1], SETTING_DOUBLE, 4, 0.01, 100),
    SETTING("rope_scale.2", rope_scale[2], SETTING_DOUBLE, 4, 0.01, 100),
};

static const struct expectation anima_expects[] = {
    {"extra_pos_embed_type", NULL}, {"use_crossattn_projection", NULL}, {"img_context_dim_in", NULL}, {0}};

static void anima_derive_dims(struct component *c) {
    int32_t *d = c->dims;
    d[DIM] = d[HEADS] * d[HEAD];
    d[FEED_FORWARD] = 4 * d[DIM];
    d[PATCH] = MASK_COLUMNS * d[LATENT];
    d[IN] = d[PATCH] + MASK_COLUMNS;
}

static void anima_derive(struct component *c) {
    int32_t *d = c->dims;
    d[TWO_DIM] = d[DIM] <= INT32_MAX / 3 ? 2 * d[DIM] : 0;
    d[THREE_DIM] = d[DIM] <= INT32_MAX / 3 ? 3 * d[DIM] : 0;
    d[HEADS] = d[DIM] / d[HEAD];
    d[LATENT] = d[PATCH] / MASK_COLUMNS;
    ((struct anima_settings *)c->settings)->head = d[HEAD];
    c->text_columns = d[CAPTION];
    c->latent_channels = d[LATENT];
}

static const struct state_tensor anima_state_tensors[] = {
    STATE_TENSOR(anima_state, tokens),     STATE_TENSOR(anima_state, keys),
    STATE_TENSOR(anima_state, values),     STATE_TENSOR(anima_state, rope),
    STATE_TENSOR(anima_state, time),       STATE_TENSOR(anima_state, shared),
    STATE_TENSOR(anima_state, modulation), STATE_TENSOR(anima_state, final_modulation)};

const struct family family_anima = {
    .name = "anima",
    .kind = FAMILY_DENOISER,
    .display_name = "transformer",
    .files = {.architectures = anima_architectures,
              .config_key = "_class_name",
              .config_value = "CosmosTransformer3DModel",
              .probe = anima_probe,
              .refuse = anima_refuse,
              .ignorable = anima_ignorable},
    .config = {.dimensions = anima_dimensions,
               .n_dimensions = COUNT_OF(anima_dimensions),
               .settings = anima_settings_rows,
               .n_settings = COUNT_OF(anima_settings_rows),
               .expects = anima_expects,
               .configure = anima_configure,
               .derive_dims = anima_derive_dims,
               .derive = anima_derive,
               .rest = "\"mlp_ratio\": 4.0, \"patch_size\": [1, 2, 2], \"max_size\": [128, 240, 240], "
                       "\"concat_padding_mask\": true, \"extra_pos_embed_type\": null"},
    .blocks = {.list = anima_blocks},
    .state = {.bytes = sizeof(struct anima_state),
              .tensors = anima_state_tensors,
              .n_tensors = COUNT_OF(anima_state_tensors),
              .declare = anima_declare},
    .predicted = {{.kind = "layer",
                   .alone = true,
                   .tokens = 4096,
                   .text_rows = 512,
                   .text_columns = 1024,
                   PREDICTED_IMAGE}},
};

/* clang-format off */
static const struct hf_source anima_files[] = {
    {"circlestone-labs/Anima-Base-v1.0-Diffusers", NULL, NULL, 0},
    {"circlestone-labs/Anima", "--diffusion-model", "anima-base-v1.0.safetensors", 4180},
    {"circlestone-labs/Anima", "--llm", "qwen_3_06b_base.safetensors", 0},
    {"circlestone-labs/Anima", "--vae", "qwen_image_vae.safetensors", 254},
    {"lightx2v/Autoencoders", "--taesd", "taew2_1.safetensors", 0},
    {0},
};

/* Prefixes of the adapter in the transformer's file. */
#define ADAPTER_PREFIXES                                                                                     \
    { "", "llm_adapter.", "net.llm_adapter.", "model.diffusion_model.llm_adapter.",                          \
      "diffusion_model.llm_adapter.", NULL }
/* clang-format on */

/* Anima: diffusers 0.42, modular_pipelines/anima. The transformer reads the output of its text adapter, which
 * reads T5's token ids and the last hidden state of Qwen3 0.6B for the same prompt. */
enum { ANIMA_TOKENS = 512 };
const struct recipe recipe_anima = {
    .name = "anima",
    .slot = {{.family = &family_qwen3,
              .flag = "--llm",
              .folder = "text_encoder",
              .prefixes = NAMES({"", "text_encoders.qwen3_06b.transformer.", "text_encoders.llm.", NULL}),
              .text = {.tokens_max = ANIMA_TOKENS,
                       .tokenizer = "BPE",
                       .tokenizer_folder = "tokenizer",
                       .tokenizer_from = "--tokenizer PATH: the model's Hugging Face folder",
                       .classes = {"Qwen3Model", "Qwen2Tokenizer"}},
              .dimension = {{"hidden", 1024}, {"text_heads", 16}, {"text_ff", 3072}, {"text_layers", 28}}},
             {.family = &family_anima_adapter,
              .flag = "--llm_adapter",
              .shares_file_with = "--diffusion-model",
              .folder = "text_conditioner",
              .prefixes = NAMES(ADAPTER_PREFIXES),
              .reads = "--llm",
              .text = {.eos = "</s>",
                       .tokens_max = ANIMA_TOKENS,
                       .tokenizer = "unigram",
                       .tokenizer_folder = "t5_tokenizer",
                       .tokenizer_from = "--tokenizer PATH: the model's Hugging Face folder",
                       .classes = {"AnimaTextConditioner", "T5TokenizerFast"}}},
             {.family = &family_anima,
              .flag = "--diffusion-model",
              .folder = "transformer",
              .prefixes = NAMES({"", "net.", "model.diffusion_model.", "diffusion_model.", NULL})},
             VAE_WAN},
    .selection.pipelines = {"AnimaModularPipeline"},
    .text = {.condition = {{.slot = 1, .what = CONDITION_TOKENS, .padded_to = ANIMA_TOKENS}},
             .n_conditions = 1},
    .denoising = {.span = {{2, INFINITY}},
                  .guide = guidance_cfg,
                  .sampling = {.prediction = &prediction_flow,
                               .schedule = &schedule_flow,
                               .sampler = &sampler_euler},
                  .shift_rule = FLOW_SHIFT_FIXED,
                  .flow_shift = 3},
    .defaults = {.width = 1024, .height = 1024, .steps = 50, .cfg_scale = 4, .strength = 0.9},
    .patch = MMDIT_PATCH,
    .colours = &latent_colours_wan,
    .published = {.title = "Anima", .reference = DIFFUSERS, .sources = {anima_files}},
};
