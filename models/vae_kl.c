/* AutoencoderKL (Stable Diffusion, Flux, Z-Image) and AutoencoderKLFlux2: weight table rows, tensor names and
 * configuration of their two halves; then the families decoder and encoder. Norms are group norms. Forward
 * functions: vae_blocks.h.
 *
 * Flux.2: a latent pixel packs 2x2 VAE pixels of 32 channels. The file has the mean and variance of each of
 * the 128 packed channels (a batch norm without affine parameters). Reference: diffusers 0.42,
 * models/autoencoders/autoencoder_kl_flux2.py, pipelines/flux2/pipeline_flux2.py (_encode_vae_image). */
#include "models/models.h"
#include "models/vae_blocks.h"

#include <stdio.h>

/* clang-format off */
#define RESNET(X, S)                                                                                         \
    X##NORM(S, norm1, IN, "norm1")                                                                           \
    X##CONV(S, conv1, OUT, IN, K3, "conv1")                                                                  \
    X##NORM(S, norm2, OUT, "norm2")                                                                          \
    X##CONV(S, conv2, OUT, OUT, K3, "conv2")
/* Levels that change the number of channels have a shortcut in their first resnet. */
#define WIDER_RESNET(X, S)                                                                                   \
    RESNET(X, S)                                                                                             \
    X##CONV(S, shortcut, OUT, IN, K1, "conv_shortcut", "nin_shortcut")
/* Older diffusers files and the authors' checkpoints store the matrices as 1x1 convolutions. */
#define ATTENTION(X, S)                                                                                      \
    X##NORM(S, norm, OUT, "group_norm", "norm")                                                              \
    X##LINEAR(S, q, OUT, OUT, "to_q", "q", "query")                                                          \
    X##LINEAR(S, k, OUT, OUT, "to_k", "k", "key")                                                            \
    X##LINEAR(S, v, OUT, OUT, "to_v", "v", "value")                                                          \
    X##LINEAR(S, out, OUT, OUT, "to_out.0", "proj_out", "proj_attn")
#define LATENT_IN(X, S)                                                                                      \
    X##CONV(IF_DIM(S, QUANT), post, LATENT, LATENT, K1, "post_quant_conv",                                   \
           "decoder.post_quant_conv")                                                                        \
    X##CONV(S, conv, OUT, LATENT, K3, "decoder.conv_in")
#define PICTURE_OUT(X, S)                                                                                    \
    X##NORM(S, norm, IN, "decoder.conv_norm_out", "decoder.norm_out")                                        \
    X##CONV(S, conv, COLOURS, IN, K3, "decoder.conv_out")
#define PICTURE_IN(X, S)                                                                                     \
    X##CONV(S, conv, OUT, COLOURS, K3, "encoder.conv_in")
#define MOMENTS_OUT(X, S)                                                                                    \
    X##NORM(S, norm, OUT, "encoder.conv_norm_out", "encoder.norm_out")                                       \
    X##CONV(S, conv, MOMENTS, OUT, K3, "encoder.conv_out")                                                   \
    X##CONV(IF_DIM(S, QUANT), post, MOMENTS, MOMENTS, K1, "quant_conv", "encoder.quant_conv")
/* Statistics of a packed latent. Synthetic variances are around 1, so they have no init_scale. */
#define LATENT_NORM(X, S)                                                                                    \
    X##WEIGHT(S, mean, SHAPED(1, PACKED), "running_mean")                                                    \
    X##WEIGHT(S, variance, (.rank = 1, .dim = {PACKED}), "running_var")
struct latent_norm_weights { LATENT_NORM(FIELD_, ) };
/* clang-format on */
BLOCK_OF_LIST(vae_kl_kind_norm, "latent_norm", "bn", LATENT_NORM, latent_norm_weights, "bn.", "bn.", NULL,
              .never_quantised = true);
#define LATENT_MEAN "bn.running_mean" /* a tensor that only Flux.2's VAE has */

