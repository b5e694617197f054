/* Weight tables, forward functions and family callbacks of Flux.1's blocks: implements flux_blocks.h. */
#include "models/flux_blocks.h"

enum { MASK_SIDE = 8 }; /* pixels of the mask per side of a latent pixel in the published Fill */

static const float flux_time_scale = 1000;
static const struct patches flux_patches = {.side = MMDIT_PATCH, .order = PATCH_CHANNELS_FIRST};

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

#define FEED_FORWARDS(X, S)                                                                                  \
    X##LINEAR(S, image.up, FEED_FORWARD, DIM, "ff.net.0.proj", "img_mlp.0")                                  \
    X##LINEAR(S, image.down, DIM, FEED_FORWARD, "ff.net.2", "img_mlp.2")                                     \
    X##LINEAR(S, text.up, FEED_FORWARD, DIM, "ff_context.net.0.proj", "txt_mlp.0")                           \
    X##LINEAR(S, text.down, DIM, FEED_FORWARD, "ff_context.net.2", "txt_mlp.2")
#define DOUBLE_BLOCK(X, S) FLUX_DOUBLE_BLOCK(X, S, FEED_FORWARDS)
WEIGHT_TABLE(flux_double_table, DOUBLE_BLOCK, mmdit_block_weights,
             "transformer_blocks.%d.", "double_blocks.%d.");

#define DOUBLE_MODULATION(X, S)                                                                              \
    X##LINEAR(S, image, SIX_DIM, DIM, "norm1.linear", "img_mod.lin")                                         \
    X##LINEAR(S, text, SIX_DIM, DIM, "norm1_context.linear", "txt_mod.lin")
struct double_modulation_weights { DOUBLE_MODULATION(FIELD_, ) };
WEIGHT_TABLE(flux_double_modulation_table, DOUBLE_MODULATION, double_modulation_weights,
             "transformer_blocks.%d.", "double_blocks.%d.");

/* Row counts of the parts of linear1 in the authors' checkpoints: q, k, v, first layer of the feed-forward. */
static const int flux_linear1_rows[] = {DIM, DIM, DIM, FEED_FORWARD};
#define OF_LINEAR1(S) WITH(S, .part_rows = flux_linear1_rows)
#define SINGLE_UP(X, S) X##LINEAR(S, up, FEED_FORWARD, DIM, "proj_mlp", "linear1[3/4]")
#define SINGLE_BLOCK(X, S) FLUX_SINGLE_BLOCK(X, S, OF_LINEAR1(S), SINGLE_UP, "/4]")
WEIGHT_TABLE(flux_single_table, SINGLE_BLOCK, mmdit_single_weights,
             "single_transformer_blocks.%d.", "single_blocks.%d.");
/* clang-format on */

void flux_fill_rope(struct context *x, const struct visit_scope *scope, int n_images) {
    const struct flux_settings *settings = scope->settings;
    const struct flux_positions *positions = &settings->positions;
    const struct flux_state *state = scope->lane->state;
    int32_t text_rows = state->text.dim[0];
    struct tensor text = tensor_slice(state->rope, 0, text_rows);
    struct rope_options rope = {
        .theta = 10000,
        .n_axes = 3,
        .axis_dim = {settings->axis_dim[0], settings->axis_dim[1], settings->axis_dim[2]},
        .n_grids = 1,
        .grid = {{.extent = {1, 1, 1}}},
    };
    if (positions->text_diagonal) {
        rope.grid[0] = (struct rope_grid){.extent = {text.dim[0]}, .diagonal = true, .fixed_axes = 1};
        op_rope_table(x, text, &rope);
    } else {
        /* All text tokens have position (0, 0, 0): compute the first row and copy it to the others. */
        op_rope_table(x, tensor_slice(text, 0, 1), &rope);
        struct tensor rows = tensor_reshape(text, 2, (int32_t[]){text.dim[0], 2 * text.dim[1]});
        if (text.dim[0] > 1)
            op_broadcast_row(x, tensor_slice(rows, 1, text.dim[0] - 1), tensor_slice(rows, 0, 1));
    }
    int32_t from = positions->after_text ? text_rows : 0;
    rope.n_grids = n_images;
    for (int i = 0; i < rope.n_grids; i++) {
        struct tensor latent = mmdit_latent(scope->lane, i);
        rope.grid[i] =
            (struct rope_grid){.start = {positions->first_image + i, from, from},
                               .extent = {1, latent.dim[2] / MMDIT_PATCH, latent.dim[3] / MMDIT_PATCH}};
    }
    op_rope_table(x, tensor_slice(state->rope, text_rows, state->rope.dim[0] - text_rows), &rope);
}

