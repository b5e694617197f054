/* A synthetic pipeline in one file: families and a recipe with engine features that no published pipeline
 * uses yet. It is small enough to be computed again in plain loops (test/models/test_synthetic_pipeline.c).
 *
 * - three text slots; two share a family (synthetic_text) and are told apart by their widths
 * - a vision slot; two denoisers of one family (synthetic_denoiser) with a timestep boundary
 * - eps prediction and a schedule of its own
 * - a sampler with two evaluations a step, one past prediction as input, and noise in every step
 * - videos, decoded in chunks of different sizes with a feature cache between them (synthetic_video_vae)
 * - learned position embeddings, of which a request reads only the rows that it needs
 * - text embeddings concatenated by columns and by rows, padded, with dropped tokens */
#include "test/lib/synthetic_pipeline.h"

#include "kernels/ops.h"

#include <math.h>
#include <string.h>

#define WEIGHT(structure, field, name, rank_, ...)                                                           \
    {                                                                                                        \
        .offset = offsetof(struct structure, field), .names = {name}, .rank = rank_, .dim = {__VA_ARGS__},   \
        .init_scale = 1                                                                                      \
    }
#define NORM(structure, field, name)                                                                         \
    {                                                                                                        \
        .offset = offsetof(struct structure, field), .names = {name}, .rank = 1, .dim = { WIDTH }            \
    }

/* The members common to all families of this file; more initialisers follow. */
#define FAMILY(of, kind_, word_, key, structure, ...)                                                        \
    {                                                                                                        \
        .name = #of, .kind = kind_, .display_name = word_, .files.config_key = key,                          \
        .files.config_value = #of, .files.probe = of##_probe, .config.dimensions = of##_dimensions,          \
        .config.n_dimensions = COUNT_OF(of##_dimensions), .blocks.list = of##_blocks,                        \
        .files.ignorable = synthetic_ignorable, .state.bytes = sizeof(struct structure), __VA_ARGS__         \
    }

static const char *const synthetic_ignorable[] = {NULL};

struct table_weights {
    struct tensor rows;
};

struct norm_weights {
    struct tensor weight;
};

/* MLP of text and vision encoders: x + down(gelu(up(norm(x)))). */
struct mlp_weights {
    struct tensor norm, up, up_bias, down, down_bias;
};

enum { WIDTH, FEED_FORWARD, LAYERS, VOCABULARY, COLOURS, K3 }; /* indices in a component's dims */

#define MLP(prefix)                                                                                          \
    NORM(mlp_weights, norm, prefix "norm.weight"),                                                           \
        WEIGHT(mlp_weights, up, prefix "up.weight", 2, FEED_FORWARD, WIDTH),                                 \
        WEIGHT(mlp_weights, up_bias, prefix "up.bias", 1, FEED_FORWARD),                                     \
        WEIGHT(mlp_weights, down, prefix "down.weight", 2, WIDTH, FEED_FORWARD),                             \
        WEIGHT(mlp_weights, down_bias, prefix "down.bias", 1, WIDTH)

struct synthetic_state {
    struct tensor tokens; /* [T, WIDTH] */
};

static void forward_table(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct table_weights *w = weights;
    const struct synthetic_state *state = scope->lane->state;
    op_copy(x, state->tokens, w->rows);
}

static void forward_mlp(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct mlp_weights *w = weights;
    const struct synthetic_state *state = scope->lane->state;
    struct tensor t = state->tokens, n = context_tensor(x, DTYPE_F32, 2, t.dim);
    struct tensor up = context_tensor(x, DTYPE_F32, 2, (int32_t[]){t.dim[0], w->up.dim[0]});
    op_rms_norm(x, n, t, w->norm, SYNTHETIC_EPS, (struct modulation){0});
    op_linear(x, up, n, w->up, (struct epilogue){.bias = w->up_bias, .activation = ACTIVATION_GELU_TANH});
    op_linear(x, t, up, w->down, (struct epilogue){.bias = w->down_bias, .residual = t});
}

/* Writes the conditioning rows that the denoisers read. */
static void forward_norm(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct norm_weights *w = weights;
    const struct synthetic_state *state = scope->lane->state;
    op_rms_norm(x, scope->lane->text, state->tokens, w->weight, SYNTHETIC_EPS, (struct modulation){0});
}

static void synthetic_declare(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                              struct arena *pictures, bool *ok) {
    (void)pictures;
    for (int i = 0; i < n_lanes; i++) {
        struct synthetic_state *state = lanes[i].state;
        int32_t rows = c->family->kind == FAMILY_TEXT ? lanes[i].n_tokens : lanes[i].text.dim[0];
        state->tokens = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){rows, c->dims[WIDTH]}, ok);
    }
}

/* synthetic_text: a text encoder in two slots. Text rows and pooled row come from different layers. */

static const struct weight_spec text_table[] = {
    WEIGHT(table_weights, rows, "text.embedding.weight", 2, VOCABULARY, WIDTH)};
static const struct weight_spec text_layer_table[] = {MLP("text.layers.%d.")};
static const struct weight_spec text_norm_table[] = {NORM(norm_weights, weight, "text.norm.weight")};
static const struct weight_spec text_pool_table[] = {
    WEIGHT(linear_weights, weight, "text.pool.weight", 2, WIDTH, WIDTH),
    WEIGHT(linear_weights, bias, "text.pool.bias", 1, WIDTH)};

static void text_forward_pool(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct linear_weights *w = weights;
    const struct synthetic_state *state = scope->lane->state;
    op_linear_few(x, scope->lane->pooled, tensor_slice(state->tokens, scope->lane->pooled_row, 1), w->weight,
                  w->bias, ACTIVATION_NONE);
}

static const struct block_kind text_kind_table =
    BLOCK_KIND("embedding", "embedding", text_table, table_weights, forward_table, .embedding_table = true);
