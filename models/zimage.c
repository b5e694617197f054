/* Z-Image transformer (diffusers: ZImageTransformer2DModel). A single stream of tokens: image, then caption.
 *
 * Caption: RMS norm, linear, padding to a multiple of 32 with a learned token, context refiner; computed once
 * per prompt. Time: an embedding, which linear layers turn into a row of scales and gates for each block.
 * These modulations are separate blocks here, because they depend on the timestep alone and can be hoisted.
 * Image: 2x2 patches, linear, the same padding, noise refiner. Then all tokens go through the layers, and the
 * image tokens through the final layer. Padding is attended to. Rope positions (caption index, y, x):
 * captions count from 1 through their padding, the image starts after the padded caption, image padding is at
 * (0, 0, 0). Source: diffusers 0.42, models/transformers/transformer_z_image.py; checkpoint names of the
 * authors: loaders/single_file_utils.py, convert_z_image_transformer_checkpoint_to_diffusers. */
#include "models/zimage.h"

#include "kernels/ops.h"
#include "models/row_chunk.h"
#include "models/slots.h"

#include <math.h>

enum { PAD_TO = 32 }; /* image and caption tokens are padded to multiples of PAD_TO */

static const struct patches zimage_patches = {.side = ZIMAGE_PATCH_SIDE, .order = PATCH_CHANNELS_LAST};

struct zimage_settings {
    double rope_theta;
    int axis_dim[3];
    float norm_eps, time_scale;
};

/* clang-format off */
#define CAPTION_EMBEDDER(X, S)                                                                               \
    X##VECTOR(S, norm, CAPTION, "cap_embedder.0")                                                            \
    X##LINEAR(S, linear, DIM, CAPTION, "cap_embedder.1")                                                     \
    X##WEIGHT(S, pad, SHAPED(2, ONE, DIM), "cap_pad_token")
struct caption_weights { CAPTION_EMBEDDER(FIELD_, ) };
WEIGHT_TABLE(zimage_caption_table, CAPTION_EMBEDDER, caption_weights, "", "");

#define TIME_EMBEDDER(X, S)                                                                                  \
    X##LINEAR(S, in, TIME_HIDDEN, FREQUENCIES, "t_embedder.mlp.0")                                           \
    X##LINEAR(S, out, ADALN_DIM, TIME_HIDDEN, "t_embedder.mlp.2")
struct time_weights { TIME_EMBEDDER(FIELD_, ) };
WEIGHT_TABLE(zimage_time_table, TIME_EMBEDDER, time_weights, "", "");

#define EMBEDDER(X, S)                                                                                       \
    X##LINEAR(S, patch, DIM, PATCH, "all_x_embedder.2-1", "x_embedder")                                      \
    X##WEIGHT(S, pad, SHAPED(2, ONE, DIM), "x_pad_token")
struct embedder_weights { EMBEDDER(FIELD_, ) };
WEIGHT_TABLE(zimage_embedder_table, EMBEDDER, embedder_weights, "", "");

/* Context refiner, noise refiner and main layers differ only in the name prefix. */
#define LAYER(X, S) ZIMAGE_LAYER(X, S, )
WEIGHT_TABLE(zimage_context_table, LAYER, zimage_layer_weights, "context_refiner.%d.", "context_refiner.%d.");
WEIGHT_TABLE(zimage_noise_table, LAYER, zimage_layer_weights, "noise_refiner.%d.", "noise_refiner.%d.");
WEIGHT_TABLE(zimage_layer_table, LAYER, zimage_layer_weights, "layers.%d.", "layers.%d.");
/* clang-format on */

LINEAR_TABLE(zimage_noise_modulation_table, FOUR_DIM, ADALN_DIM, "noise_refiner.%d.adaLN_modulation.0");
LINEAR_TABLE(zimage_layer_modulation_table, FOUR_DIM, ADALN_DIM, "layers.%d.adaLN_modulation.0");
LINEAR_TABLE(zimage_final_modulation_table, DIM, ADALN_DIM, "all_final_layer.2-1.adaLN_modulation.1",
             "final_layer.adaLN_modulation.1");
LINEAR_TABLE(zimage_final_table, PATCH, DIM, "all_final_layer.2-1.linear", "final_layer.linear");

static int32_t zimage_padded(int32_t rows) {
    return (rows + PAD_TO - 1) / PAD_TO * PAD_TO;
}

int32_t zimage_image_row_count(const struct lane *lane) {
    return zimage_padded(lane->latent.dim[2] / ZIMAGE_PATCH_SIDE * (lane->latent.dim[3] / ZIMAGE_PATCH_SIDE));
}