static void flux_forward_context(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct linear_weights *w = weights;
    const struct flux_state *state = scope->lane->state;
    flux_fill_rope(x, scope, 1 + mmdit_n_references(scope->lane));
    mmdit_linear(x, state->text, scope->lane->text, w);
}

void flux_forward_conditioning(struct context *x, const void *weights, const struct visit_scope *scope) {
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
    struct tensor patches =
        context_tensor(x, DTYPE_F32, 2, (int32_t[]){mmdit_image_token_count(lane, MMDIT_PATCH), in});
    mmdit_patchify(x, patches, lane, MMDIT_PATCH);
    if (in > patch) {
        struct tensor target_rows = tensor_slice(patches, 0, mmdit_token_count(lane->latent, MMDIT_PATCH));
        op_patchify(x, tensor_slice_columns(target_rows, patch, in - patch), latent_planes(lane->concat),
                    flux_patches);
    }
    mmdit_linear(x, mmdit_image_rows(state->tokens, lane), patches, w);
    op_copy(x, mmdit_text_rows(state->tokens, lane), state->text);
}

void flux_forward_double(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct flux_state *state = scope->lane->state;
    struct mmdit_double block = {
        .w = weights,
        .text_rows = state->text.dim[0],
        .image_modulation = scope_rows_of_block(state->image_modulation, scope),
        .text_modulation = scope_rows_of_block(state->text_modulation, scope),
        .rope = state->rope,
    };
    mmdit_double_block(x, &block, state->tokens);
}

void flux_forward_single(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct flux_state *state = scope->lane->state;
    mmdit_single_block(x, weights, state->tokens, scope_rows_of_block(state->single_modulation, scope),
                       state->rope);
}

/* Flux predicts noise - data, the velocity of flow matching. */
static void flux_forward_final(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct linear_weights *w = weights;
    const struct flux_state *state = scope->lane->state;
    mmdit_proj_out(x, w, scope->lane, state->tokens, scope_rows(state->final_modulation, scope),
                   (struct patches){.side = MMDIT_PATCH, .order = PATCH_CHANNELS_FIRST});
}

const struct block_kind flux_kind_context =
    BLOCK_KIND("context", "context_embedder", flux_context_table, linear_weights, flux_forward_context,
               .update_rate = UPDATE_PER_PROMPT, .never_quantised = true);
const struct block_kind flux_kind_conditioning = BLOCK_KIND(
    "conditioning", "conditioning", flux_conditioning_table, mmdit_time_text_embed_weights,
    flux_forward_conditioning, .update_rate = UPDATE_PER_TIMESTEP_AND_PROMPT, .never_quantised = true);
const struct block_kind flux_kind_double = BLOCK_KIND("double", "transformer_blocks.%d", flux_double_table,
                                                      mmdit_block_weights, flux_forward_double);
const struct block_kind flux_kind_single = BLOCK_KIND(
    "single", "single_transformer_blocks.%d", flux_single_table, mmdit_single_weights, flux_forward_single);
BLOCK(flux_kind_embedder, "embedder", "x_embedder", flux_embedder_table, linear_weights,
      flux_forward_embedder, .never_quantised = true);
/* Block kinds of modulations and the list of them. set: name of the list; rate: their update rate. */
#define MODULATIONS(set, rate)                                                                               \
    BLOCK(set##_double, "double_modulation", "transformer_blocks.%d.modulation",                             \
          flux_double_modulation_table, double_modulation_weights, flux_forward_double_modulation,           \
          .update_rate = rate);                                                                              \
    BLOCK(set##_single, "single_modulation", "single_transformer_blocks.%d.modulation",                      \
          flux_single_modulation_table, linear_weights, flux_forward_single_modulation,                      \
          .update_rate = rate);                                                                              \
    BLOCK(set##_final, "final_modulation", "norm_out", flux_final_modulation_table, linear_weights,          \
          flux_forward_final_modulation, .update_rate = rate, .never_quantised = true);                      \
    const struct flux_modulations set = {&set##_double, &set##_single, &set##_final}
MODULATIONS(flux_modulations_of_prompt, UPDATE_PER_TIMESTEP_AND_PROMPT);
MODULATIONS(flux_modulations_of_timestep, UPDATE_PER_TIMESTEP);
const struct flux_modulations flux_modulations_of_control = {
    .double_block = &flux_modulations_of_prompt_double, .single_block = &flux_modulations_of_prompt_single};
BLOCK(flux_kind_final, "final", "proj_out", flux_final_table, linear_weights, flux_forward_final,
      .never_quantised = true);

bool flux_has_blocks(const struct tensor_index *index) {
    return (index_find(index, "transformer_blocks.0.attn.add_q_proj.weight") &&
            index_find(index, "single_transformer_blocks.0.proj_mlp.weight")) ||
           (index_find(index, "double_blocks.0.img_attn.qkv.weight") &&
            index_find(index, "single_blocks.0.linear1.weight"));
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
                                .n_axes = 3,
                                .layers = layers,
                                .n_blocks = 2 * layers + 5};
    return mmdit_check_sizes(c, &sizes, e);
}