static const struct block_kind text_kind_layer =
    BLOCK_KIND("layer", "layers.%d", text_layer_table, mlp_weights, forward_mlp);
static const struct block_kind text_kind_norm =
    BLOCK_KIND("norm", "norm", text_norm_table, norm_weights, forward_norm, .never_quantised = true);
static const struct block_kind text_kind_pool =
    BLOCK_KIND("pool", "pool", text_pool_table, linear_weights, text_forward_pool, .never_quantised = true);

static int synthetic_text_blocks(const struct component *c, struct block_ref *refs) {
    int n = 0;
    refs[n++] = (struct block_ref){.kind = &text_kind_table};
    for (int i = 0; i < c->dims[LAYERS]; i++) {
        if (i == c->dims[LAYERS] - c->reads.hidden.from_end[0])
            refs[n++] = (struct block_ref){.kind = &text_kind_norm};
        refs[n++] = (struct block_ref){.kind = &text_kind_layer, .number = i};
    }
    if (!c->reads.hidden.from_end[0]) refs[n++] = (struct block_ref){.kind = &text_kind_norm};
    refs[n++] = (struct block_ref){.kind = &text_kind_pool};
    return n;
}

static bool synthetic_text_probe(const struct tensor_index *index) {
    return index_find(index, "text.pool.weight");
}

static void text_derive(struct component *c) {
    c->text_columns = c->dims[WIDTH];
    c->pooled_columns = c->dims[WIDTH];
}

static const struct dimension synthetic_text_dimensions[] = {
    {"synthetic_vocabulary", 600, 514, 49408, .place = VOCABULARY, OF_TENSOR(2, 0, "text.embedding.weight")},
    {"synthetic_width", 24, 8, 4096, .place = WIDTH, OF_TENSOR(2, 1, "text.embedding.weight"),
     .key = "width"},
    {"synthetic_ff", 96, 8, 4096, .place = FEED_FORWARD, OF_TENSOR(2, 0, "text.layers.0.up.weight")},
    {"synthetic_layers", 3, 2, 100, .place = LAYERS, OF_BLOCKS("text.layers."), .key = "layers"},
};

const struct family family_synthetic_text =
    FAMILY(synthetic_text, FAMILY_TEXT, "synthetic text encoder", "model_type", synthetic_state,
           .config.derive = text_derive, .state.declare = synthetic_declare, .reads = {.tokens = true});

/* synthetic_llm: a text encoder without layers. */

static const struct weight_spec llm_table[] = {
    WEIGHT(table_weights, rows, "llm.embedding.weight", 2, VOCABULARY, WIDTH)};
static const struct weight_spec llm_norm_table[] = {NORM(norm_weights, weight, "llm.norm.weight")};
static const struct block_kind llm_kind_table =
    BLOCK_KIND("embedding", "embedding", llm_table, table_weights, forward_table, .embedding_table = true);
static const struct block_kind llm_kind_norm =
    BLOCK_KIND("norm", "norm", llm_norm_table, norm_weights, forward_norm, .never_quantised = true);

static int synthetic_llm_blocks(const struct component *c, struct block_ref *refs) {
    (void)c;
    refs[0] = (struct block_ref){.kind = &llm_kind_table};
    refs[1] = (struct block_ref){.kind = &llm_kind_norm};
    return 2;
}

static bool synthetic_llm_probe(const struct tensor_index *index) {
    return index_find(index, "llm.norm.weight");
}

static void llm_derive(struct component *c) {
    c->text_columns = c->dims[WIDTH];
}

static const struct dimension synthetic_llm_dimensions[] = {
    {"synthetic_llm", 300, 282, 151936, .place = VOCABULARY, OF_TENSOR(2, 0, "llm.embedding.weight")},
    {"synthetic_llm_width", 48, 8, 4096, .place = WIDTH, OF_TENSOR(2, 1, "llm.embedding.weight")},
};

const struct family family_synthetic_llm =
    FAMILY(synthetic_llm, FAMILY_TEXT, "synthetic LLM", "model_type", synthetic_state,
           .config.derive = llm_derive, .state.declare = synthetic_declare);

/* synthetic_vision: a vision encoder with one token per four pixels. */

static const struct weight_spec vision_in_table[] = {
    WEIGHT(linear_weights, weight, "vision.in.weight", 4, WIDTH, COLOURS, K3, K3),
    WEIGHT(linear_weights, bias, "vision.in.bias", 1, WIDTH)};
static const struct weight_spec vision_layer_table[] = {MLP("vision.layers.%d.")};
static const struct weight_spec vision_norm_table[] = {NORM(norm_weights, weight, "vision.norm.weight")};

static void vision_forward_in(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct linear_weights *w = weights;
    const struct synthetic_state *state = scope->lane->state;
    struct tensor picture = lane_picture(scope->lane);
    int32_t dim[] = {picture.dim[0] / 2, picture.dim[1] / 2, w->weight.dim[0]};
    op_conv2d(x, tensor_reshape(state->tokens, 3, dim), picture, w->weight,
              (struct epilogue){.bias = w->bias}, (struct conv_options){.upsample = 1, .stride = 2});
}

static const struct block_kind vision_kind_in =
    BLOCK_KIND("in", "in", vision_in_table, linear_weights, vision_forward_in, .never_quantised = true);
static const struct block_kind vision_kind_layer =
    BLOCK_KIND("layer", "layers.%d", vision_layer_table, mlp_weights, forward_mlp);
static const struct block_kind vision_kind_norm =
    BLOCK_KIND("norm", "norm", vision_norm_table, norm_weights, forward_norm, .never_quantised = true);