/* Tensor names of a VAE encoder or decoder (family.details). Levels are counted in execution order. */
struct vae_half {
    const char *word; /* "encoder" or "decoder" */
    const char *level,
        *level_checkpoint; /* name prefixes of a level, such as "decoder.up_blocks.", "decoder.up." */
    const char *resnet, *resnet_checkpoint;       /* name prefixes of a level's resnets, with two %d */
    const char *attention, *attention_checkpoint; /* name prefixes of the mid-block attention */
    bool reversed_levels; /* true: the authors' checkpoints count levels in the opposite order */
    int packing;          /* vae_settings.packing; patch_size in config.json must be equal */
};

enum { VAE_LEVELS = 4 };

/* Dimension table rows of the encoder and the decoder. Published values are those of Flux.1, Z-Image and
 * Flux.2, which differ in `latent`, the number of latent channels before packing. deepest: index of the
 * deepest level in execution order; step: index difference from the deepest to the next wider level. Variadic
 * arguments are more fields of the row for latent channels. */
#define VAE_DIMENSIONS(latent, deepest, step, ...)                                                           \
    {"latent_channels", latent, 1, 1024, .place = LATENT, __VA_ARGS__},                                      \
        {"vae0", 512, 1, 8192, .place = CHANNELS + (deepest)},                                               \
        {"vae1", 512, 1, 8192, .place = CHANNELS + (deepest) + (step)},                                      \
        {"vae2", 256, 1, 8192, .place = CHANNELS + (deepest) + 2 * (step)},                                  \
        {"vae3", 128, 1, 8192, .place = CHANNELS + (deepest) + 3 * (step)},                                  \
        {"vae_resnets", 3, 2, 8, .place = RESNETS}, {                                                        \
        "vae_groups", 32, 1, 4096, .place = GROUPS                                                           \
    }

static int vae_last_block_either(const struct component *c, const char *prefix, const char *checkpoint_name) {
    int last = index_last_block(&c->index, prefix);
    return last < 0 ? index_last_block(&c->index, checkpoint_name) : last;
}

static int vae_resnets(const struct component *c, const struct vae_half *half) {
    char name[BLOCK_NAME_MAX], checkpoint_name[BLOCK_NAME_MAX];
    snprintf(name, sizeof name, "%s0.resnets.", half->level);
    snprintf(checkpoint_name, sizeof checkpoint_name, "%s0.block.", half->level_checkpoint);
    return vae_last_block_either(c, name, checkpoint_name) + 1;
}

static int32_t vae_level_channels(const struct component *c, const struct vae_half *half, int level,
                                  struct error *e) {
    char format[BLOCK_NAME_MAX], name[2 * BLOCK_NAME_MAX], checkpoint_name[2 * BLOCK_NAME_MAX];
    int authors = half->reversed_levels ? c->dims[LEVELS] - 1 - level : level;
    snprintf(format, sizeof format, "%sconv1.weight", half->resnet);
    block_weight_name(format, level * BLOCK_NUMBER_STEP, name);
    snprintf(format, sizeof format, "%sconv1.weight", half->resnet_checkpoint);
    block_weight_name(format, authors * BLOCK_NUMBER_STEP, checkpoint_name);
    return component_dim(c, component_first_existing(c, name, checkpoint_name), 4, 0, e);
}

static bool vae_has_attention(const struct component *c, const struct vae_half *half) {
    char name[BLOCK_NAME_MAX], checkpoint_name[BLOCK_NAME_MAX];
    snprintf(name, sizeof name, "%sgroup_norm.weight", half->attention);
    snprintf(checkpoint_name, sizeof checkpoint_name, "%snorm.weight", half->attention_checkpoint);
    return index_find(&c->index, component_first_existing(c, name, checkpoint_name)) != NULL;
}

static enum status vae_check_dims(const struct component *c, const struct vae_half *half, struct error *e) {
    const struct vae_settings *s = (const struct vae_settings *)c->settings;
    int bad = 0, deepest = half->reversed_levels ? 0 : c->dims[LEVELS] - 1;
    for (int i = 0; i < c->dims[LEVELS]; i++)
        if (c->dims[CHANNELS + i] % s->groups) bad = c->dims[CHANNELS + i];
    if (!bad && (!s->attention || c->dims[CHANNELS + deepest] <= 512) && c->latent_format.scale[0] != 0)
        return OK;
    return error_set(
        e, SHAPE,
        "unsupported VAE %s: channels, groups or attention width" WHERE "%s" FOUND
        "%d channels in %d groups, mid-block attention over %d channels, scaling_factor %g" EXPECTED
        "channels divisible by norm_num_groups, attention over at most 512 channels, a "
        "scaling_factor other than 0",
        half->word, c->index.sources[0].path, bad ? bad : c->dims[CHANNELS + deepest], s->groups,
        c->dims[CHANNELS + deepest], (double)c->latent_format.scale[0]);
}

