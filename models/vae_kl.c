/* AutoencoderKL decoder (Stable Diffusion, Flux, Z-Image): latent to image.
 *
 * conv_in, two resnets around a single-head attention, then per level resnets and a nearest-neighbour
 * upsampling convolution, group norm, SiLU, conv_out: see vae_blocks.h. */
#include "models/models.h"
#include "models/vae_kl_half.h"

#define IN_ROWS                                                                                              \
    BLOCK_WEIGHT(latent_in_weights, weight, 1, "decoder.conv_in.weight", 4, OUT, LATENT, K3, K3),            \
        BLOCK_WEIGHT(latent_in_weights, bias, 1, "decoder.conv_in.bias", 1, OUT)
static const struct weight_spec vae_kl_in_table[] = {IN_ROWS};
static const struct weight_spec vae_kl_quant_in_table[] = {
    BLOCK_WEIGHT(latent_in_weights, post, 1, "post_quant_conv.weight", 4, LATENT, LATENT, K1, K1),
    BLOCK_WEIGHT(latent_in_weights, post_bias, 1, "post_quant_conv.bias", 1, LATENT),
    IN_ROWS,
};

/* The authors' checkpoints count the mid block's resnets from 1, and levels from the image to the latent. */
#define UP_RESNET            "decoder.up_blocks.%d.resnets.%d."
#define CHECKPOINT_UP_RESNET "decoder.up.%d.block.%d."
#define ATTENTION            "decoder.mid_block.attentions.0."
#define CHECKPOINT_ATTENTION "decoder.mid.attn_1."

static const struct weight_spec vae_kl_mid_resnet_table[] = {
    VAE_RESNET("decoder.mid_block.resnets.%d.", "decoder.mid.block_%d.")};
static const struct weight_spec vae_kl_up_resnet_table[] = {VAE_RESNET(UP_RESNET, CHECKPOINT_UP_RESNET)};
static const struct weight_spec vae_kl_wider_resnet_table[] = {VAE_RESNET(UP_RESNET, CHECKPOINT_UP_RESNET),
                                                               VAE_SHORTCUT(UP_RESNET, CHECKPOINT_UP_RESNET)};
static const struct weight_spec vae_kl_attention_table[] = {VAE_ATTENTION(ATTENTION, CHECKPOINT_ATTENTION)};

static const struct weight_spec vae_kl_upsample_table[] = {
    BLOCK_WEIGHT_NAMED(conv_weights, weight, 1, "decoder.up_blocks.%d.upsamplers.0.conv.weight",
                       "decoder.up.%d.upsample.conv.weight", 4, OUT, OUT, K3, K3),
    BLOCK_WEIGHT_NAMED(conv_weights, bias, 1, "decoder.up_blocks.%d.upsamplers.0.conv.bias",
                       "decoder.up.%d.upsample.conv.bias", 1, OUT),
};

static const struct weight_spec vae_kl_out_table[] = {
    BLOCK_WEIGHT_NAMED(out_weights, norm, 0, "decoder.conv_norm_out.weight", "decoder.norm_out.weight", 1,
                       IN),
    BLOCK_WEIGHT_NAMED(out_weights, norm_bias, 1, "decoder.conv_norm_out.bias", "decoder.norm_out.bias", 1,
                       IN),
    BLOCK_WEIGHT(out_weights, weight, 1, "decoder.conv_out.weight", 4, COLOURS, IN, K3, K3),
    BLOCK_WEIGHT(out_weights, bias, 1, "decoder.conv_out.bias", 1, COLOURS),
};

static void vae_kl_forward_in(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct vae_settings *settings = scope->settings;
    struct latent_format format = {.n = 1, .scale = {settings->scale}, .shift = {settings->shift}};
    vae_forward_latent_in(x, weights, scope, &format);
}

static void vae_kl_forward_upsample(struct context *x, const void *weights, const struct visit_scope *scope) {
    vae_forward_upsample(x, weights, scope, scope->number + 1);
}

static const struct block_kind vae_kl_kind_in = BLOCK_KIND(
    "conv_in", "conv_in", vae_kl_in_table, latent_in_weights, vae_kl_forward_in, .never_quantised = true);
static const struct block_kind vae_kl_kind_quant_in =
    BLOCK_KIND("quant_conv_in", "conv_in", vae_kl_quant_in_table, latent_in_weights, vae_kl_forward_in,
               .never_quantised = true);
static const struct block_kind vae_kl_kind_mid_resnet =
    BLOCK_KIND("mid_resnet", "mid_block.resnets.%d", vae_kl_mid_resnet_table, resnet_weights,
               vae_forward_resnet, .never_quantised = true);
static const struct block_kind vae_kl_kind_attention =
    BLOCK_KIND("attention", "mid_block.attentions.0", vae_kl_attention_table, attention_weights,
               vae_forward_attention, .never_quantised = true);