static int synthetic_vision_blocks(const struct component *c, struct block_ref *refs) {
    int n = 0;
    refs[n++] = (struct block_ref){.kind = &vision_kind_in};
    for (int i = 0; i < c->dims[LAYERS]; i++)
        refs[n++] = (struct block_ref){.kind = &vision_kind_layer, .number = i};
    refs[n++] = (struct block_ref){.kind = &vision_kind_norm};
    return n;
}

struct vision_settings {
    int32_t side;
};

/* The grid of vision tokens is settings.side pixels high; for a wide image it is twice as wide. */
static struct vision_grid vision_grid_of(const struct component *c, int width, int height) {
    const struct vision_settings *s = (const void *)c->settings;
    int32_t read_width = width > height ? 2 * s->side : s->side;
    return (struct vision_grid){
        .width = read_width, .height = s->side, .columns = read_width / 2, .rows = s->side / 2};
}

static bool synthetic_vision_probe(const struct tensor_index *index) {
    return index_find(index, "vision.in.weight");
}

static void vision_derive(struct component *c) {
    c->dims[COLOURS] = 3;
    c->dims[K3] = 3;
    c->text_columns = c->dims[WIDTH];
}

static const struct dimension synthetic_vision_dimensions[] = {
    {"synthetic_vision_width", 64, 8, 4096, .place = WIDTH, OF_TENSOR(1, 0, "vision.in.bias")},
    {"synthetic_vision_ff", 80, 8, 4096, .place = FEED_FORWARD, OF_TENSOR(2, 0, "vision.layers.0.up.weight")},
    {"synthetic_vision_layers", 3, 1, 100, .place = LAYERS, OF_BLOCKS("vision.layers.")},
};

static const struct setting vision_settings[] = {
    {{"size.shortest_edge", "side"}, offsetof(struct vision_settings, side), SETTING_INT, 4, 2, 64}};

const struct family family_synthetic_vision =
    FAMILY(synthetic_vision, FAMILY_VISION, "synthetic vision encoder", "model_type", synthetic_state,
           .config.derive = vision_derive, .config.picture_settings = vision_settings,
           .config.n_picture_settings = COUNT_OF(vision_settings), .state.declare = synthetic_declare,
           .lanes.vision_grid = vision_grid_of);

/* synthetic_denoiser: a denoiser with cross-attention to the text. */

enum { DIM = 0, TEXT = 6, POOLED, LATENT, FREQUENCIES, POSITIONS, TWO_DIM };

struct conditioning_weights {
    struct tensor time, pooled, bias;
};

struct layer_weights {
    struct tensor q, k, v, out, up, down;
};

struct denoiser_state {
    struct tensor tokens;     /* image tokens [F Y X, DIM] */
    struct tensor text, rope; /* text embeddings [T, DIM], RoPE table [T, head / 2, 2] */
    struct tensor condition;  /* conditioning [rows, DIM]; one row per evaluation if hoisted, else one row */
    struct tensor modulation; /* scale and shift of each layer [LAYERS, rows, 2 DIM] */
};

static const struct weight_spec denoiser_position_table[] = {
    WEIGHT(table_weights, rows, "denoiser.positions.weight", 2, POSITIONS, DIM)};
static const struct weight_spec denoiser_in_table[] = {
    WEIGHT(linear_weights, weight, "denoiser.in.weight", 2, DIM, LATENT),
    WEIGHT(linear_weights, bias, "denoiser.in.bias", 1, DIM)};
static const struct weight_spec denoiser_context_table[] = {
    WEIGHT(linear_weights, weight, "denoiser.context.weight", 2, DIM, TEXT),
    WEIGHT(linear_weights, bias, "denoiser.context.bias", 1, DIM)};
static const struct weight_spec denoiser_conditioning_table[] = {
    WEIGHT(conditioning_weights, time, "denoiser.time.weight", 2, DIM, FREQUENCIES),
    WEIGHT(conditioning_weights, pooled, "denoiser.pooled.weight", 2, DIM, POOLED),
    WEIGHT(conditioning_weights, bias, "denoiser.pooled.bias", 1, DIM)};
static const struct weight_spec denoiser_modulation_table[] = {
    WEIGHT(linear_weights, weight, "denoiser.layers.%d.modulation.weight", 2, TWO_DIM, DIM),
    WEIGHT(linear_weights, bias, "denoiser.layers.%d.modulation.bias", 1, TWO_DIM)};
static const struct weight_spec denoiser_layer_table[] = {
    WEIGHT(layer_weights, q, "denoiser.layers.%d.q.weight", 2, DIM, DIM),
    WEIGHT(layer_weights, k, "denoiser.layers.%d.k.weight", 2, DIM, DIM),
    WEIGHT(layer_weights, v, "denoiser.layers.%d.v.weight", 2, DIM, DIM),
    WEIGHT(layer_weights, out, "denoiser.layers.%d.out.weight", 2, DIM, DIM),
    WEIGHT(layer_weights, up, "denoiser.layers.%d.up.weight", 2, FEED_FORWARD, DIM),
    WEIGHT(layer_weights, down, "denoiser.layers.%d.down.weight", 2, DIM, FEED_FORWARD)};
static const struct weight_spec denoiser_out_table[] = {
    WEIGHT(linear_weights, weight, "denoiser.out.weight", 2, LATENT, DIM),
    WEIGHT(linear_weights, bias, "denoiser.out.bias", 1, LATENT)};

static struct tensor denoiser_modulation(const struct denoiser_state *state,
                                         const struct visit_scope *scope) {
    struct tensor all = state->modulation;
    all = tensor_reshape(tensor_slice(all, scope->number, 1), 2, all.dim + 1);
    return scope_rows(all, scope);
}

static void denoiser_forward_positions(struct context *x, const void *weights,
                                       const struct visit_scope *scope) {
    const struct table_weights *w = weights;
    const struct denoiser_state *state = scope->lane->state;
    op_copy(x, state->tokens, w->rows);
}