/* Callback family_config.configure: sets levels, resnets, widths and attention from the tensors, and checks
 * the configuration. */
static enum status vae_configure(struct component *c, const struct config *config, struct error *e) {
    const struct vae_half *half = c->family->details;
    int patch_size = half->packing;
    struct vae_settings *s = (struct vae_settings *)c->settings;
    int32_t *d = c->dims;
    d[LEVELS] = vae_last_block_either(c, half->level, half->level_checkpoint) + 1;
    d[RESNETS] = vae_resnets(c, half);
    if (d[LEVELS] < 1 || d[LEVELS] > VAE_LEVELS_MAX || d[RESNETS] < 1 || d[RESNETS] > 8) {
        return error_set(e, SHAPE,
                         "unsupported VAE %s: %d levels with %d resnets each" WHERE "%s" EXPECTED
                         "1 to %d levels with 1 to 8 resnets each",
                         half->word, d[LEVELS], d[RESNETS], c->index.sources[0].path, VAE_LEVELS_MAX);
    }
    for (int i = 0; i < d[LEVELS]; i++) d[CHANNELS + i] = vae_level_channels(c, half, i, e);
    s->attention = vae_has_attention(c, half);
    /* A shift_factor of null means no shift, as in diffusers 0.42 pipelines. If the key is absent, the
     * published default applies, as for single files without a configuration. */
    const struct config_value *shift = config_find(config, "shift_factor");
    if (shift && shift->kind == CONFIG_NULL) c->latent_format.shift[0] = 0;
    config_int(config, "patch_size.0", half->packing, half->packing, &patch_size, e);
    config_int(config, "patch_size.1", half->packing, half->packing, &patch_size, e);
    return e->code == OK ? vae_check_dims(c, half, e) : e->code;
}

static const struct setting vae_settings_rows[] = {
    {{"norm_num_groups"}, offsetof(struct vae_settings, groups), SETTING_INT, 32, 1, 4096},
};
/* Published values: Flux.1 and Z-Image. */
static const struct setting vae_latent_settings[] = {
    {{"scaling_factor"}, offsetof(struct latent_format, scale), SETTING_FLOAT, 0.3611, -1e6, 1e6},
    {{"shift_factor"}, offsetof(struct latent_format, shift), SETTING_FLOAT, 0.1159, -1e6, 1e6},
};
#define VAE_LATENT_NORM                                                                                      \
    { .settings = vae_latent_settings, .n_settings = COUNT_OF(vae_latent_settings) }
/* Refuses latents_mean and latents_std (Playground 2.5), which are not supported. */
static const struct expectation vae_expects[] = {
    {"act_fn", "silu"}, {"latents_mean", NULL}, {"latents_std", NULL}, {0}};

/* Callback family_config.derive_dims: sets all dims that follow from the configured sizes, except RESNETS. */
static void vae_derive_dims(struct component *c) {
    struct vae_settings *s = (struct vae_settings *)c->settings;
    s->groups = c->dims[GROUPS];
    s->attention = true;
    c->dims[LEVELS] = VAE_LEVELS;
}

static void vae_derive(struct component *c) {
    int packing = ((const struct vae_half *)c->family->details)->packing;
    int32_t *d = c->dims;
    ((struct vae_settings *)c->settings)->packing = packing;
    d[MOMENTS] = 2 * d[LATENT];
    d[COLOURS] = 3;
    d[K1] = 1;
    d[K3] = 3;
    d[ENCODER_RESNETS] = d[RESNETS] - 1;
    for (int i = 0; i < d[LEVELS]; i++) d[IN_CHANNELS + i] = d[CHANNELS + (i ? i - 1 : 0)];
    d[PACKED] = d[LATENT] * packing * packing;
    c->latent_channels = d[PACKED];
    c->pixel_factor = packing << (d[LEVELS] - 1);
}

