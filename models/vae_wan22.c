/* VAE decoder of Wan 2.2's 5B model (TI2V): a latent of 48 channels to video; each output pixel holds a 2x2
 * patch.
 *
 * Differs from Wan 2.1's decoder (vae_wan.c) in sizes, names, and level shortcuts that add a level's input to
 * its resampled output: see vae_causal.h. */
#include "models/models.h"
#include "models/vae_wan_half.h"

#define UP_RESNET        "decoder.up_blocks.%d.resnets.%d."
#define UPSAMPLER        "decoder.up_blocks.%d.upsampler."
#define CHECKPOINT_BLOCK "decoder.upsamples.%d.upsamples.%d."

BLOCK_OF_LIST(vae_wan22_kind_resnet, "resnet", "up_blocks.%d.resnets.%d", CAUSAL_RESNET,
              causal_resnet_weights, UP_RESNET, CHECKPOINT_BLOCK, vae_wan_forward_causal_resnet,
              .never_quantised = true);
BLOCK_OF_LIST(vae_wan22_kind_wider_resnet, "wider_resnet", "up_blocks.%d.resnets.%d", CAUSAL_WIDER_RESNET,
              causal_resnet_weights, UP_RESNET, CHECKPOINT_BLOCK, vae_wan_forward_causal_resnet,
              .never_quantised = true);
BLOCK_OF_LIST(vae_wan22_kind_upsample, "upsample", "up_blocks.%d.upsample", CAUSAL_RESAMPLE,
              causal_resample_weights, UPSAMPLER, CHECKPOINT_BLOCK, vae_wan_forward_causal_upsample,
              .never_quantised = true);
BLOCK_OF_LIST(vae_wan22_kind_upsample_time, "upsample_in_time", "up_blocks.%d.upsample", CAUSAL_RESAMPLE_TIME,
              causal_resample_weights, UPSAMPLER, CHECKPOINT_BLOCK, vae_wan_forward_causal_upsample,
              .never_quantised = true);

static const struct vae_wan_kinds vae_wan22_kinds = {
    .in = &vae_wan_causal_in,
    .mid_resnet = &vae_wan_causal_mid_resnet,
    .attention = &vae_wan_causal_attention,
    .resnet = &vae_wan22_kind_resnet,
    .wider_resnet = &vae_wan22_kind_wider_resnet,
    .resample = &vae_wan22_kind_upsample,
    .resample_time = &vae_wan22_kind_upsample_time,
    .out = &vae_wan_causal_out,
};

static const struct vae_wan_half vae_wan22_half = {
    .image = &vae_wan22_kinds,
    .video = &vae_wan22_kinds,
    .word = "decoder",
    .from_deepest = true,
    .is_residual = true,
    .level = "decoder.up_blocks.",
    .nested = {"decoder.upsamples.", "upsamples."},
};

static bool vae_wan22_probe(const struct tensor_index *index) {
    return index_find(index, "decoder.up_blocks.0.upsampler.resample.1.weight") ||
           index_find(index, "decoder.upsamples.0.upsamples.0.residual.0.gamma");
}

static enum status vae_wan22_configure(struct component *c, const struct config *config, struct error *e) {
    (void)config;
    return vae_wan_configure(c, &vae_wan22_half, e);
}

static void vae_wan22_derive_dims(struct component *c) {
    vae_wan_derive_dims(c, &vae_wan22_half);
}

static void vae_wan22_derive(struct component *c) {
    vae_wan_derive(c, &vae_wan22_half);
}

static int vae_wan22_blocks(const struct component *c, struct block_ref *refs) {
    return vae_wan_list_blocks(c, &vae_wan22_half, refs);
}

static void vae_wan22_block_dims(const struct component *c, const struct block_ref *ref, int32_t *dims) {
    vae_wan_dims_of_block(c, &vae_wan22_half, ref, dims);
}

static void vae_wan22_declare(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                              struct arena *pictures, bool *ok) {
    causal_declare_decoder(c, lanes, n_lanes, true, arena, pictures, ok);
}

static const char *const vae_wan22_ignorable[] = {"encoder.", "quant_conv.", "conv1.", NULL};

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
    .files = {.config_key = "_class_name",
              .config_value = "AutoencoderKLWan",
              .probe = vae_wan22_probe,
              .ignorable = vae_wan22_ignorable},
    .config = {.dimensions = vae_wan22_dimensions,
               .n_dimensions = COUNT_OF(vae_wan22_dimensions),
               .latent_norm = {.lists = vae_wan22_lists},
               .expects = vae_wan22_expects,
               .configure = vae_wan22_configure,
               .derive_dims = vae_wan22_derive_dims,
               .derive = vae_wan22_derive,
               .rest = "\"attn_scales\": [], \"dropout\": 0.0, \"is_residual\": true, \"patch_size\": 2, "
                       "\"scale_factor_spatial\": 16, \"scale_factor_temporal\": 4, "
                       "\"temperal_downsample\": [false, true, true]"},
    .blocks = {.list = vae_wan22_blocks, .dims = vae_wan22_block_dims},
    .state = {.bytes = sizeof(struct causal_state), .declare = vae_wan22_declare},
    .predicted = {.kind = "resnet", .number = 301, VAE_WAN22_PREDICTED},
};

/* VAE encoder of Wan 2.2's 5B model (TI2V): video to the mean and log variance of its latent. Counterpart of
 * vae_wan22.c; its weights lie in the decoder's file. */

