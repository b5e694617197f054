/* LTX-2's spatial latent upsampler: enlarges the width and height of a video's latent between two denoising
 * passes, 2 or 1.5 times.
 *
 * A convolution and its group norm; four resnets; for each frame a convolution and pixel shuffle; four
 * resnets; a convolution. Resnet: silu(x + norm2(conv2(silu(norm1(conv1(x)))))). Scale 1.5 shuffles to 3 x 3
 * pixels, then halves rows and columns with a binomial filter. The network works on the VAE's values, so
 * lane.latent is converted to these first, and the result to lane.enlarged.
 *
 * A convolution over time and space is the sum of three 2D convolutions: of the frames before, at and after
 * the output frame. Frames outside the video are zeros, so their terms are omitted. A group norm has one mean
 * per group for all frames, so whole feature maps are kept: three of the enlarged size. Reference: diffusers
 * 0.42, pipelines/ltx2/latent_upsampler.py (LTX2LatentUpsamplerModel). */
#include "models/conv_slices.h"
#include "models/models.h"

enum ltx2_upsampler_dim {
    LTX2_UP_LATENT,
    LTX2_UP_WIDTH,
    LTX2_UP_BLOCKS,   /* resnets before, and after the enlargement */
    LTX2_UP_SHUFFLED, /* outputs of the convolution before the pixel shuffle: width * 4 or width * 9 */
    LTX2_UP_K3,
};

enum {

    LTX2_UP_GROUPS = 32,
    LTX2_UP_MAPS = 3,
    LTX2_UP_AFTER = BLOCK_ROW_STEP, /* number of the first resnet after the enlargement */
    LTX2_UP_TAPS = 5,
};
static const float ltx2_up_eps = 1e-5F;

struct ltx2_upsampler_settings {
    double scale; /* factor of both sides: 2, or 1.5 */
};

/* Feature maps [F Y, X, C] of the enlarged size; smaller maps lie at their starts. The current feature map is
 * map[0] before the enlargement and map[1] after it; the other two are temporary. */
struct ltx2_upsampler_state {
    struct tensor map[LTX2_UP_MAPS];
    int frames;
};

/* clang-format off */
/* TIMED: convolution over time and space. */
#define ROW_TIMED(S, field, out, in, ...)                                                                    \
    ROWS_SLICED_CONV(S, field., "", out, in, LTX2_UP_K3, LTX2_UP_K3, __VA_ARGS__)

#define FIRST(X, S)                                                                                          \
    X##TIMED(S, conv, LTX2_UP_WIDTH, LTX2_UP_LATENT, "initial_conv")                                         \
    X##NORM(S, norm, LTX2_UP_WIDTH, "initial_norm")
struct ltx2_first_weights {
    struct sliced_conv_weights conv;
    struct linear_weights norm;
};
WEIGHT_TABLE(ltx2_first_table, FIRST, ltx2_first_weights, "", "");

#define RESNET(X, S)                                                                                         \
    X##TIMED(S, conv1, LTX2_UP_WIDTH, LTX2_UP_WIDTH, "conv1")                                                \
    X##NORM(S, norm1, LTX2_UP_WIDTH, "norm1")                                                                \
    X##TIMED(S, conv2, LTX2_UP_WIDTH, LTX2_UP_WIDTH, "conv2")                                                \
    X##NORM(S, norm2, LTX2_UP_WIDTH, "norm2")
struct ltx2_resnet_weights {
    struct sliced_conv_weights conv1, conv2;
    struct linear_weights norm1, norm2;
};
WEIGHT_TABLE(ltx2_before_table, RESNET, ltx2_resnet_weights, "res_blocks.%d.", "res_blocks.%d.");
WEIGHT_TABLE(ltx2_after_table, RESNET, ltx2_resnet_weights, "post_upsample_res_blocks.%d.",
             "post_upsample_res_blocks.%d.");

CONV_TABLE(ltx2_up_table, LTX2_UP_SHUFFLED, LTX2_UP_WIDTH, LTX2_UP_K3, "upsampler.conv", "upsampler.0");

