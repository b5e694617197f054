/* Control networks of Stable Diffusion 3.5 large (Stability AI: Blur, Canny, Depth; diffusers:
 * SD3ControlNetModel without joint_attention_dim and pos_embed). Tokens: the image.
 *
 * The network reads no prompt but the pooled one. Its image tokens start from the denoiser's, patches and
 * positions, plus a 2x2 convolution of the control image's latent. Its blocks have one stream of tokens:
 * self-attention and feed-forward, each with shift, scale and gate from timestep and pooled prompt. Residuals
 * are added as in sd3_control.c; both lanes of guidance run the network. Stability AI's files hold
 * control_type, which selects a transform of the control image before the VAE's encoder. Source: diffusers
 * 0.42, models/controlnets/controlnet_sd3.py; names of Stability AI's files: diffusers,
 * scripts/convert_sd3_controlnet_to_diffusers.py. */
#include "models/mmdit_control.h"
#include "models/sd3.h"
#include "models/slots.h"

struct control_settings {
    int head;
    int zero_pooled;  /* 1: the pooled prompt is zeros (force_zeros_for_pooled_projection) */
    int control_type; /* enum control_type */
};

/* Values of the tensor control_type. Canny: the encoder reads 127.5 v + 0.5 for pixels v from 0 to 1 (model
 * card's SD3CannyImageProcessor). Depth: the map is inverted, as ComfyUI does (load_controlnet_sd35). */
enum control_type { TYPE_BLUR, TYPE_CANNY, TYPE_DEPTH };

struct control_state {
    struct tensor tokens; /* [image rows, DIM] */
    /* Conditioning and modulation, shared by the lanes of a prompt: one row per evaluation if hoisted, else
     * one. */
    struct tensor condition;  /* [rows, DIM] */
    struct tensor modulation; /* [LAYERS, rows, SIX_DIM] */
    struct tensor residual;   /* [image rows, DIM], one at a time */
};

WEIGHT_TABLE(conditioning_table, SD3_CONDITIONING, mmdit_time_text_embed_weights, "time_text_embed.", "");
CONV_TABLE(embedder_table, DIM, IN, SIDE, "pos_embed_input.proj");
LINEAR_TABLE(modulation_table, SIX_DIM, DIM, SD3_BLOCK "norm1.linear", SD3_BLOCK "adaLN_modulation.1");
LINEAR_TABLE(residual_table, DIM, DIM, "controlnet_blocks.%d");
/* clang-format off */
#define LAYER(X, S)                                                                                          \
    X##LINEAR(S, attention.q, DIM, DIM, "attn.to_q", "attn.qkv[0/3]")                                        \
    X##LINEAR(S, attention.k, DIM, DIM, "attn.to_k", "attn.qkv[1/3]")                                        \
    X##LINEAR(S, attention.v, DIM, DIM, "attn.to_v", "attn.qkv[2/3]")                                        \
    X##LINEAR(S, attention.out, DIM, DIM, "attn.to_out.0", "attn.proj")                                      \
    X##LINEAR(S, up, FEED_FORWARD, DIM, "ff.net.0.proj", "mlp.fc1")                                          \
    X##LINEAR(S, down, DIM, FEED_FORWARD, "ff.net.2", "mlp.fc2")
/* clang-format on */

static void forward_conditioning(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct control_state *state = scope->lane->state;
    const struct control_settings *s = scope->settings;
    mmdit_control_condition(x, scope_rows(state->condition, scope), weights, scope, s->zero_pooled);
}

static void forward_modulation(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct control_state *state = scope->lane->state;
    mmdit_modulation(x, scope_rows_of_block(state->modulation, scope), scope_rows(state->condition, scope),
                     weights);
}

static void forward_embedder(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct control_state *state = scope->lane->state;
    const struct lane *denoiser = scope->lane->denoiser;
    const struct sd3_state *of = denoiser->state;
    mmdit_control_embed(x, state->tokens, mmdit_image_rows(of->tokens, denoiser), weights, scope->lane);
}