static const struct block_kind vae_kl_kind_up_resnet =
    BLOCK_KIND("resnet", "up_blocks.%d.resnets.%d", vae_kl_up_resnet_table, resnet_weights,
               vae_forward_resnet, .never_quantised = true);
static const struct block_kind vae_kl_kind_wider_resnet =
    BLOCK_KIND("wider_resnet", "up_blocks.%d.resnets.%d", vae_kl_wider_resnet_table, resnet_weights,
               vae_forward_resnet, .never_quantised = true);
static const struct block_kind vae_kl_kind_upsample =
    BLOCK_KIND("upsample", "up_blocks.%d.upsample", vae_kl_upsample_table, conv_weights,
               vae_kl_forward_upsample, .never_quantised = true);
static const struct block_kind vae_kl_kind_out = BLOCK_KIND(
    "conv_out", "conv_out", vae_kl_out_table, out_weights, vae_forward_picture_out, .never_quantised = true);

static bool vae_kl_probe(const struct tensor_index *index) {
    return index_find(index, "decoder.conv_in.weight") &&
           (index_find(index, "decoder.mid_block.resnets.0.norm1.weight") ||
            index_find(index, "decoder.mid.block_1.conv1.weight"));
}

static const struct vae_half vae_kl_half = {
    .word = "decoder",
    .level = "decoder.up_blocks.",
    .level_checkpoint = "decoder.up.",
    .resnet = UP_RESNET,
    .resnet_checkpoint = CHECKPOINT_UP_RESNET,
    .attention = ATTENTION,
    .attention_checkpoint = CHECKPOINT_ATTENTION,
    .reversed_levels = true,
};

static enum status vae_kl_configure(struct component *c, const struct config *config, struct error *e) {
    return vae_configure(c, &vae_kl_half, config, e);
}

static int vae_kl_blocks(const struct component *c, struct block_ref *refs) {
    const struct vae_settings *s = (const struct vae_settings *)c->settings;
    int n = 0, levels = c->dims[LEVELS];
    refs[n++] = (struct block_ref){.kind = c->dims[QUANT] ? &vae_kl_kind_quant_in : &vae_kl_kind_in};
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

static const char *const vae_kl_ignorable[] = {"encoder.", "quant_conv.", NULL};

/* config.json lists a block type for each level; diffusers takes the number of levels from this list, not
 * from block_out_channels. */
#define DOWN "\"DownEncoderBlock2D\""
#define UP   "\"UpDecoderBlock2D\""
static const char vae_kl_config_rest[] =
    "\"in_channels\": 3, \"out_channels\": 3, \"down_block_types\": [" DOWN ", " DOWN ", " DOWN ", " DOWN
    "], \"up_block_types\": [" UP ", " UP ", " UP ", " UP "]";

static const struct dimension vae_kl_dimensions[] = {
    VAE_DIMENSIONS(0, 1, OF_TENSOR(4, 1, "decoder.conv_in.weight"), .key = "latent_channels"),
    {"vae_quant", 0, 0, 1, .place = QUANT, OF_TENSOR(0, 0, "post_quant_conv.weight"),
     .key = "use_post_quant_conv", .form = FORM_BOOL},
    {.place = QUANT, .key = "use_quant_conv", .form = FORM_BOOL},
    {.place = CHANNELS + 3, .key = "block_out_channels.0"},
    {.place = CHANNELS + 2, .key = "block_out_channels.1"},
    {.place = CHANNELS + 1, .key = "block_out_channels.2"},
    {.place = CHANNELS, .key = "block_out_channels.3"},
    {.place = ENCODER_RESNETS, .key = "layers_per_block"},
};

const struct family family_vae_kl = {
    .name = "vae_kl",
    .kind = FAMILY_DECODER,
    .display_name = "autoencoder",
    .config_key = "_class_name",
    .config_value = "AutoencoderKL",
    .probe = vae_kl_probe,
    .dimensions = vae_kl_dimensions,
    .n_dimensions = COUNT_OF(vae_kl_dimensions),
    .settings = vae_settings_rows,
    .n_settings = N_VAE_SETTINGS,
    .expects = vae_expects,
    .configure = vae_kl_configure,
    .derive_dims = vae_derive_dims,
    .derive = vae_derive,
    .config_rest = vae_kl_config_rest,
    .blocks = vae_kl_blocks,
    .block_dims = vae_kl_block_dims,
    .ignorable = vae_kl_ignorable,
    .lane_state_bytes = sizeof(struct vae_state),
    .declare = vae_declare_decoder,
    .predicted = {.kind = "resnet",
                  .number = 301,
                  /* the last level, full size */ .tokens = 1024 * 1024,
                  PREDICTED_IMAGE},
};