#define LAST(X, S) X##TIMED(S, conv, LTX2_UP_LATENT, LTX2_UP_WIDTH, "final_conv")
struct ltx2_last_weights { struct sliced_conv_weights conv; };
WEIGHT_TABLE(ltx2_last_table, LAST, ltx2_last_weights, "", "");
/* clang-format on */

/* ---- feature maps ---- */

/* Returns map i as a feature map [F Y, X, C] of this size. */
static struct tensor ltx2_map(const struct ltx2_upsampler_state *state, int i, int32_t Y, int32_t X) {
    const struct tensor *map = &state->map[i];
    return tensor_make(map->data, DTYPE_F32, 3, (int32_t[]){state->frames * Y, X, map->dim[2]});
}

/* Returns frame f [Y, X, C] of a feature map. */
static struct tensor ltx2_frame(struct tensor map, int frames, int f) {
    int32_t Y = map.dim[0] / frames;
    return tensor_slice(map, f * Y, Y);
}

static struct tensor ltx2_matrix(struct tensor image) {
    return tensor_reshape(image, 2, (int32_t[]){image.dim[0] * image.dim[1], image.dim[2]});
}

/* Computes frame f of a convolution over time and space. The middle slice comes first: its term exists in
 * every frame and adds the bias. */
static void ltx2_convolve_frame(struct context *x, struct tensor out, struct tensor in, int frames, int f,
                                const struct sliced_conv_weights *w, struct conv_options options) {
    static const int order[CONV_SLICES] = {1, 0, 2};
    struct epilogue sum = {.bias = w->bias};
    for (int i = 0; i < CONV_SLICES; i++) {
        int from = f + order[i] - 1;
        if (from < 0 || from >= frames) continue;
        op_conv2d(x, out, ltx2_frame(in, frames, from), w->weight[order[i]], sum, options);
        sum = (struct epilogue){.residual = out};
    }
}

static void ltx2_convolve(struct context *x, struct tensor out, struct tensor in, int frames,
                          const struct sliced_conv_weights *w, struct conv_options options) {
    uint64_t used = x->scratch->used;
    for (int f = 0; f < frames; f++, x->scratch->used = used)
        ltx2_convolve_frame(x, ltx2_frame(out, frames, f), in, frames, f, w, options);
}

/* Returns a group norm with the map's statistics over all frames. */
static struct group_norm ltx2_norm(struct context *x, struct tensor map, const struct linear_weights *w) {
    struct tensor statistics = context_tensor(x, DTYPE_F32, 2, (int32_t[]){LTX2_UP_GROUPS, 2});
    op_group_statistics(x, statistics, map, (struct rows_before){0}, LTX2_UP_GROUPS, ltx2_up_eps);
    return (struct group_norm){statistics, w->weight, w->bias};
}

static void ltx2_silu(struct context *x, struct tensor map) {
    struct tensor rows = ltx2_matrix(map);
    op_glu(x, rows, rows, rows, ACTIVATION_SIGMOID); /* sigmoid(v) v */
}

/* ---- blocks ---- */

static void ltx2_forward_first(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct ltx2_first_weights *w = weights;
    const struct ltx2_upsampler_state *state = scope->lane->state;
    struct tensor latent = scope->lane->latent;
    int32_t C = latent.dim[0], Y = latent.dim[2], X = latent.dim[3];
    struct tensor values = context_tensor(x, DTYPE_F32, 3, (int32_t[]){state->frames * Y, X, C});
    uint64_t used = x->scratch->used;
    for (int f = 0; f < state->frames; f++, x->scratch->used = used) {
        struct tensor frame = context_tensor(x, DTYPE_F32, 3, (int32_t[]){C, Y, X});
        op_copy(x, tensor_reshape(frame, 2, (int32_t[]){C, Y * X}), latent_frame(latent, f));
        op_latent_to_image(x, ltx2_frame(values, state->frames, f), frame, *scope->latent_format);
    }
    struct tensor map = ltx2_map(state, 0, Y, X);
    ltx2_convolve(x, map, values, state->frames, &w->conv, (struct conv_options){.upsample = 1});
    op_group_norm(x, map, map, ltx2_norm(x, map, &w->norm));
    ltx2_silu(x, map);
}