static void forward_layer(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct control_settings *s = scope->settings;
    const struct control_state *state = scope->lane->state;
    int32_t rows = state->tokens.dim[0];
    struct mmdit_stream stream = {.w = weights,
                                  .rows = rows,
                                  .n_updated = rows,
                                  .range = {{rows, scope_rows_of_block(state->modulation, scope)}}};
    mmdit_stream_block(x, &stream, state->tokens, (struct mmdit_heads){.size = s->head});
}

static void forward_residual(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct control_state *state = scope->lane->state;
    mmdit_linear(x, state->residual, state->tokens, weights);
}

static void forward_add(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct control_state *state = scope->lane->state;
    const struct sd3_state *denoiser = scope->lane->denoiser->state;
    (void)weights;
    mmdit_control_add(x, denoiser->tokens, state->residual, scope->lane);
}

BLOCK(kind_conditioning, "conditioning", "time_text_embed", conditioning_table, mmdit_time_text_embed_weights,
      forward_conditioning, .update_rate = UPDATE_PER_TIMESTEP_AND_PROMPT, .never_quantised = true);
BLOCK(kind_embedder, "embedder", "pos_embed_input.proj", embedder_table, linear_weights, forward_embedder,
      .never_quantised = true);
BLOCK(kind_modulation, "modulation", SD3_BLOCK "modulation", modulation_table, linear_weights,
      forward_modulation, .update_rate = UPDATE_PER_TIMESTEP_AND_PROMPT);
BLOCK_OF_LIST(kind_layer, "layer", "transformer_blocks.%d", LAYER, mmdit_stream_weights, SD3_BLOCK, SD3_BLOCK,
              forward_layer);
BLOCK(kind_residual, "residual", "controlnet_blocks.%d", residual_table, linear_weights, forward_residual);
static const struct block_kind kind_add = {.name = "add", .format = "add", .forward = forward_add};

static int list_blocks(const struct component *c, struct block_ref *refs) {
    int n = 0;
    refs[n++] = (struct block_ref){.kind = &kind_conditioning};
    refs[n++] = (struct block_ref){.kind = &kind_embedder};
    for (int i = 0; i < c->dims[LAYERS]; i++) {
        refs[n++] = (struct block_ref){.kind = &kind_modulation, .number = i};
        refs[n++] = (struct block_ref){.kind = &kind_layer, .number = i};
        refs[n++] = (struct block_ref){.kind = &kind_residual, .number = i};
    }
    refs[n++] = (struct block_ref){.kind = &kind_add};
    return n;
}

static void declare(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                    struct arena *pictures, bool *ok) {
    const int32_t *d = c->dims;
    (void)pictures;
    for (int i = 0; i < n_lanes; i++) {
        struct control_state *s = lanes[i].state;
        int32_t rows = lanes[i].hoisted ? lanes[i].hoisted : 1;
        int32_t image[] = {mmdit_token_count(lanes[i].latent, MMDIT_PATCH), d[DIM]};
        int first = lane_first_of_prompt(lanes, i);
        if (!lane_computes(&lanes[i])) continue;
        if (first != i) *s = *(const struct control_state *)lanes[first].state;
        s->tokens = arena_tensor(arena, DTYPE_F32, 2, image, ok);
        s->residual = arena_tensor(arena, DTYPE_F32, 2, image, ok);
        if (first != i) continue;
        s->condition = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){rows, d[DIM]}, ok);
        s->modulation = arena_tensor(arena, DTYPE_F32, 3, (int32_t[]){d[LAYERS], rows, d[SIX_DIM]}, ok);
    }
}

static bool probe(const struct tensor_index *index) {
    return index_find(index, "controlnet_blocks.0.weight") &&
           index_find(index, "pos_embed_input.proj.weight") && !index_find(index, "context_embedder.weight");
}