/* Checks the input channels of x_embedder. Accepted are those of the latent and, if details.fills, those of
 * Canny and Depth (latent, control image's latent) and of Fill: latent, latent of the masked image, and the
 * mask with one channel for each of the side * side image pixels of a latent pixel. */
static enum status flux_check_inputs(const struct component *c, struct error *e) {
    const struct flux_details *details = c->family->details;
    const int32_t *d = c->dims;
    int latent = d[PATCH] / (MMDIT_PATCH * MMDIT_PATCH), mask = 0, side = 0;
    int extra = d[IN] > d[PATCH] ? (d[IN] - d[PATCH]) / (MMDIT_PATCH * MMDIT_PATCH) : 0;
    if (extra > latent) mask = extra - latent;
    while (side < 2 * MASK_SIDE && side * side < mask) side++;
    bool fills = (mask && side * side == mask) || extra == latent;
    bool whole = d[IN] == d[PATCH] + MMDIT_PATCH * MMDIT_PATCH * extra;
    if (d[IN] == d[PATCH] || (details->fills && fills && whole)) return OK;
    error_set(e, UNSUPPORTED,
              "unsupported variant of the transformer" WHERE "%s" FOUND "x_embedder with %d input channels",
              c->index.sources[0].path, d[IN]);
    if (!details->fills) return error_expected(e, "%d", d[PATCH]);
    return error_expected(e, "%d (dev, schnell, Kontext), %d (Canny, Depth) or %d (Fill)", d[PATCH],
                          2 * d[PATCH], MMDIT_PATCH * MMDIT_PATCH * (2 * latent + MASK_SIDE * MASK_SIDE));
}

enum status flux_configure(struct component *c, const struct config *config, struct error *e) {
    int patch = 1; /* diffusers packs 2x2 patches before the transformer */
    config_int(config, "patch_size", 1, 1, &patch, e);
    config_check_list(config, "axes_dims_rope", 3, e);
    return e->code == OK && flux_check_dims(c, e) == OK ? flux_check_inputs(c, e) : e->code;
}

/* Lists each modulation block before the block that uses the modulation: visits have this order if nothing is
 * hoisted. */
int flux_list_blocks(const struct component *c, struct block_ref *refs) {
    const struct flux_details *details = c->family->details;
    const struct flux_modulations *modulations = details->modulations;
    int n = 0;
    refs[n++] = (struct block_ref){.kind = details->context};
    refs[n++] = (struct block_ref){.kind = details->conditioning};
    refs[n++] = (struct block_ref){.kind = &flux_kind_embedder};
    for (int i = 0; i < c->dims[DOUBLE_LAYERS]; i++) {
        if (modulations) refs[n++] = (struct block_ref){.kind = modulations->double_block, .number = i};
        refs[n++] = (struct block_ref){.kind = details->double_block, .number = i};
    }
    for (int i = 0; i < c->dims[SINGLE_LAYERS]; i++) {
        if (modulations) refs[n++] = (struct block_ref){.kind = modulations->single_block, .number = i};
        refs[n++] = (struct block_ref){.kind = details->single_block, .number = i};
    }
    if (modulations) refs[n++] = (struct block_ref){.kind = modulations->final};
    refs[n++] = (struct block_ref){.kind = &flux_kind_final};
    return n;
}

