/* A synthetic pipeline in one file: families and a recipe with engine features that no published pipeline
 * uses yet. It is small enough to be computed again in plain loops (test/models/test_synthetic_pipeline.c).
 *
 * - three text slots of one family (synthetic_text), told apart by their widths; hidden states of several
 *   layers, concatenated by columns or by rows, before and after the final norm
 * - a vision slot; two denoisers of one family (synthetic_denoiser) with a timestep boundary
 * - double blocks: text and image rows have their own weights and attend to each other
 * - eps prediction and a schedule of its own
 * - a sampler with two evaluations a step, one past prediction as input, and noise in every step
 * - videos, decoded in chunks of different sizes with a feature cache between them (synthetic_video_vae)
 * - latents normalised by tensors of the autoencoder's file
 * - learned position embeddings, of which a request reads only the rows that it needs
 * - text embeddings concatenated by columns and by rows, padded, with dropped tokens */
#include "test/lib/synthetic_pipeline.h"

#include "kernels/ops.h"

#include <math.h>
#include <string.h>

/* Indices in a component's dims. */
enum {
    WIDTH,
    FEED_FORWARD,
    LAYERS,
    VOCABULARY,
    COLOURS,
    K3,
    TEXT,
    POOLED,
    LATENT,
    FREQUENCIES,
    POSITIONS,
    TWO_WIDTH,
    MODULATION,
};

/* A family is recognised by one tensor. */
#define PROBE(of, tensor)                                                                                    \
    static bool of##_probe(const struct tensor_index *index) {                                               \
        return index_find(index, tensor);                                                                    \
    }
PROBE(synthetic_text, "text.pool.weight")
PROBE(synthetic_vision, "vision.in.weight")
PROBE(synthetic_denoiser, "denoiser.positions.weight")
PROBE(synthetic_video_vae, "video_vae.split.weight")

/* The members common to all families of this file; more initialisers follow. */
#define FAMILY(of, kind_, word_, key, structure, ...)                                                        \
    {                                                                                                        \
        .name = #of, .kind = kind_, .display_name = word_,                                                   \
        .files = {.config_key = key,                                                                         \
                  .config_value = #of,                                                                       \
                  .probe = of##_probe,                                                                       \
                  .ignorable = (const char *const[]){NULL}},                                                 \
        .config.dimensions = of##_dimensions, .config.n_dimensions = COUNT_OF(of##_dimensions),              \
        .config.derive = of##_derive, .blocks.list = of##_blocks, .state.bytes = sizeof(struct structure),   \
        __VA_ARGS__                                                                                          \
    }
struct one_weight {
    struct tensor weight;
};

/* MLP of text and vision encoders: x + down(gelu(up(norm(x)))). */
/* clang-format off */
#define MLP(X, S)                                                                                            \
    X##VECTOR(S, norm, WIDTH, "norm")                                                                        \
    X##LINEAR(S, up, FEED_FORWARD, WIDTH, "up")                                                              \
    X##LINEAR(S, down, WIDTH, FEED_FORWARD, "down")
struct mlp_weights { MLP(FIELD_, ) };
/* clang-format on */

struct encoder_state {
    struct tensor tokens; /* [T, WIDTH] */
};

static void forward_mlp(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct mlp_weights *w = weights;
    const struct encoder_state *state = scope->lane->state;
    struct tensor t = state->tokens, n = context_tensor(x, DTYPE_F32, 2, t.dim);
    struct tensor up = context_tensor(x, DTYPE_F32, 2, (int32_t[]){t.dim[0], w->up.weight.dim[0]});
    op_rms_norm(x, n, t, w->norm, SYNTHETIC_EPS, (struct modulation){0});
    op_linear(x, up, n, w->up.weight,
              (struct epilogue){.bias = w->up.bias, .activation = ACTIVATION_GELU_TANH});
    op_linear(x, t, up, w->down.weight, (struct epilogue){.bias = w->down.bias, .residual = t});
}

static void encoder_declare(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                            struct arena *pictures, bool *ok) {
    (void)pictures;
    for (int i = 0; i < n_lanes; i++) {
        struct encoder_state *state = lanes[i].state;
        state->tokens =
            arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){lanes[i].text.dim[0], c->dims[WIDTH]}, ok);
    }
}

