#include "models/vae_blocks.h"

#include <math.h>

/* Computes the group norm statistics of a feature map and returns the norm. */
static struct group_norm vae_group_norm(struct context *x, const struct vae_settings *settings,
                                        struct tensor picture, struct tensor weight, struct tensor bias) {
    struct group_norm norm = {.weight = weight, .bias = bias};
    norm.statistics = context_tensor(x, DTYPE_F32, 2, (int32_t[]){settings->groups, 2});
    op_group_statistics(x, norm.statistics, picture, (struct rows_before){0}, settings->groups, VAE_EPS);
    return norm;
}

float vae_pixel_eps(struct tensor weight) {
    return 1e-24f / (float)weight.dim[0];
}

/* Sets the norm that a VAE convolution applies to its input. A group norm's statistics cover the whole
 * feature map. */
static void vae_norm(struct context *x, const struct vae_settings *settings, struct tensor picture,
                     struct tensor weight, struct tensor bias, struct conv_options *options) {
    if (settings->groups)
        options->norm = vae_group_norm(x, settings, picture, weight, bias);
    else
        options->pixel_norm = (struct pixel_norm){weight, vae_pixel_eps(weight)};
}

/* Rows per band of a resnet that recomputes h (vae_full_frame.h): whole bands of convolutions, so that
 * results equal those without bands bit for bit. Depends on shapes alone (R3, kernels/README.md). */
static int32_t vae_resnet_band(int32_t Y, int32_t X) {
    int32_t band = 2 * conv_band_rows(X);
    return band < Y ? band : Y;
}

static int32_t vae_min(int32_t a, int32_t b) {
    return a < b ? a : b;
}

/* Feature maps and progress of a resnet that is computed in bands of rows. */
struct vae_bands {
    struct tensor in, out, h;
    int32_t Y, band;
    struct conv_options one, two;
};

/* Computes a resnet's h = conv1(norm1(in)) in bands, and norm2's group statistics. Stores all of h if the
 * buffer has space for it. */
static void vae_resnet_first(struct context *x, const struct resnet_weights *w,
                             const struct vae_settings *settings, struct vae_bands *b) {
    struct rows_before before = {0};
    if (settings->groups) {
        b->two.norm = (struct group_norm){.weight = w->norm2.weight, .bias = w->norm2.bias};
        before.sums = context_tensor(x, DTYPE_F64, 2, (int32_t[]){settings->groups, 2});
        b->two.norm.statistics = context_tensor(x, DTYPE_F32, 2, (int32_t[]){settings->groups, 2});
    } else {
        vae_norm(x, settings, b->h, w->norm2.weight, w->norm2.bias, &b->two);
        if (b->band < b->Y) return;
    }
    for (int32_t y = 0; y < b->Y; y += b->band) {
        struct tensor rows = tensor_slice(b->h, 0, vae_min(b->band, b->Y - y));
        b->one.first_row = before.rows = y;
        op_conv2d(x, rows, b->in, w->conv1.weight, (struct epilogue){.bias = w->conv1.bias}, b->one);
        if (settings->groups)
            op_group_statistics(x, b->two.norm.statistics, rows, before, settings->groups, VAE_EPS);
    }
}

/* Computes a resnet's output from h = conv1(norm1(in)) in bands. If h is not stored, recomputes h with one
 * row above and below each band. */
static void vae_resnet_second(struct context *x, const struct resnet_weights *w, struct vae_bands *b) {
    struct conv_options plain = {.upsample = 1};
    for (int32_t y = 0; y < b->Y; y += b->band) {
        int32_t n = vae_min(b->band, b->Y - y), from = y ? y - 1 : 0, to = vae_min(from + b->band + 2, b->Y);
        struct tensor rows = tensor_slice(b->h, 0, to - from), piece = tensor_slice(b->out, y, n);
        struct epilogue epilogue = {.bias = w->conv2.bias, .residual = tensor_slice(b->in, y, n)};
        b->one.first_row = from;
        if (b->band < b->Y)
            op_conv2d(x, rows, b->in, w->conv1.weight, (struct epilogue){.bias = w->conv1.bias}, b->one);
        if (w->shortcut.weight.rank) {
            plain.first_row = y;
            op_conv2d(x, piece, b->in, w->shortcut.weight, (struct epilogue){.bias = w->shortcut.bias},
                      plain);
            epilogue.residual = piece;
        }
        b->two.first_row = y - from;
        op_conv2d(x, piece, rows, w->conv2.weight, epilogue, b->two);
    }
}