/* AutoencoderKL decoder (Stable Diffusion, Flux, Z-Image): latent to image.
 *
 * conv_in, two resnets around a single-head attention, then per level resnets and a nearest-neighbour
 * upsampling convolution, group norm, SiLU, conv_out: see vae_blocks.h. */

/* The authors' checkpoints count the mid block's resnets from 1, and levels from the image to the latent. */
#define UP_RESNET               "decoder.up_blocks.%d.resnets.%d."
#define CHECKPOINT_UP_RESNET    "decoder.up.%d.block.%d."
#define UP_ATTENTION            "decoder.mid_block.attentions.0."
#define CHECKPOINT_UP_ATTENTION "decoder.mid.attn_1."

static void vae_kl_forward_upsample(struct context *x, const void *weights, const struct visit_scope *scope) {
    vae_forward_upsample(x, weights, scope, scope->number + 1);
}

BLOCK_OF_LIST(vae_kl_kind_in, "conv_in", "conv_in", LATENT_IN, in_weights, "", "", vae_forward_latent_in,
              .never_quantised = true);
BLOCK_OF_LIST(vae_kl_kind_mid_resnet, "mid_resnet", "mid_block.resnets.%d", RESNET, resnet_weights,
              "decoder.mid_block.resnets.%d.", "decoder.mid.block_%d.", vae_forward_resnet,
              .never_quantised = true);
BLOCK_OF_LIST(vae_kl_kind_attention, "attention", "mid_block.attentions.0", ATTENTION, attention_weights,
              UP_ATTENTION, CHECKPOINT_UP_ATTENTION, vae_forward_attention, .never_quantised = true);
BLOCK_OF_LIST(vae_kl_kind_up_resnet, "resnet", "up_blocks.%d.resnets.%d", RESNET, resnet_weights, UP_RESNET,
              CHECKPOINT_UP_RESNET, vae_forward_resnet, .never_quantised = true);
BLOCK_OF_LIST(vae_kl_kind_wider_resnet, "wider_resnet", "up_blocks.%d.resnets.%d", WIDER_RESNET,
              resnet_weights, UP_RESNET, CHECKPOINT_UP_RESNET, vae_forward_resnet, .never_quantised = true);
CONV_TABLE(vae_kl_upsample_table, OUT, OUT, K3, "decoder.up_blocks.%d.upsamplers.0.conv",
           "decoder.up.%d.upsample.conv");
BLOCK(vae_kl_kind_upsample, "upsample", "up_blocks.%d.upsample", vae_kl_upsample_table, linear_weights,
      vae_kl_forward_upsample, .never_quantised = true);
BLOCK_OF_LIST(vae_kl_kind_out, "conv_out", "conv_out", PICTURE_OUT, out_weights, "", "",
              vae_forward_picture_out, .never_quantised = true);

static bool vae_has_decoder(const struct tensor_index *index) {
    return index_find(index, "decoder.conv_in.weight") &&
           (index_find(index, "decoder.mid_block.resnets.0.norm1.weight") ||
            index_find(index, "decoder.mid.block_1.conv1.weight"));
}

static bool vae_kl_probe(const struct tensor_index *index) {
    return vae_has_decoder(index) && !index_find(index, LATENT_MEAN);
}

static bool vae_flux2_probe(const struct tensor_index *index) {
    return vae_has_decoder(index) && index_find(index, LATENT_MEAN);
}

#define DECODER_NAMES                                                                                        \
    .word = "decoder", .level = "decoder.up_blocks.", .level_checkpoint = "decoder.up.",                     \
    .resnet = UP_RESNET, .resnet_checkpoint = CHECKPOINT_UP_RESNET, .attention = UP_ATTENTION,               \
    .attention_checkpoint = CHECKPOINT_UP_ATTENTION, .reversed_levels = true
static const struct vae_half vae_kl_half = {DECODER_NAMES, .packing = 1};
static const struct vae_half vae_flux2_half = {DECODER_NAMES, .packing = 2};

/* Lists the block of a packed latent's statistics as unused, because they are read when the model is opened.
 * Returns the number of listed blocks, 1 for Flux.2, else 0. */