/* Declares the conditioning and the modulations. */
static void flux_declare_rows(const struct component *c, const struct lane *lane, struct arena *arena,
                              bool *ok) {
    const struct flux_details *details = c->family->details;
    struct flux_state *s = lane->state;
    const int32_t *d = c->dims;
    int32_t rows = lane->hoisted ? lane->hoisted : 1;
    s->condition = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){rows, d[DIM]}, ok);
    int32_t doubles[] = {d[DOUBLE_LAYERS], rows, d[SIX_DIM]};
    s->image_modulation = arena_tensor(arena, DTYPE_F32, 3, doubles, ok);
    s->text_modulation = arena_tensor(arena, DTYPE_F32, 3, doubles, ok);
    if (d[SINGLE_LAYERS])
        s->single_modulation =
            arena_tensor(arena, DTYPE_F32, 3, (int32_t[]){d[SINGLE_LAYERS], rows, d[THREE_DIM]}, ok);
    if (!details->modulations || details->modulations->final)
        s->final_modulation = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){rows, d[TWO_DIM]}, ok);
}

void flux_declare_lane(const struct component *c, struct lane *lanes, int i, int32_t text, int32_t images,
                       struct arena *arena, bool *ok) {
    const struct flux_details *details = c->family->details;
    bool of_timestep = details->conditioning->update_rate == UPDATE_PER_TIMESTEP;
    struct flux_state *s = lanes[i].state;
    int32_t rows = text + images;
    int prompt = lane_first_of_prompt(lanes, i), shared = of_timestep && prompt == i ? 0 : prompt;
    if (shared == i)
        flux_declare_rows(c, &lanes[i], arena, ok);
    else
        *s = *(const struct flux_state *)lanes[shared].state;
    s->tokens = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){rows, c->dims[DIM]}, ok);
    if (prompt != i) return;
    s->rope = arena_tensor(arena, DTYPE_F32, 3, (int32_t[]){rows, c->dims[HEAD] / 2, 2}, ok);
    s->text = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){text, c->dims[DIM]}, ok);
}

void flux_declare(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                  struct arena *pictures, bool *ok) {
    (void)pictures;
    for (int i = 0; i < n_lanes; i++)
        flux_declare_lane(c, lanes, i, lanes[i].text.dim[0], mmdit_image_token_count(&lanes[i], MMDIT_PATCH),
                          arena, ok);
}

void flux_derive_dims(struct component *c) {
    struct flux_settings *s = (struct flux_settings *)c->settings;
    int32_t *d = c->dims;
    for (int i = 0; i < 3; i++) s->axis_dim[i] = d[AXES + i];
    d[HEAD] = d[AXES] + d[AXES + 1] + d[AXES + 2];
    d[DIM] = d[HEADS] * d[HEAD];
    d[FEED_FORWARD] = 4 * d[DIM];
    d[FREQUENCIES] = 256;
    d[PATCH] = MMDIT_PATCH * MMDIT_PATCH * d[LATENT];
    d[IN] = d[PATCH] * (1 + d[CONTROL]) +
            d[FILL] * (d[PATCH] + MMDIT_PATCH * MMDIT_PATCH * MASK_SIDE * MASK_SIDE);
}

void flux_derive(struct component *c) {
    const struct flux_details *details = c->family->details;
    int32_t *d = c->dims;
    ((struct flux_settings *)c->settings)->positions = details->positions;
    d[TWO_DIM] = 2 * d[DIM];
    d[THREE_DIM] = 3 * d[DIM];
    d[SIX_DIM] = 6 * d[DIM];
    d[FUSED_IN] = d[DIM] + d[FEED_FORWARD];
    d[HEADS] = d[DIM] / d[HEAD];
    d[LATENT] = d[PATCH] / (MMDIT_PATCH * MMDIT_PATCH);
    d[CONTROL] = d[IN] == 2 * d[PATCH];
    d[FILL] = d[IN] > 2 * d[PATCH];
    d[OUT] = d[FILL] || d[CONTROL] ? d[PATCH] : 0;
    c->text_columns = d[CAPTION];
    c->pooled_columns = d[POOLED];
    c->latent_channels = d[LATENT];
    c->concat_channels = (d[IN] - d[PATCH]) / (MMDIT_PATCH * MMDIT_PATCH);
}

const struct state_tensor flux_state_tensors[N_FLUX_STATE_TENSORS] = {
    STATE_TENSOR(flux_state, tokens),          STATE_TENSOR(flux_state, rope),
    STATE_TENSOR(flux_state, condition),       STATE_TENSOR(flux_state, image_modulation),
    STATE_TENSOR(flux_state, text_modulation), STATE_TENSOR(flux_state, single_modulation),
    STATE_TENSOR(flux_state, final_modulation)};