void vae_forward_resnet(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct resnet_weights *w = weights;
    const struct vae_settings *settings = scope->settings;
    struct full_frame *full_frame = &((struct vae_state *)scope->lane->state)->full_frame;
    struct tensor in = full_frame->picture, out = in;
    int32_t Y = in.dim[0], X = in.dim[1], C = w->conv1.weight.dim[0];
    struct tensor h = full_frame_back(full_frame, 0, Y, X, C);
    int32_t band = h.rank ? Y : vae_resnet_band(Y, X);
    if (w->shortcut.weight.rank || !h.rank)
        out = full_frame_put(full_frame, full_frame_before(full_frame, C), Y, X, C);
    if (!h.rank) h = context_tensor(x, DTYPE_F32, 3, (int32_t[]){vae_min(band + 2, Y), X, C});
    struct conv_options silu = {.activation = ACTIVATION_SILU, .upsample = 1};
    struct vae_bands bands = {in, out, h, Y, band, silu, silu};
    vae_norm(x, settings, in, w->norm1.weight, w->norm1.bias, &bands.one);
    vae_resnet_first(x, w, settings, &bands);
    vae_resnet_second(x, w, &bands);
}

/* Mid-block attention. Keys and values lie in device scratch memory, because the full-frame buffer may lie in
 * host memory. */
void vae_attend(struct context *x, const struct attention_weights *w, const struct vae_settings *settings,
                struct tensor in, struct tensor normed, struct tensor queries) {
    int32_t C = in.dim[2], dim[2] = {in.dim[0] * in.dim[1], C};
    struct tensor tokens = tensor_reshape(in, 2, dim), n = tensor_reshape(normed, 2, dim);
    struct tensor q = tensor_reshape(queries, 2, dim);
    struct tensor k = context_operand(x, 2, dim), v = context_operand(x, 2, dim);
    if (settings->groups)
        op_group_norm(x, normed, in, vae_group_norm(x, settings, in, w->norm.weight, w->norm.bias));
    else
        op_rms_norm(x, n, tokens, w->norm.weight, vae_pixel_eps(w->norm.weight), (struct modulation){0});
    op_linear(x, q, n, w->q.weight, (struct epilogue){.bias = w->q.bias});
    op_linear(x, k, n, w->k.weight, (struct epilogue){.bias = w->k.bias});
    op_linear(x, v, n, w->v.weight, (struct epilogue){.bias = w->v.bias});
    op_attention(x, q, q, k, v,
                 (struct attention_options){.queries = 1, .keys = 1, .scale = 1 / sqrtf((float)C)});
    op_linear(x, tokens, q, w->out.weight, (struct epilogue){.bias = w->out.bias, .residual = tokens});
}

void vae_forward_attention(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct vae_state *state = scope->lane->state;
    struct tensor in = state->full_frame.picture;
    int32_t Y = in.dim[0], X = in.dim[1], C = in.dim[2];
    vae_attend(x, weights, scope->settings, in, full_frame_back(&state->full_frame, 0, Y, X, C),
               full_frame_back(&state->full_frame, 1, Y, X, C));
}

/* Packing as patches: a latent pixel is the token of packing x packing VAE pixels. */
static struct patches vae_packing_patches(int packing) {
    return (struct patches){.side = packing, .order = PATCH_CHANNELS_FIRST, .pixels = true};
}

/* Reshapes [Y, X, C] to [Y X, C]. */
static struct tensor vae_pixels(struct tensor image) {
    return tensor_reshape(image, 2, (int32_t[]){image.dim[0] * image.dim[1], image.dim[2]});
}

