/* Qwen-Image transformer, MMDiT (diffusers: QwenImageTransformer2DModel). Token order: text, the generated
 * image, reference images (Edit).
 *
 * Text and image have separate weights with joint attention (mmdit.h). The conditioning is the timestep
 * alone; linear layers turn the timestep embedding into each block's shifts, scales and gates (AdaLN). These
 * layers are a third of all weights and separate blocks here, which can be hoisted. Edit 2511 modulates
 * reference tokens as at timestep 0 (zero_cond_t). Rope: images are centred at (0, 0), with the image number
 * on the first axis; text positions continue diagonally after the largest image coordinate. The last block
 * updates only the tokens of the generated image; its text gives keys and values. Source: diffusers 0.42,
 * models/transformers/transformer_qwenimage.py, whose tensor names all published files use. */
#include "models/qwen_image.h"

#include "models/slots.h"

/* config.json key and tensor name that mark models which modulate reference tokens as at timestep 0. */
#define ZERO_COND        "zero_cond_t"
#define ZERO_COND_TENSOR "__index_timestep_zero__"

LINEAR_TABLE(qwen_image_embedder_table, DIM, IN, "img_in");
LINEAR_TABLE(qwen_image_final_modulation_table, TWO_DIM, DIM, "norm_out.linear");
LINEAR_TABLE(qwen_image_final_table, PATCH, DIM, "proj_out");

/* clang-format off */
#define TEXT_EMBEDDER(X, S)                                                                                  \
    X##VECTOR(S, norm, TEXT, "txt_norm")                                                                     \
    X##LINEAR(S, linear, DIM, TEXT, "txt_in")
struct text_weights { TEXT_EMBEDDER(FIELD_, ) };
WEIGHT_TABLE(qwen_image_text_table, TEXT_EMBEDDER, text_weights, "", "");

#define TIME_EMBEDDER(X, S)                                                                                  \
    X##LINEAR(S, in, DIM, FREQUENCIES, "time_text_embed.timestep_embedder.linear_1")                         \
    X##LINEAR(S, out, DIM, DIM, "time_text_embed.timestep_embedder.linear_2")
struct time_weights { TIME_EMBEDDER(FIELD_, ) };
WEIGHT_TABLE(qwen_image_time_table, TIME_EMBEDDER, time_weights, "", "");

/* Weights of a block, in the order of use. */
#define IMAGE_QKV(X, S)                                                                                      \
    X##LINEAR(S, image.attention.q, DIM, DIM, "attn.to_q")                                                   \
    X##VECTOR(S, image.attention.q_norm, HEAD, "attn.norm_q")                                                \
    X##LINEAR(S, image.attention.k, DIM, DIM, "attn.to_k")                                                   \
    X##VECTOR(S, image.attention.k_norm, HEAD, "attn.norm_k")                                                \
    X##LINEAR(S, image.attention.v, DIM, DIM, "attn.to_v")
#define TEXT_Q(X, S)                                                                                         \
    X##LINEAR(S, text.attention.q, DIM, DIM, "attn.add_q_proj")                                              \
    X##VECTOR(S, text.attention.q_norm, HEAD, "attn.norm_added_q")
#define TEXT_KV(X, S)                                                                                        \
    X##LINEAR(S, text.attention.k, DIM, DIM, "attn.add_k_proj")                                              \
    X##VECTOR(S, text.attention.k_norm, HEAD, "attn.norm_added_k")                                           \
    X##LINEAR(S, text.attention.v, DIM, DIM, "attn.add_v_proj")
#define IMAGE_OUT(X, S) X##LINEAR(S, image.attention.out, DIM, DIM, "attn.to_out.0")
#define TEXT_OUT(X, S)  X##LINEAR(S, text.attention.out, DIM, DIM, "attn.to_add_out")
#define IMAGE_MLP(X, S)                                                                                      \
    X##LINEAR(S, image.up, FEED_FORWARD, DIM, "img_mlp.net.0.proj")                                          \
    X##LINEAR(S, image.down, DIM, FEED_FORWARD, "img_mlp.net.2")