int32_t zimage_caption_row_count(const struct lane *lane) {
    return zimage_padded(lane->text.dim[0]);
}

struct tensor zimage_image_rows(struct tensor all, const struct zimage_state *state) {
    return tensor_slice(all, 0, state->image_rows);
}

struct tensor zimage_caption_rows(struct tensor all, const struct zimage_state *state) {
    return tensor_slice(all, state->image_rows, all.dim[0] - state->image_rows);
}

/* Fills token rows from row n on with the learned padding token. */
static void zimage_pad_rows(struct context *x, struct tensor rows, int32_t n, struct tensor pad) {
    if (n < rows.dim[0]) op_broadcast_row(x, tensor_slice(rows, n, rows.dim[0] - n), pad);
}

static void zimage_fill_rope(struct context *x, const struct visit_scope *scope) {
    const struct zimage_settings *settings = scope->settings;
    const struct zimage_state *state = scope->lane->state;
    int32_t Y = scope->lane->latent.dim[2] / ZIMAGE_PATCH_SIDE,
            X = scope->lane->latent.dim[3] / ZIMAGE_PATCH_SIDE;
    int32_t caption = state->caption.dim[0];
    struct rope_options rope = {
        .theta = settings->rope_theta,
        .n_axes = 3,
        .axis_dim = {settings->axis_dim[0], settings->axis_dim[1], settings->axis_dim[2]},
        .n_grids = 1,
        .grid = {{.start = {caption + 1, 0, 0}, .extent = {1, Y, X}}},
    };
    op_rope_table(x, tensor_slice(state->rope, 0, Y * X), &rope);
    /* All padding tokens of the image have rope position (0, 0, 0). */
    rope.grid[0] = (struct rope_grid){.extent = {1, 1, 1}};
    for (int32_t i = Y * X; i < state->image_rows; i++)
        op_rope_table(x, tensor_slice(state->rope, i, 1), &rope);
    rope.grid[0] = (struct rope_grid){.start = {1, 0, 0}, .extent = {caption, 1, 1}};
    op_rope_table(x, zimage_caption_rows(state->rope, state), &rope);
}

static void zimage_forward_caption(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct caption_weights *w = weights;
    const struct zimage_settings *settings = scope->settings;
    const struct zimage_state *state = scope->lane->state;
    struct tensor text = scope->lane->text;
    struct modulation plain = {0};
    zimage_fill_rope(x, scope);
    struct tensor n = context_operand(x, 2, text.dim);
    op_rms_norm(x, n, text, w->norm, settings->norm_eps, plain);
    op_linear(x, tensor_slice(state->caption, 0, text.dim[0]), n, w->linear.weight,
              (struct epilogue){.bias = w->linear.bias});
    zimage_pad_rows(x, state->caption, text.dim[0], w->pad);
}

static void zimage_forward_time(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct time_weights *w = weights;
    const struct zimage_settings *settings = scope->settings;
    const struct zimage_state *state = scope->lane->state;
    int32_t n = scope->n_timesteps;
    struct tensor f = context_tensor(x, DTYPE_F32, 2, (int32_t[]){n, w->in.weight.dim[1]});
    struct tensor h = context_tensor(x, DTYPE_F32, 2, (int32_t[]){n, w->in.weight.dim[0]});
    for (int32_t i = 0; i < n; i++)
        op_timestep(x, tensor_slice(f, i, 1), scope->timesteps[i] * settings->time_scale, TIMESTEP_USUAL);
    op_linear_few(x, h, f, w->in.weight, w->in.bias, ACTIVATION_NONE);
    op_linear_few(x, scope_rows(state->time, scope), h, w->out.weight, w->out.bias, ACTIVATION_SILU);
}

void zimage_modulate(struct context *x, const struct linear_weights *w, struct tensor rows,
                     const struct zimage_state *state, const struct visit_scope *scope,
                     enum activation activation) {
    op_linear_few(x, rows, scope_rows(state->time, scope), w->weight, w->bias, activation);
}

static void zimage_forward_noise_modulation(struct context *x, const void *weights,
                                            const struct visit_scope *scope) {
    const struct zimage_state *state = scope->lane->state;
    zimage_modulate(x, weights, scope_rows_of_block(state->noise_modulation, scope), state, scope,
                    ACTIVATION_NONE);
}

static void zimage_forward_main_modulation(struct context *x, const void *weights,
                                           const struct visit_scope *scope) {
    const struct zimage_state *state = scope->lane->state;
    zimage_modulate(x, weights, scope_rows_of_block(state->main_modulation, scope), state, scope,
                    ACTIVATION_NONE);
}