/* synthetic_text: a text encoder in three slots, with a struct encoder_output as settings. The pooled row is
 * not normed. */

static const struct weight_spec text_table[] = {
    ROW_MATRIX(WEIGHTS_OF(one_weight), weight, VOCABULARY, WIDTH, "text.embedding")};
WEIGHT_TABLE(text_layer_table, MLP, mlp_weights, "text.layers.%d.", "text.layers.%d.");
static const struct weight_spec text_norm_table[] = {
    ROW_VECTOR(WEIGHTS_OF(one_weight), weight, WIDTH, "text.norm")};
LINEAR_TABLE(text_pool_table, WIDTH, WIDTH, "text.pool");

static void text_forward_table(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct encoder_state *state = scope->lane->state;
    op_copy(x, state->tokens, ((const struct one_weight *)weights)->weight);
}

static void text_forward_layer(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct encoder_output *output = scope->settings;
    const struct encoder_state *state = scope->lane->state;
    forward_mlp(x, weights, scope);
    hidden_states_write(x, output, scope->lane, state->tokens, scope->number);
}

static void text_forward_pool(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct linear_weights *w = weights;
    const struct encoder_state *state = scope->lane->state;
    op_linear_few(x, scope->lane->pooled, tensor_slice(state->tokens, scope->lane->pooled_row, 1), w->weight,
                  w->bias, ACTIVATION_NONE);
}

static void text_forward_norm(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct encoder_output *output = scope->settings;
    const struct encoder_state *state = scope->lane->state;
    hidden_states_norm(x, output, scope->lane, state->tokens,
                       (struct affine){.weight = ((const struct one_weight *)weights)->weight},
                       SYNTHETIC_EPS);
}

static const struct block_kind text_kind_table =
    BLOCK_KIND("embedding", "embedding", text_table, one_weight, text_forward_table, .embedding_table = true);
static const struct block_kind text_kind_layer =
    BLOCK_KIND("layer", "layers.%d", text_layer_table, mlp_weights, text_forward_layer);
static const struct block_kind text_kind_pool =
    BLOCK_KIND("pool", "pool", text_pool_table, linear_weights, text_forward_pool, .never_quantised = true);
static const struct block_kind text_kind_norm =
    BLOCK_KIND("norm", "norm", text_norm_table, one_weight, text_forward_norm, .never_quantised = true);

static int synthetic_text_blocks(const struct component *c, struct block_ref *refs) {
    int n = 0, layers = c->dims[LAYERS];
    refs[n++] = (struct block_ref){.kind = &text_kind_table};
    for (int i = 0; i < layers; i++) refs[n++] = (struct block_ref){.kind = &text_kind_layer, .number = i};
    refs[n++] = (struct block_ref){.kind = &text_kind_pool, .unused = !c->reads.pooled};
    refs[n++] = (struct block_ref){.kind = &text_kind_norm,
                                   .unused = !hidden_states_use_norm(&c->reads.hidden, layers)};
    return n;
}

static void synthetic_text_derive(struct component *c) {
    *(struct encoder_output *)c->settings =
        (struct encoder_output){.states = c->reads.hidden, .n_layers = c->dims[LAYERS]};
    c->text_columns = hidden_states_count(&c->reads.hidden, c->dims[LAYERS]) * c->dims[WIDTH];
    c->pooled_columns = c->dims[WIDTH];
}

static const struct dimension synthetic_text_dimensions[] = {
    {"synthetic_vocabulary", 600, 282, 151936, .place = VOCABULARY, OF_TENSOR(2, 0, "text.embedding.weight")},
    {"synthetic_width", 12, 8, 4096, .place = WIDTH, OF_TENSOR(2, 1, "text.embedding.weight"),
     .key = "width"},
    {"synthetic_ff", 96, 8, 4096, .place = FEED_FORWARD, OF_TENSOR(2, 0, "text.layers.0.up.weight")},
    {"synthetic_layers", 3, 1, 100, .place = LAYERS, OF_BLOCKS("text.layers."), .key = "layers"},
};

const struct family family_synthetic_text =
    FAMILY(synthetic_text, FAMILY_TEXT, "synthetic text encoder", "model_type", encoder_state,
           .state.declare = encoder_declare, .reads = {.tokens = true});