#define OF_MEDIUM                                                                                            \
    "a control network of Stable Diffusion 3.5 with 2 B parameters, whose blocks all read one input"

/* Refuses networks for the model of 2 B parameters: they embed the image themselves. */
static enum status refuse(const struct component *c, struct error *e) {
    static const struct similar_architecture relatives[] = {
        {"pos_embed.proj.", OF_MEDIUM}, {"x_embedder.", OF_MEDIUM}, {0}};
    return component_refuse_similar(
        c, relatives, "a control network of Stable Diffusion 3.5 large, or InstantX's of Stable Diffusion 3",
        e);
}

/* Reads the kind of control image, a tensor with one number; Blur if it is absent. */
static enum status read_type(struct component *c, struct error *e) {
    struct control_settings *s = (struct control_settings *)c->settings;
    const struct index_entry *entry = index_find(&c->index, "control_type");
    float value = 0;
    if (!entry) return OK;
    if (source_read_values(&c->index.sources[entry->source], entry->offset, entry->dtype, 0, 1, &value, e) !=
        OK)
        return e->code;
    s->control_type = (int)lroundf(value);
    if (s->control_type >= TYPE_BLUR && s->control_type <= TYPE_DEPTH) return OK;
    return error_set(e, UNSUPPORTED,
                     "unsupported kind of control image" WHERE "%s, control_type" FOUND "%g" EXPECTED
                     "0 (blur), 1 (canny) or 2 (depth)",
                     c->index.sources[0].path, (double)value);
}

static enum status configure(struct component *c, const struct config *config, struct error *e) {
    enum { HEAD_PUBLISHED = 64 };
    int32_t *d = c->dims;
    int head = HEAD_PUBLISHED, patch = MMDIT_PATCH;
    config_int(config, "attention_head_dim", 1, 512, &head, e);
    config_int(config, "patch_size", MMDIT_PATCH, MMDIT_PATCH, &patch, e);
    d[HEAD] = head;
    struct mmdit_sizes sizes = {.dim = d[DIM],
                                .feed_forward = d[FEED_FORWARD],
                                .head = d[HEAD],
                                .frequencies = d[FREQUENCIES],
                                .patch = MMDIT_PATCH * MMDIT_PATCH * d[IN],
                                .layers = d[LAYERS],
                                .n_blocks = 3 * d[LAYERS] + 3};
    return e->code != OK || mmdit_check_sizes(c, &sizes, e) != OK ? e->code : read_type(c, e);
}

static void derive_dims(struct component *c) {
    int32_t *d = c->dims;
    d[DIM] = d[HEADS] * d[HEAD];
    d[FEED_FORWARD] = 4 * d[DIM];
    d[FREQUENCIES] = 256;
    d[IN] = d[LATENT];
}

static void derive(struct component *c) {
    struct control_settings *s = (struct control_settings *)c->settings;
    int32_t *d = c->dims;
    d[SIDE] = MMDIT_PATCH;
    d[SIX_DIM] = 6 * d[DIM];
    d[HEADS] = d[DIM] / d[HEAD];
    d[LATENT] = d[IN];
    s->head = d[HEAD];
    c->pooled_columns = d[POOLED];
    c->latent_channels = c->concat_channels = d[IN];
    c->control.unshifted = s->zero_pooled;
    if (s->control_type == TYPE_CANNY) {
        c->control.factor = 127.5F;
        c->control.offset = 0.5F;
    } else if (s->control_type == TYPE_DEPTH) {
        c->control.factor = -2;
        c->control.offset = 1;
    }
}

static enum status check(const struct component *c, const struct component *denoiser, struct error *e) {
    /* In networks of the model of 2 B parameters, the pooled prompt's first layer reads the output of the
     * denoiser's first layer, of DIM columns. */
    bool of_medium = c->pooled_columns == c->dims[DIM] && c->pooled_columns != denoiser->pooled_columns;
    if (!of_medium) return mmdit_control_check(c, denoiser, DIM, LAYERS, e);
    return error_set(e, UNSUPPORTED,
                     "unsupported control network" WHERE "%s" FOUND OF_MEDIUM EXPECTED
                     "a control network of Stable Diffusion 3.5 large",
                     c->index.sources[0].path);
}