#define TEXT_MLP(X, S)                                                                                       \
    X##LINEAR(S, text.up, FEED_FORWARD, DIM, "txt_mlp.net.0.proj")                                           \
    X##LINEAR(S, text.down, DIM, FEED_FORWARD, "txt_mlp.net.2")
#define LAYER(X, S)                                                                                          \
    IMAGE_QKV(X, S) TEXT_Q(X, S) TEXT_KV(X, S) IMAGE_OUT(X, S) TEXT_OUT(X, S) IMAGE_MLP(X, S) TEXT_MLP(X, S)
#define LAST_LAYER(X, S) IMAGE_QKV(X, S) TEXT_KV(X, S) IMAGE_OUT(X, S) IMAGE_MLP(X, S)
/* Text weights of the last block: files have these weights, but the model does not use them. */
#define LAST_LAYER_UNUSED(X, S) TEXT_Q(X, S) TEXT_OUT(X, S) TEXT_MLP(X, S)
#define LAYER_NAME "transformer_blocks.%d."
WEIGHT_TABLE(qwen_image_layer_table, LAYER, mmdit_block_weights, LAYER_NAME, LAYER_NAME);
WEIGHT_TABLE(qwen_image_last_table, LAST_LAYER, mmdit_block_weights, LAYER_NAME, LAYER_NAME);
WEIGHT_TABLE(qwen_image_last_unused_table, LAST_LAYER_UNUSED, mmdit_block_weights, LAYER_NAME, LAYER_NAME);

#define LAYER_MODULATION(X, S)                                                                               \
    X##LINEAR(S, image, SIX_DIM, DIM, "img_mod.1")                                                           \
    X##LINEAR(S, text, SIX_DIM, DIM, "txt_mod.1")
struct layer_modulation_weights { LAYER_MODULATION(FIELD_, ) };
WEIGHT_TABLE(qwen_image_layer_modulation_table, LAYER_MODULATION, layer_modulation_weights,
             LAYER_NAME, LAYER_NAME);
/* clang-format on */

static void qwen_image_fill_rope(struct context *x, const struct visit_scope *scope) {
    const struct qwen_image_settings *settings = scope->settings;
    const struct qwen_image_state *state = scope->lane->state;
    const struct lane *lane = scope->lane;
    int32_t text = 0;
    struct rope_options rope = {
        .theta = 10000,
        .n_axes = 3,
        .axis_dim = {settings->axis_dim[0], settings->axis_dim[1], settings->axis_dim[2]},
        .f32_frequencies = true,
        .n_grids = 2 + mmdit_n_references(lane),
    };
    for (int i = 0; i + 1 < rope.n_grids; i++) {
        struct tensor latent = mmdit_latent(lane, i);
        int32_t h = latent.dim[2] / MMDIT_PATCH, w = latent.dim[3] / MMDIT_PATCH;
        rope.grid[1 + i] =
            (struct rope_grid){.start = {i, h / 2 - h, w / 2 - w}, .extent = {latent.dim[1], h, w}};
        if (h / 2 > text) text = h / 2;
        if (w / 2 > text) text = w / 2;
    }
    rope.grid[0] = (struct rope_grid){
        .start = {text, text, text}, .extent = {lane->text.dim[0], 1, 1}, .diagonal = true};
    op_rope_table(x, state->rope, &rope);
}

static void qwen_image_forward_text(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct text_weights *w = weights;
    const struct qwen_image_state *state = scope->lane->state;
    struct tensor n = context_operand(x, 2, scope->lane->text.dim);
    qwen_image_fill_rope(x, scope);
    op_rms_norm(x, n, scope->lane->text, w->norm, mmdit_norm_eps, (struct modulation){0});
    mmdit_linear(x, state->text, n, &w->linear);
}

static void qwen_image_embed_times(struct context *x, struct tensor out, const float *times,
                                   const struct time_weights *w) {
    int32_t n = out.dim[0];
    struct tensor f = context_tensor(x, DTYPE_F32, 2, (int32_t[]){n, w->in.weight.dim[1]});
    for (int32_t i = 0; i < n; i++) op_timestep(x, tensor_slice(f, i, 1), times[i], TIMESTEP_OF_SIGMA);
    mmdit_embed(x, out, f, &w->in, &w->out);
}

