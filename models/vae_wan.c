/* The decoder of the autoencoder of Wan 2.1 and Qwen-Image: a latent of one frame to a picture.
 *
 * A 1x1 convolution, conv_in, two resnets around one single-head attention, then per level resnets and a
 * nearest-neighbour upsampling convolution that halves the channels, norm, SiLU, conv_out: see vae_blocks.h,
 * vae_wan_half.h. */
#include "models/models.h"
#include "models/vae_wan_half.h"

#define UP_RESNET          "decoder.up_blocks.%d.resnets.%d."
#define UP_RESNET_ORIGINAL "decoder.upsamples.%d."

static const struct weight_spec vae_wan_in_table[] = {
    VAE_WAN_CAUSAL(latent_in_weights, post, post_bias, LATENT, LATENT, K1, "post_quant_conv", "conv2"),
    VAE_WAN_IN(latent_in_weights, LATENT, "decoder."),
};
static const struct weight_spec vae_wan_mid_resnet_table[] = {
    VAE_WAN_RESNET("decoder.mid_block.resnets.%d.", "decoder.middle.%d.")};
static const struct weight_spec vae_wan_attention_table[] = {
    VAE_WAN_ATTENTION("decoder.mid_block.attentions.0.", "decoder.middle.1.")};
static const struct weight_spec vae_wan_up_resnet_table[] = {VAE_WAN_RESNET(UP_RESNET, UP_RESNET_ORIGINAL)};
static const struct weight_spec vae_wan_wider_resnet_table[] = {
    VAE_WAN_RESNET(UP_RESNET, UP_RESNET_ORIGINAL), VAE_WAN_SHORTCUT(UP_RESNET, UP_RESNET_ORIGINAL)};
static const struct weight_spec vae_wan_upsample_table[] = {
    VAE_WAN_STEP("decoder.up_blocks.%d.upsamplers.0.", "decoder.upsamples.%d.")};
static const struct weight_spec vae_wan_frames_table[] = {
    VAE_WAN_FRAMES("decoder.up_blocks.%d.upsamplers.0.", "decoder.upsamples.%d.")};
static const struct weight_spec vae_wan_out_table[] = {VAE_WAN_OUT(COLOURS, "decoder.")};

/* Of videos. */
#define UPSAMPLER "decoder.up_blocks.%d.upsamplers.0."
static const struct weight_spec film_in_table[] = {
    VAE_WAN_CAUSAL(film_latent_in_weights, post, post_bias, LATENT, LATENT, K1, "post_quant_conv", "conv2"),
    FILM_CONV(film_latent_in_weights, conv, OUT, LATENT, K3, "decoder.conv_in", "decoder.conv1"),
};
static const struct weight_spec film_mid_resnet_table[] = {
    FILM_RESNET("decoder.mid_block.resnets.%d.", "decoder.middle.%d.")};
static const struct weight_spec film_up_resnet_table[] = {FILM_RESNET(UP_RESNET, UP_RESNET_ORIGINAL)};
static const struct weight_spec film_wider_resnet_table[] = {FILM_RESNET(UP_RESNET, UP_RESNET_ORIGINAL),
                                                             FILM_SHORTCUT(UP_RESNET, UP_RESNET_ORIGINAL)};
static const struct weight_spec film_upsample_table[] = {FILM_STEP(UPSAMPLER, UP_RESNET_ORIGINAL)};
static const struct weight_spec film_double_table[] = {FILM_STEP_IN_TIME(UPSAMPLER, UP_RESNET_ORIGINAL)};
static const struct weight_spec film_out_table[] = {FILM_OUT(COLOURS, "decoder.")};

/* ---- forwards ---- */

static void vae_wan_forward_in(struct context *x, const void *weights, const struct visit_scope *scope) {
    struct latent_format format = vae_wan_format(scope->settings, scope->lane->latent.dim[0]);
    vae_forward_latent_in(x, weights, scope, &format);
}

static void vae_wan_forward_film_in(struct context *x, const void *weights, const struct visit_scope *scope) {
    struct latent_format format = vae_wan_format(scope->settings, scope->lane->latent.dim[0]);
    film_forward_latent_in(x, weights, scope, &format);
}

static void vae_wan_forward_upsample(struct context *x, const void *weights,
                                     const struct visit_scope *scope) {
    vae_forward_upsample(x, weights, scope, scope->number + 1);
}

