/* Flux.1 transformer (diffusers: FluxTransformer2DModel). Token order: text, the generated image, reference
 * images (Kontext).
 *
 * Double blocks have separate weights for text and image tokens, with joint attention (mmdit.h). Single
 * blocks treat all tokens alike. The conditioning is one row: timestep, guidance scale (dev), and pooled
 * prompt. Linear layers turn this row into each block's shifts, scales and gates (AdaLN). These layers are
 * separate blocks here, because they depend on timestep and prompt alone and can be hoisted. Rope positions:
 * (0, 0, 0) for text, (0, y, x) for the image, (i, y, x) for reference i from 1. Fill reads more channels in
 * x_embedder: the latent of the masked image and the mask. Source: diffusers 0.42,
 * models/transformers/transformer_flux.py; checkpoint names of the authors: loaders/single_file_utils.py,
 * convert_flux_transformer_checkpoint_to_diffusers. */
#include "models/row_chunk.h"
#include "models/mmdit.h"
#include "models/slots.h"

enum {
    DIM,
    TWO_DIM,
    THREE_DIM,
    SIX_DIM,
    FEED_FORWARD,
    FUSED_IN, /* input width of proj_out in a single block: DIM + FEED_FORWARD */
    HEAD,
    HEADS,
    AXES, /* sizes of the three rope axes: AXES, AXES + 1, AXES + 2 */
    IN = AXES + 3,
    OUT, /* out_channels in config.json: PATCH for Fill, whose input has more channels than its output; 0: key
            omitted */
    PATCH,
    LATENT,
    FILL, /* 1: inpainting model (Fill), whose input also has the masked image's latent and the mask */
    CAPTION,
    POOLED,
    FREQUENCIES,
    DOUBLE_LAYERS,
    SINGLE_LAYERS,
    GUIDED,
};

enum { MASK_SIDE = 8 };

/* Variants of the Flux.1 transformer: guidance-distilled (dev, Kontext), schnell, inpainting (Fill). */
enum { FLUX_GUIDED, FLUX_SCHNELL, FLUX_FILL };

static const float flux_time_scale = 1000;
static const struct patches flux_patches = {.side = MMDIT_PATCH, .order = PATCH_CHANNELS_FIRST};

struct flux_settings {
    int axis_dim[3];
};

struct flux_state {
    struct tensor tokens; /* hidden states of all tokens: [text + image + reference rows, DIM] */
    /* The rope table and the embedded prompt are shared by the lanes of a prompt. */
    struct tensor rope; /* rope's cosine and sine: [text + image + reference rows, HEAD/2, 2] */
    struct tensor text; /* embedded prompt: [text rows, DIM] */
    /* Conditioning, computed from timestep and prompt: one row per evaluation if hoisted, else one row. */
    struct tensor condition;                         /* [rows, DIM] */
    struct tensor image_modulation, text_modulation; /* modulation, double blocks: [blocks, rows, SIX_DIM] */
    struct tensor single_modulation; /* modulation, single blocks: [blocks, rows, THREE_DIM] */
    struct tensor final_modulation;  /* scale and shift of the final layer: [rows, TWO_DIM] */
};

LINEAR_TABLE(flux_context_table, DIM, CAPTION, "context_embedder", "txt_in");
LINEAR_TABLE(flux_embedder_table, DIM, IN, "x_embedder", "img_in");
LINEAR_TABLE(flux_single_modulation_table, THREE_DIM, DIM, "single_transformer_blocks.%d.norm.linear",
             "single_blocks.%d.modulation.lin");
/* AdaLN of the final layer. diffusers' files store scale before shift; the authors' checkpoint stores shift
 * before scale. */
LINEAR_TABLE(flux_final_modulation_table, TWO_DIM, DIM, "norm_out.linear",
             "final_layer.adaLN_modulation.1[1,0/2]");
LINEAR_TABLE(flux_final_table, PATCH, DIM, "proj_out", "final_layer.linear");

/* clang-format off */
#define CONDITIONING(X, S)                                                                                   \
    X##LINEAR(S, time_in, DIM, FREQUENCIES, "timestep_embedder.linear_1", "time_in.in_layer")                \
    X##LINEAR(S, time_out, DIM, DIM, "timestep_embedder.linear_2", "time_in.out_layer")                      \
    X##LINEAR(IF_DIM(S, GUIDED), guidance_in, DIM, FREQUENCIES,                                              \
              "guidance_embedder.linear_1", "guidance_in.in_layer")                                          \
    X##LINEAR(IF_DIM(S, GUIDED), guidance_out, DIM, DIM,                                                     \
              "guidance_embedder.linear_2", "guidance_in.out_layer")                                         \
    X##LINEAR(S, pooled_in, DIM, POOLED, "text_embedder.linear_1", "vector_in.in_layer")                     \
    X##LINEAR(S, pooled_out, DIM, DIM, "text_embedder.linear_2", "vector_in.out_layer")