static void ltx2_forward_resnet(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct ltx2_resnet_weights *w = weights;
    const struct ltx2_upsampler_state *state = scope->lane->state;
    bool after = scope->number >= LTX2_UP_AFTER;
    const int32_t *dim = after ? scope->lane->enlarged.dim : scope->lane->latent.dim;
    struct tensor features = ltx2_map(state, after, dim[2], dim[3]), h = ltx2_map(state, 2, dim[2], dim[3]),
                  sum = ltx2_map(state, !after, dim[2], dim[3]);
    struct conv_options options = {.upsample = 1};
    ltx2_convolve(x, h, features, state->frames, &w->conv1, options);
    options.norm = ltx2_norm(x, h, &w->norm1);
    options.activation = ACTIVATION_SILU;
    ltx2_convolve(x, sum, h, state->frames, &w->conv2, options);
    op_group_norm(x, sum, sum, ltx2_norm(x, sum, &w->norm2));
    op_add(x, ltx2_matrix(features), ltx2_matrix(features), ltx2_matrix(sum));
    ltx2_silu(x, features);
}

/* out[i] += factor * in[2 i + offset] for all rows i of a matrix; rows outside `in` are zeros. */
static void ltx2_add_tap(struct context *x, struct tensor out, struct tensor in, int32_t offset,
                         float factor) {
    int32_t first = offset < 0 ? 1 : 0, from = 2 * first + offset, n = (in.dim[0] - from + 1) / 2;
    if (n > out.dim[0] - first) n = out.dim[0] - first;
    if (n <= 0) return;
    struct tensor taken = tensor_slice(in, from, n), to = tensor_slice(out, first, n);
    taken.row_bytes *= 2;
    op_add_scaled(x, to, to, taken, factor);
}

/* Keeps every second row of a matrix, filtered with the binomial filter 1 4 6 4 1 divided by 6 (not 16), so
 * that the row itself is copied. */
static void ltx2_halve(struct context *x, struct tensor out, struct tensor in) {
    static const float taps[LTX2_UP_TAPS] = {1 / 6.0F, 4 / 6.0F, 0, 4 / 6.0F, 1 / 6.0F};
    struct tensor centre = in;
    centre.dim[0] = out.dim[0];
    centre.row_bytes *= 2;
    op_copy(x, out, centre);
    for (int32_t i = 0; i < LTX2_UP_TAPS; i++)
        if (i != LTX2_UP_TAPS / 2) ltx2_add_tap(x, out, in, i - LTX2_UP_TAPS / 2, taps[i]);
}

/* Halves both sides of an image [Y, X, C] with the filter of ltx2_halve: rows first, then columns. */
static void ltx2_halve_image(struct context *x, struct tensor out, struct tensor in) {
    int32_t X = in.dim[1], C = in.dim[2], Y = out.dim[0];
    struct tensor rows = context_tensor(x, DTYPE_F32, 2, (int32_t[]){Y, X * C});
    ltx2_halve(x, rows, tensor_reshape(in, 2, (int32_t[]){in.dim[0], X * C}));
    for (int32_t y = 0; y < Y; y++)
        ltx2_halve(x, tensor_reshape(tensor_slice(out, y, 1), 2, out.dim + 1),
                   tensor_reshape(tensor_slice(rows, y, 1), 2, (int32_t[]){X, C}));
}

