/* Both halves of the KL autoencoder: see vae_blocks.h. */
#include "models/vae_blocks.h"

#include <math.h>
#include <stdio.h>

/* ---- forwards ---- */

struct group_norm vae_measure(struct context *x, const struct vae_settings *settings, struct tensor picture,
                              struct tensor weight, struct tensor bias) {
    struct group_norm norm = {.weight = weight, .bias = bias};
    norm.statistics = context_tensor(x, DTYPE_F32, 2, (int32_t[]){settings->groups, 2});
    op_group_statistics(x, norm.statistics, picture, (struct rows_before){0}, settings->groups, VAE_EPS);
    return norm;
}

/* Rows of out at a time where h is not kept. Whole bands of convolutions, so that these and the picture's
 * last one are the same as where it is. A function of shapes alone (R3). */
static int32_t vae_resnet_band(int32_t Y, int32_t X) {
    int32_t band = 2 * conv_band_rows(X);
    return band < Y ? band : Y;
}

static int32_t vae_least(int32_t a, int32_t b) {
    return a < b ? a : b;
}

/* h in bands, or in one that is all of it: first for its statistics; then again, unless it is still there,
 * with the rows around each band of out. */
void vae_forward_resnet(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct resnet_weights *w = weights;
    const struct vae_settings *settings = scope->settings;
    struct canvas *canvas = &((struct vae_state *)scope->lane->state)->canvas;
    struct tensor in = canvas->picture, out = in;
    int32_t Y = in.dim[0], X = in.dim[1], C = w->conv1.dim[0];
    struct tensor h = canvas_back(canvas, 0, Y, X, C);
    int32_t band = h.rank ? Y : vae_resnet_band(Y, X);
    if (w->shortcut.rank || !h.rank) out = canvas_put(canvas, canvas_before(canvas, C), Y, X, C);
    if (!h.rank) h = context_tensor(x, DTYPE_F32, 3, (int32_t[]){vae_least(band + 2, Y), X, C});
    struct conv_options one = {.activation = ACTIVATION_SILU, .upsample = 1}, two = one,
                        plain = {.upsample = 1};
    struct epilogue one_epilogue = {.bias = w->conv1_bias};
    struct rows_before before = {.sums = context_tensor(x, DTYPE_F64, 2, (int32_t[]){settings->groups, 2})};
    one.norm = vae_measure(x, settings, in, w->norm1, w->norm1_bias);
    two.norm = (struct group_norm){.weight = w->norm2, .bias = w->norm2_bias};
    two.norm.statistics = context_tensor(x, DTYPE_F32, 2, (int32_t[]){settings->groups, 2});
    for (int32_t y = 0; y < Y; y += band) {
        struct tensor rows = tensor_slice(h, 0, vae_least(band, Y - y));
        one.first_row = before.rows = y;
        op_conv2d(x, rows, in, w->conv1, one_epilogue, one);
        op_group_statistics(x, two.norm.statistics, rows, before, settings->groups, VAE_EPS);
    }
    for (int32_t y = 0; y < Y; y += band) {
        int32_t n = vae_least(band, Y - y), from = y ? y - 1 : 0, to = vae_least(from + band + 2, Y);
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
void vae_forward_attention(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct attention_weights *w = weights;
    const struct vae_state *state = scope->lane->state;
    struct tensor in = state->canvas.picture;
    int32_t Y = in.dim[0], X = in.dim[1], C = in.dim[2], dim[2] = {Y * X, C};
    struct tensor tokens = tensor_reshape(in, 2, dim);
    struct tensor normed = canvas_back(&state->canvas, 0, Y, X, C);
    struct tensor n = tensor_reshape(normed, 2, dim);
    struct tensor q = tensor_reshape(canvas_back(&state->canvas, 1, Y, X, C), 2, dim);
    struct tensor k = context_operand(x, 2, dim), v = context_operand(x, 2, dim);
    op_group_norm(x, normed, in, vae_measure(x, scope->settings, in, w->norm, w->norm_bias));
    op_linear(x, q, n, w->q, (struct epilogue){.bias = w->q_bias});
    op_linear(x, k, n, w->k, (struct epilogue){.bias = w->k_bias});
    op_linear(x, v, n, w->v, (struct epilogue){.bias = w->v_bias});
    op_attention(x, q, q, k, v, (struct heads){.queries = 1, .keys = 1, .scale = 1 / sqrtf((float)C)});
    op_linear(x, tokens, q, w->out, (struct epilogue){.bias = w->out_bias, .residual = tokens});
}

/* ---- a half's family ---- */

static int vae_last_of_either(const struct component *c, const char *prefix, const char *original) {
    int last = index_last_block(&c->index, prefix);
    return last < 0 ? index_last_block(&c->index, original) : last;
}

static int vae_resnets(const struct component *c, const struct vae_half *half) {
    char name[BLOCK_NAME_MAX], original[BLOCK_NAME_MAX];
    snprintf(name, sizeof name, "%s0.resnets.", half->level);
    snprintf(original, sizeof original, "%s0.block.", half->level_original);
    return vae_last_of_either(c, name, original) + 1;
}

static int32_t vae_level_channels(const struct component *c, const struct vae_half *half, int level,
                                  struct error *e) {
    char format[BLOCK_NAME_MAX], name[2 * BLOCK_NAME_MAX], original[2 * BLOCK_NAME_MAX];
    int authors = half->turned ? c->dims[LEVELS] - 1 - level : level;
    snprintf(format, sizeof format, "%sconv1.weight", half->resnet);
    block_weight_name(format, level * BLOCK_NUMBER_STEP, name);
    snprintf(format, sizeof format, "%sconv1.weight", half->resnet_original);
    block_weight_name(format, authors * BLOCK_NUMBER_STEP, original);
    return component_dim(c, component_either(c, name, original), 4, 0, e);
}

static bool vae_has_attention(const struct component *c, const struct vae_half *half) {
    char name[BLOCK_NAME_MAX], original[BLOCK_NAME_MAX];
    snprintf(name, sizeof name, "%sgroup_norm.weight", half->attention);
    snprintf(original, sizeof original, "%snorm.weight", half->attention_original);
    return index_find(&c->index, component_either(c, name, original)) != NULL;
}

static enum status vae_check_dims(const struct component *c, const struct vae_half *half, struct error *e) {
    const struct vae_settings *s = (const struct vae_settings *)c->settings;
    int bad = 0, deepest = half->turned ? 0 : c->dims[LEVELS] - 1;
    for (int i = 0; i < c->dims[LEVELS]; i++)
        if (c->dims[CHANNELS + i] % s->groups) bad = c->dims[CHANNELS + i];
    if (!bad && (!s->attention || c->dims[CHANNELS + deepest] <= 512) && s->scale != 0) return OK;
    error_set(e, SHAPE, "the %s's sizes do not fit together", half->word);
    error_where(e, "%s", c->index.sources[0].path);
    error_found(e, "%d channels in %d groups, attention over %d, scale %g", bad, s->groups,
                c->dims[CHANNELS + deepest], (double)s->scale);
    return error_expected(e, "whole groups, attention over at most 512 channels, a scale");
}

enum status vae_configure(struct component *c, const struct vae_half *half, const struct config *config,
                          struct error *e) {
    struct vae_settings *s = (struct vae_settings *)c->settings;
    int32_t *d = c->dims;
    d[LEVELS] = vae_last_of_either(c, half->level, half->level_original) + 1;
    d[RESNETS] = vae_resnets(c, half);
    if (d[LEVELS] < 1 || d[LEVELS] > CANVAS_LEVELS_MAX || d[RESNETS] < 1 || d[RESNETS] > 8) {
        error_set(e, SHAPE, "the %s has %d levels of %d resnets", half->word, d[LEVELS], d[RESNETS]);
        error_where(e, "%s", c->index.sources[0].path);
        return error_expected(e, "1 to %d levels of 1 to 8", CANVAS_LEVELS_MAX);
    }
    for (int i = 0; i < d[LEVELS]; i++) d[CHANNELS + i] = vae_level_channels(c, half, i, e);
    s->attention = vae_has_attention(c, half);
    /* null is no shift, as for those of diffusers' pipelines (0.42) that allow it. A key that is not there at
     * all leaves the published shift, as for a single file without a configuration. */
    const struct config_value *given = config_find(config, "shift_factor");
    if (given && given->kind == CONFIG_NULL) s->shift = 0;
    return e->code == OK ? vae_check_dims(c, half, e) : e->code;
}

bool vae_widens(const struct component *c, int level) {
    return level > 0 && c->dims[CHANNELS + level] != c->dims[CHANNELS + level - 1];
}

#define SETTING(key, field, type_, published, least, most)                                                   \
    { {key}, offsetof(struct vae_settings, field), type_, published, least, most }
const struct setting vae_settings_rows[N_VAE_SETTINGS] = {
    SETTING("norm_num_groups", groups, SETTING_INT, 32, 1, 4096),
    SETTING("scaling_factor", scale, SETTING_FLOAT, 0.3611, -1e6, 1e6), /* Flux's and Z-Image's */
    SETTING("shift_factor", shift, SETTING_FLOAT, 0.1159, -1e6, 1e6),
};
/* A mean and a deviation a channel: Playground 2.5's. */
const struct expectation vae_expects[] = {
    {"act_fn", "silu"}, {"latents_mean", NULL}, {"latents_std", NULL}, {0}};

void vae_follow(struct component *c) {
    struct vae_settings *s = (struct vae_settings *)c->settings;
    s->groups = c->dims[GROUPS];
    s->attention = true;
    c->dims[LEVELS] = VAE_LEVELS;
}

void vae_derive(struct component *c) {
    const struct vae_settings *s = (const struct vae_settings *)c->settings;
    int32_t *d = c->dims;
    d[MOMENTS] = 2 * d[LATENT];
    d[COLOURS] = 3;
    d[K1] = 1;
    d[K3] = 3;
    d[ENCODER_RESNETS] = d[RESNETS] - 1;
    c->latent_channels = d[LATENT];
    c->pixel_factor = 1 << (d[LEVELS] - 1);
    c->latent_format = (struct latent_format){1, {s->scale}, {s->shift}};
}