/* synthetic_vision: a vision encoder with one token per four pixels. */

CONV_TABLE(vision_in_table, WIDTH, COLOURS, K3, "vision.in");
WEIGHT_TABLE(vision_layer_table, MLP, mlp_weights, "vision.layers.%d.", "vision.layers.%d.");
static const struct weight_spec vision_norm_table[] = {
    ROW_VECTOR(WEIGHTS_OF(one_weight), weight, WIDTH, "vision.norm")};

static void vision_forward_in(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct linear_weights *w = weights;
    const struct encoder_state *state = scope->lane->state;
    struct tensor picture = lane_picture(scope->lane);
    int32_t dim[] = {picture.dim[0] / 2, picture.dim[1] / 2, w->weight.dim[0]};
    op_conv2d(x, tensor_reshape(state->tokens, 3, dim), picture, w->weight,
              (struct epilogue){.bias = w->bias}, (struct conv_options){.upsample = 1, .stride = 2});
}

static void vision_forward_norm(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct encoder_state *state = scope->lane->state;
    op_rms_norm(x, scope->lane->text, state->tokens, ((const struct one_weight *)weights)->weight,
                SYNTHETIC_EPS, (struct modulation){0});
}

static const struct block_kind vision_kind_in =
    BLOCK_KIND("in", "in", vision_in_table, linear_weights, vision_forward_in, .never_quantised = true);
static const struct block_kind vision_kind_layer =
    BLOCK_KIND("layer", "layers.%d", vision_layer_table, mlp_weights, forward_mlp);
static const struct block_kind vision_kind_norm =
    BLOCK_KIND("norm", "norm", vision_norm_table, one_weight, vision_forward_norm, .never_quantised = true);

static int synthetic_vision_blocks(const struct component *c, struct block_ref *refs) {
    int n = 0;
    refs[n++] = (struct block_ref){.kind = &vision_kind_in};
    for (int i = 0; i < c->dims[LAYERS]; i++)
        refs[n++] = (struct block_ref){.kind = &vision_kind_layer, .number = i};
    refs[n++] = (struct block_ref){.kind = &vision_kind_norm};
    return n;
}

/* Images are read at a height of `side` pixels, the family's only setting, and a width of `side`, or twice
 * `side` if they are wide. A vision token is 2 x 2 pixels. */
static struct vision_grid vision_grid_of(const struct component *c, int width, int height) {
    int32_t side = *(const int32_t *)(const void *)c->settings, read_width = width > height ? 2 * side : side;
    return (struct vision_grid){
        .width = read_width, .height = side, .columns = read_width / 2, .rows = side / 2};
}

static void synthetic_vision_derive(struct component *c) {
    c->dims[COLOURS] = 3;
    c->dims[K3] = 3;
    c->text_columns = c->dims[WIDTH];
}

static const struct dimension synthetic_vision_dimensions[] = {
    {"synthetic_vision_width", 64, 8, 4096, .place = WIDTH, OF_TENSOR(1, 0, "vision.in.bias")},
    {"synthetic_vision_ff", 80, 8, 4096, .place = FEED_FORWARD, OF_TENSOR(2, 0, "vision.layers.0.up.weight")},
    {"synthetic_vision_layers", 3, 1, 100, .place = LAYERS, OF_BLOCKS("vision.layers.")},
};

static const struct setting vision_settings[] = {{{"size.shortest_edge", "side"}, 0, SETTING_INT, 4, 2, 64}};

const struct family family_synthetic_vision =
    FAMILY(synthetic_vision, FAMILY_VISION, "synthetic vision encoder", "model_type", encoder_state,
           .config.picture_settings = vision_settings, .config.n_picture_settings = COUNT_OF(vision_settings),
           .state.declare = encoder_declare, .lanes.vision_grid = vision_grid_of);

/* synthetic_denoiser: a denoiser of double blocks. The two streams are text rows and image rows. */

enum { STREAM_TEXT, STREAM_IMAGE, STREAMS };

/* clang-format off */
#define CONDITIONING(X, S)                                                                                   \
    X##MATRIX(S, time, WIDTH, FREQUENCIES, "time")                                                           \
    X##LINEAR(S, pooled, WIDTH, POOLED, "pooled")
