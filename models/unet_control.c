/* Control networks (ControlNet) of Stable Diffusion 1, 2 and XL: a UNet's down side and middle again, with
 * weights and timestep embedder of their own, whose input is conv_in(latent) plus the control image, reduced
 * to the latent's size by the hint convolutions. A 1x1 convolution makes a residual of every skip connection
 * and of the middle's output; strength times residual is added to the denoiser's.
 *
 * The network runs after the denoiser's middle. So the denoiser's down side reads its own skips, and each
 * residual is added at once to the skip that the up side will read: no residual is kept.
 *
 * Guess mode: residual k of n skips has the factor 10^(-1 + k/n), the middle's 1, and the lanes of the
 * negative prompt have no network. Networks with global_pool_conditions ("shuffle") add each residual's mean
 * over the pixels. Reference: diffusers 0.42, models/controlnets/controlnet.py; names in the authors'
 * checkpoints: loaders/single_file_utils.py, convert_controlnet_checkpoint. */
#include "models/unet_control.h"

#include "kernels/ops.h"

#include <math.h>

struct residual_weights {
    struct linear_weights product;
};

/* clang-format off */
#define HINT(X, S) UNET_HINT_OF(X, S, )
WEIGHT_TABLE(unet_hint_table, HINT, unet_hint_weights, "", "");
CONV_TABLE(unet_control_in_table, OUT, IN_CHANNELS, K3, "conv_in", "input_blocks.0.0");
static const struct weight_spec unet_residual_table[] = {
    ROW_PROJECTION(WEIGHTS_OF(residual_weights), product, OUT, OUT, ZERO_AXES,
                   "controlnet_down_blocks.%d", "zero_convs.%d.0")};
static const struct weight_spec unet_middle_residual_table[] = {
    ROW_PROJECTION(WEIGHTS_OF(residual_weights), product, OUT, OUT, ZERO_AXES,
                   "controlnet_mid_block", "middle_block_out.0")};
/* clang-format on */

/* Convolution number i of the hint convolutions after conv_in; odd ones halve the size. */
static struct conv_options hint_options(int i) {
    return (struct conv_options){
        .activation = ACTIVATION_SILU, .upsample = 1, .stride = 1 + i % 2, .pad_before = i % 2};
}

/* Returns a buffer for the largest of the results first, first + 2, ... of the hint convolutions; result 0 is
 * conv_in's. */
static struct tensor hint_buffer(struct context *x, const struct unet_hint_weights *w, struct tensor image,
                                 int first) {
    int64_t most = 0, Y = image.dim[0], X = image.dim[1];
    for (int i = 0; i <= UNET_HINT_BLOCKS; i++) {
        const struct tensor *weight = i ? &w->block[i - 1].weight : &w->in.weight;
        if (i && i % 2 == 0) Y = (Y + 1) / 2, X = (X + 1) / 2;
        if (i % 2 == first && Y * X * weight->dim[0] > most) most = Y * X * weight->dim[0];
    }
    return context_tensor(x, DTYPE_F32, 2,
                          (int32_t[]){(int32_t)((most + MEMORY_ROW - 1) / MEMORY_ROW), MEMORY_ROW});
}

void unet_hint(struct context *x, struct tensor out, const struct unet_hint_weights *w, struct tensor image,
               bool bgr) {
    struct tensor buffer[2] = {hint_buffer(x, w, image, 0), hint_buffer(x, w, image, 1)};
    int32_t dim[3] = {image.dim[0], image.dim[1], w->in.weight.dim[0]};
    struct tensor h = tensor_make(buffer[0].data, DTYPE_F32, 3, dim);
    if (bgr) {
        struct tensor rgb = context_tensor(x, DTYPE_F32, 3, image.dim);
        int32_t last = image.dim[2] - 1;
        for (int32_t i = 0; i <= last; i++)
            op_copy(x, tensor_slice_columns(unet_rows(rgb), i, 1),
                    tensor_slice_columns(unet_rows(image), last - i, 1));
        image = rgb;
    }
    op_conv2d(x, h, image, w->in.weight, (struct epilogue){.bias = w->in.bias},
              (struct conv_options){.upsample = 1, .bounded = true});
    for (int i = 0; i < UNET_HINT_BLOCKS; i++) {
        struct conv_options options = hint_options(i);
        struct tensor in = h;
        for (int k = 0; k < 2; k++) dim[k] = conv_size(dim[k], &options, false);
        dim[2] = w->block[i].weight.dim[0];
        h = tensor_make(buffer[1 - i % 2].data, DTYPE_F32, 3, dim);
        op_conv2d(x, h, in, w->block[i].weight, (struct epilogue){.bias = w->block[i].bias}, options);
    }
    op_conv2d(x, out, h, w->out.weight, (struct epilogue){.bias = w->out.bias}, hint_options(0));
}

