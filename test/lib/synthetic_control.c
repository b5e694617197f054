/* Control networks of the synthetic pipeline: blocks of every update rate, an embedding table, a block with
 * two visits in an evaluation, and a block without weights that adds residuals.
 *
 * synthetic_control runs for each prompt. synthetic_control_union reads all control images at once and runs
 * for the conditional prompt only; its residuals are added in all lanes of the image. */
#include "test/lib/synthetic_pipeline.h"

#include <string.h>

/* Indices in a component's dims. */
enum { WIDTH = 1, LAYERS, COLOURS, K3, POOLED, LATENT, FREQUENCIES, POSITIONS };

struct one_weight {
    struct tensor weight;
};

struct control_state {
    struct tensor hint;      /* embedded control images [Y X, WIDTH], of all evaluations */
    struct tensor time;      /* rows of the timestep [1 or all evaluations, WIDTH], shared by all lanes */
    struct tensor condition; /* time and pooled row [1 or all evaluations, WIDTH], one for each prompt */
    struct tensor embedded;  /* input of the layers [F Y X, WIDTH] */
    struct tensor residual;  /* [F Y X, WIDTH] */
};

static const struct weight_spec control_position_table[] = {
    ROW_MATRIX(WEIGHTS_OF(one_weight), weight, POSITIONS, WIDTH, "control.positions")};
CONV_TABLE(control_hint_table, WIDTH, COLOURS, K3, "control.hint");
static const struct weight_spec control_time_table[] = {
    ROW_MATRIX(WEIGHTS_OF(one_weight), weight, WIDTH, FREQUENCIES, "control.time")};
LINEAR_TABLE(control_pooled_table, WIDTH, POOLED, "control.pooled");
LINEAR_TABLE(control_in_table, WIDTH, LATENT, "control.in");
LINEAR_TABLE(control_layer_table, WIDTH, WIDTH, "control.layers.%d");
static const struct weight_spec control_union_table[] = {
    ROW_VECTOR(WEIGHTS_OF(one_weight), weight, WIDTH, "control.union")};

static void control_forward_positions(struct context *x, const void *weights,
                                      const struct visit_scope *scope) {
    const struct control_state *state = scope->lane->state;
    op_copy(x, state->embedded, ((const struct one_weight *)weights)->weight);
}

/* The strength of several images applies to each image's embedding. */
static void control_forward_hint(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct linear_weights *w = weights;
    const struct control_state *state = scope->lane->state;
    const struct lane *lane = scope->lane;
    struct tensor one = context_tensor(x, DTYPE_F32, 2, state->hint.dim);
    for (int i = 0; i < lane->n_controls; i++) {
        struct tensor pixels = lane->control[i].input, to = i ? one : state->hint;
        int32_t dim[] = {pixels.dim[0] / 2, pixels.dim[1] / 2, w->weight.dim[0]};
        op_conv2d(x, tensor_reshape(to, 3, dim), pixels, w->weight, (struct epilogue){.bias = w->bias},
                  (struct conv_options){.upsample = 1, .stride = 2});
        if (lane->n_controls == 1) return;
        if (!i) {
            op_copy(x, one, state->hint);
            op_add_scaled(x, state->hint, state->hint, one, lane->control[i].strength - 1);
        } else {
            op_add_scaled(x, state->hint, state->hint, one, lane->control[i].strength);
        }
    }
}

static void control_forward_time(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct one_weight *w = weights;
    const struct control_state *state = scope->lane->state;
    struct tensor rows = scope_rows(state->time, scope);
    struct tensor f = context_tensor(x, DTYPE_F32, 2, (int32_t[]){rows.dim[0], w->weight.dim[1]});
    for (int32_t i = 0; i < rows.dim[0]; i++)
        op_timestep(x, tensor_slice(f, i, 1), scope->timesteps[i], TIMESTEP_USUAL);
    op_linear_few(x, rows, f, w->weight, (struct tensor){0}, ACTIVATION_NONE);
}

static void control_forward_pooled(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct linear_weights *w = weights;
    const struct control_state *state = scope->lane->state;
    struct tensor rows = scope_rows(state->condition, scope);
    struct tensor pooled = context_tensor(x, DTYPE_F32, 2, (int32_t[]){1, rows.dim[1]});
    op_linear_few(x, pooled, scope->lane->pooled, w->weight, w->bias, ACTIVATION_NONE);
    op_add(x, rows, scope_rows(state->time, scope), pooled);
}

