/* UNets of Stable Diffusion 1, 2 and XL: convolutions over the latent at three or four resolutions, with
 * transformers in between that attend to the prompt.
 *
 * Down: each level has resnets, each followed by a transformer if the level has transformers, then a
 * convolution that halves the size. Middle: resnet, transformer, resnet. Up: each level has one resnet more;
 * every resnet also reads a skip connection from the down side, last in, first out. The timestep, and in SDXL
 * the pooled prompt and add_time_ids, form one embedding row that each resnet projects. These projections and
 * the transformers' keys and values of the prompt are separate blocks: they depend on timestep and prompt
 * alone, so their weights are read once.
 *
 * A position is a resnet and the transformer that follows it. Feature maps are [Y, X, C]; a transformer reads
 * the same bytes as token rows. Reference: diffusers 0.42, models/unets/unet_2d_condition.py,
 * models/resnet.py, models/transformers/transformer_2d.py; names in the authors' checkpoints:
 * loaders/single_file_utils.py, convert_ldm_unet_checkpoint. */
#include "kernels/ops.h"
#include "models/row_chunk.h"
#include "models/unet.h"

#include <math.h>

static const float unet_transformer_eps = 1e-6f, unet_layer_eps = 1e-5f;
static const struct patches unet_pixels = {.side = 1, .order = PATCH_CHANNELS_FIRST};

/* Weights of a UNet block that is a norm and one linear layer or convolution. */
struct linear_block_weights {
    struct linear_weights norm, product;
};

/* clang-format off */
#define CONDITIONING(X, S)                                                                                   \
    X##MATRIX(IF_DIM(S, GUIDANCE), guidance, FREQUENCIES, GUIDANCE,                                          \
              "time_embedding.cond_proj", "time_embed.cond_proj")                                            \
    X##LINEAR(S, time_in, TIME, FREQUENCIES, "time_embedding.linear_1", "time_embed.0")                      \
    X##LINEAR(S, time_out, TIME, TIME, "time_embedding.linear_2", "time_embed.2")                            \
    X##LINEAR(IF_DIM(S, ADDED), added_in, TIME, ADDED, "add_embedding.linear_1", "label_emb.0.0")            \
    X##LINEAR(IF_DIM(S, ADDED), added_out, TIME, TIME, "add_embedding.linear_2", "label_emb.0.2")
struct conditioning_weights { CONDITIONING(FIELD_, ) };
WEIGHT_TABLE(unet_conditioning_table, CONDITIONING, conditioning_weights, "", "");

CONV_TABLE(unet_in_table, OUT, IN_CHANNELS, K3, "conv_in", "input_blocks.0.0");
CONV_TABLE(unet_downsample_table, OUT, OUT, K3, "down_blocks.%d.downsamplers.0.conv", "input_blocks.%d.0.op");
/* In the authors' checkpoints the upsampling convolution is module 1 of its block, or module 2 after a
 * transformer. */
CONV_TABLE(unet_upsample_table, OUT, OUT, K3, "up_blocks.%d.upsamplers.0.conv", "output_blocks.%d.1.conv");
CONV_TABLE(unet_upsample_after_attention_table, OUT, OUT, K3,
           "up_blocks.%d.upsamplers.0.conv", "output_blocks.%d.2.conv");
#define PICTURE_OUT(X, S)                                                                                    \
    X##NORM(S, norm, OUT, "conv_norm_out", "out.0")                                                          \
    X##CONV(S, product, LATENT, OUT, K3, "conv_out", "out.2")
WEIGHT_TABLE(unet_out_table, PICTURE_OUT, linear_block_weights, "", "");

#define RESNET(X, S)                                                                                         \
    X##NORM(S, norm1, IN, "norm1", "in_layers.0")                                                            \
    X##CONV(S, conv1, OUT, IN, K3, "conv1", "in_layers.2")                                                   \
    X##NORM(S, norm2, OUT, "norm2", "out_layers.0")                                                          \
    X##CONV(S, conv2, OUT, OUT, K3, "conv2", "out_layers.3")
#define WIDER_RESNET(X, S)                                                                                   \
    RESNET(X, S)                                                                                             \
    X##CONV(S, shortcut, OUT, IN, K1, "conv_shortcut", "skip_connection")
struct resnet_weights { WIDER_RESNET(FIELD_, ) };

/* Some files store the weights of proj_in and proj_out as 1x1 convolutions. */
#define PROJ_IN(X, S)                                                                                        \
    X##NORM(S, norm, OUT, "norm")                                                                            \
    X##PROJECTION(S, product, OUT, OUT, CONV_AXES, "proj_in")
#define PROJ_OUT(X, S) X##PROJECTION(S, product, OUT, OUT, CONV_AXES, "proj_out")
/* Weights of a transformer layer, in order of use. */
#define LAYER(X, S)                                                                                          \
    X##NORM(S, norm1, OUT, "norm1")                                                                          \
    X##MATRIX(S, q, OUT, OUT, "attn1.to_q")                                                                  \
    X##MATRIX(S, k, OUT, OUT, "attn1.to_k")                                                                  \
    X##MATRIX(S, v, OUT, OUT, "attn1.to_v")                                                                  \
    X##LINEAR(S, out, OUT, OUT, "attn1.to_out.0")                                                            \
    X##NORM(S, norm2, OUT, "norm2")                                                                          \
    X##MATRIX(S, text_q, OUT, OUT, "attn2.to_q")                                                             \
    X##LINEAR(S, text_out, OUT, OUT, "attn2.to_out.0")                                                       \
    X##NORM(S, norm3, OUT, "norm3")                                                                          \
    X##LINEAR(S, up, TWO_FEED_FORWARD, OUT, "ff.net.0.proj")                                                 \
    X##LINEAR(S, down, OUT, FEED_FORWARD, "ff.net.2")