#define DOWN_RESNET     "encoder.down_blocks.%d.resnets.%d."
#define DOWNSAMPLER     "encoder.down_blocks.%d.downsampler."
#define CHECKPOINT_DOWN "encoder.downsamples.%d.downsamples.%d."

BLOCK_OF_LIST(vae_wan22_encoder_kind_resnet, "resnet", "down_blocks.%d.resnets.%d", CAUSAL_RESNET,
              causal_resnet_weights, DOWN_RESNET, CHECKPOINT_DOWN, vae_wan_forward_causal_resnet,
              .never_quantised = true);
BLOCK_OF_LIST(vae_wan22_encoder_kind_wider_resnet, "wider_resnet", "down_blocks.%d.resnets.%d",
              CAUSAL_WIDER_RESNET, causal_resnet_weights, DOWN_RESNET, CHECKPOINT_DOWN,
              vae_wan_forward_causal_resnet, .never_quantised = true);
BLOCK_OF_LIST(vae_wan22_encoder_kind_downsample, "downsample", "down_blocks.%d.downsample", CAUSAL_RESAMPLE,
              causal_resample_weights, DOWNSAMPLER, CHECKPOINT_DOWN, vae_wan_forward_causal_downsample,
              .never_quantised = true);
BLOCK_OF_LIST(vae_wan22_encoder_kind_downsample_time, "downsample_in_time", "down_blocks.%d.downsample",
              CAUSAL_RESAMPLE_TIME, causal_resample_weights, DOWNSAMPLER, CHECKPOINT_DOWN,
              vae_wan_forward_causal_downsample, .never_quantised = true);

static const struct vae_wan_kinds vae_wan22_encoder_kinds = {
    .in = &vae_wan_encoder_causal_in,
    .mid_resnet = &vae_wan_encoder_causal_mid_resnet,
    .attention = &vae_wan_encoder_causal_attention,
    .resnet = &vae_wan22_encoder_kind_resnet,
    .wider_resnet = &vae_wan22_encoder_kind_wider_resnet,
    .resample = &vae_wan22_encoder_kind_downsample,
    .resample_time = &vae_wan22_encoder_kind_downsample_time,
    .out = &vae_wan_encoder_causal_out,
};

static const struct vae_wan_half vae_wan22_encoder_half = {
    .image = &vae_wan22_encoder_kinds,
    .video = &vae_wan22_encoder_kinds,
    .word = "encoder",
    .is_residual = true,
    .level = "encoder.down_blocks.",
    .nested = {"encoder.downsamples.", "downsamples."},
};

static bool vae_wan22_encoder_probe(const struct tensor_index *index) {
    return index_find(index, "encoder.down_blocks.0.resnets.0.norm1.gamma") ||
           index_find(index, "encoder.downsamples.0.downsamples.0.residual.0.gamma");
}

static enum status vae_wan22_encoder_configure(struct component *c, const struct config *config,
                                               struct error *e) {
    (void)config;
    return vae_wan_configure(c, &vae_wan22_encoder_half, e);
}

static void vae_wan22_encoder_derive_dims(struct component *c) {
    vae_wan_derive_dims(c, &vae_wan22_encoder_half);
    c->dims[RESNETS]--; /* encoder levels have one resnet less than vae_resnets, the number per decoder level
                         */
}

static void vae_wan22_encoder_derive(struct component *c) {
    vae_wan_derive(c, &vae_wan22_encoder_half);
}

static int vae_wan22_encoder_blocks(const struct component *c, struct block_ref *refs) {
    return vae_wan_list_blocks(c, &vae_wan22_encoder_half, refs);
}

static void vae_wan22_encoder_block_dims(const struct component *c, const struct block_ref *ref,
                                         int32_t *dims) {
    vae_wan_dims_of_block(c, &vae_wan22_encoder_half, ref, dims);
}

static void vae_wan22_encoder_declare(const struct component *c, struct lane *lanes, int n_lanes,
                                      struct arena *arena, struct arena *pictures, bool *ok) {
    causal_declare_encoder(c, lanes, n_lanes, true, arena, pictures, ok);
}

static const char *const vae_wan22_encoder_ignorable[] = {"decoder.", "post_quant_conv.", "conv2.", NULL};

static const struct dimension vae_wan22_encoder_dimensions[] = {VAE_WAN22_DIMENSIONS(BASE, OTHER_BASE)};

/* The encoder reads the decoder's config.json. */
const struct family family_vae_wan22_encoder = {
    .name = "vae_wan22_encoder",
    .kind = FAMILY_ENCODER,
    .display_name = "autoencoder's encoder",
    .files = {.config_key = "_class_name",
              .config_value = "AutoencoderKLWan",
              .probe = vae_wan22_encoder_probe,
              .ignorable = vae_wan22_encoder_ignorable},
    .config = {.dimensions = vae_wan22_encoder_dimensions,
               .n_dimensions = COUNT_OF(vae_wan22_encoder_dimensions),
               .latent_norm = {.lists = vae_wan22_lists},
               .expects = vae_wan22_expects,
               .configure = vae_wan22_encoder_configure,
               .derive_dims = vae_wan22_encoder_derive_dims,
               .derive = vae_wan22_encoder_derive},
    .blocks = {.list = vae_wan22_encoder_blocks, .dims = vae_wan22_encoder_block_dims},
    .state = {.bytes = sizeof(struct causal_state), .declare = vae_wan22_encoder_declare},
    .predicted = {.kind = "resnet", VAE_WAN22_PREDICTED},
};