void unet_mean(struct context *x, struct tensor row, struct tensor picture) {
    const float eps = 1;
    int32_t C = picture.dim[2];
    struct tensor statistics = context_tensor(x, DTYPE_F32, 2, (int32_t[]){C, 2});
    /* With a group for each channel, a group's mean is the mean over the pixels. */
    op_group_statistics(x, statistics, picture, (struct rows_before){0}, C, eps);
    op_copy(x, tensor_reshape(row, 2, (int32_t[]){C, 1}), tensor_slice_columns(statistics, 0, 1));
}

static void forward_hint(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct unet_control_settings *settings = scope->settings;
    const struct unet_control_state *state = scope->lane->state;
    unet_hint(x, state->hint, weights, scope->lane->control[0].input, settings->bgr);
}

static void forward_in(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct unet_control_state *state = scope->lane->state;
    unet_conv_in(x, weights, scope, state->hint);
}

/* Factor of residual k of n: strength, and the factor of guess mode. With several control images of a union
 * network, their strengths are factors of the network's input (input_factor in unet_control_union.c). */
static float residual_factor(const struct visit_scope *scope, int k, int n) {
    const struct unet_control_settings *settings = scope->settings;
    const struct lane *lane = scope->lane;
    float strength = lane->n_controls > 1 ? 1 : lane->control[0].strength;
    return lane->guess_mode && !settings->pools ? (float)pow(10, (double)k / n - 1) * strength : strength;
}

/* Adds factor times the 1x1 convolution of picture [Y, X, C] to the denoiser's feature map `to`. */
static void add_residual(struct context *x, const struct linear_weights *w, const struct visit_scope *scope,
                         struct tensor to, struct tensor picture, float factor) {
    const struct unet_control_settings *settings = scope->settings;
    struct tensor in = unet_rows(picture), rows = unet_rows(to);
    if (settings->pools) { /* the mean of the convolution is the convolution of the mean */
        in = context_tensor(x, DTYPE_F32, 2, (int32_t[]){1, picture.dim[2]});
        unet_mean(x, in, picture);
    }
    struct tensor residual = context_tensor(x, DTYPE_F32, 2, in.dim);
    op_linear(x, residual, in, w->weight, (struct epilogue){.bias = w->bias});
    op_add_scaled(x, rows, rows, residual, factor);
}

static void forward_residual(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct residual_weights *w = weights;
    const struct unet_settings *s = scope->settings;
    const struct unet_state *state = scope->lane->state, *denoiser = scope->lane->denoiser->state;
    int skip = scope->number;
    add_residual(x, &w->product, scope, denoiser->skip[skip], state->skip[skip],
                 residual_factor(scope, skip, unet_n_skips(s)));
}

static void forward_middle_residual(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct residual_weights *w = weights;
    const struct unet_settings *s = scope->settings;
    const struct unet_state *state = scope->lane->state, *denoiser = scope->lane->denoiser->state;
    int n = unet_n_skips(s);
    add_residual(x, &w->product, scope, unet_middle(s, denoiser), unet_middle(s, state),
                 residual_factor(scope, n, n));
}

BLOCK(kind_hint, "hint", "controlnet_cond_embedding", unet_hint_table, unet_hint_weights, forward_hint,
      .update_rate = UPDATE_PER_PROMPT, .never_quantised = true);
BLOCK(kind_in, "conv_in", "conv_in", unet_control_in_table, linear_weights, forward_in,
      .never_quantised = true);
BLOCK(kind_residual, "residual", "controlnet_down_blocks.%d", unet_residual_table, residual_weights,
      forward_residual);
BLOCK(kind_middle_residual, "middle_residual", "controlnet_mid_block", unet_middle_residual_table,
      residual_weights, forward_middle_residual);

void unet_control_add_encoder(struct unet_list *list) {
    const struct unet_settings *s = (const struct unet_settings *)list->c->settings;
    int skip = 0;
    unet_add(list, &kind_in, (struct block_ref){0});
    unet_add(list, &kind_residual, (struct block_ref){.number = skip});
    for (int i = 0; i < s->levels * s->resnets + s->mid_resnets; i++) {
        struct unet_position position = unet_position_at(s, i);
        bool ends_level = position.resnet + 1 == s->resnets && position.level + 1 < s->levels;
        unet_add_position(list, position);
        if (position.side == UNET_MID) continue;
        unet_add(list, &kind_residual, (struct block_ref){.number = ++skip});
        unet_add_resample(list, position);
        if (ends_level) unet_add(list, &kind_residual, (struct block_ref){.number = ++skip});
    }
    unet_add(list, &kind_middle_residual, (struct block_ref){0});
}

