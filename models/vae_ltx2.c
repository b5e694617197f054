/* Video VAE of LTX-2 and LTX-2.3, decoder and encoder: weight tables, tensor names and configuration. Files
 * hold both halves. Forward functions: vae_ltx2_blocks.h.
 *
 * Levels of resnets, one after another. Between two levels a convolution and depth to space (decoder) or
 * space to depth (encoder) change rows and columns, frames, or both by 2. Norms are RMS norms over each
 * pixel's channels, without weights. LTX-2.0's decoder has reflection padding and shortcuts around its
 * upsampling; LTX-2.3's has neither. Reference: diffusers 0.42, models/autoencoders/autoencoder_kl_ltx2.py.
 */
#include "models/models.h"
#include "models/vae_ltx2_blocks.h"

#include <stdio.h>
#include <string.h>

/* Indices into the dims. Levels in execution order. */
enum ltx_dim {
    LATENT,  /* latent channels */
    PIXELS,  /* values of a patch of pixels */
    MOMENTS, /* channels of the encoder's last convolution: mean, and one log variance for all channels */
    K3,      /* kernel size */
    IN,
    OUT, /* input and output channels of one block's convolution, set by the callback family_blocks.dims */
    LEVELS,
    CHANNELS,                                /* CHANNELS + i: channels of level i */
    RESNETS = CHANNELS + LTX_VAE_LEVELS_MAX, /* RESNETS + i: resnets of level i */
    /* STEP + i: pixels of all frames that one coarse pixel corresponds to between levels i and i + 1: 2 in
     * time, 4 in rows and columns, 8 in both */
    STEP = RESNETS + LTX_VAE_LEVELS_MAX,
    /* FACTOR + i: channels of level i divided by those of level i + 1, in a decoder */
    FACTOR = STEP + LTX_VAE_LEVELS_MAX,
};

enum { STEP_TIME = 2, STEP_SIDES = 4, STEP_BOTH = 8, COLOURS = 3, PATCH_MAX = 4 };

/* What the configuration says beyond the tensors; 0: nothing, then the layout of the levels decides. */
enum ltx_declared { DECLARED_NOT, DECLARED_NO, DECLARED_YES };

struct vae_ltx2_settings {
    struct ltx_vae_settings vae;
    enum ltx_declared reflects, residual[LTX_VAE_LEVELS_MAX];
    int causal;
};

/* Tensor names of an encoder or decoder (family.details). [0]: diffusers', [1]: the authors', which number
 * levels and resampling blocks consecutively. */
struct ltx_half {
    bool encodes;
    const char *middle;     /* name prefix of the mid block's resnets */
    const char *level[2];   /* name formats of a level's resnets */
    const char *step[2];    /* name formats of a resampling convolution */
    const char *numbers[2]; /* name prefixes before a level's number */
};

static const struct ltx_half decoder_half = {
    .middle = "decoder.mid_block.resnets.",
    .level = {"decoder.up_blocks.%d.resnets.", "decoder.up_blocks.%d.res_blocks."},
    .step = {"decoder.up_blocks.%d.upsamplers.0.conv.conv.bias", "decoder.up_blocks.%d.conv.conv.bias"},
    .numbers = {"decoder.up_blocks.", "decoder.up_blocks."},
};
static const struct ltx_half encoder_half = {
    .encodes = true,
    .middle = "encoder.mid_block.resnets.",
    .level = {"encoder.down_blocks.%d.resnets.", "encoder.down_blocks.%d.res_blocks."},
    .step = {"encoder.down_blocks.%d.downsamplers.0.conv.conv.bias", "encoder.down_blocks.%d.conv.conv.bias"},
    .numbers = {"encoder.down_blocks.", "encoder.down_blocks."},
};

/* ---- weights ---- */

/* clang-format off */
#define FIELD_SLICES(S, field, ...) struct ltx_vae_conv_weights field;
#define ROW_SLICE(S, member, i, out, in, ...)                                                                \
    WEIGHT_ROW(S, member[i], (.rank = 4, .dim = {out, in, K3, K3}, .slices = K3,                             \
               .before_last = LTX_VAE_SLICES - 1 - (i), .init_scale = 1), ".conv.weight", __VA_ARGS__)