struct conditioning_weights { CONDITIONING(FIELD_, ) };
WEIGHT_TABLE(denoiser_conditioning_table, CONDITIONING, conditioning_weights, "denoiser.", "denoiser.");

#define STREAM(X, S, F, P)                                                                                   \
    X##MATRIX(S, F q, WIDTH, WIDTH, P "q")                                                                   \
    X##MATRIX(S, F k, WIDTH, WIDTH, P "k")                                                                   \
    X##MATRIX(S, F v, WIDTH, WIDTH, P "v")                                                                   \
    X##MATRIX(S, F out, WIDTH, WIDTH, P "out")                                                               \
    X##MATRIX(S, F up, FEED_FORWARD, WIDTH, P "up")                                                          \
    X##MATRIX(S, F down, WIDTH, FEED_FORWARD, P "down")
#define LAYER(X, S)                                                                                          \
    STREAM(X, S, stream[STREAM_TEXT]., "text.") STREAM(X, S, stream[STREAM_IMAGE]., "image.")
struct layer_weights { struct stream_weights { STREAM(FIELD_, , , ) } stream[STREAMS]; };
WEIGHT_TABLE(denoiser_layer_table, LAYER, layer_weights, "denoiser.layers.%d.", "denoiser.layers.%d.");
/* clang-format on */

struct denoiser_state {
    struct tensor text;      /* text embeddings [T, WIDTH], of all evaluations */
    struct tensor rope;      /* RoPE table of the text rows [T, head / 2, 2] */
    struct tensor rows;      /* text rows, then image rows [T + F Y X, WIDTH] */
    struct tensor condition; /* conditioning [rows, WIDTH]; one row per evaluation if hoisted, else one row */
    struct tensor modulation; /* scale and shift of each layer's streams [LAYERS, rows, 4 WIDTH] */
};

static const struct weight_spec denoiser_position_table[] = {
    ROW_MATRIX(WEIGHTS_OF(one_weight), weight, POSITIONS, WIDTH, "denoiser.positions")};
LINEAR_TABLE(denoiser_in_table, WIDTH, LATENT, "denoiser.in");
LINEAR_TABLE(denoiser_context_table, WIDTH, TEXT, "denoiser.context");
LINEAR_TABLE(denoiser_modulation_table, MODULATION, WIDTH, "denoiser.layers.%d.modulation");
LINEAR_TABLE(denoiser_out_table, LATENT, WIDTH, "denoiser.out");

/* The rows of one stream in a tensor of both streams' rows. */
static struct tensor stream_rows(struct tensor rows, const struct denoiser_state *state, int stream) {
    int32_t text = state->text.dim[0];
    return stream == STREAM_TEXT ? tensor_slice(rows, 0, text) : tensor_slice(rows, text, rows.dim[0] - text);
}

struct tensor synthetic_image_rows(const struct lane *lane) {
    const struct denoiser_state *state = lane->state;
    return stream_rows(state->rows, state, STREAM_IMAGE);
}

static void denoiser_forward_positions(struct context *x, const void *weights,
                                       const struct visit_scope *scope) {
    const struct denoiser_state *state = scope->lane->state;
    op_copy(x, stream_rows(state->rows, state, STREAM_IMAGE), ((const struct one_weight *)weights)->weight);
}

static void denoiser_forward_in(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct linear_weights *w = weights;
    const struct denoiser_state *state = scope->lane->state;
    struct tensor latent = latent_planes(scope->lane->latent);
    struct tensor image = stream_rows(state->rows, state, STREAM_IMAGE);
    struct tensor patches = context_tensor(x, DTYPE_F32, 2, (int32_t[]){image.dim[0], latent.dim[0]});
    op_copy(x, stream_rows(state->rows, state, STREAM_TEXT), state->text);
    op_patchify(x, patches, latent, (struct patches){.side = 1, .order = PATCH_CHANNELS_FIRST});
    op_linear(x, image, patches, w->weight, (struct epilogue){.bias = w->bias, .residual = image});
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
    op_linear_few(x, pooled, scope->lane->pooled, w->pooled.weight, w->pooled.bias, ACTIVATION_NONE);
    op_add(x, rows, rows, pooled);
}