static void qwen_image_forward_time(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct qwen_image_state *state = scope->lane->state;
    static const float zero_cond_t = 0;
    qwen_image_embed_times(x, scope_rows(state->condition, scope), scope->timesteps, weights);
    if (state->clean_condition.rank) qwen_image_embed_times(x, state->clean_condition, &zero_cond_t, weights);
}

/* Row of one block in clean_modulation (image modulation at timestep 0): [1, SIX_DIM]. */
static struct tensor qwen_image_clean_row(const struct qwen_image_state *state, int number) {
    struct tensor all = state->clean_modulation;
    return tensor_reshape(tensor_slice(all, number, 1), 2, all.dim + 1);
}

static void qwen_image_forward_layer_modulation(struct context *x, const void *weights,
                                                const struct visit_scope *scope) {
    const struct layer_modulation_weights *w = weights;
    const struct qwen_image_state *state = scope->lane->state;
    struct tensor condition = scope_rows(state->condition, scope);
    mmdit_modulation(x, scope_rows_of_block(state->image_modulation, scope), condition, &w->image);
    mmdit_modulation(x, scope_rows_of_block(state->text_modulation, scope), condition, &w->text);
    if (state->clean_modulation.rank)
        mmdit_modulation(x, qwen_image_clean_row(state, scope->number), state->clean_condition, &w->image);
}

static void qwen_image_forward_final_modulation(struct context *x, const void *weights,
                                                const struct visit_scope *scope) {
    const struct linear_weights *w = weights;
    const struct qwen_image_state *state = scope->lane->state;
    mmdit_modulation(x, scope_rows(state->final_modulation, scope), scope_rows(state->condition, scope), w);
}

static void qwen_image_forward_embedder(struct context *x, const void *weights,
                                        const struct visit_scope *scope) {
    const struct linear_weights *w = weights;
    const struct qwen_image_state *state = scope->lane->state;
    const struct lane *lane = scope->lane;
    struct tensor patches = context_tensor(
        x, DTYPE_F32, 2, (int32_t[]){mmdit_image_token_count(lane, MMDIT_PATCH), w->weight.dim[1]});
    mmdit_patchify(x, patches, lane, MMDIT_PATCH);
    mmdit_linear(x, mmdit_image_rows(state->tokens, lane), patches, w);
    op_copy(x, mmdit_text_rows(state->tokens, lane), state->text);
}

static void qwen_image_layer(struct context *x, const struct mmdit_block_weights *w,
                             const struct visit_scope *scope, bool last) {
    const struct qwen_image_state *state = scope->lane->state;
    int32_t text = scope->lane->text.dim[0], images = state->tokens.dim[0] - text;
    int32_t target_rows = mmdit_token_count(scope->lane->latent, MMDIT_PATCH);
    struct mmdit_stream of_image = {
        .w = &w->image,
        .first = text,
        .rows = images,
        .n_updated = last ? target_rows : images,
        .range = {{images, scope_rows_of_block(state->image_modulation, scope)}},
    };
    struct mmdit_stream of_text = {
        .w = &w->text,
        .rows = text,
        .n_updated = last ? 0 : text,
        .range = {{text, scope_rows_of_block(state->text_modulation, scope)}},
    };
    if (state->clean_modulation.rank) {
        of_image.range[0].rows = target_rows;
        of_image.range[1] =
            (struct mmdit_range){images - target_rows, qwen_image_clean_row(state, scope->number)};
    }
    mmdit_joint_block(x, &of_image, &of_text, state->tokens,
                      (struct mmdit_heads){.size = 2 * state->rope.dim[1], .rope = state->rope});
}

static void qwen_image_forward_layer(struct context *x, const void *weights,
                                     const struct visit_scope *scope) {
    qwen_image_layer(x, weights, scope, false);
}

static void qwen_image_forward_last(struct context *x, const void *weights, const struct visit_scope *scope) {
    qwen_image_layer(x, weights, scope, true);
}

/* Qwen-Image predicts noise - data, the velocity of flow matching. */
static void qwen_image_forward_final(struct context *x, const void *weights,
                                     const struct visit_scope *scope) {
    const struct linear_weights *w = weights;
    const struct qwen_image_state *state = scope->lane->state;
    mmdit_proj_out(x, w, scope->lane, state->tokens, scope_rows(state->final_modulation, scope),
                   (struct patches){.side = MMDIT_PATCH, .order = PATCH_CHANNELS_FIRST});
}

