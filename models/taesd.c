/* TAESD, TAESDXL, TAESD3, TAEF1, TAEF2: tiny image decoders. Latent to image with 1/17 of the full VAE
 * decoder's multiplications (calculated from the layer shapes); the image is close to the full decoder's, not
 * equal.
 *
 * The latent is clamped with 3 tanh(x / 3). Then: a convolution, three levels of three blocks and a
 * nearest-neighbour upsampling convolution, one more block (tiny_blocks.h), and a convolution to RGB in 0
 * to 1. All feature maps have one width. Input: latents scaled as denoisers use them. Reference: diffusers
 * 0.42, models/autoencoders/{autoencoder_tiny,vae}.py.
 *
 * TAEF2 (Flux.2): latents are packed (vae_blocks.h, vae_settings.packing). Each block of the first level
 * begins with a pooled branch, x := x + W2 relu(group_norm(W1 x)). Reference: the authors' taesd.py
 * (madebyollin/taesd), Block with use_midblock_gn.
 *
 * Feature maps up to half resolution lie in a full-frame buffer (vae_full_frame.h), where blocks work in
 * place. Full resolution exists only band by band and as the output image. Each row is computed once; memory
 * is a feature map of a quarter of the pixels and a few bands. */
#include "models/models.h"
#include "models/tiny_blocks.h"
#include "models/vae_blocks.h"

enum {
    TAESD_LEVELS = 4,
    TAESD_BLOCKS = 3 /* blocks per level; last level: one */
};

/* TAEF2: channels of a pooled branch per channel of the feature map, groups of its group norm, packing. */
enum { TAESD_POOL_FACTOR = 4, TAESD_POOL_GROUPS = 4, TAESD_PACKING = 2 };

enum taesd_dim {
    TAESD_LATENT, /* latent channels before packing */
    TAESD_WIDTH,
    TAESD_COLOURS,
    TAESD_IS_TAEF2, /* 1: blocks of the first level have a pooled branch, and latents are packed */
    TAESD_POOL,     /* channels of one block's pooled branch, set by taesd_block_dims; 0: no branch */
    TAESD_K1,
    TAESD_K3,
};

struct taesd_settings {
    int packing; /* as in vae_settings: 1, or TAESD_PACKING for TAEF2 */
};

struct taesd_state {
    struct full_frame full_frame;
    int64_t front[VAE_LEVELS_MAX]; /* buffer row where each level's feature map starts; the last level has no
                                      feature map */
};

/* Layer numbers in the TAESD authors' checkpoints are one higher than in diffusers' files, because the
 * authors count the clamp as a layer. */
CONV_TABLE(taesd_in_table, TAESD_WIDTH, TAESD_LATENT, TAESD_K3, "decoder.layers.0", "1");

/* clang-format off */
#define UPSAMPLER(X, S) X##KERNEL(S, weight, TAESD_WIDTH, TAESD_WIDTH, TAESD_K3, "%d")
struct taesd_up_weights { UPSAMPLER(FIELD_, ) };
WEIGHT_TABLE(taesd_up_table, UPSAMPLER, taesd_up_weights, "decoder.layers.", "");

/* F: the enclosing member and a dot, such as `block.`; empty if there is none. */
#define TINY_BLOCK(X, S, F, name, checkpoint)                                                                \
    X##CONV(S, F conv[0], TAESD_WIDTH, TAESD_WIDTH, TAESD_K3, name ".conv.0", checkpoint ".conv.0")          \
    X##CONV(S, F conv[1], TAESD_WIDTH, TAESD_WIDTH, TAESD_K3, name ".conv.2", checkpoint ".conv.2")          \
    X##CONV(S, F conv[2], TAESD_WIDTH, TAESD_WIDTH, TAESD_K3, name ".conv.4", checkpoint ".conv.4")
#define MIDDLE_BLOCK(X, S)                                                                                   \
    X##KERNEL(IF_DIM(S, TAESD_POOL), pool_in, TAESD_POOL, TAESD_WIDTH, TAESD_K1, "%d.pool.0", "%d.pool.0")   \
    X##NORM(IF_DIM(S, TAESD_POOL), pool_norm, TAESD_POOL, "%d.pool.1", "%d.pool.1")                          \
    X##KERNEL(IF_DIM(S, TAESD_POOL), pool_out, TAESD_WIDTH, TAESD_POOL, TAESD_K1, "%d.pool.3", "%d.pool.3")  \
    TINY_BLOCK(X, S, block., "%d", "%d")
