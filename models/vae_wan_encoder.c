/* The encoder of the autoencoder of Wan 2.1 and Qwen-Image: a picture to the mean and the logarithm of the
 * variance of its latent.
 *
 * conv_in, then per level resnets and a convolution that leaves every other row and column, two resnets
 * around one single-head attention, norm, SiLU, conv_out, a 1x1 convolution: see vae_blocks.h,
 * vae_wan_half.h. It lies in the decoder's files. */
#include "models/models.h"
#include "models/vae_wan_half.h"

/* Both count the blocks of all levels in a row. */
#define DOWN          "encoder.down_blocks.%d."
#define DOWN_ORIGINAL "encoder.downsamples.%d."

static const struct weight_spec vae_wan_encoder_in_table[] = {VAE_WAN_IN(conv_weights, COLOURS, "encoder.")};
static const struct weight_spec vae_wan_encoder_mid_resnet_table[] = {
    VAE_WAN_RESNET("encoder.mid_block.resnets.%d.", "encoder.middle.%d.")};
static const struct weight_spec vae_wan_encoder_attention_table[] = {
    VAE_WAN_ATTENTION("encoder.mid_block.attentions.0.", "encoder.middle.1.")};
static const struct weight_spec vae_wan_encoder_down_resnet_table[] = {VAE_WAN_RESNET(DOWN, DOWN_ORIGINAL)};
static const struct weight_spec vae_wan_encoder_wider_resnet_table[] = {
    VAE_WAN_RESNET(DOWN, DOWN_ORIGINAL), VAE_WAN_SHORTCUT(DOWN, DOWN_ORIGINAL)};
static const struct weight_spec vae_wan_encoder_downsample_table[] = {VAE_WAN_STEP(DOWN, DOWN_ORIGINAL)};
static const struct weight_spec vae_wan_encoder_frames_table[] = {VAE_WAN_FRAMES(DOWN, DOWN_ORIGINAL)};
static const struct weight_spec vae_wan_encoder_out_table[] = {
    VAE_WAN_OUT(MOMENTS, "encoder."),
    VAE_WAN_CAUSAL(out_weights, post, post_bias, MOMENTS, MOMENTS, K1, "quant_conv", "conv1"),
};

/* Of videos. */
static const struct weight_spec film_in_table[] = {
    FILM_CONV(film_out_weights, conv, OUT, COLOURS, K3, "encoder.conv_in", "encoder.conv1")};
static const struct weight_spec film_mid_resnet_table[] = {
    FILM_RESNET("encoder.mid_block.resnets.%d.", "encoder.middle.%d.")};
static const struct weight_spec film_down_resnet_table[] = {FILM_RESNET(DOWN, DOWN_ORIGINAL)};
static const struct weight_spec film_wider_resnet_table[] = {FILM_RESNET(DOWN, DOWN_ORIGINAL),
                                                             FILM_SHORTCUT(DOWN, DOWN_ORIGINAL)};
static const struct weight_spec film_downsample_table[] = {FILM_STEP(DOWN, DOWN_ORIGINAL)};
static const struct weight_spec film_halve_table[] = {FILM_STEP_IN_TIME(DOWN, DOWN_ORIGINAL)};
static const struct weight_spec film_out_table[] = {
    FILM_OUT(MOMENTS, "encoder."),
    VAE_WAN_CAUSAL(film_out_weights, post, post_bias, MOMENTS, MOMENTS, K1, "quant_conv", "conv1"),
};

/* ---- the family ---- */

static void vae_wan_encoder_forward_downsample(struct context *x, const void *weights,
                                               const struct visit_scope *scope) {
    const struct vae_wan_settings *settings = scope->settings;
    vae_forward_downsample(x, weights, scope, scope->number / settings->level_numbers + 1);
}

static const struct block_kind vae_wan_encoder_kind_in =
    BLOCK_KIND("conv_in", "conv_in", vae_wan_encoder_in_table, conv_weights, vae_forward_picture_in,
               .keeps_types = true);
static const struct block_kind vae_wan_encoder_kind_down_resnet =
    BLOCK_KIND("resnet", "down_blocks.%d", vae_wan_encoder_down_resnet_table, resnet_weights,
               vae_forward_resnet, .keeps_types = true);
static const struct block_kind vae_wan_encoder_kind_wider_resnet =
    BLOCK_KIND("wider_resnet", "down_blocks.%d", vae_wan_encoder_wider_resnet_table, resnet_weights,
               vae_forward_resnet, .keeps_types = true);
static const struct block_kind vae_wan_encoder_kind_downsample =
    BLOCK_KIND("downsample", "down_blocks.%d", vae_wan_encoder_downsample_table, conv_weights,
               vae_wan_encoder_forward_downsample, .keeps_types = true);
static const struct block_kind vae_wan_encoder_kind_frames = BLOCK_KIND(
    "frames", "down_blocks.%d.frames", vae_wan_encoder_frames_table, conv_weights, NULL, .keeps_types = true);
static const struct block_kind vae_wan_encoder_kind_mid_resnet =
    BLOCK_KIND("mid_resnet", "mid_block.resnets.%d", vae_wan_encoder_mid_resnet_table, resnet_weights,
               vae_forward_resnet, .keeps_types = true);
static const struct block_kind vae_wan_encoder_kind_attention =
    BLOCK_KIND("attention", "mid_block.attentions.0", vae_wan_encoder_attention_table,
               vae_wan_attention_weights, vae_wan_forward_attention, .keeps_types = true);