const struct block_kind qwen_image_kind_text =
    BLOCK_KIND("text", "txt_in", qwen_image_text_table, text_weights, qwen_image_forward_text,
               .update_rate = UPDATE_PER_PROMPT, .never_quantised = true);
const struct block_kind qwen_image_kind_time =
    BLOCK_KIND("time", "time_text_embed", qwen_image_time_table, time_weights, qwen_image_forward_time,
               .update_rate = UPDATE_PER_TIMESTEP, .never_quantised = true);
const struct block_kind qwen_image_kind_embedder =
    BLOCK_KIND("embedder", "img_in", qwen_image_embedder_table, linear_weights, qwen_image_forward_embedder,
               .never_quantised = true);
const struct block_kind qwen_image_kind_layer_modulation = BLOCK_KIND(
    "layer_modulation", "transformer_blocks.%d.modulation", qwen_image_layer_modulation_table,
    layer_modulation_weights, qwen_image_forward_layer_modulation, .update_rate = UPDATE_PER_TIMESTEP);
const struct block_kind qwen_image_kind_layer = BLOCK_KIND(
    "layer", "transformer_blocks.%d", qwen_image_layer_table, mmdit_block_weights, qwen_image_forward_layer);
const struct block_kind qwen_image_kind_last =
    BLOCK_KIND("last_layer", "transformer_blocks.%d", qwen_image_last_table, mmdit_block_weights,
               qwen_image_forward_last);
const struct block_kind qwen_image_kind_last_unused =
    BLOCK_KIND("rest", "transformer_blocks.%d.rest", qwen_image_last_unused_table, mmdit_block_weights,
               qwen_image_forward_last);
BLOCK(qwen_image_kind_final_modulation, "final_modulation", "norm_out", qwen_image_final_modulation_table,
      linear_weights, qwen_image_forward_final_modulation, .update_rate = UPDATE_PER_TIMESTEP,
      .never_quantised = true);
BLOCK(qwen_image_kind_final, "final", "proj_out", qwen_image_final_table, linear_weights,
      qwen_image_forward_final, .never_quantised = true);

/* True for Qwen-Image and for related models with the same tensor names, which qwen_image_refuse rejects by
 * name. */
static bool qwen_image_probe(const struct tensor_index *index) {
    return index_find(index, "transformer_blocks.0.img_mod.1.weight");
}

static enum status qwen_image_refuse(const struct component *c, struct error *e) {
    static const struct similar_architecture relatives[] = {
        {"controlnet_", "a Qwen-Image ControlNet, not a complete model"},
        {"time_text_embed.addition_t_embedding.", "Qwen-Image-Layered, which outputs image layers"},
        {0},
    };
    return component_refuse_similar(c, relatives, "Qwen-Image, Qwen-Image-Edit or Qwen-Image-Edit-Plus", e);
}

static const struct expectation qwen_image_expects[] = {
    {"guidance_embeds", NULL}, {"use_additional_t_cond", NULL}, {"use_layer3d_rope", NULL}, {0}};

enum status qwen_image_check_dims(const struct component *c, int n_blocks, struct error *e) {
    const int32_t *d = c->dims;
    struct mmdit_sizes sizes = {.dim = d[DIM],
                                .feed_forward = d[FEED_FORWARD],
                                .head = d[HEAD],
                                .frequencies = d[FREQUENCIES],
                                .patch = d[PATCH],
                                .axis = ((const struct qwen_image_settings *)c->settings)->axis_dim,
                                .n_axes = 3,
                                .layers = d[LAYERS],
                                .n_blocks = n_blocks};
    return mmdit_check_sizes(c, &sizes, e);
}

/* Refuses token sizes other than those of 2x2 patches, and Mage-Flow, which has the same tensor names but
 * tokens of one latent pixel with 128 channels. */