WEIGHT_TABLE(flux_conditioning_table, CONDITIONING, mmdit_time_text_embed_weights, "time_text_embed.", "");

/* Norm weights of queries and keys. The endings of their names differ, so the rows have complete names. */
#define HEAD_NORM (.rank = 1, .dim = {HEAD})

#define DOUBLE_BLOCK(X, S)                                                                                   \
    X##LINEAR(S, image.attention.q, DIM, DIM, "attn.to_q", "img_attn.qkv[0/3]")                              \
    X##LINEAR(S, image.attention.k, DIM, DIM, "attn.to_k", "img_attn.qkv[1/3]")                              \
    X##LINEAR(S, image.attention.v, DIM, DIM, "attn.to_v", "img_attn.qkv[2/3]")                              \
    X##WEIGHT(S, image.attention.q_norm, HEAD_NORM, "attn.norm_q.weight", "img_attn.norm.query_norm.scale")  \
    X##WEIGHT(S, image.attention.k_norm, HEAD_NORM, "attn.norm_k.weight", "img_attn.norm.key_norm.scale")    \
    X##LINEAR(S, text.attention.q, DIM, DIM, "attn.add_q_proj", "txt_attn.qkv[0/3]")                         \
    X##LINEAR(S, text.attention.k, DIM, DIM, "attn.add_k_proj", "txt_attn.qkv[1/3]")                         \
    X##LINEAR(S, text.attention.v, DIM, DIM, "attn.add_v_proj", "txt_attn.qkv[2/3]")                         \
    X##WEIGHT(S, text.attention.q_norm, HEAD_NORM,                                                           \
              "attn.norm_added_q.weight", "txt_attn.norm.query_norm.scale")                                  \
    X##WEIGHT(S, text.attention.k_norm, HEAD_NORM,                                                           \
              "attn.norm_added_k.weight", "txt_attn.norm.key_norm.scale")                                    \
    X##LINEAR(S, image.attention.out, DIM, DIM, "attn.to_out.0", "img_attn.proj")                            \
    X##LINEAR(S, text.attention.out, DIM, DIM, "attn.to_add_out", "txt_attn.proj")                           \
    X##LINEAR(S, image.up, FEED_FORWARD, DIM, "ff.net.0.proj", "img_mlp.0")                                  \
    X##LINEAR(S, image.down, DIM, FEED_FORWARD, "ff.net.2", "img_mlp.2")                                     \
    X##LINEAR(S, text.up, FEED_FORWARD, DIM, "ff_context.net.0.proj", "txt_mlp.0")                           \
    X##LINEAR(S, text.down, DIM, FEED_FORWARD, "ff_context.net.2", "txt_mlp.2")
WEIGHT_TABLE(flux_double_table, DOUBLE_BLOCK, mmdit_block_weights,
             "transformer_blocks.%d.", "double_blocks.%d.");

#define DOUBLE_MODULATION(X, S)                                                                              \
    X##LINEAR(S, image, SIX_DIM, DIM, "norm1.linear", "img_mod.lin")                                         \
    X##LINEAR(S, text, SIX_DIM, DIM, "norm1_context.linear", "txt_mod.lin")
struct double_modulation_weights { DOUBLE_MODULATION(FIELD_, ) };
WEIGHT_TABLE(flux_double_modulation_table, DOUBLE_MODULATION, double_modulation_weights,
             "transformer_blocks.%d.", "double_blocks.%d.");

/* Row counts of the four parts of linear1 in the authors' checkpoints: q, k, v, first layer of the MLP. */
static const int flux_linear1_rows[] = {DIM, DIM, DIM, FEED_FORWARD};
#define OF_LINEAR1(S) WITH(S, .part_rows = flux_linear1_rows)
#define SINGLE_BLOCK(X, S)                                                                                   \
    X##LINEAR(OF_LINEAR1(S), q, DIM, DIM, "attn.to_q", "linear1[0/4]")                                       \
    X##LINEAR(OF_LINEAR1(S), k, DIM, DIM, "attn.to_k", "linear1[1/4]")                                       \
    X##LINEAR(OF_LINEAR1(S), v, DIM, DIM, "attn.to_v", "linear1[2/4]")                                       \
    X##WEIGHT(S, q_norm, HEAD_NORM, "attn.norm_q.weight", "norm.query_norm.scale")                           \
    X##WEIGHT(S, k_norm, HEAD_NORM, "attn.norm_k.weight", "norm.key_norm.scale")                             \
    X##LINEAR(OF_LINEAR1(S), up, FEED_FORWARD, DIM, "proj_mlp", "linear1[3/4]")                              \
    X##LINEAR(S, out, DIM, FUSED_IN, "proj_out", "linear2")
struct single_weights { SINGLE_BLOCK(FIELD_, ) };
WEIGHT_TABLE(flux_single_table, SINGLE_BLOCK, single_weights,
             "single_transformer_blocks.%d.", "single_blocks.%d.");