static int vae_list_norm(const struct component *c, struct block_ref *refs) {
    if (!c->family->config.latent_norm.tensors) return 0;
    refs[0] = (struct block_ref){.kind = &vae_kl_kind_norm, .unused = true};
    return 1;
}

static int vae_kl_blocks(const struct component *c, struct block_ref *refs) {
    const struct vae_settings *s = (const struct vae_settings *)c->settings;
    int n = vae_list_norm(c, refs), levels = c->dims[LEVELS];
    refs[n++] = (struct block_ref){.kind = &vae_kl_kind_in};
    refs[n++] = (struct block_ref){.kind = &vae_kl_kind_mid_resnet, .number = 0, .number_offset = 1};
    if (s->attention) refs[n++] = (struct block_ref){.kind = &vae_kl_kind_attention};
    refs[n++] = (struct block_ref){.kind = &vae_kl_kind_mid_resnet, .number = 1, .number_offset = 1};
    for (int level = 0; level < levels; level++) {
        int reversed_levels = levels - 1 - 2 * level; /* authors' level number minus `level` */
        for (int i = 0; i < c->dims[RESNETS]; i++)
            refs[n++] = (struct block_ref){.kind = i == 0 && vae_level_has_shortcut(c, level)
                                                       ? &vae_kl_kind_wider_resnet
                                                       : &vae_kl_kind_up_resnet,
                                           .number = level * BLOCK_NUMBER_STEP + i,
                                           .number_offset = reversed_levels * BLOCK_NUMBER_STEP};
        if (level + 1 < levels)
            refs[n++] = (struct block_ref){
                .kind = &vae_kl_kind_upsample, .number = level, .number_offset = reversed_levels};
    }
    refs[n++] = (struct block_ref){.kind = &vae_kl_kind_out};
    return n;
}

static void vae_kl_block_dims(const struct component *c, const struct block_ref *ref, int32_t *dims) {
    int level = 0;
    if (ref->kind == &vae_kl_kind_up_resnet || ref->kind == &vae_kl_kind_wider_resnet)
        level = ref->number / BLOCK_NUMBER_STEP;
    if (ref->kind == &vae_kl_kind_upsample) level = ref->number;
    if (ref->kind == &vae_kl_kind_out) level = c->dims[LEVELS] - 1;
    dims[OUT] = dims[CHANNELS + level];
    dims[IN] = ref->kind == &vae_kl_kind_wider_resnet ? dims[CHANNELS + level - 1] : dims[OUT];
}

#define NORM_COUNTER "bn.num_batches_tracked" /* counter of training batches, unused in inference */
static const char *const vae_kl_ignorable[] = {"encoder.", "quant_conv.", NORM_COUNTER, NULL};

/* diffusers derives the number of levels from the list of block types in config.json, not from
 * block_out_channels. */
#define DOWN "\"DownEncoderBlock2D\""
#define UP   "\"UpDecoderBlock2D\""
#define CONFIG_REST                                                                                          \
    "\"in_channels\": 3, \"out_channels\": 3, \"down_block_types\": [" DOWN ", " DOWN ", " DOWN ", " DOWN    \
    "], \"up_block_types\": [" UP ", " UP ", " UP ", " UP "]"
static const char vae_kl_config_rest[] = CONFIG_REST,
                  vae_flux2_config_rest[] = CONFIG_REST ", \"patch_size\": [2, 2]";

/* vae_configure replaces the widths by those of the tensors, because the decoder may be narrower than the
 * encoder (decoder_block_out_channels in Flux.2's small decoder). */
/* clang-format off */
#define DECODER_DIMENSIONS(latent, quant)                                                                    \
    VAE_DIMENSIONS(latent, 0, 1, OF_TENSOR(4, 1, "decoder.conv_in.weight"), .key = "latent_channels"),       \
    {"vae_quant", quant, 0, 1, .place = QUANT,                                                               \
     OF_TENSOR(0, 0, "post_quant_conv.weight", "decoder.post_quant_conv.weight"),                            \
     .key = "use_post_quant_conv", .form = FORM_BOOL},                                                       \
    {.place = QUANT, .key = "use_quant_conv", .form = FORM_BOOL},                                            \
    {.place = CHANNELS + 3, .key = "block_out_channels.0"},                                                  \
    {.place = CHANNELS + 2, .key = "block_out_channels.1"},                                                  \
    {.place = CHANNELS + 1, .key = "block_out_channels.2"},                                                  \
    {.place = CHANNELS, .key = "block_out_channels.3"},                                                      \
    {.place = ENCODER_RESNETS, .key = "layers_per_block"}