static enum status qwen_image_check_patch(const struct component *c, struct error *e) {
    const int32_t *d = c->dims;
    enum { MAGE_FLOW = 128 };
    bool whole = d[IN] == d[PATCH] && !(d[IN] % (MMDIT_PATCH * MMDIT_PATCH));
    if (whole && d[IN] != MAGE_FLOW) return OK;
    return error_set(e, UNSUPPORTED,
                     "%s" WHERE "%s" FOUND
                     "img_in with %d input channels, proj_out with %d output channels" EXPECTED
                     "64 for both: %d for each of 16 latent channels",
                     whole ? "unsupported model: Mage-Flow, whose latents differ from Qwen-Image's"
                           : "unsupported Qwen-Image variant",
                     c->index.sources[0].path, d[IN], d[PATCH], MMDIT_PATCH * MMDIT_PATCH);
}

static enum status qwen_image_configure(struct component *c, const struct config *config, struct error *e) {
    struct qwen_image_settings *s = (struct qwen_image_settings *)c->settings;
    int patch = MMDIT_PATCH;
    config_int(config, "patch_size", MMDIT_PATCH, MMDIT_PATCH, &patch, e);
    config_check_list(config, "axes_dims_rope", 3, e);
    if (index_find(&c->index, ZERO_COND_TENSOR) && !config_find(config, ZERO_COND)) s->zero_cond_t = 1;
    if (e->code != OK || qwen_image_check_patch(c, e) != OK) return e->code;
    return qwen_image_check_dims(c, 2 * c->dims[LAYERS] + 6, e);
}

/* Lists each modulation block before the block that uses the modulation: visits have this order if nothing is
 * hoisted. */
static int qwen_image_blocks(const struct component *c, struct block_ref *refs) {
    int n = 0, last = c->dims[LAYERS] - 1;
    refs[n++] = (struct block_ref){.kind = &qwen_image_kind_text};
    refs[n++] = (struct block_ref){.kind = &qwen_image_kind_time};
    refs[n++] = (struct block_ref){.kind = &qwen_image_kind_embedder};
    for (int i = 0; i <= last; i++) {
        refs[n++] = (struct block_ref){.kind = &qwen_image_kind_layer_modulation, .number = i};
        refs[n++] = (struct block_ref){.kind = i < last ? &qwen_image_kind_layer : &qwen_image_kind_last,
                                       .number = i};
    }
    refs[n++] = (struct block_ref){.kind = &qwen_image_kind_last_unused, .number = last, .unused = true};
    refs[n++] = (struct block_ref){.kind = &qwen_image_kind_final_modulation};
    refs[n++] = (struct block_ref){.kind = &qwen_image_kind_final};
    return n;
}

void qwen_image_declare_rows(const struct component *c, const struct lane *lane, struct arena *arena,
                             bool *ok) {
    struct qwen_image_state *s = lane->state;
    const int32_t *d = c->dims;
    int32_t rows = lane->hoisted ? lane->hoisted : 1, layers[] = {d[LAYERS], rows, d[SIX_DIM]};
    s->condition = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){rows, d[DIM]}, ok);
    s->image_modulation = arena_tensor(arena, DTYPE_F32, 3, layers, ok);
    s->text_modulation = arena_tensor(arena, DTYPE_F32, 3, layers, ok);
    s->final_modulation = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){rows, d[TWO_DIM]}, ok);
    if (!((const struct qwen_image_settings *)c->settings)->zero_cond_t || !lane->reference[0].rank) return;
    s->clean_condition = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){1, d[DIM]}, ok);
    s->clean_modulation = arena_tensor(arena, DTYPE_F32, 3, (int32_t[]){d[LAYERS], 1, d[SIX_DIM]}, ok);
}

void qwen_image_declare_prompt(const struct component *c, const struct lane *lane, struct arena *arena,
                               bool *ok) {
    struct qwen_image_state *s = lane->state;
    s->rope = arena_tensor(arena, DTYPE_F32, 3, (int32_t[]){s->tokens.dim[0], c->dims[HEAD] / 2, 2}, ok);
    s->text = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){lane->text.dim[0], c->dims[DIM]}, ok);
}