static void zimage_forward_final_modulation(struct context *x, const void *weights,
                                            const struct visit_scope *scope) {
    const struct zimage_state *state = scope->lane->state;
    zimage_modulate(x, weights, scope_rows(state->final_scale, scope), state, scope, ACTIVATION_SILU);
}

int32_t zimage_embed(struct context *x, struct tensor rows, struct tensor latent,
                     const struct linear_weights *patch) {
    int32_t n = latent.dim[2] / ZIMAGE_PATCH_SIDE * (latent.dim[3] / ZIMAGE_PATCH_SIDE);
    struct tensor patches = context_tensor(x, DTYPE_F32, 2, (int32_t[]){n, patch->weight.dim[1]});
    op_patchify(x, patches, latent_planes(latent), zimage_patches);
    op_linear(x, tensor_slice(rows, 0, n), patches, patch->weight, (struct epilogue){.bias = patch->bias});
    return n;
}

static void zimage_forward_embedder(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct embedder_weights *w = weights;
    const struct zimage_state *state = scope->lane->state;
    struct tensor rows = zimage_image_rows(state->tokens, state);
    int32_t n = zimage_embed(x, rows, scope->lane->latent, &w->patch);
    zimage_pad_rows(x, rows, n, w->pad);
    op_copy(x, zimage_caption_rows(state->tokens, state), state->caption);
}

/* Computes queries or keys: linear layer, then norm and rope of each head. */
static void zimage_project_heads(struct context *x, struct tensor out, struct tensor n, struct tensor weight,
                                 struct tensor norm, struct tensor rope) {
    float eps = 1e-5f; /* epsilon constant in diffusers' Attention, independent of norm_eps */
    uint64_t mark = x->scratch->used;
    struct tensor heads = context_unrounded(x, out);
    op_linear(x, heads, n, weight, (struct epilogue){0});
    op_rope(x, out, heads, rope,
            (struct rotation){.heads = out.dim[1] / norm.dim[0], .norm = norm, .eps = eps});
    x->scratch->used = mark;
}

/* Attention: tokens += gate * norm(out(attention)). */
static void zimage_attend(struct context *x, const struct zimage_layer_weights *w, float eps,
                          struct tensor tokens, struct tensor rope, struct modulation in,
                          struct modulation out) {
    int32_t head = w->q_norm.dim[0];
    int heads = tokens.dim[1] / head;
    struct tensor n = context_operand(x, 2, tokens.dim), q = context_operand(x, 2, tokens.dim);
    struct tensor k = context_operand(x, 2, tokens.dim), v = context_operand(x, 2, tokens.dim);
    op_rms_norm(x, n, tokens, w->norm1, eps, in);
    zimage_project_heads(x, q, n, w->q, w->q_norm, rope);
    zimage_project_heads(x, k, n, w->k, w->k_norm, rope);
    op_linear(x, v, n, w->v, (struct epilogue){0});
    op_attention(
        x, q, q, k, v,
        (struct attention_options){.queries = heads, .keys = heads, .scale = 1 / sqrtf((float)head)});
    struct tensor attention = context_unrounded(x, n);
    op_linear(x, attention, q, w->out, (struct epilogue){0});
    op_rms_norm(x, tokens, attention, w->norm2, eps, out);
}

/* Feed-forward: tokens += gate * norm(w2(silu(w1(n)) * w3(n))). */
static void zimage_feed_forward(struct context *x, const struct zimage_layer_weights *w, float eps,
                                struct tensor tokens, struct modulation in, struct modulation out) {
    int32_t T = tokens.dim[0], chunk = row_chunk(x, T);
    struct epilogue none = {0};
    for (int32_t first = 0; first < T; first += chunk) {
        struct tensor t = tensor_slice(tokens, first, T - first < chunk ? T - first : chunk);
        int32_t wide[] = {t.dim[0], w->w1.dim[0]};
        uint64_t before = x->scratch->used;
        struct tensor n = context_operand(x, 2, t.dim), gated = context_operand(x, 2, wide);
        uint64_t mark = x->scratch->used;
        struct tensor a = context_unrounded(x, gated), b = context_tensor(x, DTYPE_F32, 2, wide);
        op_rms_norm(x, n, t, w->ffn_norm1, eps, in);
        op_linear(x, a, n, w->w1, none);
        op_linear(x, b, n, w->w3, none);
        op_glu(x, gated, a, b, ACTIVATION_SILU);
        x->scratch->used = mark; /* frees the scratch tensors `a` and `b` */
        struct tensor h = context_unrounded(x, n);
        op_linear(x, h, gated, w->w2, none);
        out.base = t;
        op_rms_norm(x, t, h, w->ffn_norm2, eps, out);
        x->scratch->used = before;
    }
}