static void denoiser_forward_modulation(struct context *x, const void *weights,
                                        const struct visit_scope *scope) {
    const struct linear_weights *w = weights;
    const struct denoiser_state *state = scope->lane->state;
    op_linear_few(x, scope_rows_of_block(state->modulation, scope), scope_rows(state->condition, scope),
                  w->weight, w->bias, ACTIVATION_SILU);
}

/* Scale and shift of one stream, from the layer's modulation row. */
static struct affine stream_affine(const struct denoiser_state *state, const struct visit_scope *scope,
                                   int stream) {
    struct tensor m = scope_rows_of_block(state->modulation, scope);
    int32_t width = m.dim[1] / (2 * STREAMS);
    float *at = m.data ? (float *)m.data + 2 * stream * width : NULL;
    return (struct affine){.scale = tensor_make(at, DTYPE_F32, 1, &width),
                           .shift = tensor_make(at ? at + width : NULL, DTYPE_F32, 1, &width)};
}

/* A double block. For both streams, with n = norm(x) (1 + scale) + shift: x += out(attention over the rows of
 * both); x += down(gelu(up(n))). RoPE rotates the keys of the text rows. */
static void denoiser_forward_layer(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct layer_weights *w = weights;
    const struct denoiser_state *state = scope->lane->state;
    struct tensor rows = state->rows, n = context_tensor(x, DTYPE_F32, 2, rows.dim);
    struct tensor q = context_tensor(x, DTYPE_F32, 2, rows.dim),
                  k = context_tensor(x, DTYPE_F32, 2, rows.dim);
    struct tensor v = context_tensor(x, DTYPE_F32, 2, rows.dim);
    struct tensor up =
        context_tensor(x, DTYPE_F32, 2, (int32_t[]){rows.dim[0], w->stream[STREAM_TEXT].up.dim[0]});
    const struct epilogue none = {0};
    for (int i = 0; i < STREAMS; i++) {
        struct tensor normed = stream_rows(n, state, i);
        op_layer_norm(x, normed, stream_rows(rows, state, i), stream_affine(state, scope, i), SYNTHETIC_EPS);
        op_linear(x, stream_rows(q, state, i), normed, w->stream[i].q, none);
        op_linear(x, stream_rows(k, state, i), normed, w->stream[i].k, none);
        op_linear(x, stream_rows(v, state, i), normed, w->stream[i].v, none);
    }
    struct tensor text_keys = stream_rows(k, state, STREAM_TEXT);
    op_rope(x, text_keys, text_keys, state->rope,
            (struct rotation){.heads = SYNTHETIC_HEADS, .pairs = ROPE_INTERLEAVED});
    op_attention(x, q, q, k, v,
                 (struct attention_options){.queries = SYNTHETIC_HEADS,
                                            .keys = SYNTHETIC_HEADS,
                                            .scale = 1 / sqrtf(rows.dim[1] / SYNTHETIC_HEADS)});
    for (int i = 0; i < STREAMS; i++) {
        struct tensor t = stream_rows(rows, state, i), normed = stream_rows(n, state, i);
        struct tensor wide = stream_rows(up, state, i);
        op_linear(x, t, stream_rows(q, state, i), w->stream[i].out, (struct epilogue){.residual = t});
        op_layer_norm(x, normed, t, stream_affine(state, scope, i), SYNTHETIC_EPS);
        op_linear(x, wide, normed, w->stream[i].up, (struct epilogue){.activation = ACTIVATION_GELU_TANH});
        op_linear(x, t, wide, w->stream[i].down, (struct epilogue){.residual = t});
    }
}

static void denoiser_forward_out(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct linear_weights *w = weights;
    const struct denoiser_state *state = scope->lane->state;
    struct tensor out = latent_planes(scope->lane->prediction);
    struct tensor image = stream_rows(state->rows, state, STREAM_IMAGE);
    struct tensor n = context_tensor(x, DTYPE_F32, 2, image.dim);
    struct tensor patches = context_tensor(x, DTYPE_F32, 2, (int32_t[]){image.dim[0], out.dim[0]});
    op_layer_norm(x, n, image, (struct affine){0}, SYNTHETIC_EPS);
    op_linear(x, patches, n, w->weight, (struct epilogue){.bias = w->bias});
    op_unpatchify(x, out, patches, (struct patches){.side = 1, .order = PATCH_CHANNELS_FIRST}, 1);
}

