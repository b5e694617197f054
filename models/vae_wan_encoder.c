/* VAE encoder of Wan 2.1 and Qwen-Image: image or video to the mean and log variance of its latent.
 *
 * conv_in, then per level resnets and a stride-2 convolution, two resnets around a single-head attention,
 * norm, SiLU, conv_out, a 1x1 convolution: see vae_blocks.h, vae_causal.h, vae_wan_half.h. Its weights lie in
 * the decoder's file. */
#include "models/models.h"
#include "models/vae_wan_half.h"

/* diffusers and the authors both number blocks of all levels consecutively. */
#define DOWN            "encoder.down_blocks.%d."
#define CHECKPOINT_DOWN "encoder.downsamples.%d."

static const struct weight_spec vae_wan_encoder_in_table[] = {VAE_WAN_IN(conv_weights, COLOURS, "encoder.")};
static const struct weight_spec vae_wan_encoder_mid_resnet_table[] = {
    VAE_WAN_RESNET("encoder.mid_block.resnets.%d.", "encoder.middle.%d.")};
static const struct weight_spec vae_wan_encoder_attention_table[] = {
    VAE_WAN_ATTENTION("encoder.mid_block.attentions.0.", "encoder.middle.1.")};
static const struct weight_spec vae_wan_encoder_down_resnet_table[] = {VAE_WAN_RESNET(DOWN, CHECKPOINT_DOWN)};
static const struct weight_spec vae_wan_encoder_wider_resnet_table[] = {
    VAE_WAN_RESNET(DOWN, CHECKPOINT_DOWN), VAE_WAN_SHORTCUT(DOWN, CHECKPOINT_DOWN)};
static const struct weight_spec vae_wan_encoder_downsample_table[] = {
    VAE_WAN_RESAMPLE(DOWN, CHECKPOINT_DOWN)};
static const struct weight_spec vae_wan_encoder_time_conv_table[] = {
    VAE_WAN_TIME_CONV(DOWN, CHECKPOINT_DOWN)};
static const struct weight_spec vae_wan_encoder_out_table[] = {
    VAE_WAN_OUT(MOMENTS, "encoder."),
    VAE_WAN_LAST_SLICE(out_weights, post, post_bias, MOMENTS, MOMENTS, K1, "quant_conv", "conv1"),
};

/* Weight tables of video models, which use all time slices of the kernels. */
static const struct weight_spec causal_in_table[] = {
    CAUSAL_CONV(causal_out_weights, conv, OUT, COLOURS, K3, "encoder.conv_in", "encoder.conv1")};
static const struct weight_spec causal_mid_resnet_table[] = {
    CAUSAL_RESNET("encoder.mid_block.resnets.%d.", "encoder.middle.%d.")};
static const struct weight_spec causal_down_resnet_table[] = {CAUSAL_RESNET(DOWN, CHECKPOINT_DOWN)};
static const struct weight_spec causal_wider_resnet_table[] = {CAUSAL_RESNET(DOWN, CHECKPOINT_DOWN),
                                                               CAUSAL_SHORTCUT(DOWN, CHECKPOINT_DOWN)};
static const struct weight_spec causal_downsample_table[] = {CAUSAL_RESAMPLE(DOWN, CHECKPOINT_DOWN)};
static const struct weight_spec causal_downsample_time_table[] = {
    CAUSAL_RESAMPLE_TIME(DOWN, CHECKPOINT_DOWN)};
static const struct weight_spec causal_out_table[] = {
    CAUSAL_OUT(MOMENTS, "encoder."),
    VAE_WAN_LAST_SLICE(causal_out_weights, post, post_bias, MOMENTS, MOMENTS, K1, "quant_conv", "conv1"),
};

static void vae_wan_encoder_forward_downsample(struct context *x, const void *weights,
                                               const struct visit_scope *scope) {
    const struct vae_wan_settings *settings = scope->settings;
    vae_forward_downsample(x, weights, scope, scope->number / settings->resnet_number_stride + 1);
}

static const struct block_kind vae_wan_encoder_kind_in =
    BLOCK_KIND("conv_in", "conv_in", vae_wan_encoder_in_table, conv_weights, vae_forward_picture_in,
               .never_quantised = true);
