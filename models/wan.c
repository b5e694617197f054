/* WAN 2.1 and 2.2: diffusion transformers over the tokens of a video, frame by frame.
 *
 * The timestep gives one row of shifts, scales and gates for all blocks; each block adds a learned table to
 * this row. Blocks cross-attend to a fixed number of text rows. The text's keys and values depend on the
 * prompt alone, so the layers that compute them are separate blocks, read once per prompt. WAN 2.1 I2V also
 * cross-attends to CLIP vision rows and reads the image's latent and mask as concatenated channels; WAN 2.2
 * I2V reads only the concatenated channels. TI2V's clean frames (from the input image) have timestep 0. VACE
 * models have a second series of blocks over tokens of the control video; each adds its output, a hint, after
 * one main block. Files list all hint blocks first; computing them between the main blocks gives the same
 * values. Reference: diffusers 0.42, models/transformers/transformer_wan.py and transformer_wan_vace.py; the
 * authors' names: Wan2.1, wan/modules/model.py. */
#include "models/mmdit.h"
#include "models/row_chunk.h"
#include "models/wan.h"

#include <math.h>

/* Epsilon of the layer norms in the image embedder (CLIP vision rows). */
static const float wan_image_eps = 1e-5F;

struct wan_state {
    struct tensor tokens; /* [T, DIM] */
    struct tensor hints;  /* control video tokens (VACE): [T, DIM]; rank 0: none */
    /* Embedded prompt, keys and values, shared by the lanes of a prompt. Keys and values have a multiple of 8
     * rows. */
    struct tensor text;                     /* embedded prompt: [text rows, DIM] */
    struct tensor image;                    /* embedded vision encoder rows: [image rows, DIM] */
    struct tensor text_keys, text_values;   /* for each block: [LAYERS + HINTS, text rows, DIM] */
    struct tensor image_keys, image_values; /* for each block: [LAYERS + HINTS, image rows, DIM] */
    /* Rope table and timestep conditioning, shared by all lanes. condition and modulation have one row per
     * evaluation if hoisted, else one row. */
    struct tensor rope;       /* [T, HEAD/2, 2] */
    struct tensor condition;  /* [rows, DIM] */
    struct tensor modulation; /* [rows, SIX_DIM] */
    /* Counterparts of condition and modulation for clean frames, at timestep 0; rank 0: no clean frames. */
    struct tensor clean_condition, clean_modulation; /* [1, DIM] and [1, SIX_DIM] */
};

struct wan_cross_kv_weights {
    struct linear_weights k, v;
    struct tensor k_norm; /* weight of an RMS norm over all heads together: [DIM] */
};

/* clang-format off */
/* Weights of a block. attn1 is self-attention, attn2 cross-attention; norms of queries and keys are RMS norms
 * over all heads together. modulation is added to the timestep's modulation. */
#define MAIN_BLOCK(X, S)                                                                                     \
    X##WEIGHT(S, modulation, SHAPED(3, ONE, SIX, DIM), "scale_shift_table", "modulation")                    \
    X##LINEAR(S, q, DIM, DIM, "attn1.to_q", "self_attn.q")                                                   \
    X##VECTOR(S, q_norm, DIM, "attn1.norm_q", "self_attn.norm_q")                                            \
    X##LINEAR(S, k, DIM, DIM, "attn1.to_k", "self_attn.k")                                                   \
    X##VECTOR(S, k_norm, DIM, "attn1.norm_k", "self_attn.norm_k")                                            \
    X##LINEAR(S, v, DIM, DIM, "attn1.to_v", "self_attn.v")                                                   \
    X##LINEAR(S, out, DIM, DIM, "attn1.to_out.0", "self_attn.o")                                             \
    X##NORM(S, cross_norm, DIM, "norm2", "norm3")                                                            \
    X##LINEAR(S, cross_q, DIM, DIM, "attn2.to_q", "cross_attn.q")                                            \
    X##VECTOR(S, cross_q_norm, DIM, "attn2.norm_q", "cross_attn.norm_q")                                     \
    X##LINEAR(S, cross_out, DIM, DIM, "attn2.to_out.0", "cross_attn.o")                                      \
    X##LINEAR(S, up, FEED_FORWARD, DIM, "ffn.net.0.proj", "ffn.0")                                           \
    X##LINEAR(S, down, DIM, FEED_FORWARD, "ffn.net.2", "ffn.2")