static void ltx2_forward_up(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct linear_weights *w = weights;
    const struct ltx2_upsampler_state *state = scope->lane->state;
    const int32_t *from = scope->lane->latent.dim, *to = scope->lane->enlarged.dim;
    int32_t C = w->weight.dim[1], N = w->weight.dim[0], side = N == 4 * C ? 2 : 3, Y = from[2], X = from[3];
    struct tensor in = ltx2_map(state, 0, Y, X), out = ltx2_map(state, 1, to[2], to[3]);
    const struct patches shuffle = {.side = side, .order = PATCH_CHANNELS_FIRST, .pixels = true};
    /* ltx2_halve is applied to rows and columns, and divides by 6 instead of 16. */
    const float factor = side == 2 ? 1 : 36.0F / 256.0F;
    uint64_t used = x->scratch->used;
    for (int f = 0; f < state->frames; f++, x->scratch->used = used) {
        struct tensor squares = context_tensor(x, DTYPE_F32, 3, (int32_t[]){Y, X, N}),
                      frame = ltx2_frame(out, state->frames, f), image = frame;
        if (side > 2) image = context_tensor(x, DTYPE_F32, 3, (int32_t[]){side * Y, side * X, C});
        op_conv2d(x, squares, ltx2_frame(in, state->frames, f), w->weight, (struct epilogue){.bias = w->bias},
                  (struct conv_options){.upsample = 1});
        op_unpatchify(x, image, ltx2_matrix(squares), shuffle, factor);
        if (side > 2) ltx2_halve_image(x, frame, image);
    }
}

static void ltx2_forward_last(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct ltx2_last_weights *w = weights;
    const struct ltx2_upsampler_state *state = scope->lane->state;
    const struct latent_format *format = scope->latent_format;
    struct tensor enlarged = scope->lane->enlarged;
    int32_t C = enlarged.dim[0], Y = enlarged.dim[2], X = enlarged.dim[3];
    /* op_latent_to_image computes v / scale + shift; with these values it computes (v - shift) scale. */
    struct latent_format inverse = {.n = format->n};
    for (int i = 0; i < format->n; i++) {
        inverse.scale[i] = 1 / format->scale[i];
        inverse.shift[i] = -format->shift[i] * format->scale[i];
    }
    const struct patches pixel = {.side = 1, .order = PATCH_CHANNELS_FIRST};
    uint64_t used = x->scratch->used;
    for (int f = 0; f < state->frames; f++, x->scratch->used = used) {
        struct tensor image = context_tensor(x, DTYPE_F32, 3, (int32_t[]){Y, X, C}),
                      planes = context_tensor(x, DTYPE_F32, 3, (int32_t[]){C, Y, X}),
                      matrix = tensor_reshape(planes, 2, (int32_t[]){C, Y * X});
        ltx2_convolve_frame(x, image, ltx2_map(state, 1, Y, X), state->frames, f, &w->conv,
                            (struct conv_options){.upsample = 1});
        op_unpatchify(x, planes, ltx2_matrix(image), pixel, 1);
        op_latent_to_image(x, image, planes, inverse);
        op_unpatchify(x, planes, ltx2_matrix(image), pixel, 1);
        op_copy(x, latent_frame(enlarged, f), matrix);
    }
}

BLOCK(ltx2_kind_first, "conv_in", "initial_conv", ltx2_first_table, ltx2_first_weights, ltx2_forward_first,
      .never_quantised = true);
BLOCK(ltx2_kind_before, "resnet", "res_blocks.%d", ltx2_before_table, ltx2_resnet_weights,
      ltx2_forward_resnet, .never_quantised = true);
BLOCK(ltx2_kind_up, "upsampler", "upsampler", ltx2_up_table, linear_weights, ltx2_forward_up,
      .never_quantised = true);
BLOCK(ltx2_kind_after, "resnet_after", "post_upsample_res_blocks.%d", ltx2_after_table, ltx2_resnet_weights,
      ltx2_forward_resnet, .never_quantised = true);
BLOCK(ltx2_kind_last, "conv_out", "final_conv", ltx2_last_table, ltx2_last_weights, ltx2_forward_last,
      .never_quantised = true);

/* ---- configuration ---- */

static bool ltx2_upsampler_probe(const struct tensor_index *index) {
    return index_find(index, "initial_conv.weight") && index_find(index, "initial_norm.weight") &&
           index_find(index, "post_upsample_res_blocks.0.conv1.weight");
}