static void denoiser_forward_in(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct linear_weights *w = weights;
    const struct denoiser_state *state = scope->lane->state;
    struct tensor latent = latent_planes(scope->lane->latent), t = state->tokens;
    struct tensor patches = context_tensor(x, DTYPE_F32, 2, (int32_t[]){t.dim[0], latent.dim[0]});
    op_patchify(x, patches, latent, (struct patches){.side = 1, .order = PATCH_CHANNELS_FIRST});
    op_linear(x, t, patches, w->weight, (struct epilogue){.bias = w->bias, .residual = t});
}

static void denoiser_forward_context(struct context *x, const void *weights,
                                     const struct visit_scope *scope) {
    const struct linear_weights *w = weights;
    const struct denoiser_state *state = scope->lane->state;
    struct rope_options rope = {
        .theta = 100, .n_axes = 1, .axis_dim = {2 * state->rope.dim[1]}, .n_grids = 1};
    rope.grid[0].extent[0] = state->rope.dim[0];
    op_linear(x, state->text, scope->lane->text, w->weight, (struct epilogue){.bias = w->bias});
    op_rope_table(x, state->rope, &rope);
}

static void denoiser_forward_conditioning(struct context *x, const void *weights,
                                          const struct visit_scope *scope) {
    const struct conditioning_weights *w = weights;
    const struct denoiser_state *state = scope->lane->state;
    struct tensor rows = scope_rows(state->condition, scope);
    struct tensor f = context_tensor(x, DTYPE_F32, 2, (int32_t[]){rows.dim[0], w->time.dim[1]});
    struct tensor pooled = context_tensor(x, DTYPE_F32, 2, (int32_t[]){1, rows.dim[1]});
    for (int32_t i = 0; i < rows.dim[0]; i++)
        op_timestep(x, tensor_slice(f, i, 1), scope->timesteps[i], TIMESTEP_USUAL);
    op_linear_few(x, rows, f, w->time, (struct tensor){0}, ACTIVATION_NONE);
    op_linear_few(x, pooled, scope->lane->pooled, w->pooled, w->bias, ACTIVATION_NONE);
    op_add(x, rows, rows, pooled);
}

static void denoiser_forward_modulation(struct context *x, const void *weights,
                                        const struct visit_scope *scope) {
    const struct linear_weights *w = weights;
    const struct denoiser_state *state = scope->lane->state;
    op_linear_few(x, denoiser_modulation(state, scope), scope_rows(state->condition, scope), w->weight,
                  w->bias, ACTIVATION_SILU);
}

/* One layer: x += out(attention(n, text)); x += down(gelu(up(n))), with n = norm(x) (1 + scale) + shift. RoPE
 * rotates the keys by the text's positions. */
static void denoiser_forward_layer(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct layer_weights *w = weights;
    const struct denoiser_state *state = scope->lane->state;
    struct tensor t = state->tokens, m = denoiser_modulation(state, scope);
    int32_t dim = t.dim[1], *text = (int32_t[]){state->text.dim[0], dim};
    struct affine affine = {.scale = tensor_make(m.data, DTYPE_F32, 1, &dim),
                            .shift = tensor_make(m.data ? (float *)m.data + dim : NULL, DTYPE_F32, 1, &dim)};
    struct tensor n = context_tensor(x, DTYPE_F32, 2, t.dim), q = context_tensor(x, DTYPE_F32, 2, t.dim);
    struct tensor k = context_tensor(x, DTYPE_F32, 2, text), v = context_tensor(x, DTYPE_F32, 2, text);
    struct tensor up = context_tensor(x, DTYPE_F32, 2, (int32_t[]){t.dim[0], w->up.dim[0]});
    op_layer_norm(x, n, t, affine, SYNTHETIC_EPS);
    op_linear(x, q, n, w->q, (struct epilogue){0});
    op_linear(x, k, state->text, w->k, (struct epilogue){0});
    op_linear(x, v, state->text, w->v, (struct epilogue){0});
    op_rope(x, k, k, state->rope, (struct rotation){.heads = SYNTHETIC_HEADS, .pairs = ROPE_INTERLEAVED});
    op_attention(x, q, q, k, v,
                 (struct attention_options){.queries = SYNTHETIC_HEADS,
                                            .keys = SYNTHETIC_HEADS,
                                            .scale = 1 / sqrtf(dim / SYNTHETIC_HEADS)});
    op_linear(x, t, q, w->out, (struct epilogue){.residual = t});
    op_layer_norm(x, n, t, affine, SYNTHETIC_EPS);
    op_linear(x, up, n, w->up, (struct epilogue){.activation = ACTIVATION_GELU_TANH});
    op_linear(x, t, up, w->down, (struct epilogue){.residual = t});
}

static void denoiser_forward_out(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct linear_weights *w = weights;
    const struct denoiser_state *state = scope->lane->state;
    struct tensor out = latent_planes(scope->lane->prediction), t = state->tokens;
    struct tensor n = context_tensor(x, DTYPE_F32, 2, t.dim);
    struct tensor patches = context_tensor(x, DTYPE_F32, 2, (int32_t[]){t.dim[0], out.dim[0]});
    op_layer_norm(x, n, t, (struct affine){0}, SYNTHETIC_EPS);
    op_linear(x, patches, n, w->weight, (struct epilogue){.bias = w->bias});
    op_unpatchify(x, out, patches, (struct patches){.side = 1, .order = PATCH_CHANNELS_FIRST}, 1);
}

static const struct block_kind denoiser_kind_positions =
    BLOCK_KIND("positions", "positions", denoiser_position_table, table_weights, denoiser_forward_positions,
               .embedding_table = true);
static const struct block_kind denoiser_kind_in =
    BLOCK_KIND("in", "in", denoiser_in_table, linear_weights, denoiser_forward_in, .never_quantised = true);