static struct tensor zimage_modulation_chunk(struct tensor modulation, int i) {
    int32_t all = modulation.dim[1], dim = all / 4;
    return tensor_slice(tensor_reshape(modulation, 1, &all), i * dim, dim);
}

void zimage_layer(struct context *x, const struct zimage_layer_weights *w, float norm_eps,
                  struct tensor tokens, struct tensor rope, struct tensor modulation) {
    struct modulation attention_in = {0}, attention_out = {.base = tokens}, ffn_in = {0}, ffn_out = {0};
    if (modulation.rank) {
        attention_in.scale = zimage_modulation_chunk(modulation, 0);
        attention_out.gate = zimage_modulation_chunk(modulation, 1);
        ffn_in.scale = zimage_modulation_chunk(modulation, 2);
        ffn_out.gate = zimage_modulation_chunk(modulation, 3);
    }
    uint64_t mark = x->scratch->used;
    zimage_attend(x, w, norm_eps, tokens, rope, attention_in, attention_out);
    x->scratch->used = mark;
    zimage_feed_forward(x, w, norm_eps, tokens, ffn_in, ffn_out);
}

static void zimage_forward_context(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct zimage_settings *settings = scope->settings;
    const struct zimage_state *state = scope->lane->state;
    zimage_layer(x, weights, settings->norm_eps, state->caption, zimage_caption_rows(state->rope, state),
                 (struct tensor){0});
}

static void zimage_forward_noise(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct zimage_settings *settings = scope->settings;
    const struct zimage_state *state = scope->lane->state;
    zimage_layer(x, weights, settings->norm_eps, zimage_image_rows(state->tokens, state),
                 zimage_image_rows(state->rope, state), scope_rows_of_block(state->noise_modulation, scope));
}

static void zimage_forward_main(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct zimage_settings *settings = scope->settings;
    const struct zimage_state *state = scope->lane->state;
    zimage_layer(x, weights, settings->norm_eps, state->tokens, state->rope,
                 scope_rows_of_block(state->main_modulation, scope));
}

/* Z-Image predicts data - noise. Flow matching needs noise - data, hence the factor -1. */
static void zimage_forward_final(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct linear_weights *w = weights;
    const struct zimage_state *state = scope->lane->state;
    struct tensor latent = scope->lane->prediction;
    int32_t rows = latent.dim[2] / ZIMAGE_PATCH_SIDE * (latent.dim[3] / ZIMAGE_PATCH_SIDE),
            dim = state->tokens.dim[1];
    struct tensor scale = tensor_reshape(scope_rows(state->final_scale, scope), 1, &dim);
    struct tensor n = context_operand(x, 2, (int32_t[]){rows, dim});
    struct tensor patches = context_tensor(x, DTYPE_F32, 2, (int32_t[]){rows, w->weight.dim[0]});
    op_layer_norm(x, n, tensor_slice(state->tokens, 0, rows), (struct affine){.scale = scale}, 1e-6f);
    op_linear(x, patches, n, w->weight, (struct epilogue){.bias = w->bias});
    op_unpatchify(x, latent_planes(latent), patches, zimage_patches, -1);
}

BLOCK(zimage_kind_caption, "caption", "cap_embedder", zimage_caption_table, caption_weights,
      zimage_forward_caption, .update_rate = UPDATE_PER_PROMPT, .never_quantised = true);
BLOCK(zimage_kind_context, "context_refiner", "context_refiner.%d", zimage_context_table,
      zimage_layer_weights, zimage_forward_context, .update_rate = UPDATE_PER_PROMPT);
BLOCK(zimage_kind_time, "time", "time", zimage_time_table, time_weights, zimage_forward_time,
      .update_rate = UPDATE_PER_TIMESTEP, .never_quantised = true);
BLOCK(zimage_kind_noise_modulation, "noise_modulation", "noise_refiner.%d.modulation",
      zimage_noise_modulation_table, linear_weights, zimage_forward_noise_modulation,
      .update_rate = UPDATE_PER_TIMESTEP);
BLOCK(zimage_kind_layer_modulation, "layer_modulation", "layers.%d.modulation", zimage_layer_modulation_table,
      linear_weights, zimage_forward_main_modulation, .update_rate = UPDATE_PER_TIMESTEP);