/* ---- the family ---- */

static const struct block_kind vae_wan_kind_in = BLOCK_KIND(
    "conv_in", "conv_in", vae_wan_in_table, latent_in_weights, vae_wan_forward_in, .keeps_types = true);
static const struct block_kind vae_wan_kind_mid_resnet =
    BLOCK_KIND("mid_resnet", "mid_block.resnets.%d", vae_wan_mid_resnet_table, resnet_weights,
               vae_forward_resnet, .keeps_types = true);
static const struct block_kind vae_wan_kind_attention =
    BLOCK_KIND("attention", "mid_block.attentions.0", vae_wan_attention_table, vae_wan_attention_weights,
               vae_wan_forward_attention, .keeps_types = true);
static const struct block_kind vae_wan_kind_up_resnet =
    BLOCK_KIND("resnet", "up_blocks.%d.resnets.%d", vae_wan_up_resnet_table, resnet_weights,
               vae_forward_resnet, .keeps_types = true);
static const struct block_kind vae_wan_kind_wider_resnet =
    BLOCK_KIND("wider_resnet", "up_blocks.%d.resnets.%d", vae_wan_wider_resnet_table, resnet_weights,
               vae_forward_resnet, .keeps_types = true);
static const struct block_kind vae_wan_kind_upsample =
    BLOCK_KIND("upsample", "up_blocks.%d.upsample", vae_wan_upsample_table, conv_weights,
               vae_wan_forward_upsample, .keeps_types = true);
static const struct block_kind vae_wan_kind_frames = BLOCK_KIND(
    "frames", "up_blocks.%d.frames", vae_wan_frames_table, conv_weights, NULL, .keeps_types = true);
static const struct block_kind vae_wan_kind_out = BLOCK_KIND(
    "conv_out", "conv_out", vae_wan_out_table, out_weights, vae_forward_colours, .keeps_types = true);

static const struct vae_wan_kinds vae_wan_picture_kinds = {
    .in = &vae_wan_kind_in,
    .middle = &vae_wan_kind_mid_resnet,
    .attention = &vae_wan_kind_attention,
    .resnet = &vae_wan_kind_up_resnet,
    .wider_resnet = &vae_wan_kind_wider_resnet,
    .step = &vae_wan_kind_upsample,
    .frames = &vae_wan_kind_frames,
    .out = &vae_wan_kind_out,
};

/* The same over time. */
const struct block_kind vae_wan_film_in =
    BLOCK_KIND("conv_in", "conv_in", film_in_table, film_latent_in_weights, vae_wan_forward_film_in,
               .keeps_types = true);
const struct block_kind vae_wan_film_mid_resnet =
    BLOCK_KIND("mid_resnet", "mid_block.resnets.%d", film_mid_resnet_table, film_resnet_weights,
               vae_wan_forward_film_middle, .keeps_types = true);
const struct block_kind vae_wan_film_attention =
    BLOCK_KIND("attention", "mid_block.attentions.0", vae_wan_attention_table, vae_wan_attention_weights,
               vae_wan_forward_film_attention, .keeps_types = true);
static const struct block_kind film_kind_resnet =
    BLOCK_KIND("resnet", "up_blocks.%d.resnets.%d", film_up_resnet_table, film_resnet_weights,
               vae_wan_forward_film_resnet, .keeps_types = true);
static const struct block_kind film_kind_wider_resnet =
    BLOCK_KIND("wider_resnet", "up_blocks.%d.resnets.%d", film_wider_resnet_table, film_resnet_weights,
               vae_wan_forward_film_resnet, .keeps_types = true);
static const struct block_kind film_kind_upsample =
    BLOCK_KIND("upsample", "up_blocks.%d.upsample", film_upsample_table, film_step_weights,
               vae_wan_forward_film_up, .keeps_types = true);
static const struct block_kind film_kind_double =
    BLOCK_KIND("upsample_in_time", "up_blocks.%d.upsample", film_double_table, film_step_weights,
               vae_wan_forward_film_up, .keeps_types = true);
const struct block_kind vae_wan_film_out = BLOCK_KIND(
    "conv_out", "conv_out", film_out_table, film_out_weights, film_forward_colours, .keeps_types = true);