/* A hint block (VACE) also has an output projection, absent in main blocks. */
#define HINT_BLOCK(X, S)                                                                                     \
    MAIN_BLOCK(X, S)                                                                                         \
    X##LINEAR(S, hint, DIM, DIM, "proj_out", "after_proj")
struct wan_block_weights { HINT_BLOCK(FIELD_, ) };
WEIGHT_TABLE(wan_layer_table, MAIN_BLOCK, wan_block_weights, "blocks.%d.", "blocks.%d.");
WEIGHT_TABLE(wan_hint_table, HINT_BLOCK, wan_block_weights, "vace_blocks.%d.", "vace_blocks.%d.");

/* Keys and values of a block's cross-attention. */
#define TEXT_KV(X, S)                                                                                        \
    X##LINEAR(S, text.k, DIM, DIM, "to_k", "k")                                                              \
    X##VECTOR(S, text.k_norm, DIM, "norm_k")                                                                 \
    X##LINEAR(S, text.v, DIM, DIM, "to_v", "v")
#define TEXT_IMAGE_KV(X, S)                                                                                  \
    TEXT_KV(X, S)                                                                                            \
    X##LINEAR(S, image.k, DIM, DIM, "add_k_proj", "k_img")                                                   \
    X##VECTOR(S, image.k_norm, DIM, "norm_added_k", "norm_k_img")                                            \
    X##LINEAR(S, image.v, DIM, DIM, "add_v_proj", "v_img")
struct wan_block_kv_weights { struct wan_cross_kv_weights text, image; };
WEIGHT_TABLE(wan_text_kv_table, TEXT_KV, wan_block_kv_weights, "blocks.%d.attn2.", "blocks.%d.cross_attn.");
WEIGHT_TABLE(wan_text_image_kv_table, TEXT_IMAGE_KV, wan_block_kv_weights,
             "blocks.%d.attn2.", "blocks.%d.cross_attn.");
WEIGHT_TABLE(wan_hint_kv_table, TEXT_KV, wan_block_kv_weights,
             "vace_blocks.%d.attn2.", "vace_blocks.%d.cross_attn.");

/* Embedders of the timestep and the text: two linear layers. */
#define MLP(X, S, inputs)                                                                                    \
    X##LINEAR(S, in, DIM, inputs, "linear_1", "0")                                                           \
    X##LINEAR(S, out, DIM, DIM, "linear_2", "2")
#define TEXT_EMBEDDER(X, S) MLP(X, S, TEXT)
#define TIME_EMBEDDER(X, S) MLP(X, S, FREQUENCIES)
struct wan_mlp_weights { TIME_EMBEDDER(FIELD_, ) };
WEIGHT_TABLE(wan_text_table, TEXT_EMBEDDER, wan_mlp_weights,
             WAN_CONDITION "text_embedder.", "text_embedding.");
WEIGHT_TABLE(wan_time_table, TIME_EMBEDDER, wan_mlp_weights,
             WAN_CONDITION "time_embedder.", "time_embedding.");
LINEAR_TABLE(wan_modulation_table, SIX_DIM, DIM, WAN_CONDITION "time_proj", "time_projection.1");

/* pos_embed: positions of the vision rows (FLF2V). */
#define IMAGE_EMBEDDER(X, S)                                                                                 \
    X##WEIGHT(IF_DIM(S, IMAGE_ROWS), pos_embed, SHAPED(3, ONE, IMAGE_ROWS, IMAGE), "pos_embed", "emb_pos")   \
    X##NORM(S, in_norm, IMAGE, "norm1", "proj.0")                                                            \
    X##LINEAR(S, in, IMAGE, IMAGE, "ff.net.0.proj", "proj.1")                                                \
    X##LINEAR(S, out, DIM, IMAGE, "ff.net.2", "proj.3")                                                      \
    X##NORM(S, out_norm, DIM, "norm2", "proj.4")