static const struct block_kind vae_wan_encoder_kind_down_resnet =
    BLOCK_KIND("resnet", "down_blocks.%d", vae_wan_encoder_down_resnet_table, resnet_weights,
               vae_forward_resnet, .never_quantised = true);
static const struct block_kind vae_wan_encoder_kind_wider_resnet =
    BLOCK_KIND("wider_resnet", "down_blocks.%d", vae_wan_encoder_wider_resnet_table, resnet_weights,
               vae_forward_resnet, .never_quantised = true);
static const struct block_kind vae_wan_encoder_kind_downsample =
    BLOCK_KIND("downsample", "down_blocks.%d", vae_wan_encoder_downsample_table, conv_weights,
               vae_wan_encoder_forward_downsample, .never_quantised = true);
static const struct block_kind vae_wan_encoder_kind_time_conv =
    BLOCK_KIND("frames", "down_blocks.%d.frames", vae_wan_encoder_time_conv_table, conv_weights, NULL,
               .never_quantised = true);
static const struct block_kind vae_wan_encoder_kind_mid_resnet =
    BLOCK_KIND("mid_resnet", "mid_block.resnets.%d", vae_wan_encoder_mid_resnet_table, resnet_weights,
               vae_forward_resnet, .never_quantised = true);
static const struct block_kind vae_wan_encoder_kind_attention =
    BLOCK_KIND("attention", "mid_block.attentions.0", vae_wan_encoder_attention_table,
               vae_wan_attention_weights, vae_wan_forward_attention, .never_quantised = true);
static const struct block_kind vae_wan_encoder_kind_out =
    BLOCK_KIND("conv_out", "conv_out", vae_wan_encoder_out_table, out_weights, vae_forward_moments,
               .never_quantised = true);

static const struct vae_wan_kinds vae_wan_encoder_image_kinds = {
    .in = &vae_wan_encoder_kind_in,
    .mid_resnet = &vae_wan_encoder_kind_mid_resnet,
    .attention = &vae_wan_encoder_kind_attention,
    .resnet = &vae_wan_encoder_kind_down_resnet,
    .wider_resnet = &vae_wan_encoder_kind_wider_resnet,
    .resample = &vae_wan_encoder_kind_downsample,
    .time_conv = &vae_wan_encoder_kind_time_conv,
    .out = &vae_wan_encoder_kind_out,
};

const struct block_kind vae_wan_encoder_causal_in =
    BLOCK_KIND("conv_in", "conv_in", causal_in_table, causal_out_weights, causal_forward_picture_in,
               .never_quantised = true);
static const struct block_kind causal_kind_resnet =
    BLOCK_KIND("resnet", "down_blocks.%d", causal_down_resnet_table, causal_resnet_weights,
               vae_wan_forward_causal_resnet, .never_quantised = true);
static const struct block_kind causal_kind_wider_resnet =
    BLOCK_KIND("wider_resnet", "down_blocks.%d", causal_wider_resnet_table, causal_resnet_weights,
               vae_wan_forward_causal_resnet, .never_quantised = true);
static const struct block_kind causal_kind_downsample =
    BLOCK_KIND("downsample", "down_blocks.%d", causal_downsample_table, causal_resample_weights,
               vae_wan_forward_causal_downsample, .never_quantised = true);
static const struct block_kind causal_kind_downsample_time =
    BLOCK_KIND("downsample_in_time", "down_blocks.%d", causal_downsample_time_table, causal_resample_weights,
               vae_wan_forward_causal_downsample, .never_quantised = true);
const struct block_kind vae_wan_encoder_causal_mid_resnet =
    BLOCK_KIND("mid_resnet", "mid_block.resnets.%d", causal_mid_resnet_table, causal_resnet_weights,
               vae_wan_forward_causal_mid_resnet, .never_quantised = true);
const struct block_kind vae_wan_encoder_causal_attention =
    BLOCK_KIND("attention", "mid_block.attentions.0", vae_wan_encoder_attention_table,
               vae_wan_attention_weights, vae_wan_forward_causal_attention, .never_quantised = true);