/* clang-format on */
static const struct dimension vae_kl_dimensions[] = {DECODER_DIMENSIONS(16, 0)};
static const struct dimension vae_flux2_dimensions[] = {DECODER_DIMENSIONS(32, 1)};

static const struct measured_block vae_kl_measured[] = {
    {.name = "decoder",
     .shape = "Flux's autoencoder, latent to 512 x 512 pixels",
     .text_rows = 1,
     .text_columns = 1,
     .latent_channels = 16,
     .latent_side = 64,
     .picture_side = 512,
     .rounds = 3},
    {0}};

#define LATENT_NORM_TENSORS                                                                                  \
    { .tensors = &vae_kl_kind_norm, .eps_key = "batch_norm_eps", .eps = 1e-4 }
#define PREDICTED_PACKED_IMAGE .latent_channels = 128, .latent_side = 64, .picture_side = 1024

/* Initialiser of a decoder family. of: the family's name, and the prefix of its other static data; class:
 * diffusers class; norm: latent_norm. */
/* clang-format off */
#define DECODER_FAMILY(of, class, norm, ...)                                                                 \
    {.name = #of, .kind = FAMILY_DECODER, .display_name = "autoencoder", .details = &of##_half,              \
     .files = {.config_key = "_class_name", .config_value = class, .probe = of##_probe,                      \
               .ignorable = vae_kl_ignorable},                                                               \
     .config = {.dimensions = of##_dimensions, .n_dimensions = COUNT_OF(of##_dimensions),                    \
                .settings = vae_settings_rows, .n_settings = COUNT_OF(vae_settings_rows),                    \
                .latent_norm = norm, .expects = vae_expects, .configure = vae_configure,                     \
                .derive_dims = vae_derive_dims, .derive = vae_derive, .rest = of##_config_rest},             \
     .blocks = {.list = vae_kl_blocks, .dims = vae_kl_block_dims},                                           \
     .state = {.bytes = sizeof(struct vae_state), .declare = vae_declare_decoder}, __VA_ARGS__}
/* clang-format on */

/* .predicted: the last level, at full resolution. */
const struct family family_vae_kl =
    DECODER_FAMILY(vae_kl, "AutoencoderKL", VAE_LATENT_NORM,
                   .predicted = {{.kind = "resnet", .number = 301, .tokens = 1024 * 1024, PREDICTED_IMAGE},
                                 {.kind = "decode", .whole = true, .tokens = 1024 * 1024, PREDICTED_IMAGE}},
                   .measured = vae_kl_measured);
const struct family family_vae_flux2 = DECODER_FAMILY(
    vae_flux2, "AutoencoderKLFlux2", LATENT_NORM_TENSORS,
    .predicted = {{.kind = "resnet", .number = 301, .tokens = 1024 * 1024, PREDICTED_PACKED_IMAGE}});

/* AutoencoderKL encoder: image to the mean and log variance of its latent.
 *
 * conv_in, then per level resnets and a stride-2 convolution, two resnets around a single-head attention,
 * group norm, SiLU, conv_out: see vae_blocks.h. Its weights lie in the decoder's file. */

/* In the authors' checkpoints the mid block's resnets are numbered from 1. */
#define DOWN_RESNET               "encoder.down_blocks.%d.resnets.%d."
#define CHECKPOINT_DOWN_RESNET    "encoder.down.%d.block.%d."
#define DOWN_ATTENTION            "encoder.mid_block.attentions.0."
#define CHECKPOINT_DOWN_ATTENTION "encoder.mid.attn_1."

static void vae_kl_encoder_forward_downsample(struct context *x, const void *weights,
                                              const struct visit_scope *scope) {
    vae_forward_downsample(x, weights, scope, scope->number + 1);
}

BLOCK_OF_LIST(vae_kl_encoder_kind_in, "conv_in", "conv_in", PICTURE_IN, in_weights, "", "",
              vae_forward_picture_in, .never_quantised = true);
BLOCK_OF_LIST(vae_kl_encoder_kind_down_resnet, "resnet", "down_blocks.%d.resnets.%d", RESNET, resnet_weights,
              DOWN_RESNET, CHECKPOINT_DOWN_RESNET, vae_forward_resnet, .never_quantised = true);
BLOCK_OF_LIST(vae_kl_encoder_kind_wider_resnet, "wider_resnet", "down_blocks.%d.resnets.%d", WIDER_RESNET,
              resnet_weights, DOWN_RESNET, CHECKPOINT_DOWN_RESNET, vae_forward_resnet,
              .never_quantised = true);
CONV_TABLE(vae_kl_encoder_downsample_table, OUT, OUT, K3, "encoder.down_blocks.%d.downsamplers.0.conv",
           "encoder.down.%d.downsample.conv");
BLOCK(vae_kl_encoder_kind_downsample, "downsample", "down_blocks.%d.downsample",
      vae_kl_encoder_downsample_table, linear_weights, vae_kl_encoder_forward_downsample,
      .never_quantised = true);
BLOCK_OF_LIST(vae_kl_encoder_kind_mid_resnet, "mid_resnet", "mid_block.resnets.%d", RESNET, resnet_weights,
              "encoder.mid_block.resnets.%d.", "encoder.mid.block_%d.", vae_forward_resnet,
              .never_quantised = true);
BLOCK_OF_LIST(vae_kl_encoder_kind_attention, "attention", "mid_block.attentions.0", ATTENTION,
              attention_weights, DOWN_ATTENTION, CHECKPOINT_DOWN_ATTENTION, vae_forward_attention,
              .never_quantised = true);
BLOCK_OF_LIST(vae_kl_encoder_kind_out, "conv_out", "conv_out", MOMENTS_OUT, out_weights, "", "",
              vae_forward_moments, .never_quantised = true);

static bool vae_has_encoder(const struct tensor_index *index) {
    return index_find(index, "encoder.conv_in.weight") &&
           (index_find(index, "encoder.mid_block.resnets.0.norm1.weight") ||
            index_find(index, "encoder.mid.block_1.conv1.weight"));
}

static bool vae_kl_encoder_probe(const struct tensor_index *index) {
    return vae_has_encoder(index) && !index_find(index, LATENT_MEAN);
}

static bool vae_flux2_encoder_probe(const struct tensor_index *index) {
    return vae_has_encoder(index) && index_find(index, LATENT_MEAN);
}

#define ENCODER_NAMES                                                                                        \
    .word = "encoder", .level = "encoder.down_blocks.", .level_checkpoint = "encoder.down.",                 \
    .resnet = DOWN_RESNET, .resnet_checkpoint = CHECKPOINT_DOWN_RESNET, .attention = DOWN_ATTENTION,         \
    .attention_checkpoint = CHECKPOINT_DOWN_ATTENTION
static const struct vae_half vae_kl_encoder_half = {ENCODER_NAMES, .packing = 1};
static const struct vae_half vae_flux2_encoder_half = {ENCODER_NAMES, .packing = 2};

static enum status vae_kl_encoder_configure(struct component *c, const struct config *config,
                                            struct error *e) {
    c->dims[LATENT] = c->dims[MOMENTS] / 2;
    return vae_configure(c, config, e);
}

static int vae_kl_encoder_blocks(const struct component *c, struct block_ref *refs) {
    const struct vae_settings *s = (const struct vae_settings *)c->settings;
    int n = vae_list_norm(c, refs), levels = c->dims[LEVELS];
    refs[n++] = (struct block_ref){.kind = &vae_kl_encoder_kind_in};
    for (int level = 0; level < levels; level++) {
        for (int i = 0; i < c->dims[RESNETS]; i++)
            refs[n++] = (struct block_ref){.kind = i == 0 && vae_level_has_shortcut(c, level)
                                                       ? &vae_kl_encoder_kind_wider_resnet
                                                       : &vae_kl_encoder_kind_down_resnet,
                                           .number = level * BLOCK_NUMBER_STEP + i};
        if (level + 1 < levels)
            refs[n++] = (struct block_ref){.kind = &vae_kl_encoder_kind_downsample, .number = level};
    }
    refs[n++] = (struct block_ref){.kind = &vae_kl_encoder_kind_mid_resnet, .number = 0, .number_offset = 1};
    if (s->attention) refs[n++] = (struct block_ref){.kind = &vae_kl_encoder_kind_attention};
    refs[n++] = (struct block_ref){.kind = &vae_kl_encoder_kind_mid_resnet, .number = 1, .number_offset = 1};
    refs[n++] = (struct block_ref){.kind = &vae_kl_encoder_kind_out};
    return n;
}

static void vae_kl_encoder_block_dims(const struct component *c, const struct block_ref *ref, int32_t *dims) {
    int level = c->dims[LEVELS] - 1;
    if (ref->kind == &vae_kl_encoder_kind_in) level = 0;
    if (ref->kind == &vae_kl_encoder_kind_down_resnet || ref->kind == &vae_kl_encoder_kind_wider_resnet)
        level = ref->number / BLOCK_NUMBER_STEP;
    if (ref->kind == &vae_kl_encoder_kind_downsample) level = ref->number;
    dims[OUT] = dims[CHANNELS + level];
    dims[IN] = ref->kind == &vae_kl_encoder_kind_wider_resnet ? dims[CHANNELS + level - 1] : dims[OUT];
}

static const char *const vae_kl_encoder_ignorable[] = {"decoder.", "post_quant_conv.", NORM_COUNTER, NULL};

/* clang-format off */
#define ENCODER_DIMENSIONS(latent, quant)                                                                    \
    VAE_DIMENSIONS(latent, VAE_LEVELS - 1, -1, .key = NULL),                                                 \
    {"vae_quant", quant, 0, 1, .place = QUANT,                                                               \
     OF_TENSOR(0, 0, "quant_conv.weight", "encoder.quant_conv.weight")},                                     \
    {.place = MOMENTS, OF_TENSOR(4, 0, "encoder.conv_out.weight")}
/* clang-format on */
static const struct dimension vae_kl_encoder_dimensions[] = {ENCODER_DIMENSIONS(16, 0)};
static const struct dimension vae_flux2_encoder_dimensions[] = {ENCODER_DIMENSIONS(32, 1)};

static void vae_kl_encoder_derive_dims(struct component *c) {
    vae_derive_dims(c);
    c->dims[RESNETS]--; /* encoder levels have one resnet less than vae_resnets, the number per decoder level
                         */
}

/* Initialiser of an encoder family, as DECODER_FAMILY. The encoder reads the decoder's config.json. */
/* clang-format off */
#define ENCODER_FAMILY(of, class, norm, ...)                                                                 \
    {.name = #of, .kind = FAMILY_ENCODER, .display_name = "autoencoder's encoder", .details = &of##_half,    \
     .files = {.config_key = "_class_name", .config_value = class, .probe = of##_probe,                      \
               .ignorable = vae_kl_encoder_ignorable},                                                       \
     .config = {.dimensions = of##_dimensions, .n_dimensions = COUNT_OF(of##_dimensions),                    \
                .settings = vae_settings_rows, .n_settings = COUNT_OF(vae_settings_rows),                    \
                .latent_norm = norm, .expects = vae_expects, .configure = vae_kl_encoder_configure,          \
                .derive_dims = vae_kl_encoder_derive_dims, .derive = vae_derive},                            \
     .blocks = {.list = vae_kl_encoder_blocks, .dims = vae_kl_encoder_block_dims},                           \
     .state = {.bytes = sizeof(struct vae_state), .declare = vae_declare_encoder}, __VA_ARGS__}
/* clang-format on */

const struct family family_vae_kl_encoder =
    ENCODER_FAMILY(vae_kl_encoder, "AutoencoderKL", VAE_LATENT_NORM,
                   .predicted = {{.kind = "resnet", .tokens = 1024 * 1024, PREDICTED_IMAGE}});
const struct family family_vae_flux2_encoder =
    ENCODER_FAMILY(vae_flux2_encoder, "AutoencoderKLFlux2", LATENT_NORM_TENSORS,
                   .predicted = {{.kind = "resnet", .tokens = 1024 * 1024, PREDICTED_PACKED_IMAGE}});