struct wan_image_weights { IMAGE_EMBEDDER(FIELD_, ) };
WEIGHT_TABLE(wan_image_table, IMAGE_EMBEDDER, wan_image_weights, WAN_CONDITION "image_embedder.", "img_emb.");

/* Patch embeddings of the latent and of the control video (VACE). */
#define EMBEDDER(X, S) X##CONV3D(S, in, DIM, IN, ONE, SIDE, "patch_embedding")
struct wan_embedder_weights { EMBEDDER(FIELD_, ) };
WEIGHT_TABLE(wan_embedder_table, EMBEDDER, wan_embedder_weights, "", "");
#define CONTROL_EMBEDDER(X, S)                                                                               \
    X##CONV3D(S, in, DIM, HINTS_IN, ONE, SIDE, "vace_patch_embedding")                                       \
    X##LINEAR(S, hint, DIM, DIM, "vace_blocks.0.proj_in", "vace_blocks.0.before_proj")
struct wan_control_weights { CONTROL_EMBEDDER(FIELD_, ) };
WEIGHT_TABLE(wan_control_embedder_table, CONTROL_EMBEDDER, wan_control_weights, "", "");

/* modulation: shift and scale of the final layer. */
#define FINAL(X, S)                                                                                          \
    X##WEIGHT(S, modulation, SHAPED(3, ONE, TWO, DIM), "scale_shift_table", "head.modulation")               \
    X##LINEAR(S, linear, PATCH, DIM, "proj_out", "head.head")
struct wan_final_weights { FINAL(FIELD_, ) };
WEIGHT_TABLE(wan_final_table, FINAL, wan_final_weights, "", "");
/* clang-format on */

/* Keys and values of cross-attention, with equal numbers of rows; rank 0: absent. */
struct wan_cross_kv {
    struct tensor k, v; /* [rows, DIM] */
};

enum { WAN_RANGES = 2, WAN_CROSS_INPUTS = 2 };

/* Token rows that have the same timestep. */
struct wan_range {
    int32_t first, rows;
    struct tensor condition;  /* time embedding: [1, DIM] */
    struct tensor modulation; /* shift, scale, gate of attention, then of the feed-forward: [1, 6 DIM] */
};

struct wan_block_args {
    struct wan_range range[WAN_RANGES];
    int n_ranges;
    struct tensor rope; /* rope's cosine and sine: [T, head / 2, 2] */
    /* Keys and values for cross-attention: of text rows, of image rows. */
    struct wan_cross_kv cross[WAN_CROSS_INPUTS];
    int32_t head; /* channels per head */
    float eps;    /* epsilon of all norms of the block */
};

/* The rows that are being computed: one chunk of a range of token rows. */
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

/* First rows of a chunk-sized buffer, as many as the current chunk has. */
static struct tensor wan_chunk_rows(struct tensor buffer, const struct wan_rows *at) {
    return tensor_slice(buffer, 0, at->rows);
}

/* Modulation for a range of token rows, [1, 6 DIM]: the block's table plus the timestep's row. */
static struct tensor wan_modulation(struct context *x, struct tensor table, const struct wan_range *range) {
    struct tensor sum = context_tensor(x, DTYPE_F32, 2, range->modulation.dim);
    op_add(x, sum, range->modulation, tensor_reshape(table, 2, sum.dim));
    return sum;
}

/* Shift and scale of a norm from a modulation row. part: index of the shift; part + 1: index of the scale. */
static struct affine wan_affine(struct tensor modulation, int part, int32_t dim) {
    return (struct affine){.shift = mmdit_chunk(modulation, part, dim),
                           .scale = mmdit_chunk(modulation, part + 1, dim)};
}

static struct attention_options wan_heads(int32_t dim, int32_t head) {
    return (struct attention_options){
        .queries = dim / head, .keys = dim / head, .scale = 1 / sqrtf((float)head)};
}

/* Computes queries or keys: RMS norm over all heads together, then rope. heads: f32 scratch tensor in the
 * shape of `out`. */
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

/* Computes the keys and values of cross-attention from rows [T, DIM]. Their type may be the device's
 * attention operand type. */