static void control_forward_in(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct linear_weights *w = weights;
    const struct control_state *state = scope->lane->state;
    struct tensor latent = latent_planes(scope->lane->latent);
    struct tensor patches =
        context_tensor(x, DTYPE_F32, 2, (int32_t[]){state->embedded.dim[0], latent.dim[0]});
    int32_t pixels = state->hint.dim[0];
    op_patchify(x, patches, latent, (struct patches){.side = 1, .order = PATCH_CHANNELS_FIRST});
    op_linear(x, state->embedded, patches, w->weight,
              (struct epilogue){.bias = w->bias, .residual = state->embedded});
    for (int32_t i = 0; i < state->embedded.dim[0]; i += pixels) {
        struct tensor frame = tensor_slice(state->embedded, i, pixels);
        op_add(x, frame, frame, state->hint);
    }
}

/* residual = gelu(W (embedded + condition + image rows of the denoiser) + b); in later passes without the
 * denoiser's rows. */
static void control_forward_layer(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct linear_weights *w = weights;
    const struct control_state *state = scope->lane->state;
    struct tensor t = context_tensor(x, DTYPE_F32, 2, state->embedded.dim);
    op_add(x, t, state->embedded, scope_rows(state->condition, scope));
    if (!scope->pass) op_add(x, t, t, synthetic_image_rows(scope->lane->denoiser));
    op_linear(x, state->residual, t, w->weight,
              (struct epilogue){.bias = w->bias, .activation = ACTIVATION_GELU_TANH});
}

static void control_forward_union(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct control_state *state = scope->lane->state;
    op_add(x, state->embedded, state->embedded,
           tensor_reshape(((const struct one_weight *)weights)->weight, 2,
                          (int32_t[]){1, state->embedded.dim[1]}));
}

static void control_forward_add(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct control_state *state = scope->lane->state;
    const struct lane *lane = scope->lane;
    struct tensor rows = synthetic_image_rows(lane->denoiser);
    float strength = lane->n_controls == 1 ? lane->control[0].strength : 1;
    (void)weights;
    op_add_scaled(x, rows, rows, state->residual, lane->guess_mode ? strength / 2 : strength);
}

BLOCK(control_kind_positions, "positions", "positions", control_position_table, one_weight,
      control_forward_positions, .embedding_table = true);
BLOCK(control_kind_hint, "hint", "hint", control_hint_table, linear_weights, control_forward_hint,
      .update_rate = UPDATE_PER_PROMPT, .never_quantised = true);
BLOCK(control_kind_time, "time", "time", control_time_table, one_weight, control_forward_time,
      .update_rate = UPDATE_PER_TIMESTEP, .never_quantised = true);
BLOCK(control_kind_pooled, "pooled", "pooled", control_pooled_table, linear_weights, control_forward_pooled,
      .update_rate = UPDATE_PER_TIMESTEP_AND_PROMPT, .never_quantised = true);
BLOCK(control_kind_in, "in", "in", control_in_table, linear_weights, control_forward_in,
      .never_quantised = true);
BLOCK(control_kind_union, "union", "union", control_union_table, one_weight, control_forward_union,
      .never_quantised = true);
BLOCK(control_kind_layer, "layer", "layers.%d", control_layer_table, linear_weights, control_forward_layer);
static const struct block_kind control_kind_add = {
    .name = "add", .format = "add", .weights_bytes = 1, .forward = control_forward_add};

enum { BLOCK_IN = 3 }; /* index of the block "in", after hint, time and pooled; tables have no index */

static bool is_union(const struct component *c) {
    return c->family == &family_synthetic_control_union;
}

static int control_blocks(const struct component *c, struct block_ref *refs) {
    int n = 0;
    refs[n++] = (struct block_ref){.kind = &control_kind_positions};
    refs[n++] = (struct block_ref){.kind = &control_kind_hint};
    refs[n++] = (struct block_ref){.kind = &control_kind_time};
    refs[n++] = (struct block_ref){.kind = &control_kind_pooled};
    refs[n++] = (struct block_ref){.kind = &control_kind_in};
    if (is_union(c)) refs[n++] = (struct block_ref){.kind = &control_kind_union};
    for (int i = 0; i < c->dims[LAYERS]; i++)
        refs[n++] = (struct block_ref){.kind = &control_kind_layer, .number = i};
    refs[n++] = (struct block_ref){.kind = &control_kind_add};
    return n;
}

/* The latent is embedded before the denoiser begins. Layer k mod LAYERS runs before the denoiser's layer k.
 */