struct tensor vae_unpacked_latent(struct context *x, const struct visit_scope *scope, int32_t packing) {
    struct tensor latent = latent_planes(scope->lane->latent);
    int32_t Y = latent.dim[1], X = latent.dim[2], C = latent.dim[0];
    struct tensor image = context_tensor(x, DTYPE_F32, 3, (int32_t[]){Y, X, C});
    op_latent_to_image(x, image, latent, *scope->latent_format);
    if (packing == 1) return image;
    int32_t dim[3] = {packing * Y, packing * X, C / packing / packing};
    struct tensor unpacked = context_tensor(x, DTYPE_F32, 3, dim);
    op_unpatchify(x, unpacked, vae_pixels(image), vae_packing_patches(packing), 1);
    return unpacked;
}

void vae_forward_latent_in(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct in_weights *w = weights;
    const struct vae_settings *settings = scope->settings;
    struct vae_state *state = scope->lane->state;
    struct tensor image = vae_unpacked_latent(x, scope, settings->packing), mixed = image;
    int32_t Y = image.dim[0], X = image.dim[1];
    struct conv_options plain = {.upsample = 1};
    if (w->post.weight.rank) {
        mixed = context_tensor(x, DTYPE_F32, 3, image.dim);
        op_conv2d(x, mixed, image, w->post.weight, (struct epilogue){.bias = w->post.bias}, plain);
    }
    struct tensor out = full_frame_put(&state->full_frame, state->front[0], Y, X, w->conv.weight.dim[0]);
    op_conv2d(x, out, mixed, w->conv.weight, (struct epilogue){.bias = w->conv.bias}, plain);
}

void vae_forward_upsample(struct context *x, const struct linear_weights *w, const struct visit_scope *scope,
                          int level) {
    struct vae_state *state = scope->lane->state;
    struct tensor in = state->full_frame.picture;
    int32_t Y = in.dim[0], X = in.dim[1];
    struct tensor back = full_frame_back(&state->full_frame, 0, Y, X, in.dim[2]);
    op_copy(x, back, in);
    struct tensor out =
        full_frame_put(&state->full_frame, state->front[level], 2 * Y, 2 * X, w->weight.dim[0]);
    op_conv2d(x, out, back, w->weight, (struct epilogue){.bias = w->bias},
              (struct conv_options){.upsample = 2});
}

void vae_forward_picture_out(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct out_weights *w = weights;
    const struct vae_state *state = scope->lane->state;
    struct tensor in = state->full_frame.picture;
    struct conv_options options = {.activation = ACTIVATION_SILU, .upsample = 1};
    vae_norm(x, scope->settings, in, w->norm.weight, w->norm.bias, &options);
    op_conv2d(x, lane_picture(scope->lane), in, w->conv.weight, (struct epilogue){.bias = w->conv.bias},
              options);
}

void vae_forward_picture_in(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct in_weights *w = weights;
    struct vae_state *state = scope->lane->state;
    struct tensor in = lane_picture(scope->lane);
    struct tensor out =
        full_frame_put(&state->full_frame, state->front[0], in.dim[0], in.dim[1], w->conv.weight.dim[0]);
    op_conv2d(x, out, in, w->conv.weight, (struct epilogue){.bias = w->conv.bias},
              (struct conv_options){.upsample = 1});
}

void vae_forward_downsample(struct context *x, const struct linear_weights *w,
                            const struct visit_scope *scope, int level) {
    struct vae_state *state = scope->lane->state;
    struct tensor in = state->full_frame.picture;
    int32_t Y = in.dim[0] / 2, X = in.dim[1] / 2, C = w->weight.dim[0];
    int64_t front = state->front[level];
    struct tensor out = full_frame_put(&state->full_frame, 0, Y, X, C);
    op_conv2d(x, out, in, w->weight, (struct epilogue){.bias = w->bias},
              (struct conv_options){.upsample = 1, .stride = 2});
    if (front) op_copy(x, full_frame_put(&state->full_frame, front, Y, X, C), out);
}

