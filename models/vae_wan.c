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

/* ---- forwards ---- */

static void vae_wan_forward_in(struct context *x, const void *weights, const struct visit_scope *scope) {
    struct latent_format format = vae_wan_format(scope->settings, scope->lane->latent.dim[0]);
    vae_forward_latent_in(x, weights, scope, &format);
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

static bool vae_wan_probe(const struct tensor_index *index) {
    return index_find(index, "decoder.mid_block.resnets.0.norm1.gamma") ||
           index_find(index, "decoder.middle.0.residual.0.gamma");
}

static const struct vae_wan_half vae_wan_half = {
    .word = "decoder",
    .from_deepest = true,
    .level = "decoder.up_blocks.",
    .row = {NULL, "decoder.upsamples."},
    .row_bias = {NULL, "residual.2.bias"},
};

/* Layers of pictures are told by a channel beside the colours; Wan 2.2 sees 2x2 pixels as one. */
static enum status vae_wan_refuse(const struct component *c, struct error *e) {
    enum { COLOURS_OF_LAYERS = 4, COLOURS_OF_WAN22 = 12 };
    const char *name = component_either(c, "decoder.conv_out.bias", "decoder.head.2.bias"), *whose = "";
    int32_t colours = component_dim(c, name, 1, 0, e);
    if (e->code != OK || colours == 3) return e->code;
    if (colours == COLOURS_OF_LAYERS) whose = ": it is Qwen-Image-Layered's";
    if (colours == COLOURS_OF_WAN22) whose = ": it is Wan 2.2's";
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

/* The authors count the blocks of all levels in a row. */
static int vae_wan_level_blocks(const struct component *c, int level, struct block_ref *refs) {
    int n = 0, levels = c->dims[LEVELS], resnets = c->dims[RESNETS], first = level * (resnets + 1);
    for (int i = 0; i < resnets; i++) {
        int number = level * BLOCK_NUMBER_STEP + i;
        refs[n++] = (struct block_ref){.kind = i == 0 && vae_widens(c, level) ? &vae_wan_kind_wider_resnet
                                                                              : &vae_wan_kind_up_resnet,
                                       .number = number,
                                       .original = first + i - number};
    }
    if (level + 1 == levels) return n;
    int original = first + resnets - level;
    refs[n++] = (struct block_ref){.kind = &vae_wan_kind_upsample, .number = level, .original = original};
    if (level + 2 < levels) /* as published */
        refs[n++] = (struct block_ref){
            .kind = &vae_wan_kind_frames, .number = level, .original = original, .unused = true};
    return n;
}

static int vae_wan_blocks(const struct component *c, struct block_ref *refs) {
    int n = 0;
    refs[n++] = (struct block_ref){.kind = &vae_wan_kind_in};
    refs[n++] = (struct block_ref){.kind = &vae_wan_kind_mid_resnet, .number = 0};
    refs[n++] = (struct block_ref){.kind = &vae_wan_kind_attention};
    refs[n++] = (struct block_ref){.kind = &vae_wan_kind_mid_resnet, .number = 1, .original = 1};
    for (int level = 0; level < c->dims[LEVELS]; level++) n += vae_wan_level_blocks(c, level, refs + n);
    refs[n++] = (struct block_ref){.kind = &vae_wan_kind_out};
    return n;
}

static void vae_wan_block_dims(const struct component *c, const struct block_ref *ref, int32_t *dims) {
    int level = 0;
    bool steps = ref->kind == &vae_wan_kind_upsample || ref->kind == &vae_wan_kind_frames;
    if (ref->kind == &vae_wan_kind_up_resnet || ref->kind == &vae_wan_kind_wider_resnet)
        level = ref->number / BLOCK_NUMBER_STEP;
    if (steps) level = ref->number;
    if (ref->kind == &vae_wan_kind_out) level = c->dims[LEVELS] - 1;
    dims[IN] = dims[OUT] = dims[CHANNELS + level];
    dims[QKV] = 3 * dims[OUT];
    dims[FRAMES] = 2 * dims[OUT];
    if (ref->kind == &vae_wan_kind_wider_resnet) dims[IN] = dims[BEFORE + level];
    if (ref->kind == &vae_wan_kind_upsample) dims[OUT] = dims[BEFORE + level + 1];
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
    .lane_state_bytes = sizeof(struct vae_state),
    .declare = vae_declare_decoder,
};