/* Refuses temporal upscalers, whose convolution before the shuffle is three-dimensional, and other scales. */
static enum status ltx2_upsampler_refuse(const struct component *c, struct error *e) {
    const char *name = component_first_existing(c, "upsampler.conv.weight", "upsampler.0.weight");
    const struct index_entry *up = index_find(&c->index, name),
                             *first = index_find(&c->index, "initial_conv.weight");
    const char *where = c->index.sources[0].path;
    if (up && up->rank == 5)
        return error_set(e, UNSUPPORTED,
                         "unsupported latent upscaler: it adds frames (temporal upscaler)" WHERE "%s" FOUND
                         "%s with 5 axes" EXPECTED "a spatial upscaler, x2 or x1.5",
                         where, name);
    if (first && first->rank != 5)
        return error_set(e, UNSUPPORTED,
                         "unsupported latent upscaler: its convolutions are 2D" WHERE "%s" FOUND
                         "initial_conv.weight with %d axes" EXPECTED
                         "convolutions over time and space, 5 axes",
                         where, first->rank);
    if (up && first && up->dim[0] != 4 * first->dim[0] && up->dim[0] != 9 * first->dim[0])
        return error_set(e, UNSUPPORTED,
                         "unsupported scale of a latent upscaler" WHERE "%s" FOUND
                         "%s with %d outputs for %d channels" EXPECTED
                         "4 or 9 outputs per channel: x2 or x1.5",
                         where, name, (int)up->dim[0], (int)first->dim[0]);
    return OK;
}

static enum status ltx2_upsampler_configure(struct component *c, const struct config *config,
                                            struct error *e) {
    const struct ltx2_upsampler_settings *s = (const void *)c->settings;
    (void)config;
    double of_shape = c->dims[LTX2_UP_SHUFFLED] == 4 * c->dims[LTX2_UP_WIDTH] ? 2 : 1.5;
    if (s->scale != 0 && s->scale != of_shape)
        return error_set(e, UNSUPPORTED,
                         "unsupported scale of a latent upscaler" WHERE "%s" FOUND
                         "rational_spatial_scale %g" EXPECTED "%g, for a convolution to %d channels",
                         c->index.sources[0].path, s->scale, of_shape, c->dims[LTX2_UP_SHUFFLED]);
    if (c->dims[LTX2_UP_WIDTH] % LTX2_UP_GROUPS)
        return error_set(e, SHAPE,
                         "invalid width of a latent upscaler" WHERE "%s" FOUND "%d channels" EXPECTED
                         "a multiple of %d",
                         c->index.sources[0].path, c->dims[LTX2_UP_WIDTH], LTX2_UP_GROUPS);
    return e->code;
}

static void ltx2_upsampler_derive_dims(struct component *c) {
    struct ltx2_upsampler_settings *s = (void *)c->settings;
    s->scale = 2;
    c->dims[LTX2_UP_SHUFFLED] = 4 * c->dims[LTX2_UP_WIDTH];
}

static void ltx2_upsampler_derive(struct component *c) {
    bool doubles = c->dims[LTX2_UP_SHUFFLED] == 4 * c->dims[LTX2_UP_WIDTH];
    c->dims[LTX2_UP_K3] = 3;
    c->latent_channels = c->dims[LTX2_UP_LATENT];
    c->pixel_factor = doubles ? 2 : 3;
    c->pixel_divisor = doubles ? 1 : 2;
    c->latent_format = (struct latent_format){.n = 1, .scale = {1}}; /* model_open sets the VAE's */
}