static int list_visits(const struct component *c, const struct component *denoiser,
                       struct control_visit *visits) {
    static const struct mmdit_control_kinds kinds = {
        .denoiser_embedder = &sd3_kind_embedder,
        .denoiser_layer = {&sd3_kind_layer, &sd3_kind_layer},
        .embedder = &kind_embedder,
        .layer = {&kind_layer, &kind_layer},
        .residual = &kind_residual,
        .add = &kind_add,
        .residual_of = sd3_residual_of,
    };
    return mmdit_control_visits(c, denoiser, &kinds, c->dims[LAYERS], visits);
}

/* Sizes of the published networks, 2.15 B parameters. */
static const struct dimension dimensions[] = {
    {"heads", 38, 1, 512, .place = HEADS, .key = "num_attention_heads", .checked = true},
    {"sd3_head", 64, 2, 512, .place = HEAD, .key = "attention_head_dim", .checked = true},
    {"layers", 19, 1, SD3_LAYERS_MAX / 2, .place = LAYERS, OF_BLOCKS("transformer_blocks."),
     .key = "num_layers"},
    {"sd3_pooled", 2048, 8, 65536, .place = POOLED,
     OF_TENSOR(2, 1, "time_text_embed.text_embedder.linear_1.weight", "y_embedder.mlp.0.weight"),
     .key = "pooled_projection_dim", .checked = true},
    {"latent_channels", 16, 1, 1024, .place = LATENT, .key = "out_channels"},
    {.place = DIM, OF_TENSOR(2, 0, "controlnet_blocks.0.weight")},
    {.place = IN, OF_TENSOR(4, 1, "pos_embed_input.proj.weight"), .key = "in_channels", .checked = true},
    {.place = FREQUENCIES,
     OF_TENSOR(2, 1, "time_text_embed.timestep_embedder.linear_1.weight", "t_embedder.mlp.0.weight")},
    {.place = FEED_FORWARD,
     OF_TENSOR(2, 0, "transformer_blocks.0.ff.net.0.proj.weight", "transformer_blocks.0.mlp.fc1.weight")},
};
static const struct setting settings[] = {
    {{"force_zeros_for_pooled_projection"},
     offsetof(struct control_settings, zero_pooled),
     SETTING_BOOL,
     0,
     0,
     1},
};
static const char *const ignorable[] = {"control_type", NULL};
static const char *const architectures[] = {"sd35_control", NULL};
static const struct state_tensor state_tensors[] = {STATE_TENSOR(control_state, tokens),
                                                    STATE_TENSOR(control_state, residual)};

const struct family family_sd35_control = {
    .name = "sd35_control",
    .kind = FAMILY_CONTROL,
    .display_name = "Stable Diffusion 3.5 large control network",
    .files = {.architectures = architectures,
              .config_key = "_class_name",
              .config_value = "SD3ControlNetModel",
              .probe = probe,
              .refuse = refuse,
              .ignorable = ignorable},
    .config = {.dimensions = dimensions,
               .n_dimensions = COUNT_OF(dimensions),
               .settings = settings,
               .n_settings = COUNT_OF(settings),
               .configure = configure,
               .derive_dims = derive_dims,
               .derive = derive,
               .rest = "\"patch_size\": 2, \"joint_attention_dim\": null, \"use_pos_embed\": false, "
                       "\"pos_embed_type\": null, \"pos_embed_max_size\": null"},
    .blocks = {.list = list_blocks},
    .state = {.bytes = sizeof(struct control_state),
              .tensors = state_tensors,
              .n_tensors = COUNT_OF(state_tensors),
              .declare = declare},
    .control = {.denoiser = &family_sd3, .input = CONTROL_LATENT, .check = check, .visits = list_visits},
};