struct taesd_block_weights {
    struct tensor pool_in;
    struct linear_weights pool_norm;
    struct tensor pool_out;
    struct tiny_block_weights block;
};
WEIGHT_TABLE(taesd_block_table, MIDDLE_BLOCK, taesd_block_weights, "decoder.layers.", "");

#define LAST_LEVEL(X, S)                                                                                     \
    X##KERNEL(S, up, TAESD_WIDTH, TAESD_WIDTH, TAESD_K3, "16", "17")                                         \
    TINY_BLOCK(X, S, block., "17", "18")                                                                     \
    X##CONV(S, conv, TAESD_COLOURS, TAESD_WIDTH, TAESD_K3, "18", "19")
struct taesd_out_weights {
    struct tensor up;
    struct tiny_block_weights block;
    struct linear_weights conv;
};
WEIGHT_TABLE(taesd_out_table, LAST_LEVEL, taesd_out_weights, "decoder.layers.", "");
/* clang-format on */

/* Adds a block's pooled branch to its input, in place. The group norm's statistics are over the whole feature
 * map. */
static void taesd_add_pooled(struct context *x, const struct taesd_block_weights *w, struct tensor picture) {
    const struct conv_options plain = {.upsample = 1};
    struct conv_options relu = {.activation = ACTIVATION_RELU, .upsample = 1};
    int32_t dim[3] = {picture.dim[0], picture.dim[1], w->pool_in.dim[0]};
    struct tensor h = context_tensor(x, DTYPE_F32, 3, dim);
    relu.norm =
        (struct group_norm){.statistics = context_tensor(x, DTYPE_F32, 2, (int32_t[]){TAESD_POOL_GROUPS, 2}),
                            .weight = w->pool_norm.weight,
                            .bias = w->pool_norm.bias};
    op_conv2d(x, h, picture, w->pool_in, (struct epilogue){0}, plain);
    op_group_statistics(x, relu.norm.statistics, h, (struct rows_before){0}, TAESD_POOL_GROUPS, 1e-5F);
    op_conv2d(x, picture, h, w->pool_out, (struct epilogue){.residual = picture}, relu);
}

static void taesd_forward_block(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct taesd_block_weights *w = weights;
    const struct taesd_state *state = scope->lane->state;
    struct tensor picture = state->full_frame.picture;
    if (w->pool_in.rank) taesd_add_pooled(x, w, picture);
    tiny_block(x, &w->block, picture, (struct tensor){0}, picture);
}

static void taesd_forward_in(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct linear_weights *w = weights;
    struct taesd_state *state = scope->lane->state;
    int packing = ((const struct taesd_settings *)scope->settings)->packing;
    struct tensor image = vae_unpacked_latent(x, scope, packing);
    struct tensor out =
        full_frame_put(&state->full_frame, state->front[0], image.dim[0], image.dim[1], w->weight.dim[0]);
    op_conv2d(x, out, image, w->weight, (struct epilogue){.bias = w->bias},
              (struct conv_options){.upsample = 1, .finish = FINISH_RELU});
}

/* Number in diffusers' tensor names of a level's upsampling convolution, which follows TAESD_BLOCKS blocks
 * and an upsampling. */
static int taesd_up_number(int level) {
    return 2 + level * (TAESD_BLOCKS + 2) + TAESD_BLOCKS + 1;
}

/* Moves the feature map to the back of the full-frame buffer and upsamples it to the buffer's front. */
static void taesd_forward_up(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct taesd_up_weights *w = weights;
    struct taesd_state *state = scope->lane->state;
    struct tensor in = state->full_frame.picture;
    int32_t Y = in.dim[0], X = in.dim[1], C = in.dim[2];
    int level = scope->number == taesd_up_number(0) ? 1 : 2;
    struct tensor back = full_frame_back(&state->full_frame, 0, Y, X, C);
    op_copy(x, back, in);
    struct tensor out = full_frame_put(&state->full_frame, state->front[level], 2 * Y, 2 * X, C);
    op_conv2d(x, out, back, w->weight, (struct epilogue){0}, (struct conv_options){.upsample = 2});
}

