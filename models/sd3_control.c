/* Control networks of Stable Diffusion 3 and 3.5 medium (diffusers: SD3ControlNetModel): InstantX's and
 * others in their format. Token order: text, image.
 *
 * The network has the denoiser's joint blocks with weights of its own, and its own position table and
 * embedders of image, prompt, timestep and pooled prompt. A 2x2 convolution with stride 2 embeds the control
 * image's latent for the image tokens; inpainting networks have one more channel, 1 - mask. Residual int(b /
 * (denoiser layers / network layers)) is added after each denoiser layer b but the last. Both lanes of
 * guidance run the network. Networks with force_zeros_for_pooled_projection, the default, read zeros as the
 * pooled prompt, and a control latent that is scaled, not shifted; inpainting networks read zeros and a
 * shifted latent. Source: diffusers 0.42, models/controlnets/controlnet_sd3.py,
 * pipelines/controlnet_sd3/pipeline_stable_diffusion_3_controlnet.py.
 */
#include "models/mmdit_control.h"
#include "models/sd3.h"
#include "models/slots.h"

/* Further indices into component.dims. */
enum {
    CONTROL_IN = SD3_DIMS, /* channels of the control latent */
    EXTRA,                 /* CONTROL_IN - IN: 1 with a mask (extra_conditioning_channels) */
};

struct control_settings {
    struct sd3_settings network; /* first: the shared blocks read it as component.settings */
    int zero_pooled;             /* 1: the pooled prompt is zeros (force_zeros_for_pooled_projection) */
};

struct control_state {
    struct sd3_state network; /* first: the shared blocks read it as lane.state */
    struct tensor residual;   /* [image rows, DIM], one at a time */
};

WEIGHT_TABLE(conditioning_table, SD3_CONDITIONING, mmdit_time_text_embed_weights, "time_text_embed.", "");
LINEAR_TABLE(residual_table, DIM, DIM, "controlnet_blocks.%d");
/* clang-format off */
#define EMBEDDER(X, S)                                                                                       \
    X##CONV(S, image, DIM, IN, SIDE, "pos_embed.proj")                                                       \
    X##CONV(S, control, DIM, CONTROL_IN, SIDE, "pos_embed_input.proj")
struct embedder_weights { EMBEDDER(FIELD_, ) };

/* As in the denoiser, but files have six parts of the last block's text modulation, shift and scale first. */
#define MODULATION(X, S)                                                                                     \
    X##LINEAR(S, image, IMAGE_PARTS_DIM, DIM, "norm1.linear")                                                \
    X##LINEAR(IF_DIM(S, TEXT_UPDATED), text, SIX_DIM, DIM, "norm1_context.linear")                           \
    X##LINEAR(IF_DIM(S, CONTEXT_PRE_ONLY), text, TWO_DIM, DIM, "norm1_context.linear[0,1/6]")
/* Weights of the last block's text tokens after attention: in files, but not used. */
#define UNUSED(X, S)                                                                                         \
    X##LINEAR(S, text.attention.q, DIM, DIM, "attn.add_q_proj")                                              \
    X##VECTOR(IF_DIM(S, NORMED), text.attention.q_norm, HEAD, "attn.norm_added_q")                           \
    X##LINEAR(S, text.attention.out, DIM, DIM, "attn.to_add_out")                                            \
    X##LINEAR(S, text.up, FEED_FORWARD, DIM, "ff_context.net.0.proj")                                        \
    X##LINEAR(S, text.down, DIM, FEED_FORWARD, "ff_context.net.2")
/* clang-format on */

static void forward_conditioning(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct control_state *state = scope->lane->state;
    const struct control_settings *settings = scope->settings;
    mmdit_control_condition(x, scope_rows(state->network.condition, scope), weights, scope,
                            settings->zero_pooled);
}

static void forward_embedder(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct embedder_weights *w = weights;
    const struct sd3_state *state = scope->lane->state;
    struct tensor rows = mmdit_image_rows(state->tokens, scope->lane);
    int32_t in = MMDIT_PATCH * MMDIT_PATCH * scope->lane->latent.dim[0];
    struct tensor patches = context_tensor(x, DTYPE_F32, 2, (int32_t[]){rows.dim[0], in});
    mmdit_patchify(x, patches, scope->lane, MMDIT_PATCH);
    op_linear(x, rows, patches, tensor_reshape(w->image.weight, 2, (int32_t[]){rows.dim[1], in}),
              (struct epilogue){.bias = w->image.bias, .residual = state->positions});
    mmdit_control_embed(x, rows, rows, &w->control, scope->lane);
    op_copy(x, mmdit_text_rows(state->tokens, scope->lane), state->text);
}

static void forward_residual(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct control_state *state = scope->lane->state;
    mmdit_linear(x, state->residual, mmdit_image_rows(state->network.tokens, scope->lane), weights);
}