BLOCK(zimage_kind_final_modulation, "final_modulation", "final_layer.modulation",
      zimage_final_modulation_table, linear_weights, zimage_forward_final_modulation,
      .update_rate = UPDATE_PER_TIMESTEP, .never_quantised = true);
const struct block_kind zimage_kind_embedder =
    BLOCK_KIND("embedder", "embedder", zimage_embedder_table, embedder_weights, zimage_forward_embedder,
               .never_quantised = true);
const struct block_kind zimage_kind_noise = BLOCK_KIND(
    "noise_refiner", "noise_refiner.%d", zimage_noise_table, zimage_layer_weights, zimage_forward_noise);
const struct block_kind zimage_kind_layer =
    BLOCK_KIND("layer", "layers.%d", zimage_layer_table, zimage_layer_weights, zimage_forward_main);
BLOCK(zimage_kind_final, "final", "final_layer", zimage_final_table, linear_weights, zimage_forward_final,
      .never_quantised = true);

static bool zimage_probe(const struct tensor_index *index) {
    return index_find(index, "cap_embedder.0.weight") && index_find(index, "x_pad_token");
}

static enum status zimage_check_dims(const struct component *c, struct error *e) {
    const int32_t *d = c->dims;
    const struct zimage_settings *s = (const struct zimage_settings *)c->settings;
    int axes = 0;
    bool odd = false;
    for (int i = 0; i < 3; i++) axes += s->axis_dim[i], odd |= s->axis_dim[i] % 2;
    if (!(d[DIM] % d[HEAD]) && axes == d[HEAD] && !odd && d[HEAD] <= 512 &&
        !(d[PATCH] % (ZIMAGE_PATCH_SIDE * ZIMAGE_PATCH_SIDE)) && d[LAYERS] >= 1 &&
        2 * d[LAYERS] + 3 * d[REFINERS] + 5 <= FAMILY_BLOCKS_MAX && d[FREQUENCIES] % 2 == 0)
        return OK;
    return error_set(e, SHAPE,
                     "inconsistent transformer sizes" WHERE "%s" FOUND
                     "width %d, head %d, rope axes %d+%d+%d, %d layers" EXPECTED
                     "a width that is a multiple of the head size, and even rope axes (axes_dims in "
                     "config.json) that sum to the "
                     "head size",
                     c->index.sources[0].path, d[DIM], d[HEAD], s->axis_dim[0], s->axis_dim[1],
                     s->axis_dim[2], d[LAYERS]);
}

/* Z-Image-Omni and -Edit read reference images through SigLIP2; diffusers 0.42 has their code, but no weights
 * are published. */
static enum status zimage_refuse(const struct component *c, struct error *e) {
    static const struct similar_architecture relatives[] = {
        {"siglip_embedder.", "Z-Image-Omni or Z-Image-Edit, which read reference images through SigLIP2"},
        {"siglip_refiner.", "Z-Image-Omni or Z-Image-Edit, which read reference images through SigLIP2"},
        {0}};
    return component_refuse_similar(c, relatives, "Z-Image or Z-Image-Turbo", e);
}

/* siglip_feat_dim: the width of SigLIP2 tokens, null except in Z-Image-Omni and -Edit. */
static enum status zimage_configure(struct component *c, const struct config *config, struct error *e) {
    if (config_refuse(config, "siglip_feat_dim", e) != OK) return e->code;
    return zimage_check_dims(c, e);
}

/* Lists each modulation block before the block that uses the modulation: visits have this order if nothing is
 * hoisted. */
static int zimage_blocks(const struct component *c, struct block_ref *refs) {
    int n = 0, refiners = c->dims[REFINERS];
    refs[n++] = (struct block_ref){.kind = &zimage_kind_caption};
    for (int i = 0; i < refiners; i++)
        refs[n++] = (struct block_ref){.kind = &zimage_kind_context, .number = i};
    refs[n++] = (struct block_ref){.kind = &zimage_kind_time};
    refs[n++] = (struct block_ref){.kind = &zimage_kind_embedder};
    for (int i = 0; i < refiners; i++) {
        refs[n++] = (struct block_ref){.kind = &zimage_kind_noise_modulation, .number = i};
        refs[n++] = (struct block_ref){.kind = &zimage_kind_noise, .number = i};
    }
    for (int i = 0; i < c->dims[LAYERS]; i++) {
        refs[n++] = (struct block_ref){.kind = &zimage_kind_layer_modulation, .number = i};
        refs[n++] = (struct block_ref){.kind = &zimage_kind_layer, .number = i};
    }
    refs[n++] = (struct block_ref){.kind = &zimage_kind_final_modulation};
    refs[n++] = (struct block_ref){.kind = &zimage_kind_final};
    return n;
}