const struct block_kind vae_wan_encoder_causal_out =
    BLOCK_KIND("conv_out", "conv_out", causal_out_table, causal_out_weights, causal_forward_moments,
               .never_quantised = true);

static const struct vae_wan_kinds vae_wan_encoder_causal_kinds = {
    .in = &vae_wan_encoder_causal_in,
    .mid_resnet = &vae_wan_encoder_causal_mid_resnet,
    .attention = &vae_wan_encoder_causal_attention,
    .resnet = &causal_kind_resnet,
    .wider_resnet = &causal_kind_wider_resnet,
    .resample = &causal_kind_downsample,
    .resample_time = &causal_kind_downsample_time,
    .out = &vae_wan_encoder_causal_out,
};

static bool vae_wan_encoder_probe(const struct tensor_index *index) {
    if (family_vae_wan22_encoder.probe(index)) return false;
    return index_find(index, "encoder.mid_block.resnets.0.norm1.gamma") ||
           index_find(index, "encoder.middle.0.residual.0.gamma");
}

static const struct vae_wan_half vae_wan_encoder_half = {
    .image = &vae_wan_encoder_image_kinds,
    .video = &vae_wan_encoder_causal_kinds,
    .word = "encoder",
    .row = {"encoder.down_blocks.", "encoder.downsamples."},
    .row_bias = {"conv1.bias", "residual.2.bias"},
};

static enum status vae_wan_encoder_configure(struct component *c, const struct config *config,
                                             struct error *e) {
    (void)config;
    return vae_wan_configure(c, &vae_wan_encoder_half, e);
}

static void vae_wan_encoder_derive_dims(struct component *c) {
    vae_wan_derive_dims(c, &vae_wan_encoder_half);
    c->dims[RESNETS]--; /* vae_resnets counts a decoder level's resnets; an encoder level has one less */
}

static void vae_wan_encoder_derive(struct component *c) {
    vae_wan_derive(c, &vae_wan_encoder_half);
}

static int vae_wan_encoder_blocks(const struct component *c, struct block_ref *refs) {
    return vae_wan_list_blocks(c, &vae_wan_encoder_half, refs);
}

static void vae_wan_encoder_block_dims(const struct component *c, const struct block_ref *ref,
                                       int32_t *dims) {
    vae_wan_dims_of_block(c, &vae_wan_encoder_half, ref, dims);
}

static void vae_wan_encoder_declare(const struct component *c, struct lane *lanes, int n_lanes,
                                    struct arena *arena, struct arena *pictures, bool *ok) {
    if (c->video)
        causal_declare_encoder(c, lanes, n_lanes, false, arena, pictures, ok);
    else
        vae_declare_encoder(c, lanes, n_lanes, arena, pictures, ok);
}

static const char *const vae_wan_encoder_ignorable[] = {"decoder.", "post_quant_conv.", "conv2.", NULL};

static const struct dimension vae_wan_encoder_dimensions[] = {VAE_WAN_DIMENSIONS};

/* The encoder shares the decoder's config.json. */
const struct family family_vae_wan_encoder = {
    .name = "vae_wan_encoder",
    .kind = FAMILY_ENCODER,
    .display_name = "autoencoder's encoder",
    .config_key = "_class_name",
    .config_value = "AutoencoderKLQwenImage",
    .config_others = vae_wan_video_classes,
    .probe = vae_wan_encoder_probe,
    .dimensions = vae_wan_encoder_dimensions,
    .n_dimensions = COUNT_OF(vae_wan_encoder_dimensions),
    .lists = vae_wan_lists,
    .n_lists = N_VAE_WAN_LISTS,
    .expects = vae_wan_expects,
    .configure = vae_wan_encoder_configure,
    .derive_dims = vae_wan_encoder_derive_dims,
    .derive = vae_wan_encoder_derive,
    .blocks = vae_wan_encoder_blocks,
    .block_dims = vae_wan_encoder_block_dims,
    .ignorable = vae_wan_encoder_ignorable,
    .lane_state_bytes = VAE_WAN_STATE_BYTES,
    .declare = vae_wan_encoder_declare,
    .predicted = {.kind = "resnet", .tokens = 1024 * 1024, PREDICTED_IMAGE},
};