static void forward_add(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct control_state *state = scope->lane->state;
    const struct sd3_state *denoiser = scope->lane->denoiser->state;
    (void)weights;
    mmdit_control_add(x, denoiser->tokens, state->residual, scope->lane);
}

BLOCK(kind_conditioning, "conditioning", "time_text_embed", conditioning_table, mmdit_time_text_embed_weights,
      forward_conditioning, .update_rate = UPDATE_PER_TIMESTEP_AND_PROMPT, .never_quantised = true);
BLOCK_OF_LIST(kind_embedder, "embedder", "pos_embed.proj", EMBEDDER, embedder_weights, "", "",
              forward_embedder, .never_quantised = true);
BLOCK_OF_LIST(kind_modulation, "modulation", SD3_BLOCK "modulation", MODULATION, sd3_modulation_weights,
              SD3_BLOCK, SD3_BLOCK, sd3_forward_modulation, .update_rate = UPDATE_PER_TIMESTEP_AND_PROMPT);
BLOCK_OF_LIST(kind_unused, "rest", SD3_BLOCK "rest", UNUSED, mmdit_block_weights, SD3_BLOCK, SD3_BLOCK,
              forward_residual);
BLOCK(kind_residual, "residual", "controlnet_blocks.%d", residual_table, linear_weights, forward_residual);
static const struct block_kind kind_add = {.name = "add", .format = "add", .forward = forward_add};

static int list_blocks(const struct component *c, struct block_ref *refs) {
    int n = 0, layers = c->dims[LAYERS];
    refs[n++] = (struct block_ref){.kind = &sd3_kind_position};
    refs[n++] = (struct block_ref){.kind = &sd3_kind_context};
    refs[n++] = (struct block_ref){.kind = &kind_conditioning};
    refs[n++] = (struct block_ref){.kind = &kind_embedder};
    for (int i = 0; i < layers; i++) {
        refs[n++] = (struct block_ref){.kind = &kind_modulation, .number = i};
        refs[n++] = (struct block_ref){.kind = &sd3_kind_layer, .number = i};
        refs[n++] = (struct block_ref){.kind = &kind_residual, .number = i};
    }
    refs[n++] = (struct block_ref){.kind = &kind_unused, .number = layers - 1, .unused = true};
    refs[n++] = (struct block_ref){.kind = &kind_add};
    return n;
}

static void declare(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                    struct arena *pictures, bool *ok) {
    (void)pictures;
    for (int i = 0; i < n_lanes; i++) {
        struct control_state *s = lanes[i].state;
        int32_t image = mmdit_token_count(lanes[i].latent, MMDIT_PATCH), dim = c->dims[DIM];
        int32_t rows[] = {image, dim};
        int first = lane_first_of_prompt(lanes, i);
        if (!lane_computes(&lanes[i])) continue;
        if (i)
            s->network = ((const struct control_state *)lanes[first == i ? 0 : first].state)->network;
        else
            s->network.positions = arena_tensor(arena, DTYPE_F32, 2, rows, ok);
        s->network.tokens =
            arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){lanes[i].text.dim[0] + image, dim}, ok);
        s->residual = arena_tensor(arena, DTYPE_F32, 2, rows, ok);
        if (first == i) sd3_declare_prompt(c, &lanes[i], arena, ok);
    }
}

static bool probe(const struct tensor_index *index) {
    return index_find(index, "controlnet_blocks.0.weight") &&
           index_find(index, "pos_embed_input.proj.weight") && index_find(index, "context_embedder.weight");
}

static enum status configure(struct component *c, const struct config *config, struct error *e) {
    int32_t *d = c->dims;
    d[PATCH] = MMDIT_PATCH * MMDIT_PATCH * d[IN];
    d[EXTRA] = d[CONTROL_IN] - d[IN];
    if (sd3_read_layers(c, config, 3 * d[LAYERS] + 6, e) != OK || sd3_read_positions(c, e) != OK)
        return e->code;
    if (!d[EXTRA] || d[EXTRA] == 1) return OK;
    return error_set(e, UNSUPPORTED,
                     "unsupported Stable Diffusion 3 control network" WHERE "%s" FOUND
                     "pos_embed_input.proj with %d input channels" EXPECTED
                     "%d, or %d with a mask (inpainting)",
                     c->index.sources[0].path, d[CONTROL_IN], d[IN], d[IN] + 1);
}

static void derive_dims(struct component *c) {
    sd3_derive_dims(c);
    c->dims[CONTROL_IN] = c->dims[IN] + c->dims[EXTRA];
}

static void derive(struct component *c) {
    struct control_settings *s = (struct control_settings *)c->settings;
    sd3_derive(c);
    c->concat_channels = c->dims[CONTROL_IN];
    c->control.unshifted = s->zero_pooled && !c->dims[EXTRA];
    if (c->dims[EXTRA]) s->zero_pooled = 1;
}

static enum status check(const struct component *c, const struct component *denoiser, struct error *e) {
    return mmdit_control_check(c, denoiser, DIM, LAYERS, e);
}