static void qwen_image_declare(const struct component *c, struct lane *lanes, int n_lanes,
                               struct arena *arena, struct arena *pictures, bool *ok) {
    (void)pictures;
    for (int i = 0; i < n_lanes; i++) {
        struct qwen_image_state *s = lanes[i].state;
        int first = lane_first_of_prompt(lanes, i);
        int32_t dim = c->dims[DIM], text = lanes[i].text.dim[0];
        int32_t rows = text + mmdit_image_token_count(&lanes[i], MMDIT_PATCH);
        if (i)
            *s = *(const struct qwen_image_state *)lanes[first == i ? 0 : first].state;
        else
            qwen_image_declare_rows(c, &lanes[0], arena, ok);
        s->tokens = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){rows, dim}, ok);
        if (first == i) qwen_image_declare_prompt(c, &lanes[i], arena, ok);
    }
}

static const char *const qwen_image_ignorable[] = {ZERO_COND_TENSOR, NULL};
static const char *const qwen_image_architectures[] = {"qwen_image", NULL};
/* Sizes of the published Qwen-Image, 20.4 B parameters. */
static const struct dimension qwen_image_dimensions[] = {
    QWEN_IMAGE_DIMENSIONS(60),
    QWEN_IMAGE_TENSOR_DIMENSIONS,
    {.place = PATCH, OF_TENSOR(2, 0, "proj_out.weight")},
};

static const struct setting qwen_image_settings[] = {
    QWEN_IMAGE_AXES,
    {{ZERO_COND}, offsetof(struct qwen_image_settings, zero_cond_t), SETTING_BOOL, 0, 0, 1},
};

void qwen_image_derive_dims(struct component *c) {
    struct qwen_image_settings *s = (struct qwen_image_settings *)c->settings;
    int32_t *d = c->dims;
    for (int i = 0; i < 3; i++) s->axis_dim[i] = d[AXES + i];
    d[HEAD] = d[AXES] + d[AXES + 1] + d[AXES + 2];
    d[DIM] = d[HEADS] * d[HEAD];
    d[FEED_FORWARD] = 4 * d[DIM];
    d[FREQUENCIES] = 256;
    d[IN] = d[PATCH] = MMDIT_PATCH * MMDIT_PATCH * d[LATENT];
}

void qwen_image_derive(struct component *c) {
    int32_t *d = c->dims;
    d[TWO_DIM] = 2 * d[DIM];
    d[SIX_DIM] = 6 * d[DIM];
    d[HEADS] = d[DIM] / d[HEAD];
    d[LATENT] = d[PATCH] / (MMDIT_PATCH * MMDIT_PATCH);
    c->text_columns = d[TEXT];
    c->latent_channels = d[LATENT];
}

static const struct state_tensor qwen_image_state_tensors[] = {
    STATE_TENSOR(qwen_image_state, tokens), STATE_TENSOR(qwen_image_state, rope),
    STATE_TENSOR(qwen_image_state, text), STATE_TENSOR(qwen_image_state, condition),
    STATE_TENSOR(qwen_image_state, clean_condition)};

const struct family family_qwen_image = {
    .name = "qwen_image",
    .kind = FAMILY_DENOISER,
    .display_name = "transformer",
    .files = {.architectures = qwen_image_architectures,
              .config_key = "_class_name",
              .config_value = "QwenImageTransformer2DModel",
              .probe = qwen_image_probe,
              .refuse = qwen_image_refuse,
              .ignorable = qwen_image_ignorable},
    .config = {.dimensions = qwen_image_dimensions,
               .n_dimensions = COUNT_OF(qwen_image_dimensions),
               .settings = qwen_image_settings,
               .n_settings = COUNT_OF(qwen_image_settings),
               .expects = qwen_image_expects,
               .configure = qwen_image_configure,
               .derive_dims = qwen_image_derive_dims,
               .derive = qwen_image_derive,
               .rest = "\"patch_size\": 2, \"guidance_embeds\": false"},
    .blocks = {.list = qwen_image_blocks},
    .state = {.bytes = sizeof(struct qwen_image_state),
              .tensors = qwen_image_state_tensors,
              .n_tensors = COUNT_OF(qwen_image_state_tensors),
              .declare = qwen_image_declare},
    .predicted = {{.kind = "layer",
                   .alone = true,
                   .tokens = 4160,
                   .text_rows = 64,
                   .text_columns = 3584,
                   PREDICTED_IMAGE}},
};