#define ROWS_SLICES(S, prefix, out, in, ...)                                                                 \
    ROW_SLICE(S, prefix weight, 0, out, in, __VA_ARGS__)                                                     \
    ROW_SLICE(S, prefix weight, 1, out, in, __VA_ARGS__)                                                     \
    ROW_SLICE(S, prefix weight, 2, out, in, __VA_ARGS__)                                                     \
    WEIGHT_ROW(S, prefix bias, SHAPED(1, out), ".conv.bias", __VA_ARGS__)
#define RESNET(X, S)                                                                                         \
    ROWS_SLICES(S, conv1., OUT, IN, "conv1")                                                                 \
    ROWS_SLICES(S, conv2., OUT, OUT, "conv2")
#define STEP_CONV(X, S)   ROWS_SLICES(S, , OUT, IN, "conv")
#define LATENT_IN(X, S)   ROWS_SLICES(S, , OUT, LATENT, "decoder.conv_in")
#define PICTURE_OUT(X, S) ROWS_SLICES(S, , PIXELS, IN, "decoder.conv_out")
#define PICTURE_IN(X, S)  ROWS_SLICES(S, , OUT, PIXELS, "encoder.conv_in")
#define MOMENTS_OUT(X, S) ROWS_SLICES(S, , MOMENTS, IN, "encoder.conv_out")
/* Mean and standard deviation of each latent channel. */
#define LATENT_NORM(X, S)                                                                                    \
    X##WEIGHT(S, mean, SHAPED(1, LATENT), "latents_mean", "per_channel_statistics.mean-of-means")            \
    X##WEIGHT(S, deviation, (.rank = 1, .dim = {LATENT}), "latents_std",                                     \
              "per_channel_statistics.std-of-means")
struct latent_norm_weights { LATENT_NORM(FIELD_, ) };
/* clang-format on */

WEIGHT_TABLE(latent_in_table, LATENT_IN, ltx_vae_conv_weights, "", "");
WEIGHT_TABLE(picture_out_table, PICTURE_OUT, ltx_vae_conv_weights, "", "");
WEIGHT_TABLE(picture_in_table, PICTURE_IN, ltx_vae_conv_weights, "", "");
WEIGHT_TABLE(moments_table, MOMENTS_OUT, ltx_vae_conv_weights, "", "");
WEIGHT_TABLE(decoder_mid_table, RESNET, ltx_vae_resnet_weights, "decoder.mid_block.resnets.%d.",
             "decoder.up_blocks.0.res_blocks.%d.");
WEIGHT_TABLE(up_resnet_table, RESNET, ltx_vae_resnet_weights, "decoder.up_blocks.%d.resnets.%d.",
             "decoder.up_blocks.%d.res_blocks.%d.");
WEIGHT_TABLE(upsample_table, STEP_CONV, ltx_vae_conv_weights, "decoder.up_blocks.%d.upsamplers.0.",
             "decoder.up_blocks.%d.");
WEIGHT_TABLE(encoder_mid_table, RESNET, ltx_vae_resnet_weights, "encoder.mid_block.resnets.%d.",
             "encoder.down_blocks.%d.res_blocks.%d.");
WEIGHT_TABLE(down_resnet_table, RESNET, ltx_vae_resnet_weights, "encoder.down_blocks.%d.resnets.%d.",
             "encoder.down_blocks.%d.res_blocks.%d.");
WEIGHT_TABLE(downsample_table, STEP_CONV, ltx_vae_conv_weights, "encoder.down_blocks.%d.downsamplers.0.",
             "encoder.down_blocks.%d.");

static void forward_decoder_mid_resnet(struct context *x, const void *weights,
                                       const struct visit_scope *scope) {
    ltx_vae_forward_resnet(x, weights, scope, 0, scope->number);
}

static void forward_up_resnet(struct context *x, const void *weights, const struct visit_scope *scope) {
    ltx_vae_forward_resnet(x, weights, scope, scope->number / BLOCK_NUMBER_STEP + 1,
                           scope->number % BLOCK_NUMBER_STEP);
}

static void forward_upsample(struct context *x, const void *weights, const struct visit_scope *scope) {
    ltx_vae_forward_upsample(x, weights, scope, scope->number);
}