static const struct block_kind denoiser_kind_positions =
    BLOCK_KIND("positions", "positions", denoiser_position_table, one_weight, denoiser_forward_positions,
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

static void synthetic_denoiser_derive(struct component *c) {
    int32_t *d = c->dims;
    d[MODULATION] = 2 * STREAMS * d[WIDTH];
    c->text_columns = d[TEXT];
    c->pooled_columns = d[POOLED];
    c->latent_channels = d[LATENT];
}

/* The table of position embeddings has SYNTHETIC_SIDE x SYNTHETIC_SIDE rows per frame. */
int synthetic_position_rows(const struct component *c, int i_table, const struct lane *lane, int32_t *rows) {
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
        int32_t joined[] = {text + latent[1] * latent[2] * latent[3], d[WIDTH]};
        int first = lane_first_of_prompt(lanes, i);
        if (first != i) *s = *(const struct denoiser_state *)lanes[first].state;
        s->rows = arena_tensor(arena, DTYPE_F32, 2, joined, ok);
        if (first != i) continue;
        s->text = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){text, d[WIDTH]}, ok);
        s->rope = arena_tensor(arena, DTYPE_F32, 3, (int32_t[]){text, d[WIDTH] / SYNTHETIC_HEADS / 2, 2}, ok);
        s->condition = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){rows, d[WIDTH]}, ok);
        s->modulation = arena_tensor(arena, DTYPE_F32, 3, (int32_t[]){d[LAYERS], rows, d[MODULATION]}, ok);
    }
}

static const struct dimension synthetic_denoiser_dimensions[] = {
    {"synthetic_dim", 64, 8, 4096, .place = WIDTH, OF_TENSOR(2, 0, "denoiser.in.weight")},
    {"synthetic_denoiser_ff", 160, 8, 4096, .place = FEED_FORWARD,
     OF_TENSOR(2, 0, "denoiser.layers.0.image.up.weight")},
    {"synthetic_denoiser_layers", 4, 1, 100, .place = LAYERS, OF_BLOCKS("denoiser.layers.")},
    {"synthetic_columns", 64, 8, 4096, .place = TEXT, OF_TENSOR(2, 1, "denoiser.context.weight")},
    {"synthetic_pooled", 52, 8, 4096, .place = POOLED, OF_TENSOR(2, 1, "denoiser.pooled.weight")},
    {"synthetic_latent", SYNTHETIC_CHANNELS, SYNTHETIC_CHANNELS, SYNTHETIC_CHANNELS, .place = LATENT,
     OF_TENSOR(2, 1, "denoiser.in.weight")},
    {"synthetic_frequencies", 16, 2, 256, .place = FREQUENCIES, OF_TENSOR(2, 1, "denoiser.time.weight")},
    {"synthetic_positions", 2048, 1, 65536, .place = POSITIONS, OF_TENSOR(2, 0, "denoiser.positions.weight")},
};

const struct family family_synthetic_denoiser =
    FAMILY(synthetic_denoiser, FAMILY_DENOISER, "synthetic denoiser", "_class_name", denoiser_state,
           .state.declare = denoiser_declare, .blocks.rows = synthetic_position_rows,
           .lanes.check = denoiser_check_lanes);

/* synthetic_video_vae: a decoder in which each latent frame depends on the previous one. */

/* clang-format off */
#define LATENT_NORM(X, S)                                                                                    \
    X##WEIGHT(S, mean, SHAPED(1, LATENT), "running_mean")                        \
    X##WEIGHT(S, variance, (.rank = 1, .dim = {LATENT}), "running_var")
struct latent_norm_weights { LATENT_NORM(FIELD_, ) };
WEIGHT_TABLE(video_vae_norm_table, LATENT_NORM, latent_norm_weights, "video_vae.bn.", "video_vae.bn.");

#define CAUSAL_OUT(X, S)                                                                                     \
    X##MATRIX(S, split, TWO_WIDTH, WIDTH, "split")                                                           \
    X##CONV(S, conv, COLOURS, WIDTH, K3, "out")
