/* The decoder of the KL autoencoder (Stable Diffusion, Flux, Z-Image): latent to picture.
 *
 * conv_in, two resnets around one single-head attention, then per level resnets and a nearest-neighbour
 * upsampling convolution, group norm, SiLU, conv_out. A resnet: x' = shortcut(x) +
 * conv2(silu(norm2(conv1(silu(norm1(x)))))). Each operator runs over the whole picture, in bands of its own;
 * nothing is tiled or blended.
 *
 * Whole pictures lie in a canvas: see vae_canvas.h.
 * Reference: diffusers 0.42, models/autoencoders/{autoencoder_kl,vae}.py, models/resnet.py. */
#include "kernels/ops.h"
#include "models/models.h"
#include "models/vae_canvas.h"

#include <math.h>
#include <stdio.h>

enum {
    LATENT, /* channels */
    COLOURS,
    K1,
    K3, /* kernel sides */
    LEVELS,
    RESNETS, /* a level */
    IN,
    OUT,      /* of one block: set by block_dims */
    CHANNELS, /* CHANNELS + i: of level i as the decoder runs, deepest first */
    N_DIMS = CHANNELS + CANVAS_LEVELS_MAX,
};

struct vae_settings {
    float scale, shift;
    int groups;
    bool attention;
};

struct vae_state {
    struct canvas canvas;
    int64_t front[CANVAS_LEVELS_MAX]; /* where in it each level's first picture begins */
};

enum { MID_RESNETS = 2, ATTENTION_SPARE = 2 };

#define EPS 1e-6f

struct in_weights {
    struct tensor post, post_bias, weight, bias;
};

struct resnet_weights {
    struct tensor norm1, norm1_bias, conv1, conv1_bias, norm2, norm2_bias, conv2, conv2_bias, shortcut,
        shortcut_bias;
};

struct attention_weights {
    struct tensor norm, norm_bias, q, q_bias, k, k_bias, v, v_bias, out, out_bias;
};

struct upsample_weights {
    struct tensor weight, bias;
};

struct out_weights {
    struct tensor norm, norm_bias, weight, bias;
};

#define OPTIONAL(structure, field, name, spread_, r, ...)                                                    \
    {                                                                                                        \
        .offset = offsetof(struct structure, field), .names = {name}, .rank = r, .dim = {__VA_ARGS__},       \
        .optional = true, .spread = spread_                                                                  \
    }

static const struct weight_spec in_table[] = {
    OPTIONAL(in_weights, post, "post_quant_conv.weight", 1, 4, LATENT, LATENT, K1, K1),
    OPTIONAL(in_weights, post_bias, "post_quant_conv.bias", 1, 1, LATENT),
    BLOCK_WEIGHT(in_weights, weight, 1, "decoder.conv_in.weight", 4, OUT, LATENT, K3, K3),
    BLOCK_WEIGHT(in_weights, bias, 1, "decoder.conv_in.bias", 1, OUT),
};

#define RESNET_WEIGHT(field, spread_, prefix, original_, name, rank_, ...)                                   \
    BLOCK_WEIGHT_ORIGINALLY(resnet_weights, field, spread_, prefix name, original_ name, rank_, __VA_ARGS__)

#define RESNET(prefix, original)                                                                             \
    RESNET_WEIGHT(norm1, 0, prefix, original, "norm1.weight", 1, IN),                                        \
        RESNET_WEIGHT(norm1_bias, 1, prefix, original, "norm1.bias", 1, IN),                                 \
        RESNET_WEIGHT(conv1, 1, prefix, original, "conv1.weight", 4, OUT, IN, K3, K3),                       \
        RESNET_WEIGHT(conv1_bias, 1, prefix, original, "conv1.bias", 1, OUT),                                \
        RESNET_WEIGHT(norm2, 0, prefix, original, "norm2.weight", 1, OUT),                                   \
        RESNET_WEIGHT(norm2_bias, 1, prefix, original, "norm2.bias", 1, OUT),                                \
        RESNET_WEIGHT(conv2, 1, prefix, original, "conv2.weight", 4, OUT, OUT, K3, K3),                      \
        RESNET_WEIGHT(conv2_bias, 1, prefix, original, "conv2.bias", 1, OUT)