/* clang-format on */

static struct rope_grid flux_grid_of(struct tensor latent, int32_t first_axis) {
    return (struct rope_grid){.start = {first_axis, 0, 0},
                              .extent = {1, latent.dim[2] / MMDIT_PATCH, latent.dim[3] / MMDIT_PATCH}};
}

static void flux_fill_rope(struct context *x, const struct visit_scope *scope) {
    const struct flux_settings *settings = scope->settings;
    const struct flux_state *state = scope->lane->state;
    struct tensor text = mmdit_text_rows(state->rope, scope->lane);
    struct rope_options rope = {
        .theta = 10000,
        .n_axes = 3,
        .axis_dim = {settings->axis_dim[0], settings->axis_dim[1], settings->axis_dim[2]},
        .n_grids = 1,
        .grid = {{.extent = {1, 1, 1}}},
    };
    /* All text tokens have rope position (0, 0, 0). Therefore the first table row is computed and copied to
     * the other text rows. */
    op_rope_table(x, tensor_slice(text, 0, 1), &rope);
    struct tensor rows = tensor_reshape(text, 2, (int32_t[]){text.dim[0], 2 * text.dim[1]});
    if (text.dim[0] > 1)
        op_broadcast_row(x, tensor_slice(rows, 1, text.dim[0] - 1), tensor_slice(rows, 0, 1));
    rope.n_grids = 1 + mmdit_n_references(scope->lane);
    rope.grid[0] = flux_grid_of(scope->lane->latent, 0);
    for (int i = 1; i < rope.n_grids; i++) rope.grid[i] = flux_grid_of(scope->lane->reference[i - 1], i);
    op_rope_table(x, mmdit_image_rows(state->rope, scope->lane), &rope);
}

static void flux_forward_context(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct linear_weights *w = weights;
    const struct flux_state *state = scope->lane->state;
    flux_fill_rope(x, scope);
    mmdit_linear(x, state->text, scope->lane->text, w);
}

static void flux_forward_conditioning(struct context *x, const void *weights,
                                      const struct visit_scope *scope) {
    const struct flux_state *state = scope->lane->state;
    mmdit_time_text_embed(x, scope_rows(state->condition, scope), weights, scope, flux_time_scale);
}

static void flux_forward_double_modulation(struct context *x, const void *weights,
                                           const struct visit_scope *scope) {
    const struct double_modulation_weights *w = weights;
    const struct flux_state *state = scope->lane->state;
    struct tensor condition = scope_rows(state->condition, scope);
    mmdit_modulation(x, scope_rows_of_block(state->image_modulation, scope), condition, &w->image);
    mmdit_modulation(x, scope_rows_of_block(state->text_modulation, scope), condition, &w->text);
}

static void flux_forward_single_modulation(struct context *x, const void *weights,
                                           const struct visit_scope *scope) {
    const struct linear_weights *w = weights;
    const struct flux_state *state = scope->lane->state;
    mmdit_modulation(x, scope_rows_of_block(state->single_modulation, scope),
                     scope_rows(state->condition, scope), w);
}

static void flux_forward_final_modulation(struct context *x, const void *weights,
                                          const struct visit_scope *scope) {
    const struct linear_weights *w = weights;
    const struct flux_state *state = scope->lane->state;
    mmdit_modulation(x, scope_rows(state->final_modulation, scope), scope_rows(state->condition, scope), w);
}

static void flux_forward_embedder(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct linear_weights *w = weights;
    const struct flux_state *state = scope->lane->state;
    const struct lane *lane = scope->lane;
    int32_t in = w->weight.dim[1], patch = MMDIT_PATCH * MMDIT_PATCH * lane->latent.dim[0];
    struct tensor patches = context_tensor(x, DTYPE_F32, 2, (int32_t[]){mmdit_image_token_count(lane), in});
    mmdit_patchify(x, patches, lane);
    if (in > patch) {
        struct tensor target_rows = tensor_slice(patches, 0, mmdit_token_count(lane->latent));
        op_patchify(x, tensor_slice_columns(target_rows, patch, in - patch), latent_planes(lane->concat),
                    flux_patches);
    }
    mmdit_linear(x, mmdit_image_rows(state->tokens, lane), patches, w);
    op_copy(x, mmdit_text_rows(state->tokens, lane), state->text);
}

static void flux_forward_double(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct mmdit_block_weights *w = weights;
    const struct flux_state *state = scope->lane->state;
    int32_t text = scope->lane->text.dim[0], images = state->tokens.dim[0] - text;
    struct mmdit_stream of_image = {
        .w = &w->image,
        .first = text,
        .rows = images,
        .n_updated = images,
        .range = {{images, scope_rows_of_block(state->image_modulation, scope)}},
    };
    struct mmdit_stream of_text = {
        .w = &w->text,
        .rows = text,
        .n_updated = text,
        .range = {{text, scope_rows_of_block(state->text_modulation, scope)}},
    };
    mmdit_joint_block(x, &of_image, &of_text, state->tokens,
                      (struct mmdit_heads){.size = 2 * state->rope.dim[1], .rope = state->rope});
}

