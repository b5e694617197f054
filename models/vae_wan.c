/* VAE decoder of Wan 2.1 and Qwen-Image: latent to image, or to video frames chunk by chunk.
 *
 * A 1x1 convolution, conv_in, two resnets around a single-head attention, then per level resnets and a
 * nearest-neighbour upsampling convolution that halves the channels, norm, SiLU, conv_out: see vae_blocks.h,
 * vae_causal.h, vae_wan_half.h. */
#include "models/models.h"
#include "models/vae_wan_half.h"

#define UP_RESNET             "decoder.up_blocks.%d.resnets.%d."
#define UPSAMPLER             "decoder.up_blocks.%d.upsamplers.0."
#define CHECKPOINT_UP         "decoder.upsamples.%d."
#define MID_RESNET            "decoder.mid_block.resnets.%d."
#define CHECKPOINT_MID_RESNET "decoder.middle.%d."

/* clang-format off */
/* Weight lists of the ends of the decoder, for one image (CONV3D) and for video (CAUSAL). */
#define LATENT_IN(X, S, CONV)                                                                                \
    X##CONV3D(S, post, LATENT, LATENT, K1, K1, "post_quant_conv", "conv2")                                   \
    X##CONV(S, conv, OUT, LATENT, K3, K3, "decoder.conv_in", "decoder.conv1")
#define IMAGE_LATENT_IN(X, S) LATENT_IN(X, S, CONV3D)
#define VIDEO_LATENT_IN(X, S) LATENT_IN(X, S, CAUSAL)
#define IMAGE_OUT(X, S) VAE_WAN_OUT(X, S, CONV3D, "decoder.", COLOURS)
#define VIDEO_OUT(X, S) VAE_WAN_OUT(X, S, CAUSAL, "decoder.", COLOURS)
/* clang-format on */

CONV_TABLE(vae_wan_upsample_table, OUT, IN, K3, UPSAMPLER "resample.1", CHECKPOINT_UP "resample.1");
WEIGHT_TABLE(vae_wan_attention_table, VAE_WAN_ATTENTION, vae_wan_attention_weights,
             "decoder.mid_block.attentions.0.", "decoder.middle.1.");
WEIGHT_TABLE(causal_in_table, VIDEO_LATENT_IN, causal_in_weights, "", "");
WEIGHT_TABLE(causal_mid_resnet_table, CAUSAL_RESNET, causal_resnet_weights, MID_RESNET,
             CHECKPOINT_MID_RESNET);
WEIGHT_TABLE(causal_out_table, VIDEO_OUT, causal_out_weights, "", "");

static void vae_wan_forward_upsample(struct context *x, const void *weights,
                                     const struct visit_scope *scope) {
    vae_forward_upsample(x, weights, scope, scope->number + 1);
}

BLOCK_OF_LIST(vae_wan_kind_in, "conv_in", "conv_in", IMAGE_LATENT_IN, in_weights, "", "",
              vae_forward_latent_in, .never_quantised = true);
BLOCK_OF_LIST(vae_wan_kind_mid_resnet, "mid_resnet", "mid_block.resnets.%d", VAE_WAN_IMAGE_RESNET,
              resnet_weights, MID_RESNET, CHECKPOINT_MID_RESNET, vae_forward_resnet, .never_quantised = true);
static const struct block_kind vae_wan_kind_attention =
    BLOCK_KIND("attention", "mid_block.attentions.0", vae_wan_attention_table, vae_wan_attention_weights,
               vae_wan_forward_attention, .never_quantised = true);
BLOCK_OF_LIST(vae_wan_kind_up_resnet, "resnet", "up_blocks.%d.resnets.%d", VAE_WAN_IMAGE_RESNET,
              resnet_weights, UP_RESNET, CHECKPOINT_UP, vae_forward_resnet, .never_quantised = true);
BLOCK_OF_LIST(vae_wan_kind_wider_resnet, "wider_resnet", "up_blocks.%d.resnets.%d",
              VAE_WAN_IMAGE_WIDER_RESNET, resnet_weights, UP_RESNET, CHECKPOINT_UP, vae_forward_resnet,
              .never_quantised = true);
static const struct block_kind vae_wan_kind_upsample =
    BLOCK_KIND("upsample", "up_blocks.%d.upsample", vae_wan_upsample_table, linear_weights,
               vae_wan_forward_upsample, .never_quantised = true);
BLOCK_OF_LIST(vae_wan_kind_time_conv, "frames", "up_blocks.%d.frames", VAE_WAN_TIME_CONV, linear_weights,
              UPSAMPLER, CHECKPOINT_UP, NULL, .never_quantised = true);