static void forward_encoder_mid_resnet(struct context *x, const void *weights,
                                       const struct visit_scope *scope) {
    ltx_vae_forward_resnet(x, weights, scope,
                           ((const struct ltx_vae_settings *)scope->settings)->n_levels - 1, scope->number);
}

static void forward_down_resnet(struct context *x, const void *weights, const struct visit_scope *scope) {
    ltx_vae_forward_resnet(x, weights, scope, scope->number / BLOCK_NUMBER_STEP,
                           scope->number % BLOCK_NUMBER_STEP);
}

static void forward_downsample(struct context *x, const void *weights, const struct visit_scope *scope) {
    ltx_vae_forward_downsample(x, weights, scope, scope->number);
}

#define KIND(kind, ...) BLOCK(kind, __VA_ARGS__, .never_quantised = true)
BLOCK_OF_LIST(kind_norm, "latent_norm", "latents", LATENT_NORM, latent_norm_weights, "", "", NULL,
              .never_quantised = true);
KIND(kind_latent_in, "conv_in", "conv_in", latent_in_table, ltx_vae_conv_weights, ltx_vae_forward_latent_in);
KIND(kind_decoder_mid, "mid_resnet", "mid_block.resnets.%d", decoder_mid_table, ltx_vae_resnet_weights,
     forward_decoder_mid_resnet);
KIND(kind_up_resnet, "resnet", "up_blocks.%d.resnets.%d", up_resnet_table, ltx_vae_resnet_weights,
     forward_up_resnet);
KIND(kind_upsample, "upsample", "up_blocks.%d.upsample", upsample_table, ltx_vae_conv_weights,
     forward_upsample);
KIND(kind_picture_out, "conv_out", "conv_out", picture_out_table, ltx_vae_conv_weights,
     ltx_vae_forward_picture_out);
KIND(kind_picture_in, "conv_in", "conv_in", picture_in_table, ltx_vae_conv_weights,
     ltx_vae_forward_picture_in);
KIND(kind_encoder_mid, "mid_resnet", "mid_block.resnets.%d", encoder_mid_table, ltx_vae_resnet_weights,
     forward_encoder_mid_resnet);
KIND(kind_down_resnet, "resnet", "down_blocks.%d.resnets.%d", down_resnet_table, ltx_vae_resnet_weights,
     forward_down_resnet);
KIND(kind_downsample, "downsample", "down_blocks.%d.downsample", downsample_table, ltx_vae_conv_weights,
     forward_downsample);
KIND(kind_moments, "conv_out", "conv_out", moments_table, ltx_vae_conv_weights, ltx_vae_forward_moments);

/* Resnets of diffusers' up_blocks.i are in the authors' up_blocks.(2 i + 2), after the mid block's and the
 * upsampling's; those of down_blocks.i in down_blocks.(2 i). */
static int vae_ltx2_blocks(const struct component *c, struct block_ref *refs) {
    bool encodes = ((const struct ltx_half *)c->family->details)->encodes;
    const int32_t *d = c->dims;
    int n = 0, steps = d[LEVELS] - 1;
    refs[n++] = (struct block_ref){.kind = &kind_norm, .unused = true};
    refs[n++] = (struct block_ref){.kind = encodes ? &kind_picture_in : &kind_latent_in};
    for (int level = 0; level < d[LEVELS]; level++) {
        bool middle = level == (encodes ? steps : 0);
        int block = encodes ? level : level - 1; /* diffusers' number of the level's block */
        struct block_ref ref = {.number = BLOCK_NUMBER_STEP * block};
        ref.kind = encodes ? &kind_down_resnet : &kind_up_resnet;
        ref.number_offset = BLOCK_NUMBER_STEP * (2 * level - block);
        if (middle) {
            ref = (struct block_ref){.kind = encodes ? &kind_encoder_mid : &kind_decoder_mid};
            ref.number_offset = encodes ? BLOCK_NUMBER_STEP * 2 * level : 0;
        }
        for (int i = 0; i < d[RESNETS + level]; i++, ref.number++) refs[n++] = ref;
        if (level < steps)
            refs[n++] = (struct block_ref){.kind = encodes ? &kind_downsample : &kind_upsample,
                                           .number = level,
                                           .number_offset = level + 1};
    }
    refs[n++] = (struct block_ref){.kind = encodes ? &kind_moments : &kind_picture_out};
    return n;
}