static void zimage_declare(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                           struct arena *pictures, bool *ok) {
    const int32_t *d = c->dims;
    int32_t n = lanes[0].hoisted ? lanes[0].hoisted : 1;
    struct zimage_state one = {0}; /* timestep conditioning, shared by all lanes */
    (void)pictures;
    for (int i = 0; i < n_lanes; i++) {
        struct zimage_state *s = lanes[i].state;
        const struct zimage_state *shared = lanes[lane_first_of_prompt(lanes, i)].state;
        int32_t caption = zimage_caption_row_count(&lanes[i]), dim = c->dims[DIM];
        s->image_rows = zimage_image_row_count(&lanes[i]);
        int32_t rows = s->image_rows + caption;
        s->tokens = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){rows, dim}, ok);
        if (!i) {
            one.time = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){n, d[ADALN_DIM]}, ok);
            one.noise_modulation =
                arena_tensor(arena, DTYPE_F32, 3, (int32_t[]){d[REFINERS], n, d[FOUR_DIM]}, ok);
            one.main_modulation =
                arena_tensor(arena, DTYPE_F32, 3, (int32_t[]){d[LAYERS], n, d[FOUR_DIM]}, ok);
            one.final_scale = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){n, d[DIM]}, ok);
        }
        s->time = one.time;
        s->noise_modulation = one.noise_modulation;
        s->main_modulation = one.main_modulation;
        s->final_scale = one.final_scale;
        if (shared != s) {
            s->rope = shared->rope;
            s->caption = shared->caption;
            continue;
        }
        s->rope = arena_tensor(arena, DTYPE_F32, 3, (int32_t[]){rows, c->dims[HEAD] / 2, 2}, ok);
        s->caption = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){caption, dim}, ok);
    }
}

static const char *const zimage_ignorable[] = {"norm_final.", NULL};
static const char *const zimage_architectures[] = {"lumina2", "z_image", "zimage", NULL};
/* Sizes of the published Z-Image and Z-Image-Turbo, 6.15 B parameters. */
static const struct dimension zimage_dimensions[] = {
    {"heads", 30, 1, 1024, .place = HEADS, .key = "n_heads"},
    {"axis0", 32, 2, 256, .place = AXES},
    {"axis1", 48, 2, 256, .place = AXES + 1},
    {"axis2", 48, 2, 256, .place = AXES + 2},
    {"layers", 30, 1, 400, .place = LAYERS, OF_BLOCKS("layers."), .key = "n_layers"},
    {"refiners", 2, 0, 40, .place = REFINERS, OF_BLOCKS("noise_refiner."), .key = "n_refiner_layers"},
    {"hidden", 2560, 8, 65536, .place = CAPTION, OF_TENSOR(1, 0, "cap_embedder.0.weight"),
     .key = "cap_feat_dim"},
    {"latent_channels", 16, 1, 1024, .place = LATENT, .key = "in_channels"},
    {.place = HEADS, .key = "n_kv_heads"},
    {.place = DIM, OF_TENSOR(2, 1, "x_pad_token"), .key = "dim"},
    {.place = PATCH, OF_TENSOR(2, 1, "all_x_embedder.2-1.weight", "x_embedder.weight")},
    {.place = ADALN_DIM, OF_TENSOR(2, 0, "t_embedder.mlp.2.weight")},
    {.place = TIME_HIDDEN, OF_TENSOR(2, 0, "t_embedder.mlp.0.weight")},
    {.place = FREQUENCIES, OF_TENSOR(2, 1, "t_embedder.mlp.0.weight")},
    {.place = FEED_FORWARD, OF_TENSOR(2, 0, "layers.0.feed_forward.w1.weight")},
    {.place = HEAD, OF_TENSOR(1, 0, "layers.0.attention.norm_q.weight", "layers.0.attention.q_norm.weight")},
};

#define SETTING(key, field, type_, published, least, most)                                                   \
    { {key}, offsetof(struct zimage_settings, field), type_, published, least, most }
static const struct setting zimage_settings[] = {
    SETTING("rope_theta", rope_theta, SETTING_DOUBLE, 256, 1, 1e12),
    SETTING("norm_eps", norm_eps, SETTING_FLOAT, 1e-5, 0, 1),
    SETTING("t_scale", time_scale, SETTING_FLOAT, 1000, 1e-6, 1e9),
    SETTING("axes_dims.0", axis_dim[0], SETTING_INT, 32, 2, 512),
    SETTING("axes_dims.1", axis_dim[1], SETTING_INT, 48, 2, 512),
    SETTING("axes_dims.2", axis_dim[2], SETTING_INT, 48, 2, 512),
};