static const struct block_kind vae_wan_encoder_kind_out = BLOCK_KIND(
    "conv_out", "conv_out", vae_wan_encoder_out_table, out_weights, vae_forward_moments, .keeps_types = true);

static const struct vae_wan_kinds vae_wan_encoder_picture_kinds = {
    .in = &vae_wan_encoder_kind_in,
    .middle = &vae_wan_encoder_kind_mid_resnet,
    .attention = &vae_wan_encoder_kind_attention,
    .resnet = &vae_wan_encoder_kind_down_resnet,
    .wider_resnet = &vae_wan_encoder_kind_wider_resnet,
    .step = &vae_wan_encoder_kind_downsample,
    .frames = &vae_wan_encoder_kind_frames,
    .out = &vae_wan_encoder_kind_out,
};

/* The same over time. */
const struct block_kind vae_wan_encoder_film_in = BLOCK_KIND(
    "conv_in", "conv_in", film_in_table, film_out_weights, film_forward_picture_in, .keeps_types = true);
static const struct block_kind film_kind_resnet =
    BLOCK_KIND("resnet", "down_blocks.%d", film_down_resnet_table, film_resnet_weights,
               vae_wan_forward_film_resnet, .keeps_types = true);
static const struct block_kind film_kind_wider_resnet =
    BLOCK_KIND("wider_resnet", "down_blocks.%d", film_wider_resnet_table, film_resnet_weights,
               vae_wan_forward_film_resnet, .keeps_types = true);
static const struct block_kind film_kind_downsample =
    BLOCK_KIND("downsample", "down_blocks.%d", film_downsample_table, film_step_weights,
               vae_wan_forward_film_down, .keeps_types = true);
static const struct block_kind film_kind_halve =
    BLOCK_KIND("downsample_in_time", "down_blocks.%d", film_halve_table, film_step_weights,
               vae_wan_forward_film_down, .keeps_types = true);
const struct block_kind vae_wan_encoder_film_mid_resnet =
    BLOCK_KIND("mid_resnet", "mid_block.resnets.%d", film_mid_resnet_table, film_resnet_weights,
               vae_wan_forward_film_middle, .keeps_types = true);
const struct block_kind vae_wan_encoder_film_attention =
    BLOCK_KIND("attention", "mid_block.attentions.0", vae_wan_encoder_attention_table,
               vae_wan_attention_weights, vae_wan_forward_film_attention, .keeps_types = true);
const struct block_kind vae_wan_encoder_film_out = BLOCK_KIND(
    "conv_out", "conv_out", film_out_table, film_out_weights, film_forward_moments, .keeps_types = true);

static const struct vae_wan_kinds vae_wan_encoder_kinds_of_films = {
    .in = &vae_wan_encoder_film_in,
    .middle = &vae_wan_encoder_film_mid_resnet,
    .attention = &vae_wan_encoder_film_attention,
    .resnet = &film_kind_resnet,
    .wider_resnet = &film_kind_wider_resnet,
    .step = &film_kind_downsample,
    .step_in_time = &film_kind_halve,
    .out = &vae_wan_encoder_film_out,
};

static bool vae_wan_encoder_probe(const struct tensor_index *index) {
    if (family_vae_wan22_encoder.probe(index)) return false;
    return index_find(index, "encoder.mid_block.resnets.0.norm1.gamma") ||
           index_find(index, "encoder.middle.0.residual.0.gamma");
}

static const struct vae_wan_half vae_wan_encoder_half = {
    .pictures = &vae_wan_encoder_picture_kinds,
    .films = &vae_wan_encoder_kinds_of_films,
    .word = "encoder",
    .row = {"encoder.down_blocks.", "encoder.downsamples."},
    .row_bias = {"conv1.bias", "residual.2.bias"},
};

static enum status vae_wan_encoder_configure(struct component *c, const struct config *config,
                                             struct error *e) {
    (void)config;
    return vae_wan_configure(c, &vae_wan_encoder_half, e);
}

static void vae_wan_encoder_follow(struct component *c) {
    vae_wan_follow(c, &vae_wan_encoder_half);
    c->dims[RESNETS]--; /* a decoder's were chosen */
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
    if (c->films)
        film_declare_encoder(c, lanes, n_lanes, false, arena, pictures, ok);
    else
        vae_declare_encoder(c, lanes, n_lanes, arena, pictures, ok);
}

static const char *const vae_wan_encoder_ignorable[] = {"decoder.", "post_quant_conv.", "conv2.", NULL};

static const struct dimension vae_wan_encoder_dimensions[] = {VAE_WAN_DIMENSIONS};

/* Its configuration is the decoder's. */
const struct family family_vae_wan_encoder = {
    .name = "vae_wan_encoder",
    .kind = FAMILY_ENCODER,
    .word = "autoencoder's encoder",
    .config_key = "_class_name",
    .config_value = "AutoencoderKLQwenImage",
    .config_others = vae_wan_film_classes,
    .probe = vae_wan_encoder_probe,
    .dimensions = vae_wan_encoder_dimensions,
    .n_dimensions = COUNT_OF(vae_wan_encoder_dimensions),
    .lists = vae_wan_lists,
    .n_lists = N_VAE_WAN_LISTS,
    .expects = vae_wan_expects,
    .configure = vae_wan_encoder_configure,
    .follow = vae_wan_encoder_follow,
    .derive = vae_wan_encoder_derive,
    .blocks = vae_wan_encoder_blocks,
    .block_dims = vae_wan_encoder_block_dims,
    .ignorable = vae_wan_encoder_ignorable,
    .lane_state_bytes = VAE_WAN_STATE_BYTES,
    .declare = vae_wan_encoder_declare,
};