static const struct vae_wan_kinds vae_wan_kinds_of_films = {
    .in = &vae_wan_film_in,
    .middle = &vae_wan_film_mid_resnet,
    .attention = &vae_wan_film_attention,
    .resnet = &film_kind_resnet,
    .wider_resnet = &film_kind_wider_resnet,
    .step = &film_kind_upsample,
    .step_in_time = &film_kind_double,
    .out = &vae_wan_film_out,
};

/* Wan 2.2's has other names between its middle and its ends. */
static bool vae_wan_probe(const struct tensor_index *index) {
    if (family_vae_wan22.probe(index)) return false;
    return index_find(index, "decoder.mid_block.resnets.0.norm1.gamma") ||
           index_find(index, "decoder.middle.0.residual.0.gamma");
}

static const struct vae_wan_half vae_wan_half = {
    .pictures = &vae_wan_picture_kinds,
    .films = &vae_wan_kinds_of_films,
    .word = "decoder",
    .from_deepest = true,
    .level = "decoder.up_blocks.",
    .row = {NULL, "decoder.upsamples."},
    .row_bias = {NULL, "residual.2.bias"},
};

/* Layers of pictures are told by a channel beside the colours. */
static enum status vae_wan_refuse(const struct component *c, struct error *e) {
    enum { COLOURS_OF_LAYERS = 4 };
    const char *name = component_either(c, "decoder.conv_out.bias", "decoder.head.2.bias"), *whose = "";
    int32_t colours = component_dim(c, name, 1, 0, e);
    if (e->code != OK || colours == 3) return e->code;
    if (colours == COLOURS_OF_LAYERS) whose = ": it is Qwen-Image-Layered's";
    error_set(e, UNSUPPORTED, "this autoencoder's pictures are not of three colours%s", whose);
    error_where(e, "%s", c->index.sources[0].path);
    error_found(e, "%d channels", colours);
    return error_expected(e, "3, as Qwen-Image's and Wan 2.1's have");
}

static enum status vae_wan_decoder_configure(struct component *c, const struct config *config,
                                             struct error *e) {
    (void)config;
    return vae_wan_configure(c, &vae_wan_half, e);
}

static void vae_wan_decoder_follow(struct component *c) {
    vae_wan_follow(c, &vae_wan_half);
}

static void vae_wan_decoder_derive(struct component *c) {
    vae_wan_derive(c, &vae_wan_half);
}

static int vae_wan_blocks(const struct component *c, struct block_ref *refs) {
    return vae_wan_list_blocks(c, &vae_wan_half, refs);
}

static void vae_wan_block_dims(const struct component *c, const struct block_ref *ref, int32_t *dims) {
    vae_wan_dims_of_block(c, &vae_wan_half, ref, dims);
}

static void vae_wan_declare(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                            struct arena *pictures, bool *ok) {
    if (c->films)
        film_declare_decoder(c, lanes, n_lanes, false, arena, pictures, ok);
    else
        vae_declare_decoder(c, lanes, n_lanes, arena, pictures, ok);
}

static const char *const vae_wan_ignorable[] = {"encoder.", "quant_conv.", "conv1.", NULL};

static const struct dimension vae_wan_dimensions[] = {
    VAE_WAN_DIMENSIONS,
    {.place = ENCODER_RESNETS, .key = "num_res_blocks"},
};

const struct family family_vae_wan = {
    .name = "vae_wan",
    .kind = FAMILY_DECODER,
    .word = "autoencoder",
    .config_key = "_class_name",
    .config_value = "AutoencoderKLQwenImage",
    .config_others = vae_wan_film_classes,
    .probe = vae_wan_probe,
    .refuse = vae_wan_refuse,
    .dimensions = vae_wan_dimensions,
    .n_dimensions = COUNT_OF(vae_wan_dimensions),
    .lists = vae_wan_lists,
    .n_lists = N_VAE_WAN_LISTS,
    .expects = vae_wan_expects,
    .configure = vae_wan_decoder_configure,
    .follow = vae_wan_decoder_follow,
    .derive = vae_wan_decoder_derive,
    .config_rest = "\"attn_scales\": [], \"dropout\": 0.0, \"temperal_downsample\": [false, true, true]",
    .blocks = vae_wan_blocks,
    .block_dims = vae_wan_block_dims,
    .ignorable = vae_wan_ignorable,
    .lane_state_bytes = VAE_WAN_STATE_BYTES,
    .declare = vae_wan_declare,
};