/* Single block: attention and MLP read the same normed input; proj_out reads both outputs, concatenated. */
static void flux_forward_single(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct single_weights *w = weights;
    const struct flux_state *state = scope->lane->state;
    struct tensor tokens = state->tokens, modulation = scope_rows_of_block(state->single_modulation, scope);
    int32_t T = tokens.dim[0], dim = tokens.dim[1], chunk = row_chunk(x, T), in = w->out.weight.dim[1];
    struct affine affine = {.shift = mmdit_chunk(modulation, 0, dim),
                            .scale = mmdit_chunk(modulation, 1, dim)};
    struct mmdit_qkv a = mmdit_qkv_alloc(x, &tokens);
    op_layer_norm(x, a.n, tokens, affine, mmdit_norm_eps);
    mmdit_project_heads(x, a.q, a.n, &w->q, w->q_norm, state->rope);
    mmdit_project_heads(x, a.k, a.n, &w->k, w->k_norm, state->rope);
    mmdit_linear(x, a.v, a.n, &w->v);
    mmdit_attention(x, &a, 0, T, w->q_norm.dim[0]);
    struct tensor wide = context_operand(x, 2, (int32_t[]){chunk, in});
    for (int32_t first = 0; first < T; first += chunk) {
        int32_t rows = T - first < chunk ? T - first : chunk;
        struct tensor t = tensor_slice(tokens, first, rows), both = tensor_slice(wide, 0, rows);
        op_copy(x, tensor_slice_columns(both, 0, dim), tensor_slice(a.q, first, rows));
        op_linear(x, tensor_slice_columns(both, dim, in - dim), tensor_slice(a.n, first, rows), w->up.weight,
                  (struct epilogue){.bias = w->up.bias, .activation = ACTIVATION_GELU_TANH});
        op_linear(
            x, t, both, w->out.weight,
            (struct epilogue){.bias = w->out.bias, .gate = mmdit_chunk(modulation, 2, dim), .residual = t});
    }
}

/* Flux predicts noise - data, the velocity of flow matching. */
static void flux_forward_final(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct linear_weights *w = weights;
    const struct flux_state *state = scope->lane->state;
    mmdit_proj_out(x, w, scope->lane, state->tokens, scope_rows(state->final_modulation, scope),
                   PATCH_CHANNELS_FIRST);
}

BLOCK(flux_kind_context, "context", "context_embedder", flux_context_table, linear_weights,
      flux_forward_context, .update_rate = UPDATE_PER_PROMPT, .never_quantised = true);
BLOCK(flux_kind_conditioning, "conditioning", "conditioning", flux_conditioning_table,
      mmdit_time_text_embed_weights, flux_forward_conditioning, .update_rate = UPDATE_PER_TIMESTEP_AND_PROMPT,
      .never_quantised = true);
BLOCK(flux_kind_embedder, "embedder", "x_embedder", flux_embedder_table, linear_weights,
      flux_forward_embedder, .never_quantised = true);
BLOCK(flux_kind_double_modulation, "double_modulation", "transformer_blocks.%d.modulation",
      flux_double_modulation_table, double_modulation_weights, flux_forward_double_modulation,
      .update_rate = UPDATE_PER_TIMESTEP_AND_PROMPT);
BLOCK(flux_kind_double, "double", "transformer_blocks.%d", flux_double_table, mmdit_block_weights,
      flux_forward_double);
BLOCK(flux_kind_single_modulation, "single_modulation", "single_transformer_blocks.%d.modulation",
      flux_single_modulation_table, linear_weights, flux_forward_single_modulation,
      .update_rate = UPDATE_PER_TIMESTEP_AND_PROMPT);
BLOCK(flux_kind_single, "single", "single_transformer_blocks.%d", flux_single_table, single_weights,
      flux_forward_single);
BLOCK(flux_kind_final_modulation, "final_modulation", "norm_out", flux_final_modulation_table, linear_weights,
      flux_forward_final_modulation, .update_rate = UPDATE_PER_TIMESTEP_AND_PROMPT, .never_quantised = true);
BLOCK(flux_kind_final, "final", "proj_out", flux_final_table, linear_weights, flux_forward_final,
      .never_quantised = true);

static bool flux_probe(const struct tensor_index *index) {
    return (index_find(index, "transformer_blocks.0.norm1_context.linear.weight") &&
            index_find(index, "single_transformer_blocks.0.proj_mlp.weight")) ||
           (index_find(index, "double_blocks.0.img_attn.qkv.weight") &&
            index_find(index, "single_blocks.0.linear1.weight") &&
            index_find(index, "vector_in.in_layer.weight"));
}