struct causal_out_weights { CAUSAL_OUT(FIELD_, ) };
WEIGHT_TABLE(video_vae_out_table, CAUSAL_OUT, causal_out_weights, "video_vae.", "video_vae.");
/* clang-format on */

enum { TIMES_MAX = 4 };

struct causal_state {
    struct tensor frames; /* the chunk's latent frames [N Y X, WIDTH] */
    /* Feature cache of each layer [Y X, WIDTH]: the last frame of the previous chunk. */
    struct tensor before[TIMES_MAX];
    /* Video frames [N, Y X, WIDTH] before the output convolution; tiled: one frame at a time. */
    struct tensor halves;
};

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

LINEAR_TABLE(video_vae_in_table, WIDTH, LATENT, "video_vae.in");
static const struct weight_spec video_vae_time_table[] = {
    ROW_MATRIX(WEIGHTS_OF(one_weight), weight, WIDTH, WIDTH, "video_vae.time.%d")};

/* Returns latent frame i of the chunk. */
static struct tensor video_vae_frame(const struct causal_state *state, int32_t i) {
    int32_t pixels = state->before[0].dim[0];
    return tensor_slice(state->frames, i * pixels, pixels);
}

static void video_vae_forward_in(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct linear_weights *w = weights;
    const struct causal_state *state = scope->lane->state;
    struct tensor latent = latent_planes(scope->lane->latent);
    struct frame_chunk c = video_vae_chunk(scope->lane->latent.dim[1], scope->chunk);
    int32_t all = latent.dim[1] * latent.dim[2], pixels = state->before[0].dim[0];
    struct tensor image =
        context_tensor(x, DTYPE_F32, 3, (int32_t[]){latent.dim[1], latent.dim[2], latent.dim[0]});
    op_latent_to_image(x, image, latent, *scope->latent_format);
    struct tensor rows = tensor_reshape(image, 2, (int32_t[]){all, latent.dim[0]});
    op_linear(x, tensor_slice(state->frames, 0, c.n_latents * pixels),
              tensor_slice(rows, c.first_latent * pixels, c.n_latents * pixels), w->weight,
              (struct epilogue){.bias = w->bias, .activation = ACTIVATION_GELU_TANH});
}

/* Goes through the frames from the last to the first, so that each frame adds the unmodified frame before it.
 */
static void video_vae_forward_time(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct one_weight *w = weights;
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
                      tensor_reshape(tensor_slice(state->halves, i - first, 1), 3, image), w->conv.weight,
                      (struct epilogue){.bias = w->conv.bias}, (struct conv_options){.upsample = 2});
        }
    }
}

static const struct block_kind video_vae_kind_norm =
    BLOCK_KIND("latent_norm", "bn", video_vae_norm_table, latent_norm_weights, NULL, .never_quantised = true);
static const struct block_kind video_vae_kind_in =
    BLOCK_KIND("in", "in", video_vae_in_table, linear_weights, video_vae_forward_in, .never_quantised = true);
static const struct block_kind video_vae_kind_time = BLOCK_KIND(
    "time", "time.%d", video_vae_time_table, one_weight, video_vae_forward_time, .never_quantised = true);
static const struct block_kind video_vae_kind_out = BLOCK_KIND(
    "out", "out", video_vae_out_table, causal_out_weights, video_vae_forward_out, .never_quantised = true);

static int synthetic_video_vae_blocks(const struct component *c, struct block_ref *refs) {
    int n = 0;
    refs[n++] = (struct block_ref){.kind = &video_vae_kind_norm, .unused = true};
    refs[n++] = (struct block_ref){.kind = &video_vae_kind_in};
    for (int i = 0; i < c->dims[LAYERS]; i++)
        refs[n++] = (struct block_ref){.kind = &video_vae_kind_time, .number = i};
    refs[n++] = (struct block_ref){.kind = &video_vae_kind_out};
    return n;
}

