/* AutoencoderKL encoder: image to the mean and log variance of its latent.
 *
 * conv_in, then per level resnets and a stride-2 convolution, two resnets around a single-head attention,
 * group norm, SiLU, conv_out: see vae_blocks.h. Its weights lie in the decoder's file. */
#include "models/models.h"
#include "models/vae_kl_half.h"

static const struct weight_spec vae_kl_encoder_in_table[] = {
    BLOCK_WEIGHT(conv_weights, weight, 1, "encoder.conv_in.weight", 4, OUT, COLOURS, K3, K3),
    BLOCK_WEIGHT(conv_weights, bias, 1, "encoder.conv_in.bias", 1, OUT),
};

/* The authors' checkpoints count the mid block's resnets from 1. */
#define DOWN_RESNET            "encoder.down_blocks.%d.resnets.%d."
#define CHECKPOINT_DOWN_RESNET "encoder.down.%d.block.%d."
#define ATTENTION              "encoder.mid_block.attentions.0."
#define CHECKPOINT_ATTENTION   "encoder.mid.attn_1."

static const struct weight_spec vae_kl_encoder_mid_resnet_table[] = {
    VAE_RESNET("encoder.mid_block.resnets.%d.", "encoder.mid.block_%d.")};
static const struct weight_spec vae_kl_encoder_down_resnet_table[] = {
    VAE_RESNET(DOWN_RESNET, CHECKPOINT_DOWN_RESNET)};
static const struct weight_spec vae_kl_encoder_wider_resnet_table[] = {
    VAE_RESNET(DOWN_RESNET, CHECKPOINT_DOWN_RESNET), VAE_SHORTCUT(DOWN_RESNET, CHECKPOINT_DOWN_RESNET)};
static const struct weight_spec vae_kl_encoder_attention_table[] = {
    VAE_ATTENTION(ATTENTION, CHECKPOINT_ATTENTION)};

static const struct weight_spec vae_kl_encoder_downsample_table[] = {
    BLOCK_WEIGHT_NAMED(conv_weights, weight, 1, "encoder.down_blocks.%d.downsamplers.0.conv.weight",
                       "encoder.down.%d.downsample.conv.weight", 4, OUT, OUT, K3, K3),
    BLOCK_WEIGHT_NAMED(conv_weights, bias, 1, "encoder.down_blocks.%d.downsamplers.0.conv.bias",
                       "encoder.down.%d.downsample.conv.bias", 1, OUT),
};

#define OUT_ROWS                                                                                             \
    BLOCK_WEIGHT_NAMED(out_weights, norm, 0, "encoder.conv_norm_out.weight", "encoder.norm_out.weight", 1,   \
                       OUT),                                                                                 \
        BLOCK_WEIGHT_NAMED(out_weights, norm_bias, 1, "encoder.conv_norm_out.bias", "encoder.norm_out.bias", \
                           1, OUT),                                                                          \
        BLOCK_WEIGHT(out_weights, weight, 1, "encoder.conv_out.weight", 4, MOMENTS, OUT, K3, K3),            \
        BLOCK_WEIGHT(out_weights, bias, 1, "encoder.conv_out.bias", 1, MOMENTS)
static const struct weight_spec vae_kl_encoder_out_table[] = {OUT_ROWS};
static const struct weight_spec vae_kl_encoder_quant_out_table[] = {
    OUT_ROWS,
    BLOCK_WEIGHT(out_weights, post, 1, "quant_conv.weight", 4, MOMENTS, MOMENTS, K1, K1),
    BLOCK_WEIGHT(out_weights, post_bias, 1, "quant_conv.bias", 1, MOMENTS),
};

static void vae_kl_encoder_forward_downsample(struct context *x, const void *weights,
                                              const struct visit_scope *scope) {
    vae_forward_downsample(x, weights, scope, scope->number + 1);
}

static const struct block_kind vae_kl_encoder_kind_in =
    BLOCK_KIND("conv_in", "conv_in", vae_kl_encoder_in_table, conv_weights, vae_forward_picture_in,
               .never_quantised = true);
static const struct block_kind vae_kl_encoder_kind_down_resnet =
    BLOCK_KIND("resnet", "down_blocks.%d.resnets.%d", vae_kl_encoder_down_resnet_table, resnet_weights,
               vae_forward_resnet, .never_quantised = true);
static const struct block_kind vae_kl_encoder_kind_wider_resnet =
    BLOCK_KIND("wider_resnet", "down_blocks.%d.resnets.%d", vae_kl_encoder_wider_resnet_table, resnet_weights,
               vae_forward_resnet, .never_quantised = true);