static enum status flux_check_dims(const struct component *c, struct error *e) {
    const int32_t *d = c->dims;
    int doubles = d[DOUBLE_LAYERS], singles = d[SINGLE_LAYERS],
        layers = doubles && singles ? doubles + singles : 0;
    struct mmdit_sizes sizes = {.dim = d[DIM],
                                .feed_forward = d[FEED_FORWARD],
                                .head = d[HEAD],
                                .frequencies = d[FREQUENCIES],
                                .patch = d[PATCH],
                                .axis = ((const struct flux_settings *)c->settings)->axis_dim,
                                .layers = layers,
                                .n_blocks = 2 * layers + 5};
    return mmdit_check_sizes(c, &sizes, e);
}

/* Accepts the input channels of dev, schnell and Kontext (latent alone) and of Fill (plus masked image latent
 * and mask, one channel for each pixel of a latent pixel). Canny and Depth read a second latent and are
 * refused. */
static enum status flux_check_inputs(const struct component *c, struct error *e) {
    const int32_t *d = c->dims;
    int latent = d[PATCH] / (MMDIT_PATCH * MMDIT_PATCH), mask = 0, side = 0;
    int extra = d[IN] > d[PATCH] ? (d[IN] - d[PATCH]) / (MMDIT_PATCH * MMDIT_PATCH) : 0;
    if (extra > latent) mask = extra - latent;
    while (side < 2 * MASK_SIDE && side * side < mask) side++;
    bool fills = mask && side * side == mask;
    if (d[IN] == d[PATCH] || (fills && d[IN] == d[PATCH] + MMDIT_PATCH * MMDIT_PATCH * extra)) return OK;
    return error_set(e, UNSUPPORTED,
                     "unsupported Flux variant" WHERE "%s" FOUND "x_embedder with %d input channels" EXPECTED
                     "%d (dev, schnell, Kontext) or %d (Fill); Canny and Depth (%d) are not supported",
                     c->index.sources[0].path, d[IN], d[PATCH],
                     MMDIT_PATCH * MMDIT_PATCH * (2 * latent + MASK_SIDE * MASK_SIDE), 2 * d[PATCH]);
}

static enum status flux_configure(struct component *c, const struct config *config, struct error *e) {
    bool guided = c->dims[GUIDED];
    int patch = 1;
    config_int(config, "patch_size", 1, 1, &patch,
               e); /* patch_size must be 1, because diffusers packs 2x2 patches before the transformer */
    config_bool(config, "guidance_embeds", &guided, e);
    config_check_list(config, "axes_dims_rope", 3, e);
    c->dims[GUIDED] = guided;
    return e->code == OK && flux_check_dims(c, e) == OK ? flux_check_inputs(c, e) : e->code;
}

/* Lists each modulation block before the block that uses the modulation: visits have this order if nothing is
 * hoisted. */
static int flux_blocks(const struct component *c, struct block_ref *refs) {
    int n = 0;
    refs[n++] = (struct block_ref){.kind = &flux_kind_context};
    refs[n++] = (struct block_ref){.kind = &flux_kind_conditioning};
    refs[n++] = (struct block_ref){.kind = &flux_kind_embedder};
    for (int i = 0; i < c->dims[DOUBLE_LAYERS]; i++) {
        refs[n++] = (struct block_ref){.kind = &flux_kind_double_modulation, .number = i};
        refs[n++] = (struct block_ref){.kind = &flux_kind_double, .number = i};
    }
    for (int i = 0; i < c->dims[SINGLE_LAYERS]; i++) {
        refs[n++] = (struct block_ref){.kind = &flux_kind_single_modulation, .number = i};
        refs[n++] = (struct block_ref){.kind = &flux_kind_single, .number = i};
    }
    refs[n++] = (struct block_ref){.kind = &flux_kind_final_modulation};
    refs[n++] = (struct block_ref){.kind = &flux_kind_final};
    return n;
}

static void flux_declare_prompt(const struct component *c, const struct lane *lane, struct arena *arena,
                                bool *ok) {
    struct flux_state *s = lane->state;
    const int32_t *d = c->dims;
    int32_t rows = lane->hoisted ? lane->hoisted : 1, text = lane->text.dim[0];
    s->rope = arena_tensor(arena, DTYPE_F32, 3, (int32_t[]){s->tokens.dim[0], d[HEAD] / 2, 2}, ok);
    s->text = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){text, d[DIM]}, ok);
    s->condition = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){rows, d[DIM]}, ok);
    int32_t doubles[] = {d[DOUBLE_LAYERS], rows, d[SIX_DIM]};
    s->image_modulation = arena_tensor(arena, DTYPE_F32, 3, doubles, ok);
    s->text_modulation = arena_tensor(arena, DTYPE_F32, 3, doubles, ok);
    s->single_modulation =
        arena_tensor(arena, DTYPE_F32, 3, (int32_t[]){d[SINGLE_LAYERS], rows, d[THREE_DIM]}, ok);
    s->final_modulation = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){rows, d[TWO_DIM]}, ok);
}