BLOCK_OF_LIST(vae_wan_kind_out, "conv_out", "conv_out", IMAGE_OUT, out_weights, "", "",
              vae_forward_picture_out, .never_quantised = true);

static const struct vae_wan_kinds vae_wan_image_kinds = {
    .in = &vae_wan_kind_in,
    .mid_resnet = &vae_wan_kind_mid_resnet,
    .attention = &vae_wan_kind_attention,
    .resnet = &vae_wan_kind_up_resnet,
    .wider_resnet = &vae_wan_kind_wider_resnet,
    .resample = &vae_wan_kind_upsample,
    .time_conv = &vae_wan_kind_time_conv,
    .out = &vae_wan_kind_out,
};

const struct block_kind vae_wan_causal_in =
    BLOCK_KIND("conv_in", "conv_in", causal_in_table, causal_in_weights, causal_forward_latent_in,
               .never_quantised = true);
const struct block_kind vae_wan_causal_mid_resnet =
    BLOCK_KIND("mid_resnet", "mid_block.resnets.%d", causal_mid_resnet_table, causal_resnet_weights,
               vae_wan_forward_causal_mid_resnet, .never_quantised = true);
const struct block_kind vae_wan_causal_attention =
    BLOCK_KIND("attention", "mid_block.attentions.0", vae_wan_attention_table, vae_wan_attention_weights,
               vae_wan_forward_causal_attention, .never_quantised = true);
BLOCK_OF_LIST(causal_kind_resnet, "resnet", "up_blocks.%d.resnets.%d", CAUSAL_RESNET, causal_resnet_weights,
              UP_RESNET, CHECKPOINT_UP, vae_wan_forward_causal_resnet, .never_quantised = true);
BLOCK_OF_LIST(causal_kind_wider_resnet, "wider_resnet", "up_blocks.%d.resnets.%d", CAUSAL_WIDER_RESNET,
              causal_resnet_weights, UP_RESNET, CHECKPOINT_UP, vae_wan_forward_causal_resnet,
              .never_quantised = true);
BLOCK_OF_LIST(causal_kind_upsample, "upsample", "up_blocks.%d.upsample", CAUSAL_RESAMPLE,
              causal_resample_weights, UPSAMPLER, CHECKPOINT_UP, vae_wan_forward_causal_upsample,
              .never_quantised = true);
BLOCK_OF_LIST(causal_kind_upsample_time, "upsample_in_time", "up_blocks.%d.upsample", CAUSAL_RESAMPLE_TIME,
              causal_resample_weights, UPSAMPLER, CHECKPOINT_UP, vae_wan_forward_causal_upsample,
              .never_quantised = true);
const struct block_kind vae_wan_causal_out =
    BLOCK_KIND("conv_out", "conv_out", causal_out_table, causal_out_weights, causal_forward_picture_out,
               .never_quantised = true);

static const struct vae_wan_kinds vae_wan_causal_kinds = {
    .in = &vae_wan_causal_in,
    .mid_resnet = &vae_wan_causal_mid_resnet,
    .attention = &vae_wan_causal_attention,
    .resnet = &causal_kind_resnet,
    .wider_resnet = &causal_kind_wider_resnet,
    .resample = &causal_kind_upsample,
    .resample_time = &causal_kind_upsample_time,
    .out = &vae_wan_causal_out,
};

/* True for a VAE of Wan 2.1; false for Wan 2.2's, whose mid-block names are the same. */
static bool vae_wan_probe(const struct tensor_index *index) {
    if (family_vae_wan22.files.probe(index)) return false;
    return index_find(index, "decoder.mid_block.resnets.0.norm1.gamma") ||
           index_find(index, "decoder.middle.0.residual.0.gamma");
}

static const struct vae_wan_half vae_wan_half = {
    .image = &vae_wan_image_kinds,
    .video = &vae_wan_causal_kinds,
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

static enum status vae_wan_decoder_configure(struct component *c, const struct config *config,
                                             struct error *e) {
    (void)config;
    return vae_wan_configure(c, &vae_wan_half, e);
}

static void vae_wan_decoder_derive_dims(struct component *c) {
    vae_wan_derive_dims(c, &vae_wan_half);
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
    if (c->video)
        causal_declare_decoder(c, lanes, n_lanes, false, arena, pictures, ok);
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
    .display_name = "autoencoder",
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
               .configure = vae_wan_decoder_configure,
               .derive_dims = vae_wan_decoder_derive_dims,
               .derive = vae_wan_decoder_derive,
               .rest = "\"attn_scales\": [], \"dropout\": 0.0, \"temperal_downsample\": [false, true, true]"},
    .blocks = {.list = vae_wan_blocks, .dims = vae_wan_block_dims},
    .state = {.bytes = VAE_WAN_STATE_BYTES, .declare = vae_wan_declare},
    .predicted = {.kind = "resnet",
                  .number = 301,
                  /* predicted block: the last level, at full resolution */ .tokens = 1024 * 1024,
                  PREDICTED_IMAGE},
};