static int ltx2_upsampler_blocks(const struct component *c, struct block_ref *refs) {
    int n = 0;
    refs[n++] = (struct block_ref){.kind = &ltx2_kind_first};
    for (int i = 0; i < c->dims[LTX2_UP_BLOCKS]; i++)
        refs[n++] = (struct block_ref){.kind = &ltx2_kind_before, .number = i};
    refs[n++] = (struct block_ref){.kind = &ltx2_kind_up};
    for (int i = 0; i < c->dims[LTX2_UP_BLOCKS]; i++)
        refs[n++] = (struct block_ref){.kind = &ltx2_kind_after, .number = LTX2_UP_AFTER + i};
    refs[n++] = (struct block_ref){.kind = &ltx2_kind_last};
    return n;
}

static void ltx2_upsampler_declare(const struct component *c, struct lane *lanes, int n_lanes,
                                   struct arena *arena, struct arena *pictures, bool *ok) {
    const int32_t *to = lanes[0].enlarged.dim;
    struct ltx2_upsampler_state first = {.frames = to[1]};
    (void)arena;
    for (int i = 0; i < LTX2_UP_MAPS; i++)
        first.map[i] = arena_tensor(pictures, DTYPE_F32, 3,
                                    (int32_t[]){to[1] * to[2], to[3], c->dims[LTX2_UP_WIDTH]}, ok);
    for (int i = 0; i < n_lanes; i++) *(struct ltx2_upsampler_state *)lanes[i].state = first;
}

static const struct dimension ltx2_upsampler_dimensions[] = {
    {"latent_channels", 128, 1, LATENT_VALUES_MAX, .place = LTX2_UP_LATENT,
     OF_TENSOR(5, 1, "initial_conv.weight"), .key = "in_channels", .checked = true},
    {"upsampler_channels", 1024, LTX2_UP_GROUPS, 4096, .place = LTX2_UP_WIDTH,
     OF_TENSOR(1, 0, "initial_norm.weight"), .key = "mid_channels", .checked = true},
    {"upsampler_resnets", 4, 1, 16, .place = LTX2_UP_BLOCKS, OF_BLOCKS("res_blocks."),
     .key = "num_blocks_per_stage", .checked = true},
    {.place = LTX2_UP_SHUFFLED, OF_TENSOR(4, 0, "upsampler.conv.weight", "upsampler.0.weight")},
};

/* 0: the configuration has no scale. */
static const struct setting ltx2_upsampler_settings[] = {
    {{"rational_spatial_scale", "spatial_scale"},
     offsetof(struct ltx2_upsampler_settings, scale),
     SETTING_DOUBLE,
     0,
     0.1,
     16},
};

static const char *const ltx2_upsampler_classes[] = {"LatentUpsampler", NULL};
static const char *const ltx2_upsampler_ignorable[] = {"upsampler.blur_down.kernel", NULL};

const struct family family_ltx2_upsampler = {
    .name = "ltx2_upsampler",
    .kind = FAMILY_LATENT_UPSCALER,
    .display_name = "latent upscaler",
    .files = {.config_key = "_class_name",
              .config_value = "LTX2LatentUpsamplerModel",
              .config_others = ltx2_upsampler_classes,
              .probe = ltx2_upsampler_probe,
              .refuse = ltx2_upsampler_refuse,
              .ignorable = ltx2_upsampler_ignorable},
    .config = {.dimensions = ltx2_upsampler_dimensions,
               .n_dimensions = COUNT_OF(ltx2_upsampler_dimensions),
               .settings = ltx2_upsampler_settings,
               .n_settings = COUNT_OF(ltx2_upsampler_settings),
               .configure = ltx2_upsampler_configure,
               .derive_dims = ltx2_upsampler_derive_dims,
               .derive = ltx2_upsampler_derive},
    .blocks = {.list = ltx2_upsampler_blocks},
    .state = {.bytes = sizeof(struct ltx2_upsampler_state), .declare = ltx2_upsampler_declare},
    /* From 768 x 512 to 1536 x 1024, 121 frames. */
    .predicted = {{.kind = "resnet_after",
                   .number = LTX2_UP_AFTER,
                   .alone = true,
                   .tokens = 16 * 32 * 48,
                   .latent_channels = 128,
                   .latent_frames = 16,
                   .latent_side = 16,
                   .latent_columns = 24,
                   .picture_side = 512}},
};
