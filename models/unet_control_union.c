/* Control networks of SDXL for several kinds of control images (ControlNet Union): unet_control.c with
 * another input, one network for one or more images of different kinds.
 *
 * Each image gives a feature map h by the hint convolutions, and a token: the mean of h over the pixels plus
 * the embedding of the image's kind. The tokens pass through transformer layers. The network's input is
 * conv_in(latent) plus the sum of all h and of the projected tokens. With several images, the
 * image's strength is a factor of h, token and projected token, and the residuals have no factor. An
 * embedding of the kinds in use (1 or 0 for each kind) is added to the timestep embedding.
 *
 * The layers' attention runs over the batch, in the authors' code and in diffusers. All lanes of an
 * image's batch have the same tokens, so attention returns the values, and queries and keys are not read.
 * (ComfyUI attends over the tokens.) The token of the latent, the authors' last one, thus has no effect.
 * Reference: diffusers 0.42, models/controlnets/controlnet_union.py; the misspelled names are those of the
 * files.
 */
#include "kernels/ops.h"
#include "models/unet_control.h"

struct union_hint_weights {
    struct unet_hint_weights hint;
    struct tensor modes; /* [MODES, TOKEN]: embeddings of the kinds of images */
};
struct mode_weights {
    struct linear_weights in, out;
};

/* clang-format off */
#define UNION_HINT(X, S)                                                                                     \
    UNET_HINT_OF(X, S, hint.)                                                                                \
    X##WEIGHT(S, modes, SHAPED(2, MODES, TOKEN), "task_embedding")
WEIGHT_TABLE(union_hint_table, UNION_HINT, union_hint_weights, "", "");
#define MODE_EMBEDDING(X, S)                                                                                 \
    X##LINEAR(S, in, TIME, MODE_COLUMNS, "control_add_embedding.linear_1")                                   \
    X##LINEAR(S, out, TIME, TIME, "control_add_embedding.linear_2")
WEIGHT_TABLE(mode_table, MODE_EMBEDDING, mode_weights, "", "");
/* Of the fused queries, keys and values, only the values. */
#define TOKEN_LAYER(X, S)                                                                                    \
    X##NORM(S, norm1, TOKEN, "ln_1")                                                                         \
    X##WEIGHT(S, v_weight, SHAPED(2, TOKEN, TOKEN), "attn.in_proj_weight[2/3]")                              \
    X##WEIGHT(S, v_bias, SHAPED(1, TOKEN), "attn.in_proj_bias[2/3]")                                         \
    X##LINEAR(S, out, TOKEN, TOKEN, "attn.out_proj")                                                         \
    X##NORM(S, norm2, TOKEN, "ln_2")                                                                         \
    X##LINEAR(S, up, TOKEN_FEED_FORWARD, TOKEN, "mlp.c_fc")                                                  \
    X##LINEAR(S, down, TOKEN, TOKEN_FEED_FORWARD, "mlp.c_proj")
struct token_layer_weights { TOKEN_LAYER(FIELD_, ) };
WEIGHT_TABLE(token_layer_table, TOKEN_LAYER, token_layer_weights, "transformer_layes.%d.", "transformer_layes.%d.");
LINEAR_TABLE(projection_table, OUT, TOKEN, "spatial_ch_projs");
/* clang-format on */

/* Adds the embedding of the kinds in use to the timestep embedding. */
static void forward_modes(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct mode_weights *w = weights;
    const struct unet_control_settings *settings = scope->settings;
    const struct unet_control_state *state = scope->lane->state;
    const struct lane *lane = scope->lane;
    struct tensor rows = scope_rows(state->unet.condition, scope);
    int32_t columns = w->in.weight.dim[1], each = settings->unet.time_id_columns;
    struct tensor vector = context_tensor(x, DTYPE_F32, 2, (int32_t[]){1, columns});
    struct tensor row = context_tensor(x, DTYPE_F32, 2, (int32_t[]){1, rows.dim[1]});
    for (int32_t mode = 0; mode < columns / each; mode++) {
        bool used = false;
        for (int i = 0; i < lane->n_controls; i++) used = used || lane->control[i].mode == mode;
        op_timestep(x, tensor_slice_columns(vector, mode * each, each), used, TIMESTEP_USUAL);
    }
    unet_embed(x, row, vector, &w->in, &w->out);
    op_add(x, rows, rows, row);
}

/* Factor of an image in the network's input: its strength if there are several images. The strength of a
 * single image is a factor of the residuals (residual_factor in unet_control.c). */
static float input_factor(const struct lane *lane, int image) {
    return lane->n_controls > 1 ? lane->control[image].strength : 1;
}