static void wan_project_cross_kv(struct context *x, struct wan_cross_kv kv, struct tensor rows,
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

/* Runs a block: updates tokens [T, DIM] in place. A video has many tokens, so wide intermediates exist for a
 * chunk of rows only; queries, keys and values exist for all rows. */
static void wan_block(struct context *x, const struct wan_block_weights *w, const struct wan_block_args *call,
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

/* Final layer: norm, modulation by table [1, 2, DIM] (shift, scale) plus the time embedding of each range of
 * tokens, linear layer, unpatchify into the prediction. */
static void wan_predict(struct context *x, const struct linear_weights *w, struct tensor table,
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

static void wan_forward_text(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct wan_mlp_weights *w = weights;
    const struct wan_settings *settings = scope->settings;
    const struct wan_state *state = scope->lane->state;
    struct tensor latent = scope->lane->latent;
    int across = 2 * (settings->head / 6);
    struct rope_options rope = {
        .theta = 10000,
        .n_axes = 3,
        .axis_dim = {settings->head - 2 * across, across, across},
        .f64_angles = true,
        .n_grids = 1,
        .grid = {{.extent = {latent.dim[1], latent.dim[2] / MMDIT_PATCH, latent.dim[3] / MMDIT_PATCH}}},
    };
    struct tensor h = context_operand(x, 2, state->text.dim);
    op_rope_table(x, state->rope, &rope);
    op_linear(x, h, scope->lane->text, w->in.weight,
              (struct epilogue){.bias = w->in.bias, .activation = ACTIVATION_GELU_TANH});
    mmdit_linear(x, state->text, h, &w->out);
}

static void wan_forward_image(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct wan_image_weights *w = weights;
    const struct wan_state *state = scope->lane->state;
    struct tensor in = scope->lane->image, n = context_operand(x, 2, in.dim),
                  h = context_operand(x, 2, in.dim);
    if (w->pos_embed.rank) {
        struct tensor placed = context_tensor(x, DTYPE_F32, 2, in.dim);
        op_add(x, placed, in, tensor_reshape(w->pos_embed, 2, w->pos_embed.dim + 1));
        in = placed;
    }
    op_layer_norm(x, n, in, (struct affine){.weight = w->in_norm.weight, .bias = w->in_norm.bias},
                  wan_image_eps);
    op_linear(x, h, n, w->in.weight,
              (struct epilogue){.bias = w->in.bias, .activation = ACTIVATION_GELU_ERF});
    mmdit_linear(x, state->image, h, &w->out);
    op_layer_norm(x, state->image, state->image,
                  (struct affine){.weight = w->out_norm.weight, .bias = w->out_norm.bias}, wan_image_eps);
}

static void wan_embed_times(struct context *x, struct tensor out, const float *times,
                            const struct wan_mlp_weights *w) {
    int32_t n = out.dim[0];
    struct tensor f = context_tensor(x, DTYPE_F32, 2, (int32_t[]){n, w->in.weight.dim[1]});
    for (int32_t i = 0; i < n; i++) op_timestep(x, tensor_slice(f, i, 1), times[i], TIMESTEP_USUAL);
    mmdit_embed(x, out, f, &w->in, &w->out);
}

static void wan_forward_time(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct wan_state *state = scope->lane->state;
    static const float still = 0;
    wan_embed_times(x, scope_rows(state->condition, scope), scope->timesteps, weights);
    if (state->clean_condition.rank) wan_embed_times(x, state->clean_condition, &still, weights);
}

static void wan_forward_modulation(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct linear_weights *w = weights;
    const struct wan_state *state = scope->lane->state;
    mmdit_modulation(x, scope_rows(state->modulation, scope), scope_rows(state->condition, scope), w);
    if (state->clean_condition.rank) mmdit_modulation(x, state->clean_modulation, state->clean_condition, w);
}

/* Copies the patches of a latent and, unless absent, of `concat` to rows, concatenated by channel for the
 * patch embedding. */
static struct tensor wan_patches(struct context *x, struct tensor latent, struct tensor concat,
                                 const struct linear_weights *w) {
    static const struct patches how = {.side = MMDIT_PATCH, .order = PATCH_CHANNELS_FIRST};
    int32_t square = MMDIT_PATCH * MMDIT_PATCH, first = square * latent.dim[0];
    int32_t in = square * w->weight.dim[1];
    struct tensor patches =
        context_tensor(x, DTYPE_F32, 2, (int32_t[]){mmdit_token_count(latent, MMDIT_PATCH), in});
    op_patchify(x, tensor_slice_columns(patches, 0, first), latent_planes(latent), how);
    if (in > first)
        op_patchify(x, tensor_slice_columns(patches, first, in - first), latent_planes(concat), how);
    return patches;
}

static void wan_embed(struct context *x, struct tensor out, struct tensor patches,
                      const struct linear_weights *w) {
    int32_t shape[] = {out.dim[1], patches.dim[1]};
    op_linear(x, out, patches, tensor_reshape(w->weight, 2, shape), (struct epilogue){.bias = w->bias});
}

static void wan_forward_embedder(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct wan_embedder_weights *w = weights;
    const struct wan_state *state = scope->lane->state;
    struct tensor patches = wan_patches(x, scope->lane->latent, scope->lane->concat, &w->in);
    wan_embed(x, state->tokens, patches, &w->in);
}

/* Control tokens (VACE): embedded control channels plus video tokens; hint blocks read no other tokens. */
static void wan_forward_control_embedder(struct context *x, const void *weights,
                                         const struct visit_scope *scope) {
    const struct wan_control_weights *w = weights;
    const struct wan_state *state = scope->lane->state;
    int32_t T = state->hints.dim[0], dim = state->hints.dim[1], chunk = row_chunk(x, T);
    struct tensor patches = wan_patches(x, scope->lane->concat, (struct tensor){0}, &w->in);
    struct tensor buffer = context_operand(x, 2, (int32_t[]){chunk, dim});
    for (int32_t first = 0; first < T; first += chunk) {
        int32_t rows = T - first < chunk ? T - first : chunk;
        struct tensor control = tensor_slice(buffer, 0, rows);
        wan_embed(x, control, tensor_slice(patches, first, rows), &w->in);
        op_linear(
            x, tensor_slice(state->hints, first, rows), control, w->hint.weight,
            (struct epilogue){.bias = w->hint.bias, .residual = tensor_slice(state->tokens, first, rows)});
    }
}

static struct tensor wan_kv_rows(struct tensor all, int number, struct tensor of) {
    struct tensor rows = tensor_reshape(tensor_slice(all, number, 1), 2, all.dim + 1);
    return tensor_slice(rows, 0, of.dim[0]);
}

static struct wan_cross_kv wan_text_kv(const struct wan_state *s, int number) {
    return (struct wan_cross_kv){wan_kv_rows(s->text_keys, number, s->text),
                                 wan_kv_rows(s->text_values, number, s->text)};
}

static struct wan_cross_kv wan_image_kv(const struct wan_state *s, int number) {
    if (!s->image.rank) return (struct wan_cross_kv){0};
    return (struct wan_cross_kv){wan_kv_rows(s->image_keys, number, s->image),
                                 wan_kv_rows(s->image_values, number, s->image)};
}

static void wan_project_block_kv(struct context *x, const struct wan_block_kv_weights *w,
                                 const struct visit_scope *scope, int number) {
    const struct wan_settings *settings = scope->settings;
    const struct wan_state *state = scope->lane->state;
    wan_project_cross_kv(x, wan_text_kv(state, number), state->text, &w->text, settings->eps);
    if (state->image.rank)
        wan_project_cross_kv(x, wan_image_kv(state, number), state->image, &w->image, settings->eps);
}

static void wan_forward_block_kv(struct context *x, const void *weights, const struct visit_scope *scope) {
    wan_project_block_kv(x, weights, scope, scope->number);
}

/* Index of a hint block in text_keys and text_values. Entries of the main blocks precede entries of the hint
 * blocks. */
static int wan_hint_number(const struct visit_scope *scope) {
    return ((const struct wan_settings *)scope->settings)->layers + scope->number;
}

static void wan_forward_hint_kv(struct context *x, const void *weights, const struct visit_scope *scope) {
    wan_project_block_kv(x, weights, scope, wan_hint_number(scope));
}

/* Appends a range of token rows that share a timestep; clean frames come first. */
static void wan_add_range(struct wan_block_args *call, int32_t rows, struct tensor condition,
                          struct tensor modulation) {
    int32_t first = call->n_ranges ? call->range[call->n_ranges - 1].rows : 0;
    if (rows) call->range[call->n_ranges++] = (struct wan_range){first, rows, condition, modulation};
}

static struct wan_block_args wan_block_args(const struct visit_scope *scope, int number) {
    const struct wan_settings *settings = scope->settings;
    const struct wan_state *state = scope->lane->state;
    struct tensor latent = scope->lane->latent;
    int32_t tokens = state->tokens.dim[0], clean = tokens / latent.dim[1] * scope->lane->n_clean_frames;
    struct wan_block_args call = {.rope = state->rope,
                                  .cross = {wan_text_kv(state, number), wan_image_kv(state, number)},
                                  .head = settings->head,
                                  .eps = settings->eps};
    wan_add_range(&call, clean, state->clean_condition, state->clean_modulation);
    wan_add_range(&call, tokens - clean, scope_rows(state->condition, scope),
                  scope_rows(state->modulation, scope));
    return call;
}

static void wan_forward_layer(struct context *x, const void *weights, const struct visit_scope *scope) {
    struct wan_block_args call = wan_block_args(scope, scope->number);
    wan_block(x, weights, &call, ((const struct wan_state *)scope->lane->state)->tokens);
}

static void wan_forward_hint(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct wan_block_weights *w = weights;
    const struct wan_state *state = scope->lane->state;
    struct wan_block_args call = wan_block_args(scope, wan_hint_number(scope));
    wan_block(x, w, &call, state->hints);
    int32_t T = state->tokens.dim[0], chunk = row_chunk(x, T);
    for (int32_t first = 0; first < T; first += chunk) {
        int32_t rows = T - first < chunk ? T - first : chunk;
        struct tensor t = tensor_slice(state->tokens, first, rows);
        op_linear(x, t, tensor_slice(state->hints, first, rows), w->hint.weight,
                  (struct epilogue){.bias = w->hint.bias, .residual = t});
    }
}

/* WAN predicts noise - data, the velocity of flow matching. */
static void wan_forward_final(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct wan_final_weights *w = weights;
    struct wan_block_args call = wan_block_args(scope, 0);
    wan_predict(x, &w->linear, w->modulation, &call, ((const struct wan_state *)scope->lane->state)->tokens,
                scope->lane->prediction);
}

BLOCK(wan_kind_text, "text", WAN_CONDITION "text_embedder", wan_text_table, wan_mlp_weights, wan_forward_text,
      .update_rate = UPDATE_PER_PROMPT, .never_quantised = true);
BLOCK(wan_kind_image, "image", WAN_CONDITION "image_embedder", wan_image_table, wan_image_weights,
      wan_forward_image, .update_rate = UPDATE_PER_PROMPT, .never_quantised = true);
BLOCK(wan_kind_time, "time", WAN_CONDITION "time_embedder", wan_time_table, wan_mlp_weights, wan_forward_time,
      .update_rate = UPDATE_PER_TIMESTEP, .never_quantised = true);
BLOCK(wan_kind_modulation, "modulation", WAN_CONDITION "time_proj", wan_modulation_table, linear_weights,
      wan_forward_modulation, .update_rate = UPDATE_PER_TIMESTEP, .never_quantised = true);
BLOCK(wan_kind_embedder, "embedder", "patch_embedding", wan_embedder_table, wan_embedder_weights,
      wan_forward_embedder, .never_quantised = true);
BLOCK(wan_kind_control_embedder, "control_embedder", "vace_patch_embedding", wan_control_embedder_table,
      wan_control_weights, wan_forward_control_embedder, .never_quantised = true);
BLOCK(wan_kind_text_kv, "text_kv", "blocks.%d.seen", wan_text_kv_table, wan_block_kv_weights,
      wan_forward_block_kv, .update_rate = UPDATE_PER_PROMPT);
BLOCK(wan_kind_text_image_kv, "text_image_kv", "blocks.%d.seen", wan_text_image_kv_table,
      wan_block_kv_weights, wan_forward_block_kv, .update_rate = UPDATE_PER_PROMPT);
BLOCK(wan_kind_hint_kv, "hint_kv", "vace_blocks.%d.seen", wan_hint_kv_table, wan_block_kv_weights,
      wan_forward_hint_kv, .update_rate = UPDATE_PER_PROMPT);
BLOCK(wan_kind_layer, "layer", "blocks.%d", wan_layer_table, wan_block_weights, wan_forward_layer);
BLOCK(wan_kind_hint, "hint", "vace_blocks.%d", wan_hint_table, wan_block_weights, wan_forward_hint);
BLOCK(wan_kind_final, "final", "proj_out", wan_final_table, wan_final_weights, wan_forward_final,
      .never_quantised = true);

/* True for WAN and for related models with the same tensor names, which wan_refuse rejects by name. */
static bool wan_probe(const struct tensor_index *index) {
    return index_find(index, "patch_embedding.weight") &&
           (index_find(index, "blocks.0.cross_attn.norm_k.weight") ||
            index_find(index, "blocks.0.attn2.norm_k.weight"));
}

static int wan_blocks(const struct component *c, struct block_ref *refs) {
    const struct wan_settings *s = (const struct wan_settings *)c->settings;
    const int32_t *d = c->dims;
    int n = 0, hints = 0;
    refs[n++] = (struct block_ref){.kind = &wan_kind_text};
    if (d[IMAGE]) refs[n++] = (struct block_ref){.kind = &wan_kind_image};
    refs[n++] = (struct block_ref){.kind = &wan_kind_time};
    refs[n++] = (struct block_ref){.kind = &wan_kind_modulation};
    refs[n++] = (struct block_ref){.kind = &wan_kind_embedder};
    if (d[HINTS]) refs[n++] = (struct block_ref){.kind = &wan_kind_control_embedder};
    for (int i = 0; i < d[LAYERS]; i++) {
        refs[n++] =
            (struct block_ref){.kind = d[IMAGE] ? &wan_kind_text_image_kv : &wan_kind_text_kv, .number = i};
        refs[n++] = (struct block_ref){.kind = &wan_kind_layer, .number = i};
        if (hints == d[HINTS] || (int)s->vace_layers[hints] != i) continue;
        refs[n++] = (struct block_ref){.kind = &wan_kind_hint_kv, .number = hints};
        refs[n++] = (struct block_ref){.kind = &wan_kind_hint, .number = hints++};
    }
    refs[n++] = (struct block_ref){.kind = &wan_kind_final};
    return n;
}

/* Lanes without vision rows skip the image embedder. */
static bool wan_skips_block(const struct component *c, const struct block *block, const struct lane *lane) {
    (void)c;
    return block->kind == &wan_kind_image && !lane->image.rank;
}

static void wan_declare_rows(const struct component *c, const struct lane *lane, int32_t tokens,
                             struct arena *arena, bool *ok) {
    struct wan_state *s = lane->state;
    const int32_t *d = c->dims;
    int32_t rows = lane->hoisted ? lane->hoisted : 1;
    s->rope = arena_tensor(arena, DTYPE_F32, 3, (int32_t[]){tokens, d[HEAD] / 2, 2}, ok);
    s->condition = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){rows, d[DIM]}, ok);
    s->modulation = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){rows, d[SIX_DIM]}, ok);
    if (!lane->n_clean_frames) return;
    s->clean_condition = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){1, d[DIM]}, ok);
    s->clean_modulation = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){1, d[SIX_DIM]}, ok);
}