#define TEXT(X, S)                                                                                           \
    X##MATRIX(S, k, OUT, CONTEXT, "attn2.to_k")                                                              \
    X##MATRIX(S, v, OUT, CONTEXT, "attn2.to_v")
struct layer_weights { LAYER(FIELD_, ) };
struct text_weights { TEXT(FIELD_, ) };

/* Weight tables of one side of the UNet (down, mid, up). R, A: name prefixes of the resnet and of the
 * transformer in diffusers' files; RC, AC: in the authors' checkpoints. */
#define LAYER_NAME ".transformer_blocks.%d"
#define SIDE_TABLES(side, R, RC, A, AC)                                                                      \
    LINEAR_TABLE(unet_##side##_time_table, OUT, TIME, R ".time_emb_proj", RC ".emb_layers.1");               \
    WEIGHT_TABLE(unet_##side##_resnet_table, RESNET, resnet_weights, R ".", RC ".");                         \
    WEIGHT_TABLE(unet_##side##_wider_resnet_table, WIDER_RESNET, resnet_weights, R ".", RC ".");             \
    WEIGHT_TABLE(unet_##side##_proj_in_table, PROJ_IN, linear_block_weights, A ".", AC ".");                 \
    WEIGHT_TABLE(unet_##side##_text_table, TEXT, text_weights, A LAYER_NAME ".", AC LAYER_NAME ".");         \
    WEIGHT_TABLE(unet_##side##_layer_table, LAYER, layer_weights, A LAYER_NAME ".", AC LAYER_NAME ".");      \
    WEIGHT_TABLE(unet_##side##_proj_out_table, PROJ_OUT, linear_block_weights, A ".", AC ".")
SIDE_TABLES(down, UNET_DOWN_RESNET, UNET_CHECKPOINT_DOWN_RESNET,
            UNET_DOWN_ATTENTION, UNET_CHECKPOINT_DOWN_ATTENTION);
SIDE_TABLES(mid, UNET_MID_RESNET, UNET_CHECKPOINT_MID_RESNET,
            UNET_MID_ATTENTION, UNET_CHECKPOINT_MID_ATTENTION);
SIDE_TABLES(up, UNET_UP_RESNET, UNET_CHECKPOINT_UP_RESNET, UNET_UP_ATTENTION, UNET_CHECKPOINT_UP_ATTENTION);
/* clang-format on */

/* First block number of the UNet's down, mid or up side; each side has its own range of numbers. */
static int unet_side_number(const struct unet_position *p) {
    return (int)p->side * BLOCK_ROW_STEP;
}

/* Number of a position within its UNet side in the authors' checkpoints. */
static int unet_checkpoint_number(const struct unet_settings *s, const struct unet_position *p) {
    if (p->side == UNET_MID) return 2 * p->resnet;
    return p->level * (s->resnets + 1) + p->resnet + (p->side == UNET_DOWN);
}

struct block_ref unet_ref(const struct unet_settings *s, struct unet_position p) {
    int number = p.level * BLOCK_NUMBER_STEP + p.resnet;
    return (struct block_ref){.number = unet_side_number(&p) + number,
                              .number_offset = unet_checkpoint_number(s, &p) - number};
}

struct block_ref unet_layer_ref(const struct unet_settings *s, struct unet_position p) {
    struct block_ref position = unet_ref(s, p);
    int side = unet_side_number(&p);
    position.number = side + (position.number - side) * BLOCK_NUMBER_STEP + p.layer;
    position.number_offset *= BLOCK_NUMBER_STEP;
    return position;
}

struct unet_position unet_position_of(int number) {
    int offset = number % BLOCK_ROW_STEP;
    return (struct unet_position){.side = (enum unet_side)(number / BLOCK_ROW_STEP),
                                  .level = offset / BLOCK_NUMBER_STEP,
                                  .resnet = offset % BLOCK_NUMBER_STEP};
}

struct unet_position unet_layer_position_of(int number) {
    int side = number / BLOCK_ROW_STEP * BLOCK_ROW_STEP, offset = number - side;
    struct unet_position position = unet_position_of(side + offset / BLOCK_NUMBER_STEP);
    position.layer = offset % BLOCK_NUMBER_STEP;
    return position;
}

int unet_index(const struct unet_settings *s, struct unet_position p) {
    int down = s->levels * s->resnets;
    if (p.side == UNET_DOWN) return p.level * s->resnets + p.resnet;
    if (p.side == UNET_MID) return down + p.resnet;
    return down + s->mid_resnets + p.level * (s->resnets + 1) + p.resnet;
}

int unet_n_positions(const struct unet_settings *s) {
    return s->levels * (2 * s->resnets + 1) + s->mid_resnets;
}

struct unet_position unet_position_at(const struct unet_settings *s, int i) {
    int down = s->levels * s->resnets, up = i - down - s->mid_resnets;
    if (i < down) return (struct unet_position){UNET_DOWN, i / s->resnets, i % s->resnets, 0};
    if (up < 0) return (struct unet_position){UNET_MID, 0, i - down, 0};
    return (struct unet_position){UNET_UP, up / (s->resnets + 1), up % (s->resnets + 1), 0};
}

int unet_depth(const struct unet_settings *s, struct unet_position p) {
    return p.side == UNET_DOWN ? p.level : s->levels - 1 - (p.side == UNET_UP ? p.level : 0);
}

int unet_skip(const struct unet_settings *s, struct unet_position p) {
    int i = p.level * (s->resnets + 1) + p.resnet;
    return p.side == UNET_DOWN ? i + 1 : s->levels * (s->resnets + 1) - 1 - i;
}

struct unet_visit {
    const struct unet_settings *settings;
    const struct unet_state *state;
    struct unet_position position;
};

static struct unet_visit unet_visit_of(const struct visit_scope *scope, bool of_layer) {
    return (struct unet_visit){scope->settings, scope->lane->state,
                               of_layer ? unet_layer_position_of(scope->number)
                                        : unet_position_of(scope->number)};
}

/* Feature map [Y, X, C] at the start of a buffer. `depth`: resolution level that gives Y and X. */
static struct tensor unet_picture(const struct unet_visit *v, struct tensor buffer, int depth, int32_t C) {
    struct tensor like = v->state->skip[depth * (v->settings->resnets + 1)];
    return tensor_make(buffer.data, DTYPE_F32, 3, (int32_t[]){like.dim[0], like.dim[1], C});
}

/* The feature map of a UNet position: the resnet writes it, the transformer then updates it in place. */
static struct tensor unet_result(const struct unet_visit *v, int32_t C) {
    if (v->position.side == UNET_DOWN) return v->state->skip[unet_skip(v->settings, v->position)];
    return unet_picture(v, v->state->stream, unet_depth(v->settings, v->position), C);
}

/* Token rows of the current transformer: [Y X, C]. */
static struct tensor unet_tokens(const struct unet_visit *v, int32_t C) {
    return unet_rows(unet_picture(v, v->state->tokens, unet_depth(v->settings, v->position), C));
}

static struct tensor unet_last_skip(const struct unet_visit *v) {
    return v->state->skip[unet_n_skips(v->settings) - 1];
}

struct tensor unet_middle(const struct unet_settings *s, const struct unet_state *state) {
    struct tensor like = state->skip[unet_n_skips(s) - 1];
    return tensor_make(state->stream.data, DTYPE_F32, 3, like.dim);
}

void unet_embed(struct context *x, struct tensor out, struct tensor in, const struct linear_weights *w1,
                const struct linear_weights *w2) {
    struct tensor h = context_tensor(x, DTYPE_F32, 2, (int32_t[]){in.dim[0], w1->weight.dim[0]});
    op_linear_few(x, h, in, w1->weight, w1->bias, ACTIVATION_NONE);
    op_linear_few(x, out, h, w2->weight, w2->bias, ACTIVATION_SILU);
}

/* Input of add_embedding, [1, ADDED]: pooled text, then each add_time_ids value as a sinusoid. */
static struct tensor unet_add_embedding(struct context *x, const struct visit_scope *scope, int32_t columns) {
    const struct unet_settings *settings = scope->settings;
    struct tensor pooled = scope->lane->pooled;
    struct tensor added = context_tensor(x, DTYPE_F32, 2, (int32_t[]){1, columns});
    int32_t first = pooled.dim[1], each = settings->time_id_columns;
    op_copy(x, tensor_slice_columns(added, 0, first), pooled);
    for (int i = 0; first < columns; i++, first += each)
        op_timestep(x, tensor_slice_columns(added, first, each), scope->lane->add_time_ids[i],
                    TIMESTEP_USUAL);
    return added;
}

/* Adds the guidance embedding (LCM) to the timestep sinusoids. */
static void unet_add_guidance(struct context *x, struct tensor f, struct tensor weight, float guidance) {
    const float scale = 1000;
    struct tensor g = context_tensor(x, DTYPE_F32, 2, (int32_t[]){1, weight.dim[1]});
    struct tensor row = context_tensor(x, DTYPE_F32, 2, (int32_t[]){1, weight.dim[0]});
    op_timestep(x, g, (guidance - 1) * scale, TIMESTEP_TO_END);
    op_linear_few(x, row, g, weight, (struct tensor){0}, ACTIVATION_NONE);
    op_add(x, f, f, row);
}

static void unet_forward_conditioning(struct context *x, const void *weights,
                                      const struct visit_scope *scope) {
    const struct conditioning_weights *w = weights;
    const struct unet_state *state = scope->lane->state;
    struct tensor rows = scope_rows(state->condition, scope);
    int32_t n = scope->n_timesteps, frequencies = w->time_in.weight.dim[1];
    struct tensor f = context_tensor(x, DTYPE_F32, 2, (int32_t[]){n, frequencies});
    for (int32_t i = 0; i < n; i++)
        op_timestep(x, tensor_slice(f, i, 1), scope->timesteps[i], TIMESTEP_USUAL);
    if (w->guidance.rank) unet_add_guidance(x, f, w->guidance, scope->lane->guidance);
    unet_embed(x, rows, f, &w->time_in, &w->time_out);
    if (!w->added_in.weight.rank) return;
    struct tensor one = context_tensor(x, DTYPE_F32, 2, (int32_t[]){1, rows.dim[1]});
    unet_embed(x, one, unet_add_embedding(x, scope, w->added_in.weight.dim[1]), &w->added_in, &w->added_out);
    op_add(x, rows, rows, one);
}

/* Projects the timestep embedding row to the bias that a resnet adds to its channels. */
static void unet_forward_time(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct linear_weights *w = weights;
    struct unet_visit v = unet_visit_of(scope, false);
    struct tensor rows = scope_rows(v.state->time[unet_index(v.settings, v.position)], scope);
    op_linear_few(x, rows, scope_rows(v.state->condition, scope), w->weight, w->bias, ACTIVATION_SILU);
}

static struct group_norm unet_group_norm(struct context *x, const struct visit_scope *scope,
                                         struct tensor picture, const struct linear_weights *norm,
                                         float eps) {
    const struct unet_settings *settings = scope->settings;
    struct group_norm measured = {.weight = norm->weight, .bias = norm->bias};
    measured.statistics = context_tensor(x, DTYPE_F32, 2, (int32_t[]){settings->groups, 2});
    op_group_statistics(x, measured.statistics, picture, (struct rows_before){0}, settings->groups, eps);
    return measured;
}

void unet_conv_in(struct context *x, const struct linear_weights *w, const struct visit_scope *scope,
                  struct tensor residual) {
    const struct unet_state *state = scope->lane->state;
    struct tensor latent = latent_planes(scope->lane->latent);
    int32_t C = latent.dim[0], read = w->weight.dim[1];
    struct tensor in = context_tensor(x, DTYPE_F32, 3, (int32_t[]){latent.dim[1], latent.dim[2], read});
    op_patchify(x, tensor_slice_columns(unet_rows(in), 0, C), latent, unet_pixels);
    if (read > C)
        op_patchify(x, tensor_slice_columns(unet_rows(in), C, read - C), latent_planes(scope->lane->concat),
                    unet_pixels);
    op_conv2d(x, state->skip[0], in, w->weight, (struct epilogue){.bias = w->bias, .residual = residual},
              (struct conv_options){.upsample = 1});
}

static void unet_forward_in(struct context *x, const void *weights, const struct visit_scope *scope) {
    unet_conv_in(x, weights, scope, (struct tensor){0});
}

/* Input of a position's resnet: the feature map, on the up side concatenated with a skip connection. */
static struct tensor unet_resnet_input(struct context *x, const struct unet_visit *v, int32_t C) {
    const struct unet_settings *s = v->settings;
    struct unet_position position = v->position;
    int skip = unet_skip(s, position);
    if (position.side == UNET_DOWN) return v->state->skip[skip - 1];
    if (position.side == UNET_MID) return position.resnet ? unet_result(v, C) : unet_last_skip(v);
    struct tensor skipped = v->state->skip[skip];
    int32_t stream_channels = C - skipped.dim[2], dim[3] = {skipped.dim[0], skipped.dim[1], C};
    bool first = !position.level && !position.resnet && !s->mid_resnets;
    struct tensor joined = context_tensor(x, DTYPE_F32, 3, dim);
    struct tensor stream = first ? unet_last_skip(v) : unet_result(v, stream_channels);
    op_copy(x, tensor_slice_columns(unet_rows(joined), 0, stream_channels), unet_rows(stream));
    op_copy(x, tensor_slice_columns(unet_rows(joined), stream_channels, skipped.dim[2]), unet_rows(skipped));
    return joined;
}

/* Resnet: out = shortcut(in) + conv2(silu(norm2(conv1(silu(norm1(in))) + projected timestep))). */
static void unet_forward_resnet(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct resnet_weights *w = weights;
    struct unet_visit v = unet_visit_of(scope, false);
    float eps = v.settings->norm_eps;
    int32_t C = w->conv1.weight.dim[0];
    struct conv_options normed = {.activation = ACTIVATION_SILU, .upsample = 1}, plain = {.upsample = 1};
    struct tensor in = unet_resnet_input(x, &v, w->conv1.weight.dim[1]), out = unet_result(&v, C);
    struct tensor h = context_tensor(x, DTYPE_F32, 3, out.dim), residual = in;
    struct tensor time = scope_rows(v.state->time[unet_index(v.settings, v.position)], scope);
    struct tensor bias = context_tensor(x, DTYPE_F32, 2, (int32_t[]){1, C});
    op_add(x, bias, time, tensor_reshape(w->conv1.bias, 2, bias.dim));
    normed.norm = unet_group_norm(x, scope, in, &w->norm1, eps);
    op_conv2d(x, h, in, w->conv1.weight, (struct epilogue){.bias = tensor_reshape(bias, 1, &C)}, normed);
    normed.norm = unet_group_norm(x, scope, h, &w->norm2, eps);
    if (w->shortcut.weight.rank) {
        op_conv2d(x, out, in, w->shortcut.weight, (struct epilogue){.bias = w->shortcut.bias}, plain);
        residual = out;
    }
    op_conv2d(x, out, h, w->conv2.weight, (struct epilogue){.bias = w->conv2.bias, .residual = residual},
              normed);
}

static void unet_forward_downsample(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct linear_weights *w = weights;
    struct unet_visit v = unet_visit_of(scope, false);
    v.position = (struct unet_position){UNET_DOWN, scope->number, v.settings->resnets, 0};
    int out = unet_skip(v.settings, v.position);
    op_conv2d(x, v.state->skip[out], v.state->skip[out - 1], w->weight, (struct epilogue){.bias = w->bias},
              (struct conv_options){.upsample = 1, .stride = 2, .pad_before = 1});
}

/* Upsamples a feature map to the size of the next skip connection, which may be odd. */
static void unet_forward_upsample(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct linear_weights *w = weights;
    struct unet_visit v = unet_visit_of(scope, false);
    int depth = v.settings->levels - 1 - scope->number;
    int32_t C = w->weight.dim[0];
    struct tensor small = unet_picture(&v, v.state->stream, depth, C);
    struct tensor out = unet_picture(&v, v.state->stream, depth - 1, C);
    struct tensor in = context_tensor(x, DTYPE_F32, 3, small.dim);
    op_copy(x, in, small);
    op_conv2d(x, out, in, w->weight, (struct epilogue){.bias = w->bias},
              (struct conv_options){
                  .upsample = 2, .cut_row = out.dim[0] % 2 == 1, .cut_column = out.dim[1] % 2 == 1});
}

static void unet_forward_out(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct linear_block_weights *w = weights;
    struct unet_visit v = unet_visit_of(scope, false);
    struct tensor in = unet_picture(&v, v.state->stream, 0, w->product.weight.dim[1]);
    struct conv_options options = {.activation = ACTIVATION_SILU, .upsample = 1};
    int32_t dim[3] = {in.dim[0], in.dim[1], w->product.weight.dim[0]};
    struct tensor out = context_tensor(x, DTYPE_F32, 3, dim);
    options.norm = unet_group_norm(x, scope, in, &w->norm, v.settings->norm_eps);
    op_conv2d(x, out, in, w->product.weight, (struct epilogue){.bias = w->product.bias}, options);
    op_unpatchify(x, latent_planes(scope->lane->prediction), unet_rows(out), unet_pixels, 1);
}

static void unet_product(struct context *x, struct tensor out, struct tensor in, struct tensor weight) {
    op_linear(x, out, in, weight, (struct epilogue){0});
}

/* Keys and values of the prompt for a transformer layer: [text rows, 2 C]. */
static struct tensor unet_layer_text(const struct unet_visit *v) {
    struct tensor all = v->state->text[unet_index(v->settings, v->position)];
    return tensor_reshape(tensor_slice(all, v->position.layer, 1), 2, all.dim + 1);
}

static void unet_forward_text(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct text_weights *w = weights;
    struct unet_visit v = unet_visit_of(scope, true);
    struct tensor both = unet_layer_text(&v);
    int32_t C = w->k.dim[0];
    unet_product(x, tensor_slice_columns(both, 0, C), scope->lane->text, w->k);
    unet_product(x, tensor_slice_columns(both, C, C), scope->lane->text, w->v);
}

static void unet_forward_proj_in(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct linear_block_weights *w = weights;
    struct unet_visit v = unet_visit_of(scope, false);
    int32_t C = w->product.weight.dim[0];
    struct tensor picture = unet_result(&v, C), n = context_tensor(x, DTYPE_F32, 3, picture.dim);
    op_group_norm(x, n, picture, unet_group_norm(x, scope, picture, &w->norm, unet_transformer_eps));
    op_linear(x, unet_tokens(&v, C), unet_rows(n), w->product.weight,
              (struct epilogue){.bias = w->product.bias});
}

static void unet_forward_proj_out(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct linear_block_weights *w = weights;
    struct unet_visit v = unet_visit_of(scope, false);
    int32_t C = w->product.weight.dim[0];
    struct tensor picture = unet_rows(unet_result(&v, C));
    op_linear(x, picture, unet_tokens(&v, C), w->product.weight,
              (struct epilogue){.bias = w->product.bias, .residual = picture});
}

static void unet_norm(struct context *x, struct tensor out, struct tensor in,
                      const struct linear_weights *w) {
    op_layer_norm(x, out, in, (struct affine){.weight = w->weight, .bias = w->bias}, unet_layer_eps);
}

/* Attention of a transformer layer: q = attention(q, k, v), then tokens += out(q). */
static void unet_attend(struct context *x, struct tensor tokens, struct tensor q, struct tensor k,
                        struct tensor v, int heads, const struct linear_weights *out) {
    float scale = 1 / sqrtf((float)(q.dim[1] / heads));
    op_attention(x, q, q, k, v, (struct attention_options){.queries = heads, .keys = heads, .scale = scale});
    op_linear(x, tokens, q, out->weight, (struct epilogue){.bias = out->bias, .residual = tokens});
}

/* Feed-forward: tokens += down(a * gelu(g)), where up(norm3(tokens)) = [a | g]. */
static void unet_feed_forward(struct context *x, const struct layer_weights *w, struct tensor tokens) {
    int32_t T = tokens.dim[0], chunk = row_chunk(x, T), wide = w->up.weight.dim[0], half = wide / 2;
    struct tensor normed = context_operand(x, 2, (int32_t[]){chunk, tokens.dim[1]});
    struct tensor gated = context_operand(x, 2, (int32_t[]){chunk, half});
    struct tensor both = context_tensor(x, DTYPE_F32, 2, (int32_t[]){chunk, wide});
    for (int32_t first = 0; first < T; first += chunk) {
        int32_t rows = T - first < chunk ? T - first : chunk;
        struct tensor t = tensor_slice(tokens, first, rows), n = tensor_slice(normed, 0, rows);
        struct tensor up = tensor_slice(both, 0, rows), g = tensor_slice(gated, 0, rows);
        unet_norm(x, n, t, &w->norm3);
        op_linear(x, up, n, w->up.weight, (struct epilogue){.bias = w->up.bias});
        op_glu(x, g, tensor_slice_columns(up, half, half), tensor_slice_columns(up, 0, half),
               ACTIVATION_GELU_ERF);
        op_linear(x, t, g, w->down.weight, (struct epilogue){.bias = w->down.bias, .residual = t});
    }
}

static void unet_forward_layer(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct layer_weights *w = weights;
    struct unet_visit v = unet_visit_of(scope, true);
    int heads = v.settings->heads[unet_depth(v.settings, v.position)];
    int32_t C = w->q.dim[0];
    struct tensor tokens = unet_tokens(&v, C), text = unet_layer_text(&v);
    uint64_t before = x->scratch->used;
    struct tensor n = context_operand(x, 2, tokens.dim), q = context_operand(x, 2, tokens.dim);
    uint64_t mark = x->scratch->used;
    struct tensor key = context_operand(x, 2, tokens.dim), value = context_operand(x, 2, tokens.dim);
    unet_norm(x, n, tokens, &w->norm1);
    unet_product(x, q, n, w->q);
    unet_product(x, key, n, w->k);
    unet_product(x, value, n, w->v);
    unet_attend(x, tokens, q, key, value, heads, &w->out);
    x->scratch->used = mark;
    unet_norm(x, n, tokens, &w->norm2);
    unet_product(x, q, n, w->text_q);
    unet_attend(x, tokens, q, tensor_slice_columns(text, 0, C), tensor_slice_columns(text, C, C), heads,
                &w->text_out);
    x->scratch->used = before;
    unet_feed_forward(x, w, tokens);
}

#define CONDITIONING_KIND(kind, name)                                                                        \
    BLOCK_KIND(kind, name, unet_conditioning_table, conditioning_weights, unet_forward_conditioning,         \
               .update_rate = UPDATE_PER_TIMESTEP_AND_PROMPT, .never_quantised = true)
const struct block_kind unet_conditioning[2] = {CONDITIONING_KIND("time", "time_embedding"),
                                                CONDITIONING_KIND("added", "add_embedding")};
BLOCK(unet_kind_in, "conv_in", "conv_in", unet_in_table, linear_weights, unet_forward_in,
      .never_quantised = true);
const struct block_kind unet_kind_downsample =
    BLOCK_KIND("downsample", "down_blocks.%d.downsample", unet_downsample_table, linear_weights,
               unet_forward_downsample);
BLOCK(unet_kind_upsample, "upsample", "up_blocks.%d.upsample", unet_upsample_table, linear_weights,
      unet_forward_upsample);
BLOCK(unet_kind_upsample_after_attention, "upsample_after_attention", "up_blocks.%d.upsample",
      unet_upsample_after_attention_table, linear_weights, unet_forward_upsample);
BLOCK(unet_kind_out, "conv_out", "conv_out", unet_out_table, linear_block_weights, unet_forward_out,
      .never_quantised = true);

#define SIDE_KINDS(side, R, A)                                                                               \
    {                                                                                                        \
        .time = BLOCK_KIND(#side "_time", R ".time", unet_##side##_time_table, linear_weights,               \
                           unet_forward_time, .update_rate = UPDATE_PER_TIMESTEP_AND_PROMPT),                \
        .resnet =                                                                                            \
            BLOCK_KIND(#side "_resnet", R, unet_##side##_resnet_table, resnet_weights, unet_forward_resnet), \
        .wider_resnet = BLOCK_KIND(#side "_wider_resnet", R, unet_##side##_wider_resnet_table,               \
                                   resnet_weights, unet_forward_resnet),                                     \
        .proj_in = BLOCK_KIND(#side "_proj_in", A ".proj_in", unet_##side##_proj_in_table,                   \
                              linear_block_weights, unet_forward_proj_in),                                   \
        .text = BLOCK_KIND(#side "_text", A LAYER_NAME ".text", unet_##side##_text_table, text_weights,      \
                           unet_forward_text, .update_rate = UPDATE_PER_PROMPT),                             \
        .layer = BLOCK_KIND(#side "_layer", A LAYER_NAME, unet_##side##_layer_table, layer_weights,          \
                            unet_forward_layer),                                                             \
        .proj_out = BLOCK_KIND(#side "_proj_out", A ".proj_out", unet_##side##_proj_out_table,               \
                               linear_block_weights, unet_forward_proj_out),                                 \
    }
const struct unet_kinds unet_kinds[UNET_SIDES] = {
    [UNET_DOWN] = SIDE_KINDS(down, UNET_DOWN_RESNET, UNET_DOWN_ATTENTION),
    [UNET_MID] = SIDE_KINDS(mid, UNET_MID_RESNET, UNET_MID_ATTENTION),
    [UNET_UP] = SIDE_KINDS(up, UNET_UP_RESNET, UNET_UP_ATTENTION),
};

static bool unet_probe(const struct tensor_index *index) {
    return (index_find(index, "time_embedding.linear_1.weight") &&
            index_find(index, "down_blocks.0.resnets.0.time_emb_proj.weight")) ||
           (index_find(index, "time_embed.0.weight") &&
            index_find(index, "input_blocks.1.0.emb_layers.1.weight"));
}

void unet_add(struct unet_list *list, const struct block_kind *kind, struct block_ref ref) {
    ref.kind = kind;
    list->refs[list->n++] = ref;
}

/* True if a position's resnet has a shortcut convolution. All up resnets and all resnets that change the
 * channel count have one. */
static bool unet_has_shortcut(const struct component *c, struct unet_position p) {
    const int32_t *channels = c->dims + CHANNELS;
    return p.side == UNET_UP ||
           (p.side == UNET_DOWN && p.level && !p.resnet && channels[p.level] != channels[p.level - 1]);
}

void unet_add_position(struct unet_list *list, struct unet_position position) {
    const struct unet_settings *s = (const struct unet_settings *)list->c->settings;
    const struct unet_kinds *kinds = &unet_kinds[position.side];
    struct block_ref ref = unet_ref(s, position);
    int layers = s->layers[unet_index(s, position)];
    unet_add(list, &kinds->time, ref);
    unet_add(list, unet_has_shortcut(list->c, position) ? &kinds->wider_resnet : &kinds->resnet, ref);
    if (!s->attends[unet_index(s, position)]) return;
    unet_add(list, &kinds->proj_in, ref);
    for (position.layer = 0; position.layer < layers; position.layer++) {
        unet_add(list, &kinds->text, unet_layer_ref(s, position));
        unet_add(list, &kinds->layer, unet_layer_ref(s, position));
    }
    unet_add(list, &kinds->proj_out, ref);
}

void unet_add_resample(struct unet_list *list, struct unet_position position) {
    const struct unet_settings *s = (const struct unet_settings *)list->c->settings;
    int level = position.level, row = s->resnets + 1;
    bool attends = s->attends[unet_index(s, position)], is_last = level + 1 == s->levels;
    if (position.side == UNET_DOWN && position.resnet + 1 == s->resnets && !is_last)
        unet_add(list, &unet_kind_downsample,
                 (struct block_ref){.number = level, .number_offset = (level + 1) * row - level});
    if (position.side == UNET_UP && position.resnet == s->resnets && !is_last)
        unet_add(list, attends ? &unet_kind_upsample_after_attention : &unet_kind_upsample,
                 (struct block_ref){.number = level, .number_offset = level * row + s->resnets - level});
}

static int unet_blocks(const struct component *c, struct block_ref *refs) {
    const struct unet_settings *s = (const struct unet_settings *)c->settings;
    struct unet_list list = {c, refs, 0};
    unet_add(&list, &unet_conditioning[c->dims[ADDED] > 0], (struct block_ref){0});
    unet_add(&list, &unet_kind_in, (struct block_ref){0});
    for (int i = 0; i < unet_n_positions(s); i++) {
        unet_add_position(&list, unet_position_at(s, i));
        unet_add_resample(&list, unet_position_at(s, i));
    }
    unet_add(&list, &unet_kind_out, (struct block_ref){0});
    return list.n;
}

/* The channel count is of the skip's own level, or of the previous level if a downsampling convolution wrote
 * the skip. */
int32_t unet_skip_channels(const struct component *c, int skip) {
    const struct unet_settings *s = (const struct unet_settings *)c->settings;
    int level = skip / (s->resnets + 1);
    return c->dims[CHANNELS + level - (level && skip % (s->resnets + 1) == 0)];
}

static int32_t unet_resnet_in_channels(const struct component *c, struct unet_position position) {
    const struct unet_settings *s = (const struct unet_settings *)c->settings;
    int depth = unet_depth(s, position);
    if (position.side == UNET_MID) return c->dims[CHANNELS + depth];
    if (position.side == UNET_DOWN) return unet_skip_channels(c, unet_skip(s, position) - 1);
    bool is_first = !position.resnet && position.level;
    return c->dims[CHANNELS + depth + is_first] + unet_skip_channels(c, unet_skip(s, position));
}

void unet_block_dims(const struct component *c, const struct block_ref *ref, int32_t *dims) {
    const struct unet_settings *s = (const struct unet_settings *)c->settings;
    struct unet_position position = unet_position_of(ref->number);
    const struct unet_kinds *kinds = &unet_kinds[position.side];
    int depth = 0;
    if (ref->kind == &kinds->text || ref->kind == &kinds->layer)
        position = unet_layer_position_of(ref->number);
    if (ref->kind >= &kinds->time && ref->kind <= &kinds->proj_out) depth = unet_depth(s, position);
    if (ref->kind == &unet_kind_downsample) depth = ref->number;
    if (ref->kind == &unet_kind_upsample || ref->kind == &unet_kind_upsample_after_attention)
        depth = s->levels - 1 - ref->number;
    dims[IN] = dims[OUT] = dims[CHANNELS + depth];
    if (ref->kind == &kinds->resnet || ref->kind == &kinds->wider_resnet)
        dims[IN] = unet_resnet_in_channels(c, position);
    dims[FEED_FORWARD] = 4 * dims[OUT];
    dims[TWO_FEED_FORWARD] = 8 * dims[OUT];
}

int unet_last_middle_block(const struct component *c) {
    const struct unet_kinds *up = &unet_kinds[UNET_UP];
    int i = 0;
    while (c->blocks[i].kind < &up->time || c->blocks[i].kind > &up->proj_out) i++;
    return i - 1;
}

void unet_skip_shape(const struct component *c, const struct lane *lane, int skip, int32_t dim[3]) {
    const struct unet_settings *s = (const struct unet_settings *)c->settings;
    dim[0] = lane->latent.dim[1] * lane->latent.dim[2];
    dim[1] = lane->latent.dim[3];
    dim[2] = unet_skip_channels(c, skip);
    for (int level = skip / (s->resnets + 1); level > 0; level--)
        for (int i = 0; i < 2; i++) dim[i] = (dim[i] + 1) / 2;
}

int32_t unet_buffer_rows(const struct component *c, const struct unet_state *state, bool of_tokens) {
    const struct unet_settings *s = (const struct unet_settings *)c->settings;
    int64_t most = 1;
    for (int i = 0; i < unet_n_positions(s); i++) {
        struct unet_position position = unet_position_at(s, i);
        int depth = unet_depth(s, position);
        bool grows = !of_tokens && position.side == UNET_UP && position.level && !position.resnet;
        struct tensor like = state->skip[depth * (s->resnets + 1)];
        int64_t values = (int64_t)like.dim[0] * like.dim[1] * c->dims[CHANNELS + depth + grows];
        bool counts = of_tokens ? s->attends[i] : position.side != UNET_DOWN;
        if (counts && values > most) most = values;
    }
    return (int32_t)((most + MEMORY_ROW - 1) / MEMORY_ROW);
}

void unet_declare_prompt(const struct component *c, const struct lane *lane, int n, struct arena *arena,
                         bool *ok) {
    const struct unet_settings *s = (const struct unet_settings *)c->settings;
    struct unet_state *state = lane->state;
    int32_t rows = lane->hoisted ? lane->hoisted : 1;
    state->condition = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){rows, c->dims[TIME]}, ok);
    for (int i = 0; i < n; i++) {
        int32_t C = c->dims[CHANNELS + unet_depth(s, unet_position_at(s, i))];
        int32_t text[3] = {s->layers[i], lane->text.dim[0], 2 * C};
        state->time[i] = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){rows, C}, ok);
        if (s->layers[i]) state->text[i] = arena_tensor(arena, DTYPE_F32, 3, text, ok);
    }
}

static void unet_declare(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                         struct arena *pictures, bool *ok) {
    const struct unet_settings *s = (const struct unet_settings *)c->settings;
    (void)pictures;
    for (int i = 0; i < n_lanes; i++) {
        struct unet_state *state = lanes[i].state;
        int first = lane_first_of_prompt(lanes, i);
        if (first != i) *state = *(const struct unet_state *)lanes[first].state;
        for (int k = 0; k < unet_n_skips(s); k++) {
            int32_t dim[3];
            unet_skip_shape(c, &lanes[i], k, dim);
            state->skip[k] = arena_tensor(arena, DTYPE_F32, 3, dim, ok);
        }
        int32_t stream[2] = {unet_buffer_rows(c, state, false), MEMORY_ROW};
        int32_t tokens[2] = {unet_buffer_rows(c, state, true), MEMORY_ROW};
        state->stream = arena_tensor(arena, DTYPE_F32, 2, stream, ok);
        state->tokens = arena_tensor(arena, DTYPE_F32, 2, tokens, ok);
        if (first == i) unet_declare_prompt(c, &lanes[i], unet_n_positions(s), arena, ok);
    }
}

static const char *const unet_ignorable[] = {
    "model_ema.", "alphas_cumprod", "betas",        "sqrt_",        "log_one_minus_",
    "posterior_", "logvar",         "lvlb_weights", "scale_factor", "denoiser.",
    "v_pred",     "ztsnr",          "edm_",         "position_ids", "first_stage_model.loss.",
    NULL};
static const char *const unet_architectures[] = {"sd1", "sdxl", NULL};

#define SKIP(i)                                                                                              \
    { "skip" #i, offsetof(struct unet_state, skip[i]) }
static const struct state_tensor unet_state_tensors[] = {SKIP(0),
                                                         SKIP(1),
                                                         SKIP(2),
                                                         SKIP(3),
                                                         SKIP(4),
                                                         SKIP(5),
                                                         SKIP(6),
                                                         SKIP(7),
                                                         SKIP(8),
                                                         SKIP(9),
                                                         SKIP(10),
                                                         SKIP(11),
                                                         STATE_TENSOR(unet_state, stream),
                                                         STATE_TENSOR(unet_state, tokens),
                                                         STATE_TENSOR(unet_state, condition)};

/* clang-format off */
/* Dimensions of SDXL, in the order of unet_dimensions. */
static const int unet_sdxl_dims[N_UNET_DIMENSIONS] = {
    320, 640, 1280, 0,   /* unet0 to unet3: channels */
    0, 2, 10, 0,         /* unet_layers0 to unet_layers3: transformer layers */
    1, 2, 0, 32,         /* unet_middle_layers, unet_resnets, unet_heads, unet_groups */
    0, 2048, 1280, 6,    /* unet_convolved, unet_text, unet_pooled, unet_numbers */
    0, 4, 0,             /* unet_fill, latent_channels, unet_guidance */
};
/* clang-format on */

const struct family family_unet = {
    .name = "unet",
    .kind = FAMILY_DENOISER,
    .display_name = "UNet",
    .files = {.architectures = unet_architectures,
              .config_key = "_class_name",
              .config_value = "UNet2DConditionModel",
              .probe = unet_probe,
              .refuse = unet_refuse,
              .ignorable = unet_ignorable},
    .config = {.dimensions = unet_dimensions,
               .n_dimensions = N_UNET_DIMENSIONS,
               .settings = unet_settings_rows,
               .n_settings = N_UNET_SETTINGS,
               .expects = unet_expects,
               .configure = unet_configure,
               .derive_dims = unet_derive_dims,
               .derive = unet_derive},
    .blocks = {.list = unet_blocks, .dims = unet_block_dims},
    .state = {.bytes = sizeof(struct unet_state),
              .tensors = unet_state_tensors,
              .n_tensors = COUNT_OF(unet_state_tensors),
              .declare = unet_declare},
    .f16_operands = true, /* diffusers runs these UNets in f16 */
    /* A layer at full latent size in Stable Diffusion 1. */
    .predicted = {{.kind = "down_layer",
                   .alone = true,
                   .tokens = 4096,
                   .text_rows = 77,
                   .text_columns = 768,
                   .latent_channels = 4,
                   .latent_side = 64,
                   .picture_side = 512},
                  {.kind = "evaluation of SDXL",
                   .whole = true,
                   .dims = unet_sdxl_dims,
                   .tokens = 4096,
                   .text_rows = 77,
                   .text_columns = 2048,
                   .latent_channels = 4,
                   .latent_side = 128,
                   .picture_side = 1024}},
};