/* clang-format off */
static const struct hf_source qwen_image_sources[] = {
    {"Comfy-Org/Qwen-Image_ComfyUI", "--llm", "qwen_2.5_vl_7b*.safetensors", 0},
    {"unsloth/Qwen2.5-VL-7B-Instruct-GGUF", "--llm", "Qwen2.5-VL-7B-Instruct-Q4_K_M.gguf", 0},
    {"unsloth/Qwen2.5-VL-7B-Instruct-GGUF", "--llm_vision", "mmproj-F16.gguf", 0},
    {"Comfy-Org/Qwen-Image_ComfyUI", "--vae", "qwen_image_vae.safetensors", 0},
    {"lightx2v/Autoencoders", "--taesd", "taew2_1.safetensors", 0},
    {0},
};
static const struct hf_source qwen_image_files[] = {
    {"Qwen/Qwen-Image", NULL, NULL, 0},
    {"Qwen/Qwen-Image-2512", NULL, NULL, 0},
    {"Comfy-Org/Qwen-Image_ComfyUI", "--diffusion-model", "qwen_image_bf16.safetensors", 40900},
    {"city96/Qwen-Image-gguf", "--diffusion-model", "qwen-image-*.gguf", 0},
    {0},
};
static const struct hf_source qwen_image_edit_files[] = {
    {"Qwen/Qwen-Image-Edit", NULL, NULL, 0},
    {0},
};
static const struct hf_source qwen_image_edit_plus_files[] = {
    {"Qwen/Qwen-Image-Edit-2509", NULL, NULL, 0},
    {"Qwen/Qwen-Image-Edit-2511", NULL, NULL, 0},
    {0},
};
/* clang-format on */

/* clang-format off */
/* Prompts of Qwen-Image: diffusers 0.42, pipelines/qwenimage. diffusers tokenises up to 1,058 tokens and drops
 * the template's 34 tokens; the denoiser reads at most 512 rows, so 546 tokens suffice, because attention is
 * causal. Further arguments are initialisers of text_recipe. */
#define TEXT_QWEN(...)                                                                                       \
    TEXT_QWEN25VL(.template_before = "<|im_start|>system\nDescribe the image by detailing the color, shape, " \
                                     "size, texture, quantity, text, spatial relationships of the objects "  \
                                     "and background:<|im_end|>\n<|im_start|>user\n",                        \
                  .template_after = "<|im_end|>\n<|im_start|>assistant\n",                                   \
                  .tokens_max = 34 + 512, .drop_idx = 34, __VA_ARGS__)

/* Template of prompts with reference images. number: format of the label before each image; "": no label. */
#define IMAGE_PROMPT(number)                                                                                 \
    .image_prompt = {.template_before =                                                                      \
                     "<|im_start|>system\nDescribe the key features of the input image (color, shape, size, " \
                     "texture, objects, background), then explain how the user's text instruction should "   \
                     "alter or modify the image. Generate a new image that meets the user's requirements "   \
                     "while maintaining consistency with the original input where appropriate.<|im_end|>\n"  \
                     "<|im_start|>user\n",                                                                   \
                 .drop_idx = 64, .before = number "<|vision_start|>", .after = "<|vision_end|>",             \
                 .pad = "<|image_pad|>"}

/* Qwen-Image. Defaults are those of QwenImagePipeline.__call__; the schedule is that of the published
 * scheduler_config.json. Lightning's schedule has base_shift and max_shift ln 3 and no shift_terminal. */
#define QWEN_IMAGE(text_slot, ...)                                                                           \
    .slot = {VISION_QWEN25VL, text_slot, DENOISER(family_qwen_image, __VA_ARGS__), VAE_WAN},                 \
    .text = {.condition = {{.slot = 1, .what = CONDITION_TOKENS}}, .n_conditions = 1},                       \
    .images.samples_posterior = true,                                                                        \
    .denoising = {.span = {{2, INFINITY}}, .guide = guidance_cfg_keep_norm, .cfg_needs_negative = true,      \
                  .sampling = {.prediction = &prediction_flow, .schedule = &schedule_flow,                   \
                               .sampler = &sampler_euler, .grid = {.grid_f64 = true}},                       \
                  .shift_rule = FLOW_SHIFT_BY_TOKENS, .shift_terminal = 0.02,                                \
                  .shift_line = {.base_shift = 0.5, .max_shift = 0.9,                                        \
                                 .base_tokens = 256, .max_tokens = 8192}},                                   \
    .defaults = {.width = 1024, .height = 1024, .steps = 50, .cfg_scale = 4, .strength = 0.6},               \
    .patch = 2, .colours = &latent_colours_wan