static void vae_ltx2_block_dims(const struct component *c, const struct block_ref *ref, int32_t *dims) {
    bool encodes = ((const struct ltx_half *)c->family->details)->encodes;
    int last = c->dims[LEVELS] - 1, level = 0, number = ref->number;
    if (ref->kind == &kind_picture_out || ref->kind == &kind_moments || ref->kind == &kind_encoder_mid)
        level = last;
    if (ref->kind == &kind_up_resnet) level = number / BLOCK_NUMBER_STEP + 1;
    if (ref->kind == &kind_down_resnet) level = number / BLOCK_NUMBER_STEP;
    dims[IN] = dims[OUT] = dims[CHANNELS + level];
    if (ref->kind != &kind_upsample && ref->kind != &kind_downsample) return;
    dims[IN] = dims[CHANNELS + number];
    dims[OUT] = encodes ? dims[CHANNELS + number + 1] / dims[STEP + number]
                        : dims[CHANNELS + number + 1] * dims[STEP + number];
}

/* ---- configuration ---- */

static bool ltx_probe_half(const struct tensor_index *index, const struct ltx_half *half) {
    char name[2 * BLOCK_NAME_MAX];
    snprintf(name, sizeof name, "%s0.conv1.conv.bias", half->middle);
    if (index_find(index, name)) return true;
    snprintf(name, sizeof name, "%s0.res_blocks.0.conv1.conv.bias", half->numbers[1]);
    return index_find(index, name) != NULL;
}

static bool vae_ltx2_probe(const struct tensor_index *index) {
    return ltx_probe_half(index, &decoder_half);
}

static bool vae_ltx2_encoder_probe(const struct tensor_index *index) {
    return ltx_probe_half(index, &encoder_half);
}

static enum status vae_ltx2_refuse(const struct component *c, struct error *e) {
    static const char timestep[] = "a VAE of LTX-Video 0.9 with timestep conditioning",
                      other[] = "a VAE of LTX-Video 0.9";
    static const struct similar_architecture relatives[] = {
        {"decoder.timestep_scale_multiplier", timestep},
        {"decoder.time_embedder.", timestep},
        {"decoder.last_time_embedder.", timestep},
        {"decoder.mid_block.time_embedder.", timestep},
        {"decoder.up_blocks.0.time_embedder.", timestep},
        {"decoder.up_blocks.0.conv_in.", other},
        {"decoder.up_blocks.1.conv_in.", other},
        {"encoder.down_blocks.0.downsamplers.0.conv.weight", other},
        {"encoder.down_blocks.1.conv.weight", other},
        {NULL, NULL}};
    return component_refuse_similar(c, relatives, "the VAE of LTX-2 or LTX-2.3", e);
}

/* Counts levels and resnets, and reads channels and resampling from the tensors of either naming. */
static enum status ltx_read_levels(struct component *c, const struct ltx_half *half, struct error *e) {
    char name[2 * BLOCK_NAME_MAX], prefix[BLOCK_NAME_MAX];
    snprintf(name, sizeof name, "%s0.conv1.conv.bias", half->middle);
    bool authors = !index_find(&c->index, name);
    int32_t *d = c->dims;
    int last = index_last_block(&c->index, half->numbers[authors]);
    d[LEVELS] = authors ? last / 2 + 1 : last + 2;
    if (d[LEVELS] < 1 || d[LEVELS] > LTX_VAE_LEVELS_MAX)
        return error_set(e, SHAPE,
                         "unsupported VAE: number of levels" WHERE "%s" FOUND "%d" EXPECTED "1 to %d",
                         c->index.sources[0].path, d[LEVELS], LTX_VAE_LEVELS_MAX);
    for (int i = 0; i < d[LEVELS]; i++) {
        bool middle = !authors && i == (half->encodes ? d[LEVELS] - 1 : 0);
        int block = authors ? 2 * i : half->encodes ? i : i - 1;
        if (middle)
            snprintf(prefix, sizeof prefix, "%s", half->middle);
        else
            snprintf(prefix, sizeof prefix, half->level[authors], block);
        d[RESNETS + i] = index_last_block(&c->index, prefix) + 1;
        snprintf(name, sizeof name, "%s0.conv1.conv.bias", prefix);
        d[CHANNELS + i] = component_dim(c, name, 1, 0, e);
    }
    for (int i = 0; i + 1 < d[LEVELS] && e->code == OK; i++) {
        snprintf(name, sizeof name, half->step[authors], authors ? 2 * i + 1 : i);
        int32_t after = d[CHANNELS + i + 1], conv = component_dim(c, name, 1, 0, e);
        int32_t many = half->encodes ? after : conv, few = half->encodes ? conv : after;
        d[STEP + i] = few && many % few == 0 ? many / few : 0;
    }
    return e->code;
}