static int unet_control_blocks(const struct component *c, struct block_ref *refs) {
    struct unet_list list = {c, refs, 0};
    unet_add(&list, &unet_conditioning[c->dims[ADDED] > 0], (struct block_ref){0});
    unet_add(&list, &kind_hint, (struct block_ref){0});
    unet_control_add_encoder(&list);
    return list.n;
}

void unet_control_block_dims(const struct component *c, const struct block_ref *ref, int32_t *dims) {
    const struct unet_settings *s = (const struct unet_settings *)c->settings;
    unet_block_dims(c, ref, dims);
    if (ref->kind == &kind_residual) dims[OUT] = unet_skip_channels(c, ref->number);
    if (ref->kind == &kind_middle_residual) dims[OUT] = c->dims[CHANNELS + s->levels - 1];
}

/* Declares the skips of a lane: they use two buffers in turn. */
static void declare_skips(const struct component *c, const struct lane *lane, struct arena *arena, bool *ok) {
    const struct unet_settings *s = (const struct unet_settings *)c->settings;
    struct unet_state *state = lane->state;
    int64_t most[2] = {0};
    int32_t dim[UNET_SKIPS_MAX][3];
    struct tensor buffer[2];
    int n = unet_n_skips(s);
    for (int i = 0; i < n; i++) {
        unet_skip_shape(c, lane, i, dim[i]);
        int64_t values = (int64_t)dim[i][0] * dim[i][1] * dim[i][2];
        if (values > most[i % 2]) most[i % 2] = values;
    }
    for (int i = 0; i < 2; i++) {
        int32_t rows = (int32_t)((most[i] + MEMORY_ROW - 1) / MEMORY_ROW);
        buffer[i] = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){rows, MEMORY_ROW}, ok);
    }
    for (int i = 0; i < n; i++) state->skip[i] = tensor_make(buffer[i % 2].data, DTYPE_F32, 3, dim[i]);
    state->stream = buffer[n % 2];
}

void unet_control_declare(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                          struct arena *pictures, bool *ok) {
    const struct unet_settings *s = (const struct unet_settings *)c->settings;
    (void)pictures;
    for (int i = 0; i < n_lanes; i++) {
        if (!lane_computes(&lanes[i])) continue;
        struct unet_control_state *state = lanes[i].state;
        int first = lane_first_of_prompt(lanes, i), images = lanes[i].n_controls;
        if (first != i) *state = *(const struct unet_control_state *)lanes[first].state;
        declare_skips(c, &lanes[i], arena, ok);
        int32_t tokens[2] = {unet_buffer_rows(c, &state->unet, true), MEMORY_ROW};
        state->unet.tokens = arena_tensor(arena, DTYPE_F32, 2, tokens, ok);
        if (first != i) continue;
        unet_declare_prompt(c, &lanes[i], s->levels * s->resnets + s->mid_resnets, arena, ok);
        state->hint = arena_tensor(arena, DTYPE_F32, 3, state->unet.skip[0].dim, ok);
        if (c->dims[MODES])
            state->tokens = arena_tensor(arena, DTYPE_F32, 2, (int32_t[]){images, c->dims[TOKEN]}, ok);
    }
}

static bool unet_control_probe(const struct tensor_index *index) {
    return unet_is_control(index) && !index_find(index, "control_add_embedding.linear_1.weight");
}

enum status unet_control_refuse(const struct component *c, struct error *e) {
    static const struct similar_architecture relatives[] = {
        {"lora_controlnet", "a Control-LoRA, which needs the weights of its base model"},
        {"difference", "the difference of a control network and its base model"},
        {"motion_", "a control network for videos"},
        {"down_blocks.0.motion_modules.", "a control network for videos"},
        {"class_embedding.", "a class-conditional control network"},
        {"encoder_hid_proj", "a control network for another text encoder (encoder_hid_proj)"},
        {0},
    };
    return component_refuse_similar(c, relatives, "a ControlNet of Stable Diffusion 1, 2 or XL", e);
}

enum status unet_control_configure(struct component *c, const struct config *config, struct error *e) {
    const struct unet_settings *s = (const struct unet_settings *)c->settings;
    int32_t *d = c->dims;
    if (unet_read(c, config, e) != OK) return e->code;
    d[TIME_IDS] = d[ADDED] ? ADD_TIME_IDS_MAX : 0;
    d[POOLED] = d[ADDED] - d[TIME_IDS] * s->time_id_columns;
    return unet_check_dims(c, false, e);
}