void vae_forward_moments(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct out_weights *w = weights;
    const struct vae_state *state = scope->lane->state;
    const struct vae_settings *settings = scope->settings;
    struct tensor in = state->full_frame.picture, moments = scope->lane->moments;
    int32_t dim[3] = {in.dim[0], in.dim[1], w->conv.weight.dim[0]};
    struct conv_options plain = {.upsample = 1}, options = {.activation = ACTIVATION_SILU, .upsample = 1};
    struct tensor unpacked = settings->packing == 1 ? moments : context_tensor(x, DTYPE_F32, 3, dim);
    struct tensor out = w->post.weight.rank ? context_tensor(x, DTYPE_F32, 3, dim) : unpacked;
    vae_norm(x, settings, in, w->norm.weight, w->norm.bias, &options);
    op_conv2d(x, out, in, w->conv.weight, (struct epilogue){.bias = w->conv.bias}, options);
    if (w->post.weight.rank)
        op_conv2d(x, unpacked, out, w->post.weight, (struct epilogue){.bias = w->post.bias}, plain);
    if (settings->packing > 1)
        op_patchify(x, vae_pixels(moments), unpacked, vae_packing_patches(settings->packing));
}

bool vae_level_has_shortcut(const struct component *c, int level) {
    return c->dims[CHANNELS + level] != c->dims[IN_CHANNELS + level];
}

static int vae_attention_buffers(const struct component *c) {
    return ((const struct vae_settings *)c->settings)->attention ? VAE_ATTENTION_BUFFERS : 0;
}

void vae_declare_levels(const struct component *c, int n, struct lane *lanes, int n_lanes,
                        struct arena *pictures, bool *ok) {
    struct full_frame_level levels[VAE_LEVELS_MAX];
    struct vae_state first = {0};
    int32_t packing = ((const struct vae_settings *)c->settings)->packing;
    for (int i = 0; i < n; i++)
        levels[i] = (struct full_frame_level){.Y = packing * lanes[0].latent.dim[2] << i,
                                              .X = packing * lanes[0].latent.dim[3] << i,
                                              .in_channels = c->dims[IN_CHANNELS + i],
                                              .channels = c->dims[CHANNELS + i],
                                              .n_resnets = c->dims[RESNETS] + (i ? 0 : VAE_MID_RESNETS)};
    int64_t rows = full_frame_measure_up(levels, n, vae_attention_buffers(c), lanes[0].tiled, first.front);
    first.full_frame.memory =
        arena_tensor(pictures, DTYPE_F32, 2, (int32_t[]){(int32_t)rows, FULL_FRAME_ROW}, ok);
    for (int i = 0; i < n_lanes; i++) *(struct vae_state *)lanes[i].state = first;
}

void vae_declare_decoder(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                         struct arena *pictures, bool *ok) {
    (void)arena;
    vae_declare_levels(c, c->dims[LEVELS], lanes, n_lanes, pictures, ok);
}

static int64_t vae_measure_encoder(const struct component *c, const struct lane *lane, int64_t *front) {
    struct full_frame_level levels[VAE_LEVELS_MAX];
    int n = c->dims[LEVELS];
    for (int i = 0; i < n; i++)
        levels[i] =
            (struct full_frame_level){.Y = lane->picture.dim[1] >> i,
                                      .X = lane->picture.dim[2] >> i,
                                      .in_channels = c->dims[IN_CHANNELS + i],
                                      .channels = c->dims[CHANNELS + i],
                                      .n_resnets = c->dims[RESNETS] + (i + 1 == n ? VAE_MID_RESNETS : 0)};
    return full_frame_measure_down(levels, n, vae_attention_buffers(c), lane->tiled, front);
}

/* Lanes share one full-frame buffer, which fits the largest image. */
void vae_declare_encoder(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                         struct arena *pictures, bool *ok) {
    int64_t rows = 0;
    (void)arena;
    for (int i = 0; i < n_lanes; i++) {
        int64_t needs = vae_measure_encoder(c, &lanes[i], ((struct vae_state *)lanes[i].state)->front);
        if (needs > rows) rows = needs;
    }
    struct tensor memory =
        arena_tensor(pictures, DTYPE_F32, 2, (int32_t[]){(int32_t)rows, FULL_FRAME_ROW}, ok);
    for (int i = 0; i < n_lanes; i++) ((struct vae_state *)lanes[i].state)->full_frame.memory = memory;
}