static const struct block_kind denoiser_kind_context =
    BLOCK_KIND("context", "context", denoiser_context_table, linear_weights, denoiser_forward_context,
               .update_rate = UPDATE_PER_PROMPT, .never_quantised = true);
static const struct block_kind denoiser_kind_conditioning = BLOCK_KIND(
    "conditioning", "conditioning", denoiser_conditioning_table, conditioning_weights,
    denoiser_forward_conditioning, .update_rate = UPDATE_PER_TIMESTEP_AND_PROMPT, .never_quantised = true);
static const struct block_kind denoiser_kind_modulation =
    BLOCK_KIND("modulation", "layers.%d.modulation", denoiser_modulation_table, linear_weights,
               denoiser_forward_modulation, .update_rate = UPDATE_PER_TIMESTEP_AND_PROMPT);
static const struct block_kind denoiser_kind_layer = BLOCK_KIND(
    "layer", "layers.%d", denoiser_layer_table, layer_weights, denoiser_forward_layer, .skippable = true);
static const struct block_kind denoiser_kind_out = BLOCK_KIND(
    "out", "out", denoiser_out_table, linear_weights, denoiser_forward_out, .never_quantised = true);

static int synthetic_denoiser_blocks(const struct component *c, struct block_ref *refs) {
    int n = 0;
    refs[n++] = (struct block_ref){.kind = &denoiser_kind_positions};
    refs[n++] = (struct block_ref){.kind = &denoiser_kind_context};
    refs[n++] = (struct block_ref){.kind = &denoiser_kind_conditioning};
    refs[n++] = (struct block_ref){.kind = &denoiser_kind_in};
    for (int i = 0; i < c->dims[LAYERS]; i++) {
        refs[n++] = (struct block_ref){.kind = &denoiser_kind_modulation, .number = i};
        refs[n++] = (struct block_ref){.kind = &denoiser_kind_layer, .number = i};
    }
    refs[n++] = (struct block_ref){.kind = &denoiser_kind_out};
    return n;
}

static bool synthetic_denoiser_probe(const struct tensor_index *index) {
    return index_find(index, "denoiser.positions.weight");
}

static void denoiser_derive(struct component *c) {
    int32_t *d = c->dims;
    d[TWO_DIM] = 2 * d[DIM];
    c->text_columns = d[TEXT];
    c->pooled_columns = d[POOLED];
    c->latent_channels = d[LATENT];
}

/* The table of position embeddings has SYNTHETIC_SIDE x SYNTHETIC_SIDE rows per frame. */
static int denoiser_rows(const struct component *c, int i_table, const struct lane *lane, int32_t *rows) {
    const int32_t *dim = lane->latent.dim;
    int n = 0;
    (void)c, (void)i_table;
    for (int32_t i = 0; i < dim[1] * dim[2]; i++)
        for (int32_t x = 0; x < dim[3]; x++, n++)
            if (rows) rows[n] = (i / dim[2] * SYNTHETIC_SIDE + i % dim[2]) * SYNTHETIC_SIDE + x;
    return n;
}

static enum status denoiser_check_lanes(const struct component *c, const struct lane *lanes, int n_lanes,
                                        struct error *e) {
    const int32_t *dim = lanes->latent.dim;
    (void)c, (void)n_lanes;
    if (dim[2] <= SYNTHETIC_SIDE && dim[3] <= SYNTHETIC_SIDE) return OK;
    return error_set(e, SHAPE,
                     "the latent is larger than the synthetic denoiser's position table" FOUND "%dx%d",
                     dim[3], dim[2]);
}

static void denoiser_declare(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                             struct arena *pictures, bool *ok) {
    (void)pictures;
    for (int i = 0; i < n_lanes; i++) {
        struct denoiser_state *s = lanes[i].state;
        const int32_t *d = c->dims, *latent = lanes[i].latent.dim;
        int32_t rows = lanes[i].hoisted ? lanes[i].hoisted : 1, text = lanes[i].text.dim[0];
        int first = lane_first_of_prompt(lanes, i);
        if (first != i) *s = *(const struct denoiser_state *)lanes[first].state;
        s->tokens =
            arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){latent[1] * latent[2] * latent[3], d[DIM]}, ok);
        if (first != i) continue;
        s->text = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){text, d[DIM]}, ok);
        s->rope = arena_tensor(arena, DTYPE_F32, 3, (int32_t[]){text, d[DIM] / SYNTHETIC_HEADS / 2, 2}, ok);
        s->condition = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){rows, d[DIM]}, ok);
        s->modulation = arena_tensor(arena, DTYPE_F32, 3, (int32_t[]){d[LAYERS], rows, d[TWO_DIM]}, ok);
    }
}

static const struct dimension synthetic_denoiser_dimensions[] = {
    {"synthetic_dim", 64, 8, 4096, .place = DIM, OF_TENSOR(2, 0, "denoiser.in.weight")},
    {"synthetic_denoiser_ff", 160, 8, 4096, .place = FEED_FORWARD,
     OF_TENSOR(2, 0, "denoiser.layers.0.up.weight")},
    {"synthetic_denoiser_layers", 4, 1, 100, .place = LAYERS, OF_BLOCKS("denoiser.layers.")},
    {"synthetic_columns", 64, 8, 4096, .place = TEXT, OF_TENSOR(2, 1, "denoiser.context.weight")},
    {"synthetic_pooled", 64, 8, 4096, .place = POOLED, OF_TENSOR(2, 1, "denoiser.pooled.weight")},
    {"synthetic_latent", SYNTHETIC_CHANNELS, SYNTHETIC_CHANNELS, SYNTHETIC_CHANNELS, .place = LATENT,
     OF_TENSOR(2, 1, "denoiser.in.weight")},
    {"synthetic_frequencies", 16, 2, 256, .place = FREQUENCIES, OF_TENSOR(2, 1, "denoiser.time.weight")},
    {"synthetic_positions", 2048, 1, 65536, .place = POSITIONS, OF_TENSOR(2, 0, "denoiser.positions.weight")},
};