/* The authors' names count the middle's resnets from 1, and the levels from the picture's. */
#define UP_RESNET          "decoder.up_blocks.%d.resnets.%d."
#define UP_RESNET_ORIGINAL "decoder.up.%d.block.%d."

static const struct weight_spec mid_resnet_table[] = {
    RESNET("decoder.mid_block.resnets.%d.", "decoder.mid.block_%d.")};
static const struct weight_spec up_resnet_table[] = {RESNET(UP_RESNET, UP_RESNET_ORIGINAL)};
/* The first resnet of a level whose width differs from the one before. */
static const struct weight_spec wider_resnet_table[] = {
    RESNET(UP_RESNET, UP_RESNET_ORIGINAL),
    BLOCK_WEIGHT_ORIGINALLY(resnet_weights, shortcut, 1, UP_RESNET "conv_shortcut.weight",
                            UP_RESNET_ORIGINAL "nin_shortcut.weight", 4, OUT, IN, K1, K1),
    BLOCK_WEIGHT_ORIGINALLY(resnet_weights, shortcut_bias, 1, UP_RESNET "conv_shortcut.bias",
                            UP_RESNET_ORIGINAL "nin_shortcut.bias", 1, OUT),
};

/* Older files and the authors' name the projections differently and store them as 1x1 convolutions. */
#define PROJECTION(field, name, old, original_)                                                              \
    {.offset = offsetof(struct attention_weights, field),                                                    \
     .names = {ATTENTION name ".weight", ATTENTION old ".weight"},                                           \
     .original = ATTENTION_ORIGINAL original_ ".weight",                                                     \
     .rank = 2,                                                                                              \
     .dim = {OUT, OUT},                                                                                      \
     .spread = 1},                                                                                           \
    {                                                                                                        \
        .offset = offsetof(struct attention_weights, field##_bias),                                          \
        .names = {ATTENTION name ".bias", ATTENTION old ".bias"},                                            \
        .original = ATTENTION_ORIGINAL original_ ".bias", .rank = 1, .dim = {OUT}, .spread = 1               \
    }
#define ATTENTION          "decoder.mid_block.attentions.0."
#define ATTENTION_ORIGINAL "decoder.mid.attn_1."

static const struct weight_spec attention_table[] = {
    BLOCK_WEIGHT_ORIGINALLY(attention_weights, norm, 0, ATTENTION "group_norm.weight",
                            ATTENTION_ORIGINAL "norm.weight", 1, OUT),
    BLOCK_WEIGHT_ORIGINALLY(attention_weights, norm_bias, 1, ATTENTION "group_norm.bias",
                            ATTENTION_ORIGINAL "norm.bias", 1, OUT),
    PROJECTION(q, "to_q", "query", "q"),
    PROJECTION(k, "to_k", "key", "k"),
    PROJECTION(v, "to_v", "value", "v"),
    PROJECTION(out, "to_out.0", "proj_attn", "proj_out"),
};

static const struct weight_spec upsample_table[] = {
    BLOCK_WEIGHT_ORIGINALLY(upsample_weights, weight, 1, "decoder.up_blocks.%d.upsamplers.0.conv.weight",
                            "decoder.up.%d.upsample.conv.weight", 4, OUT, OUT, K3, K3),
    BLOCK_WEIGHT_ORIGINALLY(upsample_weights, bias, 1, "decoder.up_blocks.%d.upsamplers.0.conv.bias",
                            "decoder.up.%d.upsample.conv.bias", 1, OUT),
};

static const struct weight_spec out_table[] = {
    BLOCK_WEIGHT_ORIGINALLY(out_weights, norm, 0, "decoder.conv_norm_out.weight", "decoder.norm_out.weight",
                            1, IN),
    BLOCK_WEIGHT_ORIGINALLY(out_weights, norm_bias, 1, "decoder.conv_norm_out.bias", "decoder.norm_out.bias",
                            1, IN),
    BLOCK_WEIGHT(out_weights, weight, 1, "decoder.conv_out.weight", 4, COLOURS, IN, K3, K3),
    BLOCK_WEIGHT(out_weights, bias, 1, "decoder.conv_out.bias", 1, COLOURS),
};

/* ---- forwards ---- */

static struct group_norm measure(struct context *x, const struct vae_settings *settings,
                                 struct tensor picture, struct tensor weight, struct tensor bias) {
    struct group_norm norm = {.weight = weight, .bias = bias};
    norm.statistics = context_tensor(x, DTYPE_F32, 2, (int32_t[]){settings->groups, 2});
    op_group_statistics(x, norm.statistics, picture, (struct rows_before){0}, settings->groups, EPS);
    return norm;
}

static void forward_in(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct in_weights *w = weights;
    const struct vae_settings *settings = scope->settings;
    struct vae_state *state = scope->lane->state;
    struct tensor latent = scope->lane->latent;
    int32_t Y = latent.dim[1], X = latent.dim[2], dim[3] = {Y, X, latent.dim[0]};
    struct tensor image = context_tensor(x, DTYPE_F32, 3, dim), mixed = image;
    struct conv_options plain = {.upsample = 1};
    op_latent_to_image(x, image, latent, settings->scale, settings->shift);
    if (w->post.rank) {
        mixed = context_tensor(x, DTYPE_F32, 3, dim);
        op_conv2d(x, mixed, image, w->post, (struct epilogue){.bias = w->post_bias}, plain);
    }
    struct tensor out = canvas_put(&state->canvas, state->front[0], Y, X, w->weight.dim[0]);
    op_conv2d(x, out, mixed, w->weight, (struct epilogue){.bias = w->bias}, plain);
}

/* Rows of out at a time where h is not kept. Whole bands of convolutions, so that these and the picture's
 * last one are the same as where it is. A function of shapes alone (R3). */
static int32_t resnet_band(int32_t Y, int32_t X) {
    int32_t band = 2 * conv_band_rows(X);
    return band < Y ? band : Y;
}

static int32_t least(int32_t a, int32_t b) {
    return a < b ? a : b;
}

/* h in bands, or in one that is all of it: first for its statistics; then again, unless it is still there,
 * with the rows around each band of out. */
static void forward_resnet(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct resnet_weights *w = weights;
    const struct vae_settings *settings = scope->settings;
    struct canvas *canvas = &((struct vae_state *)scope->lane->state)->canvas;
    struct tensor in = canvas->picture, out = in;
    int32_t Y = in.dim[0], X = in.dim[1], C = w->conv1.dim[0];
    struct tensor h = canvas_back(canvas, 0, Y, X, C);
    int32_t band = h.rank ? Y : resnet_band(Y, X);
    if (w->shortcut.rank || !h.rank) out = canvas_put(canvas, canvas_before(canvas, C), Y, X, C);
    if (!h.rank) h = context_tensor(x, DTYPE_F32, 3, (int32_t[]){least(band + 2, Y), X, C});
    struct conv_options one = {.activation = ACTIVATION_SILU, .upsample = 1}, two = one,
                        plain = {.upsample = 1};
    struct epilogue one_epilogue = {.bias = w->conv1_bias};
    struct rows_before before = {.sums = context_tensor(x, DTYPE_F64, 2, (int32_t[]){settings->groups, 2})};
    one.norm = measure(x, settings, in, w->norm1, w->norm1_bias);
    two.norm = (struct group_norm){.weight = w->norm2, .bias = w->norm2_bias};
    two.norm.statistics = context_tensor(x, DTYPE_F32, 2, (int32_t[]){settings->groups, 2});
    for (int32_t y = 0; y < Y; y += band) {
        struct tensor rows = tensor_slice(h, 0, least(band, Y - y));
        one.first_row = before.rows = y;
        op_conv2d(x, rows, in, w->conv1, one_epilogue, one);
        op_group_statistics(x, two.norm.statistics, rows, before, settings->groups, EPS);
    }
    for (int32_t y = 0; y < Y; y += band) {
        int32_t n = least(band, Y - y), from = y ? y - 1 : 0, to = least(from + band + 2, Y);
        struct tensor rows = tensor_slice(h, 0, to - from), piece = tensor_slice(out, y, n);
        struct epilogue epilogue = {.bias = w->conv2_bias, .residual = tensor_slice(in, y, n)};
        one.first_row = from;
        if (band < Y) op_conv2d(x, rows, in, w->conv1, one_epilogue, one);
        if (w->shortcut.rank) {
            plain.first_row = y;
            op_conv2d(x, piece, in, w->shortcut, (struct epilogue){.bias = w->shortcut_bias}, plain);
            epilogue.residual = piece;
        }
        two.first_row = y - from;
        op_conv2d(x, piece, rows, w->conv2, epilogue, two);
    }
}

/* Keys and values are read over and over, so they are scratch: a canvas may lie far from the device. */
static void forward_attention(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct attention_weights *w = weights;
    const struct vae_state *state = scope->lane->state;
    struct tensor in = state->canvas.picture;
    int32_t Y = in.dim[0], X = in.dim[1], C = in.dim[2], dim[2] = {Y * X, C};
    struct tensor tokens = tensor_reshape(in, 2, dim);
    struct tensor normed = canvas_back(&state->canvas, 0, Y, X, C);
    struct tensor n = tensor_reshape(normed, 2, dim);
    struct tensor q = tensor_reshape(canvas_back(&state->canvas, 1, Y, X, C), 2, dim);
    struct tensor k = context_tensor(x, DTYPE_F32, 2, dim), v = context_tensor(x, DTYPE_F32, 2, dim);
    op_group_norm(x, normed, in, measure(x, scope->settings, in, w->norm, w->norm_bias));
    op_linear(x, q, n, w->q, (struct epilogue){.bias = w->q_bias});
    op_linear(x, k, n, w->k, (struct epilogue){.bias = w->k_bias});
    op_linear(x, v, n, w->v, (struct epilogue){.bias = w->v_bias});
    op_attention(x, q, q, k, v, (struct heads){.queries = 1, .keys = 1, .scale = 1 / sqrtf((float)C)});
    op_linear(x, tokens, q, w->out, (struct epilogue){.bias = w->out_bias, .residual = tokens});
}

static void forward_upsample(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct upsample_weights *w = weights;
    struct vae_state *state = scope->lane->state;
    struct tensor in = state->canvas.picture;
    int32_t Y = in.dim[0], X = in.dim[1], C = in.dim[2];
    struct tensor back = canvas_back(&state->canvas, 0, Y, X, C);
    op_widen(x, back, in);
    struct tensor out = canvas_put(&state->canvas, state->front[scope->number + 1], 2 * Y, 2 * X, C);
    op_conv2d(x, out, back, w->weight, (struct epilogue){.bias = w->bias},
              (struct conv_options){.upsample = 2});
}

static void forward_out(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct out_weights *w = weights;
    const struct vae_state *state = scope->lane->state;
    struct tensor in = state->canvas.picture;
    struct conv_options options = {.activation = ACTIVATION_SILU, .upsample = 1};
    options.norm = measure(x, scope->settings, in, w->norm, w->norm_bias);
    op_conv2d(x, scope->lane->picture, in, w->weight, (struct epilogue){.bias = w->bias}, options);
}

/* ---- the family ---- */

static const struct block_kind kind_in = BLOCK_KIND("conv_in", "conv_in", in_table, in_weights, forward_in);
static const struct block_kind kind_mid_resnet =
    BLOCK_KIND("mid_resnet", "mid_block.resnets.%d", mid_resnet_table, resnet_weights, forward_resnet);
static const struct block_kind kind_attention =
    BLOCK_KIND("attention", "mid_block.attentions.0", attention_table, attention_weights, forward_attention);
static const struct block_kind kind_up_resnet =
    BLOCK_KIND("resnet", "up_blocks.%d.resnets.%d", up_resnet_table, resnet_weights, forward_resnet);
static const struct block_kind kind_wider_resnet =
    BLOCK_KIND("wider_resnet", "up_blocks.%d.resnets.%d", wider_resnet_table, resnet_weights, forward_resnet);
static const struct block_kind kind_upsample =
    BLOCK_KIND("upsample", "up_blocks.%d.upsample", upsample_table, upsample_weights, forward_upsample);
static const struct block_kind kind_out =
    BLOCK_KIND("conv_out", "conv_out", out_table, out_weights, forward_out);

static bool probe(const struct tensor_index *index) {
    return index_find(index, "decoder.conv_in.weight") &&
           (index_find(index, "decoder.mid_block.resnets.0.conv1.weight") ||
            index_find(index, "decoder.mid.block_1.conv1.weight"));
}

/* Width of a level. Files of the authors count from the picture's end. */
static int32_t level_channels(const struct component *c, int level, struct error *e) {
    char name[2 * BLOCK_NAME_MAX], original[2 * BLOCK_NAME_MAX];
    int from_end = c->dims[LEVELS] - 1 - level;
    block_weight_name(UP_RESNET "conv1.weight", level * BLOCK_NUMBER_STEP, name);
    block_weight_name(UP_RESNET_ORIGINAL "conv1.weight", from_end * BLOCK_NUMBER_STEP, original);
    return component_dim(c, component_either(c, name, original), 4, 0, e);
}

static int last_of_either(const struct component *c, const char *prefix, const char *original) {
    int last = index_last_block(&c->index, prefix);
    return last < 0 ? index_last_block(&c->index, original) : last;
}

static enum status check_dims(const struct component *c, struct error *e) {
    const struct vae_settings *s = (const struct vae_settings *)c->settings;
    int bad = 0;
    for (int i = 0; i < c->dims[LEVELS]; i++)
        if (c->dims[CHANNELS + i] % s->groups) bad = c->dims[CHANNELS + i];
    if (!bad && (!s->attention || c->dims[CHANNELS] <= 512) && s->scale != 0) return OK;
    error_set(e, SHAPE, "the decoder's sizes do not fit together");
    error_where(e, "%s", c->index.sources[0].path);
    error_found(e, "%d channels in %d groups, attention over %d, scale %g", bad, s->groups, c->dims[CHANNELS],
                (double)s->scale);
    return error_expected(e, "whole groups, attention over at most 512 channels, a scale");
}

static enum status configure(struct component *c, const struct config *config, struct error *e) {
    int32_t *d = c->dims;
    d[COLOURS] = 3;
    d[K1] = 1;
    d[K3] = 3;
    d[LATENT] = component_dim(c, "decoder.conv_in.weight", 4, 1, e);
    d[LEVELS] = last_of_either(c, "decoder.up_blocks.", "decoder.up.") + 1;
    d[RESNETS] = last_of_either(c, "decoder.up_blocks.0.resnets.", "decoder.up.0.block.") + 1;
    if (d[LEVELS] < 1 || d[LEVELS] > CANVAS_LEVELS_MAX || d[RESNETS] < 1 || d[RESNETS] > 8) {
        error_set(e, SHAPE, "the decoder has %d levels of %d resnets", d[LEVELS], d[RESNETS]);
        error_where(e, "%s", c->index.sources[0].path);
        return error_expected(e, "1 to %d levels of 1 to 8", CANVAS_LEVELS_MAX);
    }
    for (int i = 0; i < d[LEVELS]; i++) d[CHANNELS + i] = level_channels(c, i, e);
    struct vae_settings *s = (struct vae_settings *)c->settings;
    double scale = 0.3611, shift = 0.1159; /* Flux's and Z-Image's */
    s->groups = 32;
    config_expect(config, "act_fn", "silu", e);
    config_float(config, "scaling_factor", -1e6, 1e6, &scale, e);
    /* null is no shift, as for those of diffusers' pipelines (0.42) that allow it. A key that is not there at
     * all leaves the published shift, as for a single file without a configuration. */
    const struct config_value *given = config_find(config, "shift_factor");
    if (given && given->kind == CONFIG_NULL) shift = 0;
    config_float(config, "shift_factor", -1e6, 1e6, &shift, e);
    config_int(config, "norm_num_groups", 1, 4096, &s->groups, e);
    s->scale = (float)scale;
    s->shift = (float)shift;
    c->latent_channels = d[LATENT];
    c->pixel_factor = 1 << (d[LEVELS] - 1);
    s->attention = index_find(&c->index, component_either(c, ATTENTION "group_norm.weight",
                                                          ATTENTION_ORIGINAL "norm.weight")) != NULL;
    return e->code == OK ? check_dims(c, e) : e->code;
}

static bool widens(const struct component *c, int level) {
    return level > 0 && c->dims[CHANNELS + level] != c->dims[CHANNELS + level - 1];
}

static int blocks(const struct component *c, struct block_ref *refs) {
    const struct vae_settings *s = (const struct vae_settings *)c->settings;
    int n = 0, levels = c->dims[LEVELS];
    refs[n++] = (struct block_ref){.kind = &kind_in};
    refs[n++] = (struct block_ref){.kind = &kind_mid_resnet, .number = 0, .original = 1};
    if (s->attention) refs[n++] = (struct block_ref){.kind = &kind_attention};
    refs[n++] = (struct block_ref){.kind = &kind_mid_resnet, .number = 1, .original = 1};
    for (int level = 0; level < levels; level++) {
        int turned = levels - 1 - 2 * level; /* from this level's number to the authors' */
        for (int i = 0; i < c->dims[RESNETS]; i++)
            refs[n++] =
                (struct block_ref){.kind = i == 0 && widens(c, level) ? &kind_wider_resnet : &kind_up_resnet,
                                   .number = level * BLOCK_NUMBER_STEP + i,
                                   .original = turned * BLOCK_NUMBER_STEP};
        if (level + 1 < levels)
            refs[n++] = (struct block_ref){.kind = &kind_upsample, .number = level, .original = turned};
    }
    refs[n++] = (struct block_ref){.kind = &kind_out};
    return n;
}

static void block_dims(const struct component *c, const struct block_ref *ref, int32_t *dims) {
    int level = 0;
    if (ref->kind == &kind_up_resnet || ref->kind == &kind_wider_resnet)
        level = ref->number / BLOCK_NUMBER_STEP;
    if (ref->kind == &kind_upsample) level = ref->number;
    if (ref->kind == &kind_out) level = c->dims[LEVELS] - 1;
    dims[OUT] = dims[CHANNELS + level];
    dims[IN] = ref->kind == &kind_wider_resnet ? dims[CHANNELS + level - 1] : dims[OUT];
}

/* All lanes share the canvas: they run one after another. */
static void declare(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                    struct arena *pictures, bool *ok) {
    const struct vae_settings *s = (const struct vae_settings *)c->settings;
    struct canvas_level levels[CANVAS_LEVELS_MAX];
    struct vae_state first = {0};
    (void)arena;
    for (int i = 0; i < c->dims[LEVELS]; i++)
        levels[i] = (struct canvas_level){.Y = lanes[0].latent.dim[1] << i,
                                          .X = lanes[0].latent.dim[2] << i,
                                          .before = c->dims[CHANNELS + (i ? i - 1 : 0)],
                                          .channels = c->dims[CHANNELS + i],
                                          .n_resnets = c->dims[RESNETS] + (i ? 0 : MID_RESNETS)};
    int spare = s->attention ? ATTENTION_SPARE : 0;
    int64_t rows = canvas_measure(levels, c->dims[LEVELS], spare, lanes[0].tiled, first.front);
    first.canvas.memory = arena_tensor(pictures, DTYPE_F32, 2, (int32_t[]){(int32_t)rows, CANVAS_ROW}, ok);
    for (int i = 0; i < n_lanes; i++) *(struct vae_state *)lanes[i].state = first;
}

/* One picture after another: activations bind here, not weights. */
static enum status visits(const struct component *c, int stage, const struct lane *lanes, int n_lanes,
                          int evaluations, struct visit_list *list, struct error *e) {
    (void)lanes, (void)evaluations;
    for (int lane = 0; lane < n_lanes; lane++)
        for (int block = 0; block < c->n_blocks; block++)
            visit_add(list,
                      (struct visit){.stage = stage,
                                     .block = block,
                                     .first_lane = lane,
                                     .n_lanes = 1,
                                     .evaluation = lane,
                                     .ends_evaluation = block + 1 == c->n_blocks},
                      e);
    return e->code;
}

static const char *const ignorable[] = {"encoder.", "quant_conv.", NULL};
static const char *const prefixes[] = {"", "first_stage_model.", "vae.", NULL};

/* Flux.1's and Z-Image's, as the decoder runs. */
static const struct dimension dimensions[] = {
    {"latent_channels", 16, 1, 1024}, {"vae0", 512, 1, 8192}, {"vae1", 512, 1, 8192},
    {"vae2", 256, 1, 8192},           {"vae3", 128, 1, 8192}, {"vae_resnets", 3, 1, 8},
    {"vae_groups", 32, 1, 4096},
};

static void derive(struct component *c, const int *chosen) {
    struct vae_settings *s = (struct vae_settings *)c->settings;
    int32_t *d = c->dims;
    *s = (struct vae_settings){.scale = 0.3611f, .shift = 0.1159f, .groups = chosen[6], .attention = true};
    d[LATENT] = chosen[0];
    d[COLOURS] = 3;
    d[K1] = 1;
    d[K3] = 3;
    d[LEVELS] = 4;
    d[RESNETS] = chosen[5];
    for (int i = 0; i < 4; i++) d[CHANNELS + i] = chosen[1 + i];
}

static int write_config(const struct component *c, char *out, size_t out_bytes) {
    const struct vae_settings *s = (const struct vae_settings *)c->settings;
    const int32_t *d = c->dims;
    /* diffusers builds as many levels as it is told types of, not as there are widths. */
    const char *down = "\"DownEncoderBlock2D\"", *up = "\"UpDecoderBlock2D\"";
    return snprintf(
        out, out_bytes,
        "{\"_class_name\": \"AutoencoderKL\", \"in_channels\": 3, \"out_channels\": 3, "
        "\"latent_channels\": %d, \"block_out_channels\": [%d, %d, %d, %d], \"layers_per_block\": %d, "
        "\"down_block_types\": [%s, %s, %s, %s], \"up_block_types\": [%s, %s, %s, %s], "
        "\"norm_num_groups\": %d, \"scaling_factor\": %.9g, \"shift_factor\": %.9g, "
        "\"use_quant_conv\": false, \"use_post_quant_conv\": false}\n",
        d[LATENT], d[CHANNELS + 3], d[CHANNELS + 2], d[CHANNELS + 1], d[CHANNELS], d[RESNETS] - 1, down, down,
        down, down, up, up, up, up, s->groups, (double)s->scale, (double)s->shift);
}

const struct family family_vae_kl = {
    .name = "vae_kl",
    .role = ROLE_DECODER,
    .prefixes = prefixes,
    .config_key = "_class_name",
    .config_value = "AutoencoderKL",
    .probe = probe,
    .configure = configure,
    .blocks = blocks,
    .block_dims = block_dims,
    .ignorable = ignorable,
    .lane_state_bytes = sizeof(struct vae_state),
    .declare = declare,
    .visits = visits,
    .dimensions = dimensions,
    .n_dimensions = COUNT_OF(dimensions),
    .derive = derive,
    .write_config = write_config,
};