static void flux_declare(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                         struct arena *pictures, bool *ok) {
    (void)pictures;
    for (int i = 0; i < n_lanes; i++) {
        struct flux_state *s = lanes[i].state;
        int32_t rows = lanes[i].text.dim[0] + mmdit_image_token_count(&lanes[i]);
        struct tensor tokens = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){rows, c->dims[DIM]}, ok);
        int first = lane_first_of_prompt(lanes, i);
        if (first != i) *s = *(const struct flux_state *)lanes[first].state;
        s->tokens = tokens;
        if (first == i) flux_declare_prompt(c, &lanes[i], arena, ok);
    }
}

static const char *const flux_ignorable[] = {NULL};
static const char *const flux_architectures[] = {"flux", NULL};
/* Sizes of the published Flux.1 dev, 11.9 B parameters. */
static const struct dimension flux_dimensions[] = {
    {"heads", 24, 1, 512, .place = HEADS, .key = "num_attention_heads"},
    {"axis0", 16, 2, 256, .place = AXES},
    {"axis1", 56, 2, 256, .place = AXES + 1},
    {"axis2", 56, 2, 256, .place = AXES + 2},
    {"double_layers", 19, 1, 250, .place = DOUBLE_LAYERS, OF_BLOCKS("transformer_blocks.", "double_blocks."),
     .key = "num_layers"},
    {"single_layers", 38, 1, 250, .place = SINGLE_LAYERS,
     OF_BLOCKS("single_transformer_blocks.", "single_blocks."), .key = "num_single_layers"},
    {"hidden", 4096, 8, 65536, .place = CAPTION, OF_TENSOR(2, 1, "context_embedder.weight", "txt_in.weight"),
     .key = "joint_attention_dim"},
    {"pooled", 768, 8, 65536, .place = POOLED,
     OF_TENSOR(2, 1, "time_text_embed.text_embedder.linear_1.weight", "vector_in.in_layer.weight"),
     .key = "pooled_projection_dim"},
    {"latent_channels", 16, 1, 1024, .place = LATENT},
    {"guidance", 1, 0, 1, .place = GUIDED,
     OF_TENSOR(0, 0, "time_text_embed.guidance_embedder.linear_1.weight", "guidance_in.in_layer.weight"),
     .key = "guidance_embeds", .form = FORM_BOOL},
    {"fill", 0, 0, 1, .place = FILL},
    {.place = DIM, OF_TENSOR(2, 0, "x_embedder.weight", "img_in.weight")},
    {.place = IN, OF_TENSOR(2, 1, "x_embedder.weight", "img_in.weight"), .key = "in_channels"},
    {.place = PATCH, OF_TENSOR(2, 0, "proj_out.weight", "final_layer.linear.weight")},
    {.place = OUT, .key = "out_channels", .form = FORM_NULL_IF_0},
    {.place = FREQUENCIES,
     OF_TENSOR(2, 1, "time_text_embed.timestep_embedder.linear_1.weight", "time_in.in_layer.weight")},
    {.place = HEAD,
     OF_TENSOR(1, 0, "transformer_blocks.0.attn.norm_q.weight",
               "double_blocks.0.img_attn.norm.query_norm.scale"),
     .key = "attention_head_dim"},
    {.place = FEED_FORWARD,
     OF_TENSOR(2, 0, "transformer_blocks.0.ff.net.0.proj.weight", "double_blocks.0.img_mlp.0.weight")},
};