static int list_visits(const struct component *c, const struct component *denoiser,
                       struct control_visit *visits) {
    static const struct mmdit_control_kinds kinds = {
        .denoiser_embedder = &sd3_kind_embedder,
        .denoiser_layer = {&sd3_kind_layer, &sd3_kind_layer},
        .embedder = &kind_embedder,
        .layer = {&sd3_kind_layer, &sd3_kind_layer},
        .residual = &kind_residual,
        .add = &kind_add,
        .residual_of = sd3_residual_of,
    };
    return mmdit_control_visits(c, denoiser, &kinds, c->dims[LAYERS], visits);
}

/* Sizes of InstantX's networks for Stable Diffusion 3 medium, 1.06 B parameters and the position table. */
static const struct dimension dimensions[] = {
    {"heads", 24, 1, 512, .place = HEADS, .key = "num_attention_heads", .checked = true},
    {"sd3_head", 64, 2, 512, .place = HEAD, .key = "attention_head_dim", .checked = true},
    {"layers", 12, 1, SD3_LAYERS_MAX / 2, .place = LAYERS, OF_BLOCKS("transformer_blocks."),
     .key = "num_layers"},
    {"hidden", 4096, 8, 65536, .place = TEXT, OF_TENSOR(2, 1, "context_embedder.weight"),
     .key = "joint_attention_dim", .checked = true},
    {"sd3_pooled", 2048, 8, 65536, .place = POOLED,
     OF_TENSOR(2, 1, "time_text_embed.text_embedder.linear_1.weight"), .key = "pooled_projection_dim",
     .checked = true},
    {"latent_channels", 16, 1, 1024, .place = LATENT, .key = "out_channels"},
    {"sd3_positions", 192, 1, 4096, .place = TABLE_SIDE, .key = "pos_embed_max_size", .checked = true},
    {"sd3_norms", 0, 0, 1, .place = NORMED, .having = sd3_norm_names, .key = "qk_norm",
     .words = sd3_norm_words, .checked = true},
    {"sd3_seconds", 0, 0, SD3_DUAL_LAYERS_MAX, .place = DUAL_LAYERS, .having = sd3_dual_names},
    {"masked", 0, 0, 1, .place = EXTRA, .key = "extra_conditioning_channels", .checked = true},
    {.place = DIM,
     OF_TENSOR(2, 0, "context_embedder.weight"),
     .key = "caption_projection_dim",
     .checked = true},
    {.place = IN, OF_TENSOR(4, 1, "pos_embed.proj.weight"), .key = "in_channels", .checked = true},
    {.place = CONTROL_IN, OF_TENSOR(4, 1, "pos_embed_input.proj.weight")},
    {.place = FREQUENCIES, OF_TENSOR(2, 1, "time_text_embed.timestep_embedder.linear_1.weight")},
    {.place = FEED_FORWARD, OF_TENSOR(2, 0, "transformer_blocks.0.ff.net.0.proj.weight")},
};
static const struct setting settings[] = {
    {{"sample_size"}, offsetof(struct control_settings, network.latent_side), SETTING_INT, 128, 1, 4096},
    {{"force_zeros_for_pooled_projection"},
     offsetof(struct control_settings, zero_pooled),
     SETTING_BOOL,
     1,
     0,
     1},
};
static const struct setting_list lists[] = {
    {.key = "dual_attention_layers",
     .offset = offsetof(struct control_settings, network.dual_layer),
     .capacity = SD3_DUAL_LAYERS_MAX,
     .count = DUAL_LAYERS,
     .least = 0,
     .most = SD3_LAYERS_MAX,
     .derived = true},
};
static const char *const architectures[] = {"sd3_control", NULL};
static const struct state_tensor state_tensors[] = {STATE_TENSOR(control_state, network.tokens),
                                                    STATE_TENSOR(control_state, residual)};

const struct family family_sd3_control = {
    .name = "sd3_control",
    .kind = FAMILY_CONTROL,
    .display_name = "Stable Diffusion 3 control network",
    .files = {.architectures = architectures,
              .config_key = "_class_name",
              .config_value = "SD3ControlNetModel",
              .probe = probe},
    .config = {.dimensions = dimensions,
               .n_dimensions = COUNT_OF(dimensions),
               .settings = settings,
               .n_settings = COUNT_OF(settings),
               .lists = lists,
               .n_lists = COUNT_OF(lists),
               .expects = sd3_expects,
               .configure = configure,
               .derive_dims = derive_dims,
               .derive = derive,
               .rest = "\"patch_size\": 2"},
    .blocks = {.list = list_blocks, .dims = sd3_block_dims, .rows = sd3_rows},
    .state = {.bytes = sizeof(struct control_state),
              .tensors = state_tensors,
              .n_tensors = COUNT_OF(state_tensors),
              .declare = declare},
    .lanes = {.check = sd3_check_lanes},
    .control = {.denoiser = &family_sd3, .input = CONTROL_LATENT, .check = check, .visits = list_visits},
};