const struct family family_synthetic_denoiser =
    FAMILY(synthetic_denoiser, FAMILY_DENOISER, "synthetic denoiser", "_class_name", denoiser_state,
           .config.derive = denoiser_derive, .state.declare = denoiser_declare, .blocks.rows = denoiser_rows,
           .lanes.check = denoiser_check_lanes);

/* synthetic_video_vae: a decoder in which each latent frame depends on the previous one. */

struct causal_in_weights {
    struct tensor weight, bias;
};

struct causal_time_weights {
    struct tensor weight;
};

struct causal_out_weights {
    struct tensor split, weight, bias;
};

enum { TIMES_MAX = 4 };

struct causal_state {
    struct tensor frames; /* the chunk's latent frames [N Y X, WIDTH] */
    struct tensor
        before[TIMES_MAX]; /* feature cache [Y X, WIDTH] per layer: the last frame of the previous chunk */
    struct tensor
        halves; /* video frames [N, Y X, WIDTH] before the output convolution; tiled: one frame at a time */
};

/* Scale and shift of each latent channel. */
static const struct latent_format video_vae_format = {
    .n = SYNTHETIC_CHANNELS, .scale = {1.5f, 1.25f, 0.75f, 2}, .shift = {0.25f, -0.5f, 0.125f, 0}};

/* The first chunk has one latent frame; each further chunk has two, which decode to four frames. */
static struct frame_chunk video_vae_chunk(int32_t latent_frames, int i) {
    struct frame_chunk c = {0, 1, 0, 1};
    if (!i) return c;
    c.first_latent = 2 * i - 1;
    c.n_latents = latent_frames - c.first_latent < 2 ? 1 : 2;
    c.first_frame = 2 * c.first_latent - 1;
    c.n_frames = 2 * c.n_latents;
    return c;
}

static int video_vae_chunks(const struct component *c, int32_t latent_frames, struct frame_chunk *chunks) {
    int n = 1 + latent_frames / 2;
    (void)c;
    for (int i = 0; i < n && n <= FRAME_CHUNKS_MAX; i++) chunks[i] = video_vae_chunk(latent_frames, i);
    return n;
}

static const struct weight_spec video_vae_in_table[] = {
    WEIGHT(causal_in_weights, weight, "video_vae.in.weight", 2, WIDTH, LATENT),
    WEIGHT(causal_in_weights, bias, "video_vae.in.bias", 1, WIDTH)};
static const struct weight_spec video_vae_time_table[] = {
    WEIGHT(causal_time_weights, weight, "video_vae.time.%d.weight", 2, WIDTH, WIDTH)};
static const struct weight_spec video_vae_out_table[] = {
    WEIGHT(causal_out_weights, split, "video_vae.split.weight", 2, TWO_DIM, WIDTH),
    WEIGHT(causal_out_weights, weight, "video_vae.out.weight", 4, COLOURS, WIDTH, K3, K3),
    WEIGHT(causal_out_weights, bias, "video_vae.out.bias", 1, COLOURS)};

/* Returns latent frame i of the chunk. */
static struct tensor video_vae_frame(const struct causal_state *state, int32_t i) {
    int32_t pixels = state->before[0].dim[0];
    return tensor_slice(state->frames, i * pixels, pixels);
}

static void video_vae_forward_in(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct causal_in_weights *w = weights;
    const struct causal_state *state = scope->lane->state;
    struct tensor latent = latent_planes(scope->lane->latent);
    struct frame_chunk c = video_vae_chunk(scope->lane->latent.dim[1], scope->chunk);
    int32_t all = latent.dim[1] * latent.dim[2], pixels = state->before[0].dim[0];
    struct tensor image =
        context_tensor(x, DTYPE_F32, 3, (int32_t[]){latent.dim[1], latent.dim[2], latent.dim[0]});
    op_latent_to_image(x, image, latent, video_vae_format);
    struct tensor rows = tensor_reshape(image, 2, (int32_t[]){all, latent.dim[0]});
    op_linear(x, tensor_slice(state->frames, 0, c.n_latents * pixels),
              tensor_slice(rows, c.first_latent * pixels, c.n_latents * pixels), w->weight,
              (struct epilogue){.bias = w->bias, .activation = ACTIVATION_GELU_TANH});
}

/* Goes through the frames from the last to the first, so that each frame adds the unmodified frame before it.
 */
static void video_vae_forward_time(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct causal_time_weights *w = weights;
    const struct causal_state *state = scope->lane->state;
    struct frame_chunk c = video_vae_chunk(scope->lane->latent.dim[1], scope->chunk);
    struct tensor before = state->before[scope->number],
                  kept = context_tensor(x, DTYPE_F32, before.rank, before.dim);
    op_copy(x, kept, video_vae_frame(state, c.n_latents - 1));
    for (int32_t i = c.n_latents - 1; i >= 0; i--) {
        struct tensor frame = video_vae_frame(state, i), last = i ? video_vae_frame(state, i - 1) : before;
        if (i || scope->chunk) op_linear(x, frame, last, w->weight, (struct epilogue){.residual = frame});
    }
    op_copy(x, before, kept);
}

/* The first half of `split` gives the first of a latent frame's two images, the second half gives the second
 * image. */