/* Last TAESD level: upsampling, one block and the convolution to RGB, one band at a time. */
static void taesd_forward_out(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct taesd_out_weights *w = weights;
    const struct taesd_state *state = scope->lane->state;
    const struct conv_options twice = {.upsample = 2}, colours = {.upsample = 1, .finish = FINISH_TO_SIGNED};
    struct tensor in = state->full_frame.picture, picture = lane_picture(scope->lane);
    const struct strip coarse = {in, 0, in.dim[0]};
    int32_t Y = 2 * in.dim[0], X = 2 * in.dim[1], C = in.dim[2], band = tiny_band(X), done = 0;
    struct strip before = strip_begin(x, Y, X, C), after = strip_begin(x, Y, X, C);
    struct tiny_block b = tiny_block_begin(x, &w->block, (struct tensor){0}, (int32_t[]){Y, X, C});
    while (done < Y) {
        int32_t from = before.end, to = tiny_next_row(from, band, Y), last = strip_reach(to, 4, Y);
        struct tensor rows = strip_advance(x, &before, b.end, to);
        strip_convolve(x, rows, from, &coarse, w->up, (struct epilogue){0}, twice);
        tiny_block_hidden(x, &b, &before, to);
        rows = strip_advance(x, &after, strip_row_above(done), strip_reach(to, 3, Y));
        tiny_block_output(x, &b, &before, rows);
        strip_convolve(x, tensor_slice(picture, done, last - done), done, &after, w->conv.weight,
                       (struct epilogue){.bias = w->conv.bias}, colours);
        done = last;
    }
}

BLOCK(taesd_kind_in, "conv_in", "conv_in", taesd_in_table, linear_weights, taesd_forward_in,
      .never_quantised = true);
BLOCK(taesd_kind_block, "block", "layers.%d", taesd_block_table, taesd_block_weights, taesd_forward_block,
      .never_quantised = true);
BLOCK(taesd_kind_up, "upsample", "layers.%d", taesd_up_table, taesd_up_weights, taesd_forward_up,
      .never_quantised = true);
BLOCK(taesd_kind_out, "conv_out", "conv_out", taesd_out_table, taesd_out_weights, taesd_forward_out,
      .never_quantised = true);

static bool taesd_probe(const struct tensor_index *index) {
    return index_find(index, "decoder.layers.2.conv.0.weight") ||
           (index_find(index, "1.weight") && index_find(index, "3.conv.0.weight") &&
            index_find(index, "19.weight"));
}

static enum status taesd_refuse(const struct component *c, struct error *e) {
    static const struct similar_architecture relatives[] = {
        {"20.", "a tiny decoder with more layers"},
        {"decoder.layers.19.", "a tiny decoder with more layers"},
        {"decoder.layers.3.skip.", "a tiny decoder with several channel widths"},
        {NULL, NULL}};
    return component_refuse_similar(c, relatives, "TAESD, TAESDXL, TAESD3, TAEF1 or TAEF2", e);
}

static void taesd_derive(struct component *c) {
    int packing = c->dims[TAESD_IS_TAEF2] ? TAESD_PACKING : 1;
    ((struct taesd_settings *)c->settings)->packing = packing;
    c->dims[TAESD_COLOURS] = 3;
    c->dims[TAESD_K1] = 1;
    c->dims[TAESD_K3] = 3;
    c->latent_channels = c->dims[TAESD_LATENT] * packing * packing;
    c->pixel_factor = packing << (TAESD_LEVELS - 1);
    c->latent_format.limit = TINY_LIMIT;
}

static int taesd_blocks(const struct component *c, struct block_ref *refs) {
    int n = 0;
    (void)c;
    refs[n++] = (struct block_ref){.kind = &taesd_kind_in};
    for (int level = 0; level + 1 < TAESD_LEVELS; level++) {
        int up = taesd_up_number(level);
        for (int i = 0; i < TAESD_BLOCKS; i++)
            refs[n++] = (struct block_ref){
                .kind = &taesd_kind_block, .number = up - TAESD_BLOCKS - 1 + i, .number_offset = 1};
        if (level + 2 < TAESD_LEVELS)
            refs[n++] = (struct block_ref){.kind = &taesd_kind_up, .number = up, .number_offset = 1};
    }
    refs[n++] = (struct block_ref){.kind = &taesd_kind_out};
    return n;
}