/* VAE encoder of Wan 2.1 and Qwen-Image: image or video to the mean and log variance of its latent.
 *
 * conv_in, then per level resnets and a stride-2 convolution, two resnets around a single-head attention,
 * norm, SiLU, conv_out, a 1x1 convolution: see vae_blocks.h, vae_causal.h, vae_wan_half.h. Its weights lie in
 * the decoder's file. */

/* diffusers and the authors both number blocks of all levels consecutively. */
#define DOWN            "encoder.down_blocks.%d."
#define CHECKPOINT_DOWN "encoder.downsamples.%d."

#define ENCODER_MID_RESNET            "encoder.mid_block.resnets.%d."
#define CHECKPOINT_ENCODER_MID_RESNET "encoder.middle.%d."

/* clang-format off */
/* Weight lists of the ends of the encoder, for one image (CONV3D) and for video (CAUSAL). */
#define IMAGE_PICTURE_IN(X, S) X##CONV3D(S, conv, OUT, COLOURS, K3, K3, "encoder.conv_in", "encoder.conv1")
#define VIDEO_PICTURE_IN(X, S) X##CAUSAL(S, conv, OUT, COLOURS, K3, K3, "encoder.conv_in", "encoder.conv1")
#define MOMENTS_OUT(X, S, CONV)                                                                              \
    VAE_WAN_OUT(X, S, CONV, "encoder.", MOMENTS)                                                             \
    X##CONV3D(S, post, MOMENTS, MOMENTS, K1, K1, "quant_conv", "conv1")
#define IMAGE_MOMENTS_OUT(X, S) MOMENTS_OUT(X, S, CONV3D)
#define VIDEO_MOMENTS_OUT(X, S) MOMENTS_OUT(X, S, CAUSAL)
/* clang-format on */

CONV_TABLE(vae_wan_encoder_downsample_table, OUT, IN, K3, DOWN "resample.1", CHECKPOINT_DOWN "resample.1");
WEIGHT_TABLE(vae_wan_encoder_attention_table, VAE_WAN_ATTENTION, vae_wan_attention_weights,
             "encoder.mid_block.attentions.0.", "encoder.middle.1.");
WEIGHT_TABLE(causal_encoder_in_table, VIDEO_PICTURE_IN, causal_in_weights, "", "");
WEIGHT_TABLE(causal_encoder_mid_resnet_table, CAUSAL_RESNET, causal_resnet_weights, ENCODER_MID_RESNET,
             CHECKPOINT_ENCODER_MID_RESNET);
WEIGHT_TABLE(causal_encoder_out_table, VIDEO_MOMENTS_OUT, causal_out_weights, "", "");

static void vae_wan_encoder_forward_downsample(struct context *x, const void *weights,
                                               const struct visit_scope *scope) {
    const struct vae_wan_settings *settings = scope->settings;
    vae_forward_downsample(x, weights, scope, scope->number / settings->resnet_number_stride + 1);
}

BLOCK_OF_LIST(vae_wan_encoder_kind_in, "conv_in", "conv_in", IMAGE_PICTURE_IN, in_weights, "", "",
              vae_forward_picture_in, .never_quantised = true);
BLOCK_OF_LIST(vae_wan_encoder_kind_down_resnet, "resnet", "down_blocks.%d", VAE_WAN_IMAGE_RESNET,
              resnet_weights, DOWN, CHECKPOINT_DOWN, vae_forward_resnet, .never_quantised = true);
BLOCK_OF_LIST(vae_wan_encoder_kind_wider_resnet, "wider_resnet", "down_blocks.%d", VAE_WAN_IMAGE_WIDER_RESNET,
              resnet_weights, DOWN, CHECKPOINT_DOWN, vae_forward_resnet, .never_quantised = true);
static const struct block_kind vae_wan_encoder_kind_downsample =
    BLOCK_KIND("downsample", "down_blocks.%d", vae_wan_encoder_downsample_table, linear_weights,
               vae_wan_encoder_forward_downsample, .never_quantised = true);
BLOCK_OF_LIST(vae_wan_encoder_kind_time_conv, "frames", "down_blocks.%d.frames", VAE_WAN_TIME_CONV,
              linear_weights, DOWN, CHECKPOINT_DOWN, NULL, .never_quantised = true);
BLOCK_OF_LIST(vae_wan_encoder_kind_mid_resnet, "mid_resnet", "mid_block.resnets.%d", VAE_WAN_IMAGE_RESNET,
              resnet_weights, ENCODER_MID_RESNET, CHECKPOINT_ENCODER_MID_RESNET, vae_forward_resnet,
              .never_quantised = true);