static const struct block_kind vae_kl_encoder_kind_downsample =
    BLOCK_KIND("downsample", "down_blocks.%d.downsample", vae_kl_encoder_downsample_table, conv_weights,
               vae_kl_encoder_forward_downsample, .never_quantised = true);
static const struct block_kind vae_kl_encoder_kind_mid_resnet =
    BLOCK_KIND("mid_resnet", "mid_block.resnets.%d", vae_kl_encoder_mid_resnet_table, resnet_weights,
               vae_forward_resnet, .never_quantised = true);
static const struct block_kind vae_kl_encoder_kind_attention =
    BLOCK_KIND("attention", "mid_block.attentions.0", vae_kl_encoder_attention_table, attention_weights,
               vae_forward_attention, .never_quantised = true);
static const struct block_kind vae_kl_encoder_kind_out =
    BLOCK_KIND("conv_out", "conv_out", vae_kl_encoder_out_table, out_weights, vae_forward_moments,
               .never_quantised = true);

static const struct block_kind vae_kl_encoder_kind_quant_out =
    BLOCK_KIND("quant_conv_out", "conv_out", vae_kl_encoder_quant_out_table, out_weights, vae_forward_moments,
               .never_quantised = true);

static bool vae_kl_encoder_probe(const struct tensor_index *index) {
    return index_find(index, "encoder.conv_in.weight") &&
           (index_find(index, "encoder.mid_block.resnets.0.norm1.weight") ||
            index_find(index, "encoder.mid.block_1.conv1.weight"));
}

static const struct vae_half vae_kl_encoder_half = {
    .word = "encoder",
    .level = "encoder.down_blocks.",
    .level_checkpoint = "encoder.down.",
    .resnet = DOWN_RESNET,
    .resnet_checkpoint = CHECKPOINT_DOWN_RESNET,
    .attention = ATTENTION,
    .attention_checkpoint = CHECKPOINT_ATTENTION,
};

static enum status vae_kl_encoder_configure(struct component *c, const struct config *config,
                                            struct error *e) {
    c->dims[LATENT] = c->dims[MOMENTS] / 2;
    return vae_configure(c, &vae_kl_encoder_half, config, e);
}

static int vae_kl_encoder_blocks(const struct component *c, struct block_ref *refs) {
    const struct vae_settings *s = (const struct vae_settings *)c->settings;
    int n = 0, levels = c->dims[LEVELS];
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
    refs[n++] = (struct block_ref){.kind = c->dims[QUANT] ? &vae_kl_encoder_kind_quant_out
                                                          : &vae_kl_encoder_kind_out};
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

static const char *const vae_kl_encoder_ignorable[] = {"decoder.", "post_quant_conv.", NULL};

static const struct dimension vae_kl_encoder_dimensions[] = {
    VAE_DIMENSIONS(VAE_LEVELS - 1, -1, .key = NULL),
    {"vae_quant", 0, 0, 1, .place = QUANT, OF_TENSOR(0, 0, "quant_conv.weight")},
    {.place = MOMENTS, OF_TENSOR(4, 0, "encoder.conv_out.weight")},
};

static void vae_kl_encoder_derive_dims(struct component *c) {
    vae_derive_dims(c);
    c->dims[RESNETS]--; /* vae_resnets counts a decoder level's resnets; an encoder level has one less */
}

/* The encoder shares the decoder's config.json. */
const struct family family_vae_kl_encoder = {
    .name = "vae_kl_encoder",
    .kind = FAMILY_ENCODER,
    .display_name = "autoencoder's encoder",
    .config_key = "_class_name",
    .config_value = "AutoencoderKL",
    .probe = vae_kl_encoder_probe,
    .dimensions = vae_kl_encoder_dimensions,
    .n_dimensions = COUNT_OF(vae_kl_encoder_dimensions),
    .settings = vae_settings_rows,
    .n_settings = N_VAE_SETTINGS,
    .expects = vae_expects,
    .configure = vae_kl_encoder_configure,
    .derive_dims = vae_kl_encoder_derive_dims,
    .derive = vae_derive,
    .blocks = vae_kl_encoder_blocks,
    .block_dims = vae_kl_encoder_block_dims,
    .ignorable = vae_kl_encoder_ignorable,
    .lane_state_bytes = sizeof(struct vae_state),
    .declare = vae_declare_encoder,
    .predicted = {.kind = "resnet", .tokens = 1024 * 1024, PREDICTED_IMAGE},
};