/* out = factor * in; rows of equal length. */
static void scale_rows(struct context *x, struct tensor out, struct tensor in, float factor) {
    const struct patches pixels = {.side = 1, .order = PATCH_CHANNELS_LAST, .pixels = true};
    op_unpatchify(x, tensor_reshape(out, 3, (int32_t[]){out.dim[0], 1, out.dim[1]}), in, pixels, factor);
}

/* Computes an image's feature map and token. */
static void forward_hint(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct union_hint_weights *w = weights;
    const struct unet_control_settings *settings = scope->settings;
    const struct unet_control_state *state = scope->lane->state;
    const struct lane *lane = scope->lane;
    struct tensor sum = unet_rows(state->hint);
    struct tensor h = context_tensor(x, DTYPE_F32, 3, state->hint.dim);
    struct tensor row = context_tensor(x, DTYPE_F32, 2, (int32_t[]){1, state->tokens.dim[1]});
    uint64_t mark = x->scratch->used;
    for (int i = 0; i < lane->n_controls; i++) {
        float factor = input_factor(lane, i);
        unet_hint(x, h, &w->hint, lane->control[i].input, settings->bgr);
        unet_mean(x, row, h);
        op_add(x, row, row, tensor_slice(w->modes, lane->control[i].mode, 1));
        scale_rows(x, tensor_slice(state->tokens, i, 1), row, factor);
        if (i)
            op_add_scaled(x, sum, sum, unet_rows(h), factor);
        else
            scale_rows(x, sum, unet_rows(h), factor);
        x->scratch->used = mark;
    }
}

/* tokens += out(v(norm1(tokens))); tokens += down(quick_gelu(up(norm2(tokens)))). */
static void forward_token_layer(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct token_layer_weights *w = weights;
    const struct unet_control_state *state = scope->lane->state;
    const float eps = 1e-5F;
    struct tensor tokens = state->tokens;
    struct tensor n = context_tensor(x, DTYPE_F32, 2, tokens.dim),
                  v = context_tensor(x, DTYPE_F32, 2, tokens.dim);
    struct tensor up = context_tensor(x, DTYPE_F32, 2, (int32_t[]){tokens.dim[0], w->up.weight.dim[0]});
    op_layer_norm(x, n, tokens, (struct affine){.weight = w->norm1.weight, .bias = w->norm1.bias}, eps);
    op_linear_few(x, v, n, w->v_weight, w->v_bias, ACTIVATION_NONE);
    op_linear_few(x, n, v, w->out.weight, w->out.bias, ACTIVATION_NONE);
    op_add(x, tokens, tokens, n);
    op_layer_norm(x, n, tokens, (struct affine){.weight = w->norm2.weight, .bias = w->norm2.bias}, eps);
    op_linear_few(x, up, n, w->up.weight, w->up.bias, ACTIVATION_NONE);
    op_linear_few(x, n, up, w->down.weight, w->down.bias, ACTIVATION_GELU_QUICK);
    op_add(x, tokens, tokens, n);
}

/* Adds the projected tokens to the sum of the images' feature maps. */
static void forward_projection(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct linear_weights *w = weights;
    const struct unet_control_state *state = scope->lane->state;
    struct tensor sum = unet_rows(state->hint);
    struct tensor projected = context_tensor(x, DTYPE_F32, 2, (int32_t[]){state->tokens.dim[0], sum.dim[1]});
    op_linear_few(x, projected, state->tokens, w->weight, w->bias, ACTIVATION_NONE);
    for (int32_t i = 0; i < state->tokens.dim[0]; i++)
        op_add_scaled(x, sum, sum, tensor_slice(projected, i, 1), input_factor(scope->lane, i));
}

BLOCK(kind_modes, "control_embedding", "control_add_embedding", mode_table, mode_weights, forward_modes,
      .update_rate = UPDATE_PER_TIMESTEP_AND_PROMPT, .never_quantised = true);
BLOCK(kind_hint, "hint", "controlnet_cond_embedding", union_hint_table, union_hint_weights, forward_hint,
      .update_rate = UPDATE_PER_PROMPT, .never_quantised = true);
BLOCK(kind_token_layer, "token_layer", "transformer_layes.%d", token_layer_table, token_layer_weights,
      forward_token_layer, .update_rate = UPDATE_PER_PROMPT, .never_quantised = true);
BLOCK(kind_projection, "token_projection", "spatial_ch_projs", projection_table, linear_weights,
      forward_projection, .update_rate = UPDATE_PER_PROMPT, .never_quantised = true);

static int union_blocks(const struct component *c, struct block_ref *refs) {
    struct unet_list list = {c, refs, 0};
    unet_add(&list, &unet_conditioning[1], (struct block_ref){0});
    unet_add(&list, &kind_modes, (struct block_ref){0});
    unet_add(&list, &kind_hint, (struct block_ref){0});
    for (int i = 0; i < c->dims[TOKEN_LAYERS]; i++)
        unet_add(&list, &kind_token_layer, (struct block_ref){.number = i});
    unet_add(&list, &kind_projection, (struct block_ref){0});
    unet_control_add_encoder(&list);
    return list.n;
}