static int control_visits(const struct component *c, const struct component *denoiser,
                          struct control_visit *visits) {
    int n = 0, layers = 0, first = BLOCK_IN + 1 + is_union(c);
    visits[n++] = (struct control_visit){.block = BLOCK_IN, .after = -1};
    if (is_union(c)) visits[n++] = (struct control_visit){.block = BLOCK_IN + 1, .after = -1};
    for (int i = 0; i < denoiser->n_blocks; i++) {
        if (strcmp(denoiser->blocks[i].kind->name, "layer") != 0) continue;
        int block = layers % c->dims[LAYERS], pass = layers / c->dims[LAYERS];
        visits[n++] = (struct control_visit){.block = first + block, .after = i - 1, .pass = pass};
        visits[n++] = (struct control_visit){.block = c->n_blocks - 1, .after = i - 1, .adds = true};
        layers++;
    }
    return n;
}

static void control_declare(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                            struct arena *pictures, bool *ok) {
    (void)pictures;
    for (int i = 0; i < n_lanes; i++) {
        if (!lane_computes(&lanes[i])) continue;
        struct control_state *s = lanes[i].state;
        const struct control_state *zero = lanes->state;
        const int32_t *latent = lanes[i].latent.dim;
        int32_t hoisted = lanes[i].hoisted ? lanes[i].hoisted : 1, width = c->dims[WIDTH];
        int32_t image[] = {latent[2] * latent[3], width}, rows[] = {latent[1] * image[0], width};
        int first = lane_first_of_prompt(lanes, i);
        if (first != i) *s = *(const struct control_state *)lanes[first].state;
        s->embedded = arena_tensor(arena, DTYPE_F32, 2, rows, ok);
        s->residual = arena_tensor(arena, DTYPE_F32, 2, rows, ok);
        if (first != i) continue;
        s->hint = arena_tensor(arena, DTYPE_F32, 2, image, ok);
        s->time = i ? zero->time : arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){hoisted, width}, ok);
        s->condition = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){hoisted, width}, ok);
    }
}

static void control_derive(struct component *c) {
    c->dims[COLOURS] = 3;
    c->dims[K3] = 3;
}

static enum status control_check(const struct component *c, const struct component *denoiser,
                                 struct error *e) {
    if (c->dims[POOLED] == denoiser->pooled_columns) return OK;
    return error_set(e, SHAPE,
                     "the control network does not fit the model" FOUND "%d pooled columns" EXPECTED "%d",
                     c->dims[POOLED], denoiser->pooled_columns);
}

static bool synthetic_control_probe(const struct tensor_index *index) {
    return index_find(index, "control.hint.weight") && !index_find(index, "control.union.weight");
}

static bool synthetic_control_union_probe(const struct tensor_index *index) {
    return index_find(index, "control.hint.weight") && index_find(index, "control.union.weight");
}

static const struct dimension control_dimensions[] = {
    {"control_width", 64, 8, 4096, .place = WIDTH, OF_TENSOR(2, 0, "control.in.weight")},
    {"control_layers", 3, 1, 100, .place = LAYERS, OF_BLOCKS("control.layers.")},
    {"control_pooled", 52, 8, 4096, .place = POOLED, OF_TENSOR(2, 1, "control.pooled.weight")},
    {"control_latent", SYNTHETIC_CHANNELS, SYNTHETIC_CHANNELS, SYNTHETIC_CHANNELS, .place = LATENT,
     OF_TENSOR(2, 1, "control.in.weight")},
    {"control_frequencies", 16, 2, 256, .place = FREQUENCIES, OF_TENSOR(2, 1, "control.time.weight")},
    {"control_positions", 2048, 1, 65536, .place = POSITIONS, OF_TENSOR(2, 0, "control.positions.weight")},
};

#define CONTROL_FAMILY(of, word, ...)                                                                        \
    {                                                                                                        \
        .name = #of, .kind = FAMILY_CONTROL, .display_name = word,                                           \
        .files = {.config_key = "_class_name",                                                               \
                  .config_value = #of,                                                                       \
                  .probe = of##_probe,                                                                       \
                  .ignorable = (const char *const[]){NULL}},                                                 \
        .config.dimensions = control_dimensions, .config.n_dimensions = COUNT_OF(control_dimensions),        \
        .config.derive = control_derive, .blocks.list = control_blocks,                                      \
        .blocks.rows = synthetic_position_rows, .state.bytes = sizeof(struct control_state),                 \
        .state.declare = control_declare, .control = {                                                       \
            .denoiser = &family_synthetic_denoiser,                                                          \
            .input = CONTROL_PIXELS,                                                                         \
            .check = control_check,                                                                          \
            .visits = control_visits,                                                                        \
            __VA_ARGS__                                                                                      \
        }                                                                                                    \
    }

const struct family family_synthetic_control =
    CONTROL_FAMILY(synthetic_control, "synthetic control network", .conditional_only = false);
const struct family family_synthetic_control_union =
    CONTROL_FAMILY(synthetic_control_union, "synthetic union control network", .conditional_only = true,
                   .combines_images = true);