static void zimage_derive_dims(struct component *c) {
    struct zimage_settings *s = (struct zimage_settings *)c->settings;
    int32_t *d = c->dims;
    for (int i = 0; i < 3; i++) s->axis_dim[i] = d[AXES + i];
    d[HEAD] = d[AXES] + d[AXES + 1] + d[AXES + 2];
    d[DIM] = d[HEADS] * d[HEAD];
    d[FEED_FORWARD] = (int32_t)((double)d[DIM] / 3 * 8);
    d[ADALN_DIM] = d[DIM] < 256 ? d[DIM] : 256;
    d[TIME_HIDDEN] = 1024;
    d[FREQUENCIES] = 256;
    d[PATCH] = ZIMAGE_PATCH_SIDE * ZIMAGE_PATCH_SIDE * d[LATENT];
}

static void zimage_derive(struct component *c) {
    int32_t *d = c->dims;
    d[ONE] = 1;
    d[FOUR_DIM] = d[DIM] <= INT32_MAX / 4 ? 4 * d[DIM] : 0;
    d[HEADS] = d[DIM] / d[HEAD];
    d[LATENT] = d[PATCH] / (ZIMAGE_PATCH_SIDE * ZIMAGE_PATCH_SIDE);
    c->text_columns = d[CAPTION];
    c->latent_channels = d[LATENT];
}

static const struct state_tensor zimage_state_tensors[] = {
    STATE_TENSOR(zimage_state, tokens), STATE_TENSOR(zimage_state, rope), STATE_TENSOR(zimage_state, caption),
    STATE_TENSOR(zimage_state, time)};

#define MEASURED_LAYER(side)                                                                                 \
    .kind = "layer", .text_rows = 32, .text_columns = 2560, .latent_channels = 16, .latent_side = side,      \
    .picture_side = 1
static const struct measured_block zimage_measured[] = {
    {"block", "one Z-Image layer, 1056 tokens of 3840, 30 heads, feed-forward 10240", MEASURED_LAYER(64),
     .rounds = 7},
    {"short block", "one Z-Image layer, 288 tokens of 3840, 30 heads, feed-forward 10240", MEASURED_LAYER(32),
     .rounds = 9},
    {0}};

const struct family family_zimage = {
    .name = "zimage",
    .kind = FAMILY_DENOISER,
    .display_name = "transformer",
    .files = {.architectures = zimage_architectures,
              .config_key = "_class_name",
              .config_value = "ZImageTransformer2DModel",
              .probe = zimage_probe,
              .refuse = zimage_refuse,
              .ignorable = zimage_ignorable},
    .config = {.dimensions = zimage_dimensions,
               .n_dimensions = COUNT_OF(zimage_dimensions),
               .settings = zimage_settings,
               .n_settings = COUNT_OF(zimage_settings),
               .configure = zimage_configure,
               .derive_dims = zimage_derive_dims,
               .derive = zimage_derive,
               .rest = "\"all_patch_size\": [2], \"all_f_patch_size\": [1], \"qk_norm\": true, "
                       "\"axes_lens\": [1536, 512, 512]"},
    .blocks = {.list = zimage_blocks},
    .state = {.bytes = sizeof(struct zimage_state),
              .tensors = zimage_state_tensors,
              .n_tensors = COUNT_OF(zimage_state_tensors),
              .declare = zimage_declare},
    .predicted = {{.kind = "layer",
                   .alone = true,
                   .tokens = 4128,
                   .text_rows = 32,
                   .text_columns = 2560,
                   PREDICTED_IMAGE}},
    .measured = zimage_measured,
};

/* clang-format off */
static const struct hf_source zimage_turbo_files[] = {
    {"Tongyi-MAI/Z-Image-Turbo", NULL, NULL, 0},
    {"Comfy-Org/z_image_turbo", "--diffusion-model", "z_image_turbo_bf16.safetensors", 12300},
    {"leejet/Z-Image-Turbo-GGUF", "--diffusion-model", "z_image_turbo-Q4_K.gguf", 0},
    {0},
};
static const struct hf_source zimage_base_files[] = {
    {"Tongyi-MAI/Z-Image", NULL, NULL, 0},
    {"Comfy-Org/z_image", "--diffusion-model", "z_image_bf16.safetensors", 12300},
    {"unsloth/Z-Image-GGUF", "--diffusion-model", "z-image-Q6_K.gguf", 0},
    {0},
};
static const struct hf_source zimage_shared_files[] = {
    {"Comfy-Org/z_image_turbo", "--llm", "qwen_3_4b.safetensors", 8040},
    {"unsloth/Qwen3-4B-Instruct-2507-GGUF", "--llm", "Qwen3-4B-Instruct-2507-Q4_K_M.gguf", 2500},
    {"Comfy-Org/z_image_turbo", "--vae", "ae.safetensors", 335},
    {"madebyollin/taef1", "--taesd", TAE, 0},
    {0},
};