/* Declares keys and values of all blocks for text or image rows, padded. */
static void wan_declare_kv(const struct component *c, const struct lane *lane, int32_t rows,
                           struct tensor *keys, struct tensor *values, struct arena *arena, bool *ok) {
    enum { ALIGNED = 8 };
    int32_t dim[] = {c->dims[LAYERS] + c->dims[HINTS], (rows + ALIGNED - 1) / ALIGNED * ALIGNED,
                     c->dims[DIM]};
    *keys = arena_tensor(arena, lane->operand, 3, dim, ok);
    *values = arena_tensor(arena, lane->operand, 3, dim, ok);
}

static void wan_declare_prompt(const struct component *c, const struct lane *lane, struct arena *arena,
                               bool *ok) {
    struct wan_state *s = lane->state;
    int32_t dim = c->dims[DIM], text = lane->text.dim[0], image = lane->image.dim[0];
    s->text = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){text, dim}, ok);
    wan_declare_kv(c, lane, text, &s->text_keys, &s->text_values, arena, ok);
    if (!c->dims[IMAGE] || !lane->image.rank) return;
    s->image = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){image, dim}, ok);
    wan_declare_kv(c, lane, image, &s->image_keys, &s->image_values, arena, ok);
}

static void wan_declare(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                        struct arena *pictures, bool *ok) {
    (void)pictures;
    for (int i = 0; i < n_lanes; i++) {
        struct wan_state *s = lanes[i].state;
        int first = lane_first_of_prompt(lanes, i);
        int32_t tokens[] = {mmdit_token_count(lanes[i].latent, MMDIT_PATCH), c->dims[DIM]};
        if (i)
            *s = *(const struct wan_state *)lanes[first == i ? 0 : first].state;
        else
            wan_declare_rows(c, &lanes[0], tokens[0], arena, ok);
        s->tokens = arena_tensor(arena, DTYPE_F32, 2, tokens, ok);
        if (c->dims[HINTS]) s->hints = arena_tensor(arena, DTYPE_F32, 2, tokens, ok);
        if (first == i) wan_declare_prompt(c, &lanes[i], arena, ok);
    }
}