void unet_control_derive_dims(struct component *c) {
    struct unet_settings *s = (struct unet_settings *)c->settings;
    int32_t *d = c->dims;
    bool attends = false;
    unet_derive_positions(c);
    for (int i = 0; i < s->levels * s->resnets + s->mid_resnets; i++) attends = attends || s->attends[i];
    if (!attends) s->mid_resnets = 1; /* as in the published network without transformers */
    for (int i = s->levels * s->resnets + s->mid_resnets; i < unet_n_positions(s); i++)
        s->layers[i] = s->attends[i] = 0;
    d[FREQUENCIES] = d[CHANNELS];
    d[TIME] = 4 * d[CHANNELS];
    d[ADDED] = d[TIME_IDS] ? d[POOLED] + d[TIME_IDS] * s->time_id_columns : 0;
}

void unet_control_derive(struct component *c) {
    const struct unet_control_settings *s = (const struct unet_control_settings *)c->settings;
    int32_t *d = c->dims;
    d[K1] = 1;
    d[K3] = 3;
    d[IMAGE] = 3;
    d[ZERO_AXES] = UNET_CONV_AXES;
    d[LATENT] = d[IN_CHANNELS];
    unet_set_config_dims(c);
    c->text_columns = d[CONTEXT];
    c->pooled_columns = d[ADDED] ? d[POOLED] : 0;
    c->latent_channels = d[LATENT];
    c->control.modes = d[MODES];
    c->control.conditional_lanes = s->pools;
}

/* Residuals need the shapes of the denoiser's skips. */
enum status unet_control_check(const struct component *c, const struct component *denoiser, struct error *e) {
    const struct unet_settings *s = (const struct unet_settings *)c->settings;
    const struct unet_settings *of = (const struct unet_settings *)denoiser->settings;
    bool fits = s->levels == of->levels && s->resnets == of->resnets && of->mid_resnets &&
                c->latent_channels == denoiser->latent_channels &&
                (!c->text_columns || c->text_columns == denoiser->text_columns) &&
                (!c->pooled_columns || (c->pooled_columns == denoiser->pooled_columns &&
                                        c->dims[TIME_IDS] == denoiser->dims[TIME_IDS]));
    for (int i = 0; i < s->levels && fits; i++) fits = c->dims[CHANNELS + i] == denoiser->dims[CHANNELS + i];
    if (fits) return OK;
    return error_set(e, SHAPE,
                     "the control network does not fit the model" WHERE "%s" FOUND
                     "a network of %d levels, %d channels, prompt embeddings of %d columns" EXPECTED
                     "as in the model: %d levels, %d channels, %d columns. Use a ControlNet for this base "
                     "model (Stable Diffusion 1, 2 or XL)",
                     c->index.sources[0].path, s->levels, c->dims[CHANNELS], c->text_columns, of->levels,
                     denoiser->dims[CHANNELS], denoiser->text_columns);
}

int unet_control_visits(const struct component *c, const struct component *denoiser,
                        struct control_visit *visits) {
    int n = 0, after = unet_last_middle_block(denoiser);
    for (int i = 0; i < c->n_blocks; i++)
        if (c->blocks[i].kind->update_rate == UPDATE_PER_EVALUATION)
            visits[n++] = (struct control_visit){.block = i, .after = after};
    return n;
}

static const struct dimension unet_control_dimensions[N_UNET_CONTROL_DIMENSIONS] = {UNET_CONTROL_DIMENSIONS};
static const struct setting unet_control_settings[] = {UNET_CONTROL_SETTINGS};

const struct family family_unet_control = {
    .name = "unet_control",
    .kind = FAMILY_CONTROL,
    .display_name = "ControlNet",
    .files = {.config_key = "_class_name",
              .config_value = "ControlNetModel",
              .probe = unet_control_probe,
              .refuse = unet_control_refuse},
    .config = {.dimensions = unet_control_dimensions,
               .n_dimensions = N_UNET_CONTROL_DIMENSIONS,
               .settings = unet_control_settings,
               .n_settings = COUNT_OF(unet_control_settings),
               .expects = unet_expects,
               .configure = unet_control_configure,
               .derive_dims = unet_control_derive_dims,
               .derive = unet_control_derive},
    .blocks = {.list = unet_control_blocks, .dims = unet_control_block_dims},
    .state = {.bytes = sizeof(struct unet_control_state), .declare = unet_control_declare},
    .control = {.denoiser = &family_unet,
                .input = CONTROL_PIXELS,
                .check = unet_control_check,
                .visits = unet_control_visits},
    .f16_operands = true, /* diffusers runs these networks in f16 */
};