static void video_vae_forward_out(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct causal_out_weights *w = weights;
    const struct causal_state *state = scope->lane->state;
    const struct lane *lane = scope->lane;
    struct frame_chunk c = video_vae_chunk(lane->latent.dim[1], scope->chunk);
    int32_t width = w->split.dim[1], image[] = {lane->latent.dim[2], lane->latent.dim[3], width};
    int32_t kept = state->halves.dim[0];
    for (int32_t first = 0; first < c.n_frames; first += kept) {
        for (int32_t i = first; i < c.n_frames && i < first + kept; i++) {
            struct tensor half = tensor_slice(state->halves, i - first, 1);
            op_linear(x, tensor_reshape(half, 2, half.dim + 1), video_vae_frame(state, i / 2),
                      tensor_slice(w->split, i % 2 * width, width), (struct epilogue){0});
        }
        for (int32_t i = first; i < c.n_frames && i < first + kept; i++) {
            struct tensor picture = tensor_slice(lane->picture, i, 1);
            op_conv2d(x, tensor_reshape(picture, 3, picture.dim + 1),
                      tensor_reshape(tensor_slice(state->halves, i - first, 1), 3, image), w->weight,
                      (struct epilogue){.bias = w->bias}, (struct conv_options){.upsample = 2});
        }
    }
}

static const struct block_kind video_vae_kind_in = BLOCK_KIND(
    "in", "in", video_vae_in_table, causal_in_weights, video_vae_forward_in, .never_quantised = true);
static const struct block_kind video_vae_kind_time =
    BLOCK_KIND("time", "time.%d", video_vae_time_table, causal_time_weights, video_vae_forward_time,
               .never_quantised = true);
static const struct block_kind video_vae_kind_out = BLOCK_KIND(
    "out", "out", video_vae_out_table, causal_out_weights, video_vae_forward_out, .never_quantised = true);

static int synthetic_video_vae_blocks(const struct component *c, struct block_ref *refs) {
    int n = 0;
    refs[n++] = (struct block_ref){.kind = &video_vae_kind_in};
    for (int i = 0; i < c->dims[LAYERS]; i++)
        refs[n++] = (struct block_ref){.kind = &video_vae_kind_time, .number = i};
    refs[n++] = (struct block_ref){.kind = &video_vae_kind_out};
    return n;
}

static bool synthetic_video_vae_probe(const struct tensor_index *index) {
    return index_find(index, "video_vae.split.weight");
}

static void video_vae_derive(struct component *c) {
    vision_derive(c);
    c->dims[TWO_DIM] = 2 * c->dims[WIDTH];
    c->latent_channels = c->dims[LATENT];
    c->pixel_factor = 2;
    c->frame_factor = 2;
    c->latent_format = video_vae_format;
}

/* All lanes of the video VAE share one state, because they decode one after another. */
static void video_vae_declare(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                              struct arena *pictures, bool *ok) {
    struct causal_state first = {0};
    const int32_t *latent = lanes->latent.dim;
    int32_t most = latent[1] > 1 ? 2 : 1, pixels = latent[2] * latent[3], width = c->dims[WIDTH];
    first.frames = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){most * pixels, width}, ok);
    for (int i = 0; i < c->dims[LAYERS]; i++)
        first.before[i] = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){pixels, width}, ok);
    first.halves = arena_tensor(pictures, DTYPE_F32, 3,
                                (int32_t[]){lanes->tiled ? 1 : lanes->picture.dim[0], pixels, width}, ok);
    for (int i = 0; i < n_lanes; i++) *(struct causal_state *)lanes[i].state = first;
}

static const struct dimension synthetic_video_vae_dimensions[] = {
    {"synthetic_video_vae_width", 32, 8, 4096, .place = WIDTH, OF_TENSOR(1, 0, "video_vae.in.bias")},
    {"synthetic_times", 3, 1, TIMES_MAX, .place = LAYERS, OF_BLOCKS("video_vae.time.")},
    {"synthetic_latent", SYNTHETIC_CHANNELS, SYNTHETIC_CHANNELS, SYNTHETIC_CHANNELS, .place = LATENT,
     OF_TENSOR(2, 1, "video_vae.in.weight")},
};

const struct family family_synthetic_video_vae = FAMILY(
    synthetic_video_vae, FAMILY_DECODER, "synthetic decoder", "_class_name", causal_state,
    .config.derive = video_vae_derive, .state.declare = video_vae_declare, .lanes.chunks = video_vae_chunks);

/* Sigmas fall from 8 by a constant factor each step: to 1 before the last of four steps. */
static void synthetic_fill_schedule(const struct schedule *self, const struct schedule_options *options,
                                    struct grid *grid) {
    (void)self;
    int n = options->n;
    *grid = (struct grid){.form = GRID_VARIANCE_EXPLODING, .step = grid->step, .n = n, .n_total = n};
    for (int i = 0; i < n; i++) {
        grid->step[i].at = grid_point_of_sigma(GRID_VARIANCE_EXPLODING, (float)exp2(3 - 4.0 * i / n),
                                               1000 - 900.0f * (float)i / (float)n);
        if (i) grid->step[i - 1].to = grid->step[i].at;
    }
    grid->step[n - 1].to = grid_point_of_sigma(GRID_VARIANCE_EXPLODING, 0, 0);
    grid->init_noise_sigma = grid->step[0].at.sigma;
}

static const struct schedule synthetic_schedule = {
    .name = "synthetic", .class_name = "SyntheticScheduler", .fill = synthetic_fill_schedule};

/* The second evaluation of a step is at a point between two steps. The last step has no second evaluation. */
static bool evaluation_point(const struct grid *grid, int step, int evaluation, struct grid_point *at) {
    const struct grid_step *s = &grid->step[step];
    (void)evaluation;
    if (s->to.sigma > 0) *at = grid_between(grid, step, sqrtf(s->at.sigma * s->to.sigma));
    return s->to.sigma > 0;
}

/* The update moves towards a combination of past and present prediction: an extrapolation in the first half
 * step, the mean of the two predictions in the second. Noise is added at the step's end. */