/* clang-format on */

/* Picture areas: the first editing pipeline feeds one image, resized to the output area, to vision encoder
 * and VAE. Later pipelines, and files without a pipeline name, resize each image to a smaller area for the
 * vision encoder. */
enum { QWEN_AREA = 1024 * 1024, QWEN_AREA_VISION = 384 * 384 };
#define QWEN_PROCESSOR                                                                                       \
    { "Qwen2VLProcessor", "processor", true }

const struct recipe recipe_qwen_image = {
    QWEN_IMAGE(TEXT_QWEN(IMAGE_PROMPT("Picture %d: "))),
    .name = "qwen_image",
    .selection.pipelines = {"QwenImagePipeline", "QwenImageImg2ImgPipeline", "QwenImageInpaintPipeline"},
    .images.references_max = 3,
    .images.references_if_unnamed = true,
    .images.areas = {.vision = QWEN_AREA_VISION, .vae = QWEN_AREA, .output = QWEN_AREA, .multiple = 32},
    .published = {.title = "Qwen-Image, 2512; Edit as a single file",
                  .reference = DIFFUSERS,
                  .sources = {qwen_image_files, qwen_image_sources}},
};

const struct recipe recipe_qwen_image_edit = {
    QWEN_IMAGE(TEXT_QWEN(IMAGE_PROMPT(""))),
    .name = "qwen_image_edit",
    .text.processor = QWEN_PROCESSOR,
    .selection.edit = "plain",
    .selection.pipelines = {"QwenImageEditPipeline", "QwenImageEditInpaintPipeline"},
    .images.references_min = 1,
    .images.references_max = 1,
    .images.areas = {.vision = QWEN_AREA, .vae = QWEN_AREA, .output = QWEN_AREA, .multiple = 32},
    .published = {.title = "Qwen-Image-Edit",
                  .reference = DIFFUSERS,
                  .sources = {qwen_image_edit_files, qwen_image_sources}},
};

const struct recipe recipe_qwen_image_edit_plus = {
    QWEN_IMAGE(TEXT_QWEN(IMAGE_PROMPT("Picture %d: "))),
    .name = "qwen_image_edit_plus",
    .text.processor = QWEN_PROCESSOR,
    .selection.edit = "plus",
    .selection.pipelines = {"QwenImageEditPlusPipeline"},
    .images.references_min = 1,
    .images.references_max = 3,
    .images.areas = {.vision = QWEN_AREA_VISION, .vae = QWEN_AREA, .output = QWEN_AREA, .multiple = 32},
    .published = {.title = "Qwen-Image-Edit 2509, 2511",
                  .reference = DIFFUSERS,
                  .sources = {qwen_image_edit_plus_files, qwen_image_sources}},
};

/* Edit-Plus whose reference tokens are modulated as at timestep 0 (zero_cond_t), for files without a
 * configuration that sets zero_cond_t. */
static const struct published_setting qwen_2511[] = {{"zero_cond_t", 1}, {0}};

const struct recipe recipe_qwen_image_edit_2511 = {
    QWEN_IMAGE(TEXT_QWEN(IMAGE_PROMPT("Picture %d: ")), .published = qwen_2511),
    .name = "qwen_image_edit_2511",
    .text.processor = QWEN_PROCESSOR,
    .selection.edit = "2511",
    .selection.pipelines = {"QwenImageEditPlusPipeline"},
    .images.references_min = 1,
    .images.references_max = 3,
    .images.areas = {.vision = QWEN_AREA_VISION, .vae = QWEN_AREA, .output = QWEN_AREA, .multiple = 32},
    .published = {.title = "Qwen-Image-Edit 2511, single files",
                  .parts_compared_in = &recipe_qwen_image_edit_plus,
                  .sources = {qwen_image_sources}},
};