static void taesd_block_dims(const struct component *c, const struct block_ref *ref, int32_t *dims) {
    bool first_level = ref->kind == &taesd_kind_block && ref->number < taesd_up_number(0);
    bool pooled = c->dims[TAESD_IS_TAEF2] && first_level;
    dims[TAESD_POOL] = pooled ? TAESD_POOL_FACTOR * dims[TAESD_WIDTH] : 0;
}

static void taesd_declare(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                          struct arena *pictures, bool *ok) {
    struct full_frame_level levels[TAESD_LEVELS - 1];
    struct taesd_state first = {0};
    int32_t packing = ((const struct taesd_settings *)c->settings)->packing;
    (void)arena;
    for (int i = 0; i + 1 < TAESD_LEVELS; i++)
        levels[i] = (struct full_frame_level){.Y = packing * lanes[0].latent.dim[2] << i,
                                              .X = packing * lanes[0].latent.dim[3] << i,
                                              .in_channels = c->dims[TAESD_WIDTH],
                                              .channels = c->dims[TAESD_WIDTH]};
    int64_t rows = full_frame_measure_up(levels, TAESD_LEVELS - 1, 0, true, first.front);
    first.full_frame.memory =
        arena_tensor(pictures, DTYPE_F32, 2, (int32_t[]){(int32_t)rows, FULL_FRAME_ROW}, ok);
    for (int i = 0; i < n_lanes; i++) *(struct taesd_state *)lanes[i].state = first;
}

/* Tensors that TAESD files may contain and the engine ignores: the encoder, and ComfyUI's conversion from the
 * VAE's latent scale. */
static const char *const taesd_ignorable[] = {"encoder.", "taesd_encoder.", "vae_scale", "vae_shift", NULL};

#define SETTING(key, field, published, least)                                                                \
    { {key}, offsetof(struct latent_format, field), SETTING_FLOAT, published, least, 1e6 }
static const struct setting taesd_latent_settings[] = {
    SETTING("scaling_factor", scale, 1, 1e-6),
    SETTING("shift_factor", shift, 0, -1e6),
};
static const struct expectation taesd_expects[] = {{"act_fn", "relu"}, {"upsample_fn", "nearest"}, {0}};

static const struct dimension taesd_dimensions[] = {
    {"latent_channels", 16, 1, 1024, .place = TAESD_LATENT,
     OF_TENSOR(4, 1, "decoder.layers.0.weight", "1.weight"), .key = "latent_channels"},
    {"taesd_channels", 64, 1, 8192, .place = TAESD_WIDTH,
     OF_TENSOR(4, 0, "decoder.layers.0.weight", "1.weight"), .key = "decoder_block_out_channels.0"},
    {"taesd_pooled", 0, 0, 1, .place = TAESD_IS_TAEF2,
     OF_TENSOR(0, 0, "decoder.layers.2.pool.0.weight", "3.pool.0.weight")},
    {.place = TAESD_WIDTH, .key = "decoder_block_out_channels.1"},
    {.place = TAESD_WIDTH, .key = "decoder_block_out_channels.2"},
    {.place = TAESD_WIDTH, .key = "decoder_block_out_channels.3"},
};

const struct family family_taesd = {
    .name = "taesd",
    .kind = FAMILY_TINY_DECODER,
    .display_name = "tiny decoder",
    .files = {.config_key = "_class_name",
              .config_value = "AutoencoderTiny",
              .probe = taesd_probe,
              .refuse = taesd_refuse,
              .ignorable = taesd_ignorable},
    .config = {.dimensions = taesd_dimensions,
               .n_dimensions = COUNT_OF(taesd_dimensions),
               .latent_norm = {.settings = taesd_latent_settings,
                               .n_settings = COUNT_OF(taesd_latent_settings)},
               .expects = taesd_expects,
               .derive = taesd_derive},
    .blocks = {.list = taesd_blocks, .dims = taesd_block_dims},
    .state = {.bytes = sizeof(struct taesd_state), .declare = taesd_declare},
    /* The last level below full resolution. */
    .predicted = {{.kind = "block", .number = 14, .tokens = 512 * 512, PREDICTED_IMAGE}},
};