/* Checks the resampling steps, and that channels divide where the shortcuts average or repeat them. */
static enum status ltx_check_steps(const struct component *c, const struct ltx_half *half, struct error *e) {
    const int32_t *d = c->dims;
    for (int i = 0; i < d[LEVELS]; i++) {
        int32_t from = d[CHANNELS + i], to = d[CHANNELS + i + 1], step = d[STEP + i];
        bool steps = step == STEP_TIME || step == STEP_SIDES || step == STEP_BOTH;
        bool divides = half->encodes ? to && from * step % to == 0
                                     : steps && from % step == 0 && to % (from / step) == 0;
        if (d[RESNETS + i] > 0 && d[CHANNELS + i] <= 1 << 16 && (i + 1 == d[LEVELS] || (steps && divides)))
            continue;
        return error_set(e, SHAPE,
                         "unsupported VAE %s: level %d" WHERE "%s" FOUND
                         "%d resnets of %d channels, then %d times as many values as %d channels" EXPECTED
                         "one or more resnets, then 2, 4 or 8 times as many values as channels",
                         half->encodes ? "encoder" : "decoder", i, c->index.sources[0].path, d[RESNETS + i],
                         from, step, i + 1 < d[LEVELS] ? to : 0);
    }
    return OK;
}

/* Reads a boolean value; *declared stays if no key exists. */
static void ltx_read_bool(const struct config *config, const char *key, enum ltx_declared *declared,
                          struct error *e) {
    bool value = *declared == DECLARED_YES;
    if (!config_find(config, key)) return;
    config_bool(config, key, &value, e);
    *declared = value ? DECLARED_YES : DECLARED_NO;
}

/* Reads padding, causality and shortcuts from diffusers' configuration, whose lists begin at the image, or
 * the authors'. */
static enum status ltx_read_config(struct component *c, const struct config *config, struct error *e) {
    struct vae_ltx2_settings *s = (struct vae_ltx2_settings *)c->settings;
    enum ltx_declared causal = DECLARED_NOT, encoder_causal = DECLARED_YES;
    const char *padding = config_string(config, "decoder_spatial_padding_mode", NULL);
    int steps = c->dims[LEVELS] - 1;
    char key[64];
    ltx_read_bool(config, "decoder_causal", &causal, e);
    ltx_read_bool(config, "causal_decoder", &causal, e);
    ltx_read_bool(config, "encoder_causal", &encoder_causal, e);
    s->causal = causal == DECLARED_YES;
    if (padding) s->reflects = !strcmp(padding, "reflect") ? DECLARED_YES : DECLARED_NO;
    if (padding && s->reflects == DECLARED_NO)
        config_expect(config, "decoder_spatial_padding_mode", "zeros", e);
    for (int i = 0; i < steps; i++) {
        ltx_read_bool(config, "upsample_residual", &s->residual[i], e);
        snprintf(key, sizeof key, "upsample_residual.%d", steps - 1 - i);
        ltx_read_bool(config, key, &s->residual[i], e);
        snprintf(key, sizeof key, "decoder_blocks.%d.1.residual", 2 * (steps - i) - 1);
        ltx_read_bool(config, key, &s->residual[i], e);
    }
    if (e->code == OK && encoder_causal != DECLARED_YES)
        return error_set(e, UNSUPPORTED,
                         "unsupported VAE: its encoder is not causal" WHERE "%s" FOUND
                         "encoder_causal false" EXPECTED "true, as in LTX-2",
                         config->path);
    return e->code;
}