static void synthetic_update(const struct sampler_update *u) {
    float to = u->grid->step[u->step].to.sigma, from = u->grid->step[u->step].at.sigma, *past = u->history[0];
    float middle = to > 0 ? sqrtf(from * to) : 0, ratio = u->evaluation ? to / middle : middle / from;
    for (int64_t i = 0; i < u->n; i++) {
        float now = u->output[i], towards = now;
        if (u->evaluation)
            towards = 0.5f * (now + past[i]);
        else if (u->step)
            towards = 1.25f * now - 0.25f * past[i];
        u->sample[i] = ratio * u->sample[i] + (1 - ratio) * towards;
        if (u->noise) u->sample[i] += 0.125f * from * u->noise[i];
        past[i] = now;
    }
}

static const struct sampler synthetic_sampler = {.name = "synthetic",
                                                 .form = PREDICTION_DENOISED,
                                                 .evaluations = 2,
                                                 .history = 1,
                                                 .draws_noise = NOISE_AT_STEP_END,
                                                 .evaluation_point = evaluation_point,
                                                 .update = synthetic_update};

/* Returns the encoder's width, which distinguishes the two text encoders: the second is wider. */
static int text_width(const struct tensor_index *view) {
    const struct index_entry *entry = index_find(view, "text.norm.weight");
    return entry ? entry->dim[0] : 0;
}

static bool text_is_first(const struct tensor_index *view) {
    return text_width(view) <= 24;
}

static bool text_is_second(const struct tensor_index *view) {
    return text_width(view) > 24;
}

static const char *const synthetic_prefixes[][3] = {
    {"", "synthetic.text_a."},    {"", "synthetic.text_b."}, {"", "synthetic.llm."},
    {"", "synthetic.vision."},    {"", "synthetic.high."},   {"", "synthetic.low."},
    {"", "synthetic.video_vae."},
};

#define SYNTHETIC_FROM "--tokenizer PATH: the synthetic pipeline's folder"
#define SLOT(place, of, flag_, folder_, ...)                                                                 \
    [place] = {.family = &family_##of,                                                                       \
               .flag = flag_,                                                                                \
               .folder = folder_,                                                                            \
               .prefixes = synthetic_prefixes[place],                                                        \
               __VA_ARGS__}
#define CLIP_TEXT(folder_)                                                                                   \
    .bos = "<|startoftext|>", .eos = "<|endoftext|>", .tokenizer = "CLIP BPE", .tokenizer_folder = folder_,  \
    .tokenizer_from = SYNTHETIC_FROM, .classes = {"SyntheticText", "CLIPTokenizer"}

const struct recipe recipe_synthetic = {
    .name = "synthetic",
    .slot = {SLOT(SYNTHETIC_TEXT, synthetic_text, "--synthetic-text", "text_encoder",
                  .matches = text_is_first, .text = {CLIP_TEXT("tokenizer"), .tokens_max = 11}),
             SLOT(SYNTHETIC_TEXT_2, synthetic_text, "--synthetic-text-2", "text_encoder_2",
                  .matches = text_is_second,
                  .text = {CLIP_TEXT("tokenizer_2"), .pad = "<|endoftext|>", .tokens_max = 13},
                  .dimension = {{"synthetic_width", 40}, {"synthetic_vocabulary", 540}}),
             SLOT(SYNTHETIC_LLM, synthetic_llm, "--synthetic-llm", "text_encoder_3",
                  .text = {.template_before = "<|im_start|><|im_end|>",
                           .template_after = "<|im_end|>",
                           .tokens_max = 20,
                           .special_tokens = {"<|im_start|>", "<|im_end|>"},
                           .drop_idx = SYNTHETIC_DROPPED,
                           .tokenizer = "BPE",
                           .tokenizer_folder = "tokenizer_3",
                           .tokenizer_from = SYNTHETIC_FROM,
                           .classes = {"SyntheticLLM", "Qwen2Tokenizer"}}),
             SLOT(SYNTHETIC_VISION, synthetic_vision, "--synthetic-vision", "image_encoder"),
             SLOT(SYNTHETIC_DENOISER, synthetic_denoiser, "--synthetic-high-noise", "transformer"),
             SLOT(SYNTHETIC_DENOISER_2, synthetic_denoiser, "--synthetic-low-noise", "transformer_2"),
             SLOT(SYNTHETIC_VIDEO_VAE, synthetic_video_vae, "--synthetic-video-vae", "vae")},
    .text.condition = {{.slot = SYNTHETIC_TEXT, .hidden = {.layers = {-2}}, .padded_to = SYNTHETIC_PADDED},
                       {.slot = SYNTHETIC_TEXT_2, .hidden = {.layers = {-3}}, .concat_columns = true},
                       {.slot = SYNTHETIC_LLM, .zero_padded = true, .padded_to = SYNTHETIC_PADDED},
                       {.slot = SYNTHETIC_VISION, .zero_padded = true},
                       {.slot = SYNTHETIC_TEXT, .what = CONDITION_POOLED},
                       {.slot = SYNTHETIC_TEXT_2, .what = CONDITION_POOLED, .concat_columns = true}},
    .text.n_conditions = 6,
    .denoising.span = {{SYNTHETIC_DENOISER, INFINITY}, {SYNTHETIC_DENOISER_2, SYNTHETIC_BOUNDARY}},
    .selection.pipelines = {"SyntheticPipeline"},
    .patch = 1,
    .frames_max = 17,
    .denoising.sampling = {.prediction = &prediction_eps,
                           .schedule = &synthetic_schedule,
                           .sampler = &synthetic_sampler},
    .denoising.guide = guidance_cfg,
    .denoising.flow_shift = 1,
    .images.references_max = LANE_REFERENCES_MAX,
    .defaults.width = 12,
    .defaults.height = 8,
    .defaults.frames = 9,
    .defaults.steps = 4,
    .defaults.cfg_scale = 1,
    .defaults.strength = 0.6,
};
