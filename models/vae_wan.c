/* VAEs of Wan 2.1, which Qwen-Image uses too, and of Wan 2.2's 5B model (TI2V): decoders and encoders of
 * images and videos. Files hold both halves.
 *
 * Decoder: a 1x1 convolution, conv_in, two resnets around a single-head attention, then per level resnets and
 * a nearest-neighbour upsampling convolution, norm, SiLU, conv_out. In Wan 2.1 upsampling halves the
 * channels. Encoder: conv_in, then per level resnets and a stride-2 convolution, two resnets around the
 * attention, norm, SiLU, conv_out, a 1x1 convolution. Wan 2.2 has a latent of 48 channels, 2x2 patches as
 * output pixels, and level shortcuts that add a level's input to its resampled output; a single image is a
 * video of one frame. See vae_blocks.h (one image), vae_causal.h (video), vae_wan_half.h (names and
 * configuration). */
#include "models/models.h"
#include "models/vae_wan_weights.h"

/* clang-format off */
/* Weight tables of the ends and the middle of an encoder or decoder for video. */
#define VIDEO_HALF_TABLES(half, IN_LIST, OUT_LIST)                                                           \
    WEIGHT_TABLE(half##_video_in_table, VIDEO_##IN_LIST, causal_in_weights, "", "");                         \
    WEIGHT_TABLE(half##_video_mid_table, VIDEO_RESNET, causal_resnet_weights,                                \
                 #half ".mid_block.resnets.%d.", #half ".middle.%d.");                                       \
    WEIGHT_TABLE(half##_video_out_table, VIDEO_##OUT_LIST, causal_out_weights, "", "")
IMAGE_HALF_TABLES(decoder, LATENT_IN, PICTURE_OUT);
VIDEO_HALF_TABLES(decoder, LATENT_IN, PICTURE_OUT);
IMAGE_HALF_TABLES(encoder, PICTURE_IN, MOMENTS_OUT);
VIDEO_HALF_TABLES(encoder, PICTURE_IN, MOMENTS_OUT);

/* Weight tables of the levels of an encoder or decoder for video. Names: see IMAGE_LEVEL_TABLES. */
#define VIDEO_LEVEL_TABLES(name, R, P, C)                                                                    \
    WEIGHT_TABLE(name##_resnet_table, VIDEO_RESNET, causal_resnet_weights, R, C);                            \
    WEIGHT_TABLE(name##_wider_resnet_table, VIDEO_WIDER_RESNET, causal_resnet_weights, R, C);                \
    WEIGHT_TABLE(name##_resample_table, VIDEO_RESAMPLE, causal_resample_weights, P, C);                      \
    WEIGHT_TABLE(name##_resample_time_table, VIDEO_RESAMPLE_TIME, causal_resample_weights, P, C)
#define UP_RESNET "decoder.up_blocks.%d.resnets.%d."
#define UPSAMPLER "decoder.up_blocks.%d.upsamplers.0."
IMAGE_LEVEL_TABLES(image_up, UP_RESNET, UPSAMPLER, "decoder.upsamples.%d.");
VIDEO_LEVEL_TABLES(video_up, UP_RESNET, UPSAMPLER, "decoder.upsamples.%d.");
/* In the encoder diffusers and the authors both number the blocks of all levels consecutively. */
#define DOWN_BLOCK "encoder.down_blocks.%d."
IMAGE_LEVEL_TABLES(image_down, DOWN_BLOCK, DOWN_BLOCK, "encoder.downsamples.%d.");
VIDEO_LEVEL_TABLES(video_down, DOWN_BLOCK, DOWN_BLOCK, "encoder.downsamples.%d.");
VIDEO_LEVEL_TABLES(wan22_up, UP_RESNET, "decoder.up_blocks.%d.upsampler.",
                   "decoder.upsamples.%d.upsamples.%d.");
VIDEO_LEVEL_TABLES(wan22_down, "encoder.down_blocks.%d.resnets.%d.", "encoder.down_blocks.%d.downsampler.",
                   "encoder.downsamples.%d.downsamples.%d.");
/* clang-format on */

static struct attention_weights vae_wan_split(const struct vae_wan_attention_weights *w) {
    int32_t C = w->norm.dim[0];
    return (struct attention_weights){
        .norm.weight = w->norm,
        .q = {tensor_slice(w->qkv.weight, 0, C), tensor_slice(w->qkv.bias, 0, C)},
        .k = {tensor_slice(w->qkv.weight, C, C), tensor_slice(w->qkv.bias, C, C)},
        .v = {tensor_slice(w->qkv.weight, 2 * C, C), tensor_slice(w->qkv.bias, 2 * C, C)},
        .out = w->out,
    };
}

void vae_wan_forward_attention(struct context *x, const void *weights, const struct visit_scope *scope) {
    struct attention_weights w = vae_wan_split(weights);
    vae_forward_attention(x, &w, scope);
}

static void vae_wan_forward_causal_attention(struct context *x, const void *weights,
                                             const struct visit_scope *scope) {
    struct attention_weights w = vae_wan_split(weights);
    causal_forward_attention(x, &w, scope);
}

static void vae_wan_forward_causal_mid_resnet(struct context *x, const void *weights,
                                              const struct visit_scope *scope) {
    causal_forward_resnet(x, weights, scope, CAUSAL_MIDDLE, scope->number);
}

static void vae_wan_forward_causal_resnet(struct context *x, const void *weights,
                                          const struct visit_scope *scope) {
    int stride = ((const struct vae_wan_settings *)scope->settings)->resnet_number_stride;
    causal_forward_resnet(x, weights, scope, scope->number / stride, scope->number % stride);
}

static int vae_wan_resample_level(const struct visit_scope *scope) {
    return scope->number / ((const struct vae_wan_settings *)scope->settings)->resample_number_stride;
}

static void vae_wan_forward_causal_upsample(struct context *x, const void *weights,
                                            const struct visit_scope *scope) {
    causal_forward_upsample(x, weights, scope, vae_wan_resample_level(scope));
}

static void vae_wan_forward_causal_downsample(struct context *x, const void *weights,
                                              const struct visit_scope *scope) {
    causal_forward_downsample(x, weights, scope, vae_wan_resample_level(scope));
}

static void vae_wan_forward_upsample(struct context *x, const void *weights,
                                     const struct visit_scope *scope) {
    vae_forward_upsample(x, weights, scope, scope->number + 1);
}

static void vae_wan_forward_downsample(struct context *x, const void *weights,
                                       const struct visit_scope *scope) {
    const struct vae_wan_settings *settings = scope->settings;
    vae_forward_downsample(x, weights, scope, scope->number / settings->resnet_number_stride + 1);
}

/* clang-format off */
/* Block kinds for video: see IMAGE_KINDS. */
#define VIDEO_KINDS(half, level, resnets, steps, step, forward_in, forward_out)                              \
    {                                                                                                        \
        .in = KIND("conv_in", "conv_in", half##_video_in_table, causal_in_weights, forward_in),              \
        .mid_resnet = KIND("mid_resnet", "mid_block.resnets.%d", half##_video_mid_table,                     \
                           causal_resnet_weights, vae_wan_forward_causal_mid_resnet),                        \
        .attention = KIND("attention", "mid_block.attentions.0", half##_attention_table,                     \
                          vae_wan_attention_weights, vae_wan_forward_causal_attention),                      \
        .resnet = KIND("resnet", resnets, level##_resnet_table, causal_resnet_weights,                       \
                       vae_wan_forward_causal_resnet),                                                       \
        .wider_resnet = KIND("wider_resnet", resnets, level##_wider_resnet_table, causal_resnet_weights,     \
                             vae_wan_forward_causal_resnet),                                                 \
        .resample = KIND(#step, steps, level##_resample_table, causal_resample_weights,                      \
                         vae_wan_forward_causal_##step),                                                     \
        .resample_time = KIND(#step "_in_time", steps, level##_resample_time_table,                          \
                              causal_resample_weights, vae_wan_forward_causal_##step),                       \
        .out = KIND("conv_out", "conv_out", half##_video_out_table, causal_out_weights, forward_out),        \
    }
/* clang-format on */
static const struct vae_wan_kinds image_decoder =
    IMAGE_KINDS(decoder, image_up, "up_blocks.%d.resnets.%d", "up_blocks.%d.upsample", "up_blocks.%d.frames",
                upsample, vae_forward_resnet, vae_forward_resnet, vae_wan_forward_upsample,
                vae_forward_latent_in, vae_forward_picture_out);
static const struct vae_wan_kinds video_decoder =
    VIDEO_KINDS(decoder, video_up, "up_blocks.%d.resnets.%d", "up_blocks.%d.upsample", upsample,
                causal_forward_latent_in, causal_forward_picture_out);
static const struct vae_wan_kinds image_encoder =
    IMAGE_KINDS(encoder, image_down, "down_blocks.%d", "down_blocks.%d", "down_blocks.%d.frames", downsample,
                vae_forward_resnet, vae_forward_resnet, vae_wan_forward_downsample, vae_forward_picture_in,
                vae_forward_moments);
static const struct vae_wan_kinds video_encoder =
    VIDEO_KINDS(encoder, video_down, "down_blocks.%d", "down_blocks.%d", downsample,
                causal_forward_picture_in, causal_forward_moments);
static const struct vae_wan_kinds wan22_decoder =
    VIDEO_KINDS(decoder, wan22_up, "up_blocks.%d.resnets.%d", "up_blocks.%d.upsample", upsample,
                causal_forward_latent_in, causal_forward_picture_out);
static const struct vae_wan_kinds wan22_encoder =
    VIDEO_KINDS(encoder, wan22_down, "down_blocks.%d.resnets.%d", "down_blocks.%d.downsample", downsample,
                causal_forward_picture_in, causal_forward_moments);

/* True for a VAE of Wan 2.1; false for VAEs with level shortcuts, whose mid-block names are the same. */
static bool vae_wan_probe(const struct tensor_index *index) {
    if (vae_wan_is_residual(index, "decoder")) return false;
    return index_find(index, "decoder.mid_block.resnets.0.norm1.gamma") ||
           index_find(index, "decoder.middle.0.residual.0.gamma");
}

static const struct vae_wan_half vae_wan_half = {
    .image = &image_decoder,
    .video = &video_decoder,
    .word = "decoder",
    .from_deepest = true,
    .level = "decoder.up_blocks.",
    .row = {NULL, "decoder.upsamples."},
    .row_bias = {NULL, "residual.2.bias"},
};

/* Refuses VAEs whose images are not RGB. Four channels mean Qwen-Image-Layered. */
static enum status vae_wan_refuse(const struct component *c, struct error *e) {
    enum { COLOURS_OF_LAYERS = 4 };
    const char *name = component_first_existing(c, "decoder.conv_out.bias", "decoder.head.2.bias"),
               *model = "";
    int32_t colours = component_dim(c, name, 1, 0, e);
    if (e->code != OK || colours == 3) return e->code;
    if (colours == COLOURS_OF_LAYERS) model = " (this is Qwen-Image-Layered's VAE)";
    return error_set(e, UNSUPPORTED,
                     "unsupported VAE: its images are not RGB%s" WHERE "%s" FOUND "%d image channels" EXPECTED
                     "3 image channels, as in Qwen-Image's and Wan 2.1's VAE",
                     model, c->index.sources[0].path, colours);
}

static const char *const vae_wan_ignorable[] = {"encoder.", "quant_conv.", "conv1.", NULL};

static const struct dimension vae_wan_dimensions[] = {
    VAE_WAN_DIMENSIONS,
    {.place = ENCODER_RESNETS, .key = "num_res_blocks"},
};

const struct family family_vae_wan = {
    .name = "vae_wan",
    .kind = FAMILY_DECODER,
    .display_name = "autoencoder",
    .details = &vae_wan_half,
    .files = {.config_key = "_class_name",
              .config_value = "AutoencoderKLQwenImage",
              .config_others = vae_wan_video_classes,
              .probe = vae_wan_probe,
              .refuse = vae_wan_refuse,
              .ignorable = vae_wan_ignorable},
    .config = {.dimensions = vae_wan_dimensions,
               .n_dimensions = COUNT_OF(vae_wan_dimensions),
               .latent_norm = {.lists = vae_wan_lists},
               .expects = vae_wan_expects,
               .configure = vae_wan_configure,
               .derive_dims = vae_wan_derive_dims,
               .derive = vae_wan_derive,
               .rest = "\"attn_scales\": [], \"dropout\": 0.0, \"temperal_downsample\": [false, true, true]"},
    .blocks = {.list = vae_wan_blocks, .dims = vae_wan_block_dims},
    .state = {.bytes = sizeof(struct causal_state), .declare = vae_wan_declare},
    /* The last level, at full resolution. */
    .predicted = {{.kind = "resnet", .number = 301, .tokens = 1024 * 1024, PREDICTED_IMAGE}},
};

static bool vae_wan_encoder_probe(const struct tensor_index *index) {
    if (vae_wan_is_residual(index, "encoder")) return false;
    return index_find(index, "encoder.mid_block.resnets.0.norm1.gamma") ||
           index_find(index, "encoder.middle.0.residual.0.gamma");
}

static const struct vae_wan_half vae_wan_encoder_half = {
    .image = &image_encoder,
    .video = &video_encoder,
    .word = "encoder",
    .row = {"encoder.down_blocks.", "encoder.downsamples."},
    .row_bias = {"conv1.bias", "residual.2.bias"},
};

static const char *const vae_wan_encoder_ignorable[] = {"decoder.", "post_quant_conv.", "conv2.", NULL};

static const struct dimension vae_wan_encoder_dimensions[] = {VAE_WAN_DIMENSIONS};

/* The encoder reads the decoder's config.json. */
const struct family family_vae_wan_encoder = {
    .name = "vae_wan_encoder",
    .kind = FAMILY_ENCODER,
    .display_name = "autoencoder's encoder",
    .details = &vae_wan_encoder_half,
    .files = {.config_key = "_class_name",
              .config_value = "AutoencoderKLQwenImage",
              .config_others = vae_wan_video_classes,
              .probe = vae_wan_encoder_probe,
              .ignorable = vae_wan_encoder_ignorable},
    .config = {.dimensions = vae_wan_encoder_dimensions,
               .n_dimensions = COUNT_OF(vae_wan_encoder_dimensions),
               .latent_norm = {.lists = vae_wan_lists},
               .expects = vae_wan_expects,
               .configure = vae_wan_configure,
               .derive_dims = vae_wan_derive_dims,
               .derive = vae_wan_derive},
    .blocks = {.list = vae_wan_blocks, .dims = vae_wan_block_dims},
    .state = {.bytes = sizeof(struct causal_state), .declare = vae_wan_declare},
    .predicted = {{.kind = "resnet", .tokens = 1024 * 1024, PREDICTED_IMAGE}},
};

static const struct vae_wan_half vae_wan22_half = {
    .image = &wan22_decoder,
    .video = &wan22_decoder,
    .word = "decoder",
    .from_deepest = true,
    .is_residual = true,
    .colours = VAE_WAN22_COLOURS,
    .level = "decoder.up_blocks.",
    .nested = {"decoder.upsamples.", "upsamples."},
};

static bool vae_wan22_probe(const struct tensor_index *index) {
    return vae_wan_is_residual(index, "decoder") && !family_vae_qwen21.files.probe(index);
}

static const struct dimension vae_wan22_dimensions[] = {
    VAE_WAN22_DIMENSIONS(OTHER_BASE, BASE),
    {.place = ENCODER_RESNETS, .key = "num_res_blocks"},
    {.place = COLOURS, .key = "in_channels"},
    {.place = COLOURS, .key = "out_channels"},
};

const struct family family_vae_wan22 = {
    .name = "vae_wan22",
    .kind = FAMILY_DECODER,
    .display_name = "autoencoder",
    .details = &vae_wan22_half,
    .files = {.config_key = "_class_name",
              .config_value = "AutoencoderKLWan",
              .probe = vae_wan22_probe,
              .ignorable = vae_wan_ignorable},
    .config = {.dimensions = vae_wan22_dimensions,
               .n_dimensions = COUNT_OF(vae_wan22_dimensions),
               .latent_norm = {.lists = vae_wan22_lists},
               .expects = vae_wan22_expects,
               .configure = vae_wan_configure,
               .derive_dims = vae_wan_derive_dims,
               .derive = vae_wan_derive,
               .rest = "\"attn_scales\": [], \"dropout\": 0.0, \"is_residual\": true, \"patch_size\": 2, "
                       "\"scale_factor_spatial\": 16, \"scale_factor_temporal\": 4, "
                       "\"temperal_downsample\": [false, true, true]"},
    .blocks = {.list = vae_wan_blocks, .dims = vae_wan_block_dims},
    .state = {.bytes = sizeof(struct causal_state), .declare = vae_wan_declare},
    .predicted = {{.kind = "resnet", .number = 301, VAE_WAN22_PREDICTED}},
};

static const struct vae_wan_half vae_wan22_encoder_half = {
    .image = &wan22_encoder,
    .video = &wan22_encoder,
    .word = "encoder",
    .is_residual = true,
    .colours = VAE_WAN22_COLOURS,
    .level = "encoder.down_blocks.",
    .nested = {"encoder.downsamples.", "downsamples."},
};

static bool vae_wan22_encoder_probe(const struct tensor_index *index) {
    return vae_wan_is_residual(index, "encoder") && !family_vae_qwen21_encoder.files.probe(index);
}

static const struct dimension vae_wan22_encoder_dimensions[] = {VAE_WAN22_DIMENSIONS(BASE, OTHER_BASE)};

/* The encoder reads the decoder's config.json. */
const struct family family_vae_wan22_encoder = {
    .name = "vae_wan22_encoder",
    .kind = FAMILY_ENCODER,
    .display_name = "autoencoder's encoder",
    .details = &vae_wan22_encoder_half,
    .files = {.config_key = "_class_name",
              .config_value = "AutoencoderKLWan",
              .probe = vae_wan22_encoder_probe,
              .ignorable = vae_wan_encoder_ignorable},
    .config = {.dimensions = vae_wan22_encoder_dimensions,
               .n_dimensions = COUNT_OF(vae_wan22_encoder_dimensions),
               .latent_norm = {.lists = vae_wan22_lists},
               .expects = vae_wan22_expects,
               .configure = vae_wan_configure,
               .derive_dims = vae_wan_derive_dims,
               .derive = vae_wan_derive},
    .blocks = {.list = vae_wan_blocks, .dims = vae_wan_block_dims},
    .state = {.bytes = sizeof(struct causal_state), .declare = vae_wan_declare},
    .predicted = {{.kind = "resnet", VAE_WAN22_PREDICTED}},
};