static enum status vae_ltx2_configure(struct component *c, const struct config *config, struct error *e) {
    const struct ltx_half *half = c->family->details;
    int32_t *d = c->dims, patch = 1;
    if (ltx_read_levels(c, half, e) != OK || ltx_check_steps(c, half, e) != OK ||
        (!half->encodes && ltx_read_config(c, config, e) != OK))
        return e->code;
    while (patch < PATCH_MAX && COLOURS * patch * patch != d[PIXELS]) patch *= 2;
    if (COLOURS * patch * patch == d[PIXELS]) return OK;
    return error_set(e, UNSUPPORTED,
                     "unsupported VAE: patch size" WHERE "%s" FOUND "%d values per patch of pixels" EXPECTED
                     "48: RGB patches of 4x4 pixels",
                     c->index.sources[0].path, d[PIXELS]);
}

static void vae_ltx2_derive_dims(struct component *c) {
    int32_t *d = c->dims;
    d[PIXELS] = COLOURS * PATCH_MAX * PATCH_MAX;
    while (d[LEVELS] < LTX_VAE_LEVELS_MAX && d[CHANNELS + d[LEVELS]]) d[LEVELS]++;
}

/* True for the layout of LTX-2.0's decoder, whose upsampling doubles rows, columns and frames three times. */
static bool ltx_is_20(const int32_t *dims) {
    enum { LEVELS_20 = 4 };
    bool is = dims[LEVELS] == LEVELS_20;
    for (int i = 0; i + 1 < LEVELS_20; i++) is = is && dims[STEP + i] == STEP_BOTH;
    return is;
}

#define CONFIG_REST                                                                                          \
    "\"decoder_causal\": false, \"encoder_causal\": true, \"encoder_spatial_padding_mode\": \"zeros\", "     \
    "\"in_channels\": 3, \"out_channels\": 3, \"patch_size\": 4, \"patch_size_t\": 1, "                      \
    "\"timestep_conditioning\": false, "
static const char config_rest_20[] =
    CONFIG_REST "\"decoder_spatial_padding_mode\": \"reflect\", \"upsample_residual\": true",
                  config_rest_23[] =
                      CONFIG_REST "\"decoder_spatial_padding_mode\": \"zeros\", \"upsample_residual\": false";

static void vae_ltx2_derive(struct component *c) {
    bool encodes = ((const struct ltx_half *)c->family->details)->encodes, is_20 = ltx_is_20(c->dims);
    struct vae_ltx2_settings *s = (struct vae_ltx2_settings *)c->settings;
    int32_t *d = c->dims, side = 1, time = 1;
    d[MOMENTS] = d[LATENT] + 1;
    d[K3] = LTX_VAE_SLICES;
    s->vae = (struct ltx_vae_settings){.n_levels = d[LEVELS], .patch = 1, .chunk = s->vae.chunk};
    while (COLOURS * s->vae.patch * s->vae.patch < d[PIXELS]) s->vae.patch *= 2;
    if (!encodes) {
        s->vae.lookahead = !s->causal;
        s->vae.border = s->reflects == DECLARED_YES || (s->reflects == DECLARED_NOT && is_20);
    }
    for (int i = 0; i < d[LEVELS]; i++) {
        struct ltx_vae_level *l = &s->vae.level[i];
        int32_t step = i + 1 < d[LEVELS] ? d[STEP + i] : 1;
        l->channels = d[CHANNELS + i];
        l->resnets = d[RESNETS + i];
        l->time = step == STEP_TIME || step == STEP_BOTH ? 2 : 1;
        l->side = step == STEP_SIDES || step == STEP_BOTH ? 2 : 1;
        l->residual = s->residual[i] == DECLARED_YES || (s->residual[i] == DECLARED_NOT && is_20);
        if (step > 1) d[FACTOR + i] = d[CHANNELS + i] / d[CHANNELS + i + 1];
        time *= l->time;
        side *= l->side;
    }
    ltx_vae_derive_levels(&s->vae, encodes ? time : 1, encodes);
    c->latent_channels = d[LATENT];
    c->pixel_factor = s->vae.patch * side;
    c->frame_factor = time;
    if (!encodes) c->config_rest = s->vae.border ? config_rest_20 : config_rest_23;
}