static bool union_probe(const struct tensor_index *index) {
    return unet_is_control(index) && index_find(index, "control_add_embedding.linear_1.weight");
}

/* Rejects kinds of control images for which the network has no embedding. */
static enum status union_check_lanes(const struct component *c, const struct lane *lanes, int n_lanes,
                                     struct error *e) {
    for (int i = 0; i < n_lanes; i++)
        for (int k = 0; k < lanes[i].n_controls; k++)
            if (lanes[i].control[k].mode < 0 || lanes[i].control[k].mode >= c->dims[MODES])
                return error_set(e, USAGE,
                                 "unknown kind of control image" WHERE "%s" FOUND "mode %d" EXPECTED
                                 "0 to %d (--control-mode)",
                                 c->index.sources[0].path, lanes[i].control[k].mode, c->dims[MODES] - 1);
    return OK;
}

static enum status union_configure(struct component *c, const struct config *config, struct error *e) {
    const struct unet_settings *s = (const struct unet_settings *)c->settings;
    const int32_t *d = c->dims;
    if (unet_control_configure(c, config, e) != OK) return e->code;
    if (d[MODE_COLUMNS] == d[MODES] * s->time_id_columns && d[TOKEN] == d[CHANNELS]) return OK;
    return error_set(e, SHAPE,
                     "unsupported ControlNet Union: sizes of its embeddings" WHERE "%s" FOUND
                     "%d modes, control_add_embedding of %d columns, tokens of %d columns" EXPECTED
                     "%d columns for each mode, tokens of %d columns",
                     c->index.sources[0].path, d[MODES], d[MODE_COLUMNS], d[TOKEN], s->time_id_columns,
                     d[CHANNELS]);
}

static void union_derive_dims(struct component *c) {
    const struct unet_settings *s = (const struct unet_settings *)c->settings;
    int32_t *d = c->dims;
    unet_control_derive_dims(c);
    d[TOKEN] = d[CHANNELS];
    d[TOKEN_FEED_FORWARD] = 4 * d[TOKEN];
    d[MODE_COLUMNS] = d[MODES] * s->time_id_columns;
}

static const struct dimension union_dimensions[] = {
    UNET_CONTROL_DIMENSIONS,
    {"control_modes", 6, 1, 64, .place = MODES, OF_TENSOR(2, 0, "task_embedding"), .key = "num_control_type"},
    {"control_layers", 1, 1, 64, .place = TOKEN_LAYERS, OF_BLOCKS("transformer_layes."),
     .key = "num_trans_layer"},
    {.place = TOKEN, OF_TENSOR(2, 1, "task_embedding"), .key = "num_trans_channel"},
    {.place = TOKEN_FEED_FORWARD, OF_TENSOR(2, 0, "transformer_layes.0.mlp.c_fc.weight")},
    {.place = MODE_COLUMNS, OF_TENSOR(2, 1, "control_add_embedding.linear_1.weight")},
    {.place = TOKEN, OF_TENSOR(2, 0, "spatial_ch_projs.weight"), .key = "num_proj_channel"},
};
static const struct setting union_settings[] = {UNET_CONTROL_SETTINGS};
/* Kinds of control images of xinsir's networks, named as in ComfyUI, comfy/cldm/control_types.py; the smaller
 * network has the first six. hed: soft edges and scribbles; canny: also line drawings. */
static const char *const union_modes[] = {"openpose", "depth", "hed",     "canny", "normal",
                                          "segment",  "tile",  "repaint", NULL};

const struct family family_unet_control_union = {
    .name = "unet_control_union",
    .kind = FAMILY_CONTROL,
    .display_name = "ControlNet Union",
    .files = {.config_key = "_class_name",
              .config_value = "ControlNetUnionModel",
              .probe = union_probe,
              .refuse = unet_control_refuse},
    .config = {.dimensions = union_dimensions,
               .n_dimensions = COUNT_OF(union_dimensions),
               .settings = union_settings,
               .n_settings = COUNT_OF(union_settings),
               .expects = unet_expects,
               .configure = union_configure,
               .derive_dims = union_derive_dims,
               .derive = unet_control_derive},
    .blocks = {.list = union_blocks, .dims = unet_control_block_dims},
    .state = {.bytes = sizeof(struct unet_control_state), .declare = unet_control_declare},
    .lanes.check = union_check_lanes,
    .control = {.denoiser = &family_unet,
                .input = CONTROL_PIXELS,
                .combines_images = true,
                .modes = union_modes,
                .check = unet_control_check,
                .visits = unet_control_visits},
    .f16_operands = true, /* diffusers runs these networks in f16 */
};