static void synthetic_video_vae_derive(struct component *c) {
    synthetic_vision_derive(c);
    c->dims[TWO_WIDTH] = 2 * c->dims[WIDTH];
    c->latent_channels = c->dims[LATENT];
    c->pixel_factor = 2;
    c->frame_factor = 2;
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

const struct family family_synthetic_video_vae =
    FAMILY(synthetic_video_vae, FAMILY_DECODER, "synthetic decoder", "_class_name", causal_state,
           .config.latent_norm = {.tensors = &video_vae_kind_norm,
                                  .eps_key = "batch_norm_eps",
                                  .eps = SYNTHETIC_BATCH_NORM_EPS},
           .state.declare = video_vae_declare, .lanes.chunks = video_vae_chunks);

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

/* Widths that tell the three text encoders apart. */
enum { WIDTH_2 = 40, WIDTH_3 = 48 };

#define TEXT_MATCH(name, comparison)                                                                         \
    static bool name(const struct tensor_index *view) {                                                      \
        const struct index_entry *norm = index_find(view, "text.norm.weight");                               \
        return norm && norm->dim[0] comparison;                                                              \
    }
TEXT_MATCH(text_is_first, < WIDTH_2)
TEXT_MATCH(text_is_second, == WIDTH_2)
TEXT_MATCH(text_is_third, > WIDTH_2)

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
                  .dimension = {{"synthetic_width", WIDTH_2}, {"synthetic_vocabulary", 540}}),
             SLOT(SYNTHETIC_LLM, synthetic_text, "--synthetic-llm", "text_encoder_3",
                  .matches = text_is_third,
                  .text = {.template_before = "<|im_start|><|im_end|>",
                           .template_after = "<|im_end|>",
                           .tokens_max = 20,
                           .special_tokens = {"<|im_start|>", "<|im_end|>"},
                           .drop_idx = SYNTHETIC_DROPPED,
                           .tokenizer = "BPE",
                           .tokenizer_folder = "tokenizer_3",
                           .tokenizer_from = SYNTHETIC_FROM,
                           .classes = {"SyntheticText", "Qwen2Tokenizer"}},
                  .dimension = {{"synthetic_width", WIDTH_3},
                                {"synthetic_vocabulary", 300},
                                {"synthetic_layers", 2}}),
             SLOT(SYNTHETIC_VISION, synthetic_vision, "--synthetic-vision", "image_encoder"),
             SLOT(SYNTHETIC_DENOISER, synthetic_denoiser, "--synthetic-high-noise", "transformer"),
             SLOT(SYNTHETIC_DENOISER_2, synthetic_denoiser, "--synthetic-low-noise", "transformer_2"),
             SLOT(SYNTHETIC_VIDEO_VAE, synthetic_video_vae, "--synthetic-video-vae", "vae")},
    .selection.pipelines = {"SyntheticPipeline"},
    .text = {.condition = {{.slot = SYNTHETIC_TEXT,
                            .hidden = {.layers = {1, -2}, .final_norm = FINAL_NORM_OF_ALL},
                            .padded_to = SYNTHETIC_PADDED},
                           {.slot = SYNTHETIC_TEXT_2,
                            .hidden = {.layers = {-2}, .final_norm = FINAL_NORM_OF_ALL},
                            .concat_columns = true},
                           {.slot = SYNTHETIC_LLM,
                            .hidden = {.layers = {-1, 1}},
                            .states_by_rows = true,
                            .zero_padded = true,
                            .padded_to = SYNTHETIC_PADDED},
                           {.slot = SYNTHETIC_VISION, .zero_padded = true},
                           {.slot = SYNTHETIC_TEXT, .what = CONDITION_POOLED},
                           {.slot = SYNTHETIC_TEXT_2, .what = CONDITION_POOLED, .concat_columns = true}},
             .n_conditions = 6},
    .images = {.references_max = 3},
    .denoising = {.span = {{SYNTHETIC_DENOISER, INFINITY}, {SYNTHETIC_DENOISER_2, SYNTHETIC_BOUNDARY}},
                  .sampling = {.prediction = &prediction_eps,
                               .schedule = &synthetic_schedule,
                               .sampler = &synthetic_sampler},
                  .guide = guidance_cfg,
                  .flow_shift = 1},
    .defaults = {.width = 12, .height = 8, .frames = 9, .steps = 4, .cfg_scale = 1, .strength = 0.6},
    .patch = 1,
    .frames_max = 17,
};