/* Reflection needs two pixels. */
static enum status vae_ltx2_check(const struct component *c, const struct lane *lanes, int n_lanes,
                                  struct error *e) {
    const struct ltx_vae_settings *s = (const struct ltx_vae_settings *)c->settings;
    for (int i = 0; i < n_lanes && s->border; i++)
        if (lanes[i].latent.dim[2] < 2 || lanes[i].latent.dim[3] < 2)
            return error_set(e, USAGE,
                             "the image is too small for the VAE" FOUND "%dx%d" EXPECTED
                             "%d or more pixels in width and height",
                             lanes[i].latent.dim[3] * c->pixel_factor,
                             lanes[i].latent.dim[2] * c->pixel_factor, 2 * c->pixel_factor);
    return OK;
}

/* Refuses features of LTX-Video 0.9. */
static const struct expectation expects[] = {{"timestep_conditioning", NULL},
                                             {"decoder_inject_noise", NULL},
                                             {"encoder_spatial_padding_mode", "zeros"},
                                             {0}};

/* clang-format off */
static const char *const step_words[] = {NULL, NULL, "temporal", NULL, "spatial", NULL, NULL, NULL,
                                         "spatiotemporal"};
#define LATENT_DIMENSION                                                                                     \
    {"latent_channels", 128, 1, LATENT_VALUES_MAX, .place = LATENT,                                          \
     OF_TENSOR(1, 0, "latents_mean", "per_channel_statistics.mean-of-means"), .key = "latent_channels"}