static const struct block_kind vae_wan_encoder_kind_attention =
    BLOCK_KIND("attention", "mid_block.attentions.0", vae_wan_encoder_attention_table,
               vae_wan_attention_weights, vae_wan_forward_attention, .never_quantised = true);
BLOCK_OF_LIST(vae_wan_encoder_kind_out, "conv_out", "conv_out", IMAGE_MOMENTS_OUT, out_weights, "", "",
              vae_forward_moments, .never_quantised = true);

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
    BLOCK_KIND("conv_in", "conv_in", causal_encoder_in_table, causal_in_weights, causal_forward_picture_in,
               .never_quantised = true);
BLOCK_OF_LIST(causal_encoder_kind_resnet, "resnet", "down_blocks.%d", CAUSAL_RESNET, causal_resnet_weights,
              DOWN, CHECKPOINT_DOWN, vae_wan_forward_causal_resnet, .never_quantised = true);
BLOCK_OF_LIST(causal_encoder_kind_wider_resnet, "wider_resnet", "down_blocks.%d", CAUSAL_WIDER_RESNET,
              causal_resnet_weights, DOWN, CHECKPOINT_DOWN, vae_wan_forward_causal_resnet,
              .never_quantised = true);
BLOCK_OF_LIST(causal_encoder_kind_downsample, "downsample", "down_blocks.%d", CAUSAL_RESAMPLE,
              causal_resample_weights, DOWN, CHECKPOINT_DOWN, vae_wan_forward_causal_downsample,
              .never_quantised = true);
BLOCK_OF_LIST(causal_encoder_kind_downsample_time, "downsample_in_time", "down_blocks.%d",
              CAUSAL_RESAMPLE_TIME, causal_resample_weights, DOWN, CHECKPOINT_DOWN,
              vae_wan_forward_causal_downsample, .never_quantised = true);
const struct block_kind vae_wan_encoder_causal_mid_resnet =
    BLOCK_KIND("mid_resnet", "mid_block.resnets.%d", causal_encoder_mid_resnet_table, causal_resnet_weights,
               vae_wan_forward_causal_mid_resnet, .never_quantised = true);
const struct block_kind vae_wan_encoder_causal_attention =
    BLOCK_KIND("attention", "mid_block.attentions.0", vae_wan_encoder_attention_table,
               vae_wan_attention_weights, vae_wan_forward_causal_attention, .never_quantised = true);
const struct block_kind vae_wan_encoder_causal_out =
    BLOCK_KIND("conv_out", "conv_out", causal_encoder_out_table, causal_out_weights, causal_forward_moments,
               .never_quantised = true);

static const struct vae_wan_kinds vae_wan_encoder_causal_kinds = {
    .in = &vae_wan_encoder_causal_in,
    .mid_resnet = &vae_wan_encoder_causal_mid_resnet,
    .attention = &vae_wan_encoder_causal_attention,
    .resnet = &causal_encoder_kind_resnet,
    .wider_resnet = &causal_encoder_kind_wider_resnet,
    .resample = &causal_encoder_kind_downsample,
    .resample_time = &causal_encoder_kind_downsample_time,
    .out = &vae_wan_encoder_causal_out,
};

static bool vae_wan_encoder_probe(const struct tensor_index *index) {
    if (family_vae_wan22_encoder.files.probe(index)) return false;
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
    c->dims[RESNETS]--; /* encoder levels have one resnet less than vae_resnets, the number per decoder level
                         */
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

/* The encoder reads the decoder's config.json. */
const struct family family_vae_wan_encoder = {
    .name = "vae_wan_encoder",
    .kind = FAMILY_ENCODER,
    .display_name = "autoencoder's encoder",
    .files = {.config_key = "_class_name",
              .config_value = "AutoencoderKLQwenImage",
              .config_others = vae_wan_video_classes,
              .probe = vae_wan_encoder_probe,
              .ignorable = vae_wan_encoder_ignorable},
    .config = {.dimensions = vae_wan_encoder_dimensions,
               .n_dimensions = COUNT_OF(vae_wan_encoder_dimensions),
               .latent_norm = {.lists = vae_wan_lists},
               .expects = vae_wan_expects,
               .configure = vae_wan_encoder_configure,
               .derive_dims = vae_wan_encoder_derive_dims,
               .derive = vae_wan_encoder_derive},
    .blocks = {.list = vae_wan_encoder_blocks, .dims = vae_wan_encoder_block_dims},
    .state = {.bytes = VAE_WAN_STATE_BYTES, .declare = vae_wan_encoder_declare},
    .predicted = {.kind = "resnet", .tokens = 1024 * 1024, PREDICTED_IMAGE},
};