static const char *const wan_ignorable[] = {NULL};
static const char *const wan_architectures[] = {"wan", NULL};
static const char *const wan_others[] = {"WanVACETransformer3DModel", "WanModel", "VaceWanModel", NULL};

static const struct state_tensor wan_state_tensors[] = {STATE_TENSOR(wan_state, tokens),
                                                        STATE_TENSOR(wan_state, hints),
                                                        STATE_TENSOR(wan_state, text),
                                                        STATE_TENSOR(wan_state, image),
                                                        STATE_TENSOR(wan_state, rope),
                                                        STATE_TENSOR(wan_state, condition),
                                                        STATE_TENSOR(wan_state, modulation),
                                                        STATE_TENSOR(wan_state, clean_condition),
                                                        STATE_TENSOR(wan_state, clean_modulation)};

const struct family family_wan = {
    .name = "wan",
    .kind = FAMILY_DENOISER,
    .display_name = "transformer",
    .files = {.architectures = wan_architectures,
              .config_key = "_class_name",
              .config_value = "WanTransformer3DModel",
              .config_others = wan_others,
              .probe = wan_probe,
              .refuse = wan_refuse,
              .ignorable = wan_ignorable},
    .config = {.dimensions = wan_dimensions,
               .n_dimensions = COUNT_OF(wan_dimensions),
               .settings = wan_settings_rows,
               .n_settings = COUNT_OF(wan_settings_rows),
               .lists = wan_lists,
               .n_lists = COUNT_OF(wan_lists),
               .configure = wan_configure,
               .derive_dims = wan_derive_dims,
               .derive = wan_derive,
               .rest = "\"patch_size\": [1, 2, 2], \"cross_attn_norm\": true, \"qk_norm\": "
                       "\"rms_norm_across_heads\", \"rope_max_seq_len\": 1024"},
    .blocks = {.list = wan_blocks, .skips = wan_skips_block},
    .state = {.bytes = sizeof(struct wan_state),
              .tensors = wan_state_tensors,
              .n_tensors = COUNT_OF(wan_state_tensors),
              .declare = wan_declare},
    /* A layer for 81 frames of 832 x 480. */
    .predicted = {{.kind = "layer",
                   .alone = true,
                   .tokens = 21 * 30 * 52,
                   .text_rows = 512,
                   .text_columns = 4096,
                   .latent_channels = 16,
                   .latent_frames = 21,
                   .latent_side = 60,
                   .latent_columns = 104}},
};