/* Z-Image. Template and limits: diffusers 0.42, pipelines/z_image (Qwen3's chat template with thinking
 * enabled adds no think block). Strength: pipeline_z_image_img2img.py. shift: default flow shift. least,
 * below: the recipe's range of the shift in scheduler_config.json. Further arguments: initialisers of
 * .selection. */
#define ZIMAGE(shift, least, below, ...)                                                                     \
    .slot = {{.family = &family_qwen3,                                                                       \
              .flag = "--llm",                                                                               \
              .folder = "text_encoder",                                                                      \
              .prefixes = NAMES({"", "text_encoders.qwen3_4b.transformer.", "text_encoders.llm.", NULL}),    \
              .text = {.template_before = "<|im_start|>user\n",                                              \
                       .template_after = "<|im_end|>\n<|im_start|>assistant\n",                              \
                       .tokens_max = 512,                                                                    \
                       .special_tokens = {"<|im_start|>", "<|im_end|>"},                                     \
                       .tokenizer = "BPE",                                                                   \
                       .tokenizer_folder = "tokenizer",                                                      \
                       .tokenizer_from = "--tokenizer PATH: tokenizer/tokenizer.json of the model's Hugging " \
                                         "Face folder, or tokenizer.json of Qwen/Qwen3-4B",                  \
                       .classes = {"Qwen3Model", "Qwen2Tokenizer"}}},                                        \
             DENOISER(family_zimage),                                                                        \
             VAE_KL},                                                                                        \
    .selection = {.pipelines = {"ZImagePipeline", "ZImageImg2ImgPipeline", "ZImageInpaintPipeline"},         \
                  .shift_least = (least),                                                                    \
                  .shift_below = (below),                                                                    \
                  __VA_ARGS__},                                                                              \
    .text = {.condition = {{.slot = 0, .what = CONDITION_TOKENS, .hidden = {.layers = {-2}}}},               \
             .n_conditions = 1},                                                                             \
    .images.samples_posterior = true,                                                                        \
    .denoising = {.span = {{1, INFINITY}},                                                                   \
                  .guide = guidance_cfg,                                                                     \
                  .sampling = {.prediction = &prediction_flow_inverted,                                      \
                               .schedule = &schedule_flow,                                                   \
                               .sampler = &sampler_euler},                                                   \
                  .shift_rule = FLOW_SHIFT_FIXED,                                                            \
                  .flow_shift = (shift)},                                                                    \
    .patch = 2, .colours = &latent_colours_flux
/* clang-format on */

/* Selects the recipe by the shift in scheduler/scheduler_config.json: 3 in Tongyi-MAI/Z-Image-Turbo, 6 in
 * Tongyi-MAI/Z-Image. */
#define SHIFT_BETWEEN 4.5

/* Z-Image-Turbo, which is distilled. */
const struct recipe recipe_zimage = {
    .name = "zimage",
    ZIMAGE(3, 0, SHIFT_BETWEEN, ),
    .defaults = {.width = 1024, .height = 1024, .steps = 8, .cfg_scale = 1, .strength = 0.6},
    .published = {.title = "Z-Image-Turbo",
                  .reference = DIFFUSERS,
                  .sources = {zimage_turbo_files, zimage_shared_files}},
};

/* Z-Image. Selected by file names such as z_image_bf16.safetensors; Turbo's is
 * z_image_turbo_bf16.safetensors. Steps and guidance: the model card's example, 50 steps and
 * guidance_scale 4. cfg_scale is 5, because diffusers computes cond + guidance_scale (cond - uncond) here. */
const struct recipe recipe_zimage_base = {
    .name = "zimage_base",
    ZIMAGE(6, SHIFT_BETWEEN, INFINITY, .name_word = "base", .name_aliases = {"z_image", "z-image"},
           .name_excludes = "turbo"),
    .defaults = {.width = 1024, .height = 1024, .steps = 50, .cfg_scale = 5, .strength = 0.6},
    .published = {.title = "Z-Image",
                  .reference = DIFFUSERS,
                  .sources = {zimage_base_files, zimage_shared_files}},
};