#define LEVEL(half, i, channels, resnets)                                                                    \
    {half "_channels" #i, channels, 1, 1 << 16, .place = CHANNELS + (i)},                                    \
    {half "_resnets" #i, resnets, 1, 16, .place = RESNETS + (i)}
#define KEY(of, name) {.place = (of), .key = name}
#define STEP_DIMENSION(half, i, step, step_key)                                                              \
    {half "_step" #i, step, 2, 8, .place = STEP + (i), .key = step_key, .words = step_words}
/* Published values: LTX-2.3. */
static const struct dimension decoder_dimensions[] = {
    LATENT_DIMENSION,
    LEVEL("vae", 0, 1024, 2),
    LEVEL("vae", 1, 512, 2),
    LEVEL("vae", 2, 512, 4),
    LEVEL("vae", 3, 256, 6),
    LEVEL("vae", 4, 128, 4),
    STEP_DIMENSION("vae", 0, STEP_BOTH, "upsample_type.0"),
    STEP_DIMENSION("vae", 1, STEP_BOTH, "upsample_type.1"),
    STEP_DIMENSION("vae", 2, STEP_TIME, "upsample_type.2"),
    STEP_DIMENSION("vae", 3, STEP_SIDES, "upsample_type.3"),
    KEY(CHANNELS + 3, "decoder_block_out_channels.0"),
    KEY(CHANNELS + 2, "decoder_block_out_channels.1"),
    KEY(CHANNELS + 1, "decoder_block_out_channels.2"),
    KEY(CHANNELS, "decoder_block_out_channels.3"),
    KEY(RESNETS + 4, "decoder_layers_per_block.0"),
    KEY(RESNETS + 3, "decoder_layers_per_block.1"),
    KEY(RESNETS + 2, "decoder_layers_per_block.2"),
    KEY(RESNETS + 1, "decoder_layers_per_block.3"),
    KEY(RESNETS, "decoder_layers_per_block.4"),
    KEY(FACTOR + 3, "upsample_factor.0"),
    KEY(FACTOR + 2, "upsample_factor.1"),
    KEY(FACTOR + 1, "upsample_factor.2"),
    KEY(FACTOR, "upsample_factor.3"),
    {.place = PIXELS, OF_TENSOR(1, 0, "decoder.conv_out.conv.bias")},
};
static const struct dimension encoder_dimensions[] = {
    LATENT_DIMENSION,
    LEVEL("vae_encoder", 0, 128, 4),
    LEVEL("vae_encoder", 1, 256, 6),
    LEVEL("vae_encoder", 2, 512, 4),
    LEVEL("vae_encoder", 3, 1024, 2),
    LEVEL("vae_encoder", 4, 1024, 2),
    STEP_DIMENSION("vae_encoder", 0, STEP_SIDES, "downsample_type.0"),
    STEP_DIMENSION("vae_encoder", 1, STEP_TIME, "downsample_type.1"),
    STEP_DIMENSION("vae_encoder", 2, STEP_BOTH, "downsample_type.2"),
    STEP_DIMENSION("vae_encoder", 3, STEP_BOTH, "downsample_type.3"),
    KEY(CHANNELS + 1, "block_out_channels.0"),
    KEY(CHANNELS + 2, "block_out_channels.1"),
    KEY(CHANNELS + 3, "block_out_channels.2"),
    KEY(CHANNELS + 4, "block_out_channels.3"),
    KEY(RESNETS, "layers_per_block.0"),
    KEY(RESNETS + 1, "layers_per_block.1"),
    KEY(RESNETS + 2, "layers_per_block.2"),
    KEY(RESNETS + 3, "layers_per_block.3"),
    KEY(RESNETS + 4, "layers_per_block.4"),
    {.place = PIXELS, OF_TENSOR(1, 0, "decoder.conv_out.conv.bias")},
};
/* clang-format on */

#define STATISTICS "per_channel_statistics."
static const char *const decoder_ignorable[] = {"encoder.", STATISTICS, NULL};
static const char *const encoder_ignorable[] = {"decoder.", STATISTICS, NULL};

/* The authors' configuration has the class CausalVideoAutoencoder. */
static const char *const other_classes[] = {"CausalVideoAutoencoder", NULL};

/* A latent of 1280 x 704 pixels and 9 frames. */
#define PREDICTED_VIDEO                                                                                      \
    .latent_channels = 128, .latent_frames = 3, .latent_side = 22, .latent_columns = 40, .picture_side = 704

/* .predicted: the last level, at the highest resolution, in an evaluation that gives it 8 frames. */
const struct family family_vae_ltx2 = {
    .name = "vae_ltx2",
    .kind = FAMILY_DECODER,
    .display_name = "autoencoder",
    .details = &decoder_half,
    .files = {.config_key = "_class_name",
              .config_value = "AutoencoderKLLTX2Video",
              .config_others = other_classes,
              .probe = vae_ltx2_probe,
              .refuse = vae_ltx2_refuse,
              .ignorable = decoder_ignorable},
    .config = {.dimensions = decoder_dimensions,
               .n_dimensions = COUNT_OF(decoder_dimensions),
               .latent_norm = {.tensors = &kind_norm, .deviations = true},
               .expects = expects,
               .configure = vae_ltx2_configure,
               .derive_dims = vae_ltx2_derive_dims,
               .derive = vae_ltx2_derive,
               .rest = config_rest_23},
    .blocks = {.list = vae_ltx2_blocks, .dims = vae_ltx2_block_dims},
    .state = {.bytes = sizeof(struct ltx_vae_state), .declare = ltx_vae_declare_decoder},
    .lanes = {.check = vae_ltx2_check, .chunks = ltx_vae_decoder_chunks},
    .predicted = {{.kind = "resnet", .number = 301, PREDICTED_VIDEO, .tokens = 8 * 176 * 320, .chunk = 13}},
};

/* The encoder reads the decoder's config.json. */
const struct family family_vae_ltx2_encoder = {
    .name = "vae_ltx2_encoder",
    .kind = FAMILY_ENCODER,
    .display_name = "autoencoder's encoder",
    .details = &encoder_half,
    .files = {.config_key = "_class_name",
              .config_value = "AutoencoderKLLTX2Video",
              .config_others = other_classes,
              .probe = vae_ltx2_encoder_probe,
              .ignorable = encoder_ignorable},
    .config = {.dimensions = encoder_dimensions,
               .n_dimensions = COUNT_OF(encoder_dimensions),
               .latent_norm = {.tensors = &kind_norm, .deviations = true},
               .expects = expects,
               .configure = vae_ltx2_configure,
               .derive_dims = vae_ltx2_derive_dims,
               .derive = vae_ltx2_derive},
    .blocks = {.list = vae_ltx2_blocks, .dims = vae_ltx2_block_dims},
    .state = {.bytes = sizeof(struct ltx_vae_state), .declare = ltx_vae_declare_encoder},
    .predicted = {{.kind = "resnet", PREDICTED_VIDEO, .tokens = 176 * 320}},
};