#define AXIS(i, published)                                                                                   \
    { {"axes_dims_rope." #i}, offsetof(struct flux_settings, axis_dim[i]), SETTING_INT, published, 2, 512 }
static const struct setting flux_settings[] = {AXIS(0, 16), AXIS(1, 56), AXIS(2, 56)};

static void flux_derive_dims(struct component *c) {
    struct flux_settings *s = (struct flux_settings *)c->settings;
    int32_t *d = c->dims;
    for (int i = 0; i < 3; i++) s->axis_dim[i] = d[AXES + i];
    d[HEAD] = d[AXES] + d[AXES + 1] + d[AXES + 2];
    d[DIM] = d[HEADS] * d[HEAD];
    d[FEED_FORWARD] = 4 * d[DIM];
    d[FREQUENCIES] = 256;
    d[PATCH] = MMDIT_PATCH * MMDIT_PATCH * d[LATENT];
    d[IN] = d[PATCH] + d[FILL] * (d[PATCH] + MMDIT_PATCH * MMDIT_PATCH * MASK_SIDE * MASK_SIDE);
}

static void flux_derive(struct component *c) {
    int32_t *d = c->dims;
    d[TWO_DIM] = 2 * d[DIM];
    d[THREE_DIM] = 3 * d[DIM];
    d[SIX_DIM] = 6 * d[DIM];
    d[FUSED_IN] = d[DIM] + d[FEED_FORWARD];
    d[HEADS] = d[DIM] / d[HEAD];
    d[LATENT] = d[PATCH] / (MMDIT_PATCH * MMDIT_PATCH);
    d[FILL] = d[IN] != d[PATCH];
    d[OUT] = d[FILL] ? d[PATCH] : 0;
    c->text_columns = d[CAPTION];
    c->pooled_columns = d[POOLED];
    c->latent_channels = d[LATENT];
    c->concat_channels = (d[IN] - d[PATCH]) / (MMDIT_PATCH * MMDIT_PATCH);
    c->variant = d[FILL] ? FLUX_FILL : d[GUIDED] ? FLUX_GUIDED : FLUX_SCHNELL;
}

static const struct state_tensor flux_state_tensors[] = {
    STATE_TENSOR(flux_state, tokens), STATE_TENSOR(flux_state, rope), STATE_TENSOR(flux_state, condition)};

const struct family family_flux = {
    .name = "flux",
    .kind = FAMILY_DENOISER,
    .display_name = "transformer",
    .files = {.architectures = flux_architectures,
              .config_key = "_class_name",
              .config_value = "FluxTransformer2DModel",
              .probe = flux_probe,
              .ignorable = flux_ignorable},
    .config = {.dimensions = flux_dimensions,
               .n_dimensions = COUNT_OF(flux_dimensions),
               .settings = flux_settings,
               .n_settings = COUNT_OF(flux_settings),
               .configure = flux_configure,
               .derive_dims = flux_derive_dims,
               .derive = flux_derive,
               .rest = "\"patch_size\": 1"},
    .blocks = {.list = flux_blocks},
    .state = {.bytes = sizeof(struct flux_state),
              .tensors = flux_state_tensors,
              .n_tensors = COUNT_OF(flux_state_tensors),
              .declare = flux_declare},
    .predicted = {{.kind = "single",
                   .alone = true,
                   .tokens = 4608,
                   .text_rows = 512,
                   .text_columns = 4096,
                   PREDICTED_IMAGE},
                  {.kind = "double",
                   .alone = true,
                   .tokens = 4608,
                   .text_rows = 512,
                   .text_columns = 4096,
                   PREDICTED_IMAGE}},
};

/* clang-format off */
/* Preview colours of Flux.1's VAE, which Z-Image shares. Fitted by stable-diffusion.cpp
 * (src/runtime/latent-preview.h at 2e0f042). */
static const float colours_flux[][3] = {
    {-0.020584F, 0.0099585F, 0.0486265F}, {0.014048F, 0.013365F, 0.064788F},
    {0.032809F, -0.033975F, -0.0073255F}, {-0.006499F, -0.007381F, 0.0406255F},
    {0.0392835F, 0.029648F, -0.0123435F}, {-0.0079935F, -0.0018485F, 0.002506F},
    {0.0168025F, 0.0694995F, 0.0342585F}, {-0.012225F, -0.0317835F, -0.0150505F},
    {-0.020097F, -0.008355F, 0.0635925F}, {0.0563405F, 0.044382F, -0.02097F},
    {-0.011749F, 0.046832F, 0.0127715F}, {0.0414495F, 0.02416F, 0.0037455F},
    {0.037856F, 0.0370695F, 0.0409825F}, {-0.0717505F, 0.0091315F, -0.068069F},
    {-0.0128835F, -0.0410175F, -0.0200115F}, {-0.0559245F, -0.0277945F, -0.0161805F}};
const struct latent_colours latent_colours_flux = {
    16, colours_flux, {0.5123F, 0.4965315F, 0.4959555F}, 0.3611F};
/* clang-format on */

/* clang-format off */
static const struct hf_source flux_sources[] = {
    {"comfyanonymous/flux_text_encoders", "--clip_l", "clip_l.safetensors", 246},
    {"comfyanonymous/flux_text_encoders", "--t5xxl", "t5xxl_fp16.safetensors", 9790},
    {"comfyanonymous/flux_text_encoders", "--t5xxl", "t5xxl_fp8_e4m3fn.safetensors", 4890},
    {"city96/t5-v1_1-xxl-encoder-gguf", "--t5xxl", "t5-v1_1-xxl-encoder-Q8_0.gguf", 5060},
    {"black-forest-labs/FLUX.1-dev", "--vae", "ae.safetensors", 335},
    {"madebyollin/taef1", "--taesd", TAE, 0},
    {0},
};
static const struct hf_source flux_files[] = {
    {"black-forest-labs/FLUX.1-dev", NULL, NULL, 0},
    {"Comfy-Org/flux1-dev", NULL, "flux1-dev-fp8.safetensors", 17200},
    {"black-forest-labs/FLUX.1-dev", "--diffusion-model", "flux1-dev.safetensors", 23800},
    {"city96/FLUX.1-dev-gguf", "--diffusion-model", "flux1-dev-Q4_K_S.gguf", 6810},
    {0},
};
static const struct hf_source flux_schnell_files[] = {
    {"black-forest-labs/FLUX.1-schnell", NULL, NULL, 0},
    {"Comfy-Org/flux1-schnell", NULL, "flux1-schnell-fp8.safetensors", 0},
    {"city96/FLUX.1-schnell-gguf", "--diffusion-model", "flux1-schnell-Q4_K_S.gguf", 0},
    {0},
};
static const struct hf_source flux_kontext_files[] = {
    {"black-forest-labs/FLUX.1-Kontext-dev", NULL, NULL, 0},
    {0},
};
static const struct hf_source flux_fill_files[] = {
    {"black-forest-labs/FLUX.1-Fill-dev", NULL, NULL, 0},
    {0},
};
/* clang-format on */

/* Flux.1: diffusers 0.42, pipelines/flux. CLIP and T5 read the raw prompt, padded to a fixed length without
 * an attention mask; CLIP reads 77 tokens. Defaults are those of each pipeline's __call__, except the steps
 * of schnell and the guidance of Kontext (model cards) and the shifts (published scheduler_config.json). */
/* clang-format off */
#define FLUX(t5_tokens, ...)                                                                                 \
    .slot = {TEXT_CLIP_L(0),                                                                                 \
             {.family = &family_t5, .flag = "--t5xxl", .folder = "text_encoder_2",                           \
              .prefixes = NAMES(T5XXL_PREFIXES),                                                             \
              TEXT_T5("_2", t5_tokens)},                                                                     \
             DENOISER(family_flux, __VA_ARGS__), VAE_KL},                                                    \
    .text = {.condition = {{.slot = 1, .what = CONDITION_TOKENS}, {.slot = 0, .what = CONDITION_POOLED}},    \
             .n_conditions = 2},                                                                             \
    .images.samples_posterior = true,                                                                        \
    .denoising = {.span = {{2, INFINITY}}, .guide = guidance_cfg,                                            \
                  .sampling = {.prediction = &prediction_flow, .schedule = &schedule_flow,                   \
                               .sampler = &sampler_euler, .grid = {.grid_f64 = true}},                       \
                  .shift_line = {.base_shift = 0.5, .max_shift = 1.15,                                       \
                                 .base_tokens = 256, .max_tokens = 4096}},                                   \
    .defaults = {.width = 1024, .height = 1024, .cfg_scale = 1}, .patch = 2, .colours = &latent_colours_flux
/* clang-format on */

const struct recipe recipe_flux = {
    FLUX(512),
    .name = "flux",
    .selection.variant = FLUX_GUIDED,
    .selection.pipelines = {"FluxPipeline", "FluxImg2ImgPipeline"},
    .denoising.shift_rule = FLOW_SHIFT_BY_TOKENS,
    .images.references_max = 3,
    .images.references_if_unnamed = true,
    .defaults.steps = 28,
    .defaults.guidance = 3.5,
    .denoising.takes_guidance = true,
    .defaults.strength = 0.6,
    .published = {.title = "Flux.1 dev; Kontext as a single file",
                  .reference = DIFFUSERS,
                  .sources = {flux_files, flux_sources}},
};

const struct recipe recipe_flux_schnell = {
    FLUX(256, .dimension = {{"guidance", 0}}),
    .name = "flux_schnell",
    .selection.variant = FLUX_SCHNELL,
    .selection.pipelines = {"FluxPipeline", "FluxImg2ImgPipeline"},
    .denoising.shift_rule = FLOW_SHIFT_FIXED,
    .denoising.flow_shift = 1,
    .defaults.steps = 4,
    .defaults.strength = 0.6,
    .published = {.title = "Flux.1 schnell",
                  .reference = DIFFUSERS,
                  .sources = {flux_schnell_files, flux_sources}},
};

const struct recipe recipe_flux_kontext = {
    FLUX(512),
    .name = "flux_kontext",
    .selection.variant = FLUX_GUIDED,
    .selection.pipelines = {"FluxKontextPipeline"},
    .denoising.shift_rule = FLOW_SHIFT_BY_TOKENS,
    .images.references_max = 3,
    .defaults.steps = 28,
    .defaults.guidance = 2.5,
    .denoising.takes_guidance = true,
    .defaults.strength = 0.6,
    .published = {.title = "Flux.1 Kontext",
                  .reference = DIFFUSERS,
                  .sources = {flux_kontext_files, flux_sources}},
};

const struct recipe recipe_flux_fill = {
    FLUX(512, .dimension = {{"fill", 1}}),
    .name = "flux_fill",
    .selection.variant = FLUX_FILL,
    .selection.pipelines = {"FluxFillPipeline"},
    .denoising.shift_rule = FLOW_SHIFT_BY_TOKENS,
    .images.concat = CONCAT_FILL,
    .defaults.steps = 50,
    .defaults.guidance = 30,
    .denoising.takes_guidance = true,
    .defaults.strength = 1,
    .published = {.title = "Flux.1 Fill", .reference = DIFFUSERS, .sources = {flux_fill_files, flux_sources}},
};
