/* VAE of Qwen-Image-2.1: decoder and encoder of single images with alpha. Files hold both halves.
 *
 * The blocks are those of Wan 2.2's VAE (vae_wan.c) with 2D convolutions and without 2x2 patches: five
 * levels, four image channels, a latent of 64 channels with 1/16 of the image's sides. Level shortcuts add a
 * level's input to its resampled output, as for the first frame of a video. Files hold time_conv, which
 * images do not use; the shortcuts of its levels nevertheless count two frames per coarse frame. Blocks work
 * in the full-frame buffer of vae_blocks.h; a second buffer holds a level's input. The decoder's last levels
 * are computed together in bands (vae_bands.h). Tensor names and configuration: vae_wan_half.h. Reference:
 * diffusers 0.42,
 * models/autoencoders/autoencoder_kl_qwenimage21.py. */
#include "models/models.h"
#include "models/vae_bands.h"
#include "models/vae_wan_weights.h"

#include <string.h>

enum { VAE_QWEN21_LATENT = 64, VAE_QWEN21_COLOURS = 4 };

struct vae_qwen21_state {
    struct vae_state image;
    struct tensor saved; /* [rows, FULL_FRAME_ROW] f32: memory for the input of one level */
    int32_t level_input[VAE_LEVELS_MAX][3]; /* shape [Y, X, C] of each level's input; Y 0: no shortcut */
    int32_t frames[VAE_LEVELS_MAX];         /* struct shortcut's frames for each level, 1 or 2 */
    int last_level;                         /* the last in execution order */
    struct vae_bands bands;                 /* the decoder's last levels */
};

static struct tensor qwen21_level_input(const struct vae_qwen21_state *state, int level) {
    return tensor_make(state->saved.data, DTYPE_F32, 3, state->level_input[level]);
}

/* Runs a resnet of a level; the level's first resnet also keeps its input for the level shortcut. */
static void qwen21_forward_resnet(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct vae_qwen21_state *state = scope->lane->state;
    int level = scope->number / BLOCK_NUMBER_STEP;
    if (scope->number % BLOCK_NUMBER_STEP == 0 && state->level_input[level][0])
        op_copy(x, qwen21_level_input(state, level), state->image.full_frame.picture);
    vae_forward_resnet(x, weights, scope);
}

/* Adds the shortcut of the encoder's last level, which keeps its size, before the mid block. */
static void qwen21_forward_encoder_mid_resnet(struct context *x, const void *weights,
                                              const struct visit_scope *scope) {
    const struct vae_qwen21_state *state = scope->lane->state;
    struct tensor picture = state->image.full_frame.picture;
    if (scope->number == 0)
        op_mean_down(x, picture, qwen21_level_input(state, state->last_level), (struct tensor){0}, picture,
                     (struct shortcut){1, 1, 0});
    vae_forward_resnet(x, weights, scope);
}

/* Runs a resnet of the decoder; a level in bands only keeps its weights. */
static void qwen21_forward_decoder_resnet(struct context *x, const void *weights,
                                          const struct visit_scope *scope) {
    const struct vae_bands *bands = &((const struct vae_qwen21_state *)scope->lane->state)->bands;
    int level = scope->number / BLOCK_NUMBER_STEP;
    if (level < bands->first)
        qwen21_forward_resnet(x, weights, scope);
    else
        vae_bands_keep_resnet(x, bands, level, scope->number % BLOCK_NUMBER_STEP, weights);
}

static void qwen21_forward_picture_out(struct context *x, const void *weights,
                                       const struct visit_scope *scope) {
    const struct vae_qwen21_state *state = scope->lane->state;
    vae_bands_forward(x, &state->bands, weights, lane_picture(scope->lane), state->image.full_frame.picture,
                      qwen21_level_input(state, state->bands.first - 1));
}

static void qwen21_forward_upsample(struct context *x, const void *weights, const struct visit_scope *scope) {
    const struct vae_qwen21_state *state = scope->lane->state;
    int level = scope->number, frames = state->frames[level];
    if (level + 1 >= state->bands.first) {
        vae_bands_keep_up(x, &state->bands, level + 1, weights);
        return;
    }
    vae_forward_upsample(x, weights, scope, level + 1);
    struct tensor picture = state->image.full_frame.picture;
    op_repeat_up(x, picture, qwen21_level_input(state, level), picture,
                 (struct shortcut){frames, 2, frames - 1});
}

static void qwen21_forward_downsample(struct context *x, const void *weights,
                                      const struct visit_scope *scope) {
    const struct vae_qwen21_state *state = scope->lane->state;
    int level = scope->number;
    vae_forward_downsample(x, weights, scope, level + 1);
    struct tensor picture = state->image.full_frame.picture;
    op_mean_down(x, picture, qwen21_level_input(state, level), (struct tensor){0}, picture,
                 (struct shortcut){state->frames[level], 2, 0});
}

/* clang-format off */
IMAGE_HALF_TABLES(decoder, LATENT_IN, PICTURE_OUT);
IMAGE_HALF_TABLES(encoder, PICTURE_IN, MOMENTS_OUT);
IMAGE_LEVEL_TABLES(up, "decoder.up_blocks.%d.resnets.%d.", "decoder.up_blocks.%d.upsampler.",
                   "decoder.upsamples.%d.upsamples.%d.");
IMAGE_LEVEL_TABLES(down, "encoder.down_blocks.%d.resnets.%d.", "encoder.down_blocks.%d.downsampler.",
                   "encoder.downsamples.%d.downsamples.%d.");
/* clang-format on */
static const struct vae_wan_kinds decoder_kinds =
    IMAGE_KINDS(decoder, up, "up_blocks.%d.resnets.%d", "up_blocks.%d.upsample", "up_blocks.%d.frames",
                upsample, vae_forward_resnet, qwen21_forward_decoder_resnet, qwen21_forward_upsample,
                vae_forward_latent_in, qwen21_forward_picture_out);
static const struct vae_wan_kinds encoder_kinds =
    IMAGE_KINDS(encoder, down, "down_blocks.%d.resnets.%d", "down_blocks.%d.downsample",
                "down_blocks.%d.frames", downsample, qwen21_forward_encoder_mid_resnet, qwen21_forward_resnet,
                qwen21_forward_downsample, vae_forward_picture_in, vae_forward_moments);

/* Sets the shapes of a lane's level inputs; [Y, X]: size of level 0. decodes: level 0 is the deepest, and
 * levels in bands are left out. Returns the rows of FULL_FRAME_ROW values that the largest input needs. */
static int64_t qwen21_set_levels(const struct component *c, struct vae_qwen21_state *state, bool decodes,
                                 int32_t Y, int32_t X) {
    const struct vae_wan_half *half = c->family->details;
    int64_t floats = 0;
    state->last_level = c->dims[LEVELS] - 1;
    for (int i = 0; i < state->last_level; i++) state->frames[i] = vae_wan_resamples_time(c, half, i) ? 2 : 1;
    for (int i = 0; i < (decodes ? vae_bands_first(c) : c->dims[LEVELS]); i++) {
        int32_t dim[3] = {decodes ? Y << i : Y >> i, decodes ? X << i : X >> i, c->dims[IN_CHANNELS + i]};
        memcpy(state->level_input[i], dim, sizeof dim);
        int64_t n = (int64_t)dim[0] * dim[1] * dim[2];
        if (n > floats) floats = n;
    }
    return (floats + FULL_FRAME_ROW - 1) / FULL_FRAME_ROW;
}

/* Callback family_state.declare. All lanes share the memory for a level's input, as they share the full-frame
 * buffer. */
static void qwen21_declare(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                           struct arena *pictures, bool *ok) {
    bool decodes = ((const struct vae_wan_half *)c->family->details)->from_deepest;
    struct vae_bands bands = {0};
    int64_t rows = 0;
    if (decodes) {
        vae_declare_levels(c, vae_bands_first(c), lanes, n_lanes, pictures, ok);
        bands = vae_bands_declare(c, arena, ok);
    } else {
        vae_wan_declare(c, lanes, n_lanes, arena, pictures, ok);
    }
    for (int i = 0; i < n_lanes; i++) {
        const int32_t *size = decodes ? lanes[i].latent.dim + 2 : lanes[i].picture.dim + 1;
        int64_t needs = qwen21_set_levels(c, lanes[i].state, decodes, size[0], size[1]);
        if (needs > rows) rows = needs;
    }
    struct tensor saved =
        arena_tensor(pictures, DTYPE_F32, 2, (int32_t[]){(int32_t)rows, FULL_FRAME_ROW}, ok);
    for (int i = 0; i < n_lanes; i++) {
        struct vae_qwen21_state *state = lanes[i].state;
        state->saved = saved;
        state->bands = bands;
        for (int k = 0; k < bands.n; k++) {
            int32_t frames = state->frames[bands.first + k - 1];
            state->bands.shortcut[k] = (struct shortcut){frames, 2, frames - 1};
        }
    }
}

static const float published_mean[VAE_QWEN21_LATENT] = {
    0.5126f,  0.7721f,  -0.0631f, 1.3506f,  -0.7855f, -2.1025f, -0.3458f, 1.3722f,  1.8873f,  -1.7177f,
    -0.651f,  0.2732f,  0.7562f,  -0.6163f, -1.0277f, 3.8363f,  2.021f,   0.0472f,  0.932f,   2.0087f,
    2.4954f,  -0.1391f, -1.4249f, 1.8464f,  -0.5236f, 1.2826f,  3.7046f,  -1.3035f, 2.7286f,  -1.4518f,
    -1.9036f, -1.9955f, -0.0342f, -1.0265f, -0.7636f, 3.0555f,  0.0746f,  -3.0751f, -0.1076f, 1.7376f,
    -1.0914f, -1.9435f, -0.2784f, -1.368f,  0.4809f,  -0.4433f, 0.3764f,  0.5729f,  -2.0595f, 1.096f,
    -1.326f,  -2.0211f, -5.0179f, 0.5275f,  4.0162f,  1.8505f,  0.3026f,  1.9373f,  1.4937f,  0.2632f,
    0.5547f,  -1.7121f, -0.1562f, 0.0304f};
static const float published_std[VAE_QWEN21_LATENT] = {
    3.2001f, 3.2936f, 3.4321f, 3.0091f, 3.1061f, 4.0379f, 4.0705f, 3.791f,  3.0785f, 3.65f,   3.9308f,
    3.0904f, 2.8778f, 3.7675f, 3.732f,  5.0756f, 3.2864f, 4.0397f, 3.1317f, 4.0443f, 2.9249f, 3.9454f,
    3.0988f, 4.2489f, 3.4896f, 3.8513f, 3.9323f, 3.4719f, 3.7498f, 4.283f,  3.5694f, 4.2467f, 3.9037f,
    3.2947f, 5.077f,  3.5075f, 3.27f,   3.4767f, 2.8063f, 5.1125f, 3.5327f, 4.7833f, 3.1286f, 4.1819f,
    3.8527f, 3.8312f, 3.5605f, 4.3875f, 3.9624f, 4.0168f, 3.5643f, 4.055f,  5.5614f, 4.2963f, 4.408f,
    3.4959f, 3.8747f, 3.7608f, 3.5735f, 3.149f,  3.7662f, 3.6746f, 3.4563f, 3.8161f};
#define LIST(key, field, least, list)                                                                        \
    {                                                                                                        \
        key, offsetof(struct latent_format, field), VAE_QWEN21_LATENT, LATENT, least, 1e6, list,             \
            COUNT_OF(list), false                                                                            \
    }
static const struct setting_list lists[LATENT_LISTS] = {
    LIST("latents_mean", shift, -1e6, published_mean),
    LIST("latents_std", scale, 1e-6, published_std),
};

/* Preview colours, fitted by ComfyUI (comfy/latent_formats.py, QwenImage21) for latents as the denoiser reads
 * them; converted from ComfyUI's range, -1 to 1, to 0 to 1. */
static const float colours_qwen21[][3] = {
    {-0.0079F, -0.00575F, -0.0087F},  {0.0015F, 0.006F, 0.00135F},       {0.03185F, 0.0235F, -0.00635F},
    {0.018F, 0.03305F, -0.0015F},     {0.00795F, 0.00905F, 0.0041F},     {0.0066F, 0.0163F, 0.00845F},
    {0.00955F, 0.01305F, 0.0068F},    {-0.0073F, -0.0138F, -0.01805F},   {0.00935F, -0.0012F, -0.0036F},
    {-0.05295F, -0.0045F, 0.0175F},   {-0.00975F, -0.0113F, -0.0069F},   {-0.01475F, 0.0012F, -0.01075F},
    {0.00955F, -0.01965F, -5e-05F},   {-0.0072F, -0.0083F, -0.0136F},    {0.01945F, 0.0215F, 0.02225F},
    {-0.00765F, -0.0168F, 0.00155F},  {0.01695F, 0.0061F, 0.011F},       {-0.0068F, -0.0039F, -0.006F},
    {-0.017F, -0.0141F, -0.01225F},   {-0.00665F, -0.0088F, -0.00665F},  {0.00545F, -0.00435F, 0.0048F},
    {-0.0005F, 0.0022F, 0.0008F},     {0.01505F, 0.00265F, 0.01805F},    {-0.01405F, -0.01025F, -0.0016F},
    {-0.03625F, 0.0001F, 0.008F},     {-0.0018F, 0.0079F, 0.04035F},     {0.00435F, 0.002F, -0.00265F},
    {-0.013F, 0.00915F, -0.00385F},   {-0.00195F, -0.00175F, -0.00535F}, {-0.0013F, 0.0086F, 0.01185F},
    {0.0044F, 0.0039F, 0.0039F},      {-0.00435F, -0.0155F, -0.0061F},   {-0.00135F, 0.0009F, 0.0047F},
    {-0.0032F, 0.0146F, -0.0128F},    {0.0297F, 0.05245F, 0.059F},       {0.00515F, -0.00515F, -0.0013F},
    {-0.00455F, 0.00125F, -0.00075F}, {0.0089F, 0.01215F, 0.0146F},      {-0.00315F, -0.0006F, 0.0101F},
    {0.0226F, 0.0123F, 0.00715F},     {0.00745F, 0.0135F, 0.0026F},      {0.0742F, 0.04005F, 0.0402F},
    {-0.006F, 0.002F, 0.0005F},       {0.00905F, 0.00255F, -0.00105F},   {0.0066F, 0.0025F, 0.00095F},
    {0.01455F, 0.001F, 0.0046F},      {0.0033F, -0.0205F, -0.0657F},     {-0.05765F, -0.03145F, -0.0401F},
    {0.0129F, 0.0189F, 0.0149F},      {0.01875F, 0.05695F, 0.0234F},     {-0.0071F, -0.0063F, -0.0138F},
    {0.01695F, 0.00765F, 0.0069F},    {0.0173F, 0.01055F, 0.01335F},     {0.01845F, -0.02155F, -0.04965F},
    {-0.0026F, -0.0046F, 0.0028F},    {-0.01395F, 0.0205F, -0.01785F},   {0.0018F, 0.00085F, -0.00415F},
    {-0.02205F, -0.01835F, -0.0227F}, {-5e-05F, -0.0046F, -5e-05F},      {-0.0111F, -0.00915F, -0.00255F},
    {0.00195F, 0.00265F, -0.0092F},   {-0.0047F, -0.00375F, -0.00715F},  {-0.0033F, -0.0044F, -0.00315F},
    {0.011F, 0.0037F, 0.005F}};
const struct latent_colours latent_colours_qwen21 = {
    VAE_QWEN21_LATENT, colours_qwen21, {0.4386F, 0.40655F, 0.34585F}, 0};

/* Refuses attention outside the mid block and patches as pixels. */
static const struct expectation expects[] = {{"attn_scales", NULL}, {"patch_size", NULL}, {0}};

/* encoder_base, decoder_base: dims index of the encoder's and the decoder's base width. */
#define DIMENSIONS(encoder_base, decoder_base)                                                               \
    {"latent_channels", VAE_QWEN21_LATENT, 1,                                                                \
     VAE_QWEN21_LATENT, .place = LATENT,   OF_TENSOR(1, 0, "post_quant_conv.bias", "conv2.bias"),            \
     .key = "z_dim"},                                                                                        \
        {"vae_base", 96, 1, 2048, .place = encoder_base, .key = "base_dim"},                                 \
        {"vae_decoder_base", 144, 1, 2048, .place = decoder_base, .key = "decoder_base_dim"},                \
        {"vae_times0", 1, 1, 16, .place = CHANNEL_MULT, .key = "dim_mult.0"},                                \
        {"vae_times1", 2, 1, 16, .place = CHANNEL_MULT + 1, .key = "dim_mult.1"},                            \
        {"vae_times2", 4, 1, 16, .place = CHANNEL_MULT + 2, .key = "dim_mult.2"},                            \
        {"vae_times3", 8, 1, 16, .place = CHANNEL_MULT + 3, .key = "dim_mult.3"},                            \
        {"vae_times4", 8, 1, 16, .place = CHANNEL_MULT + 4, .key = "dim_mult.4"}, {                          \
        "vae_resnets", 3, 2, 8, .place = RESNETS                                                             \
    }
static const struct dimension decoder_dimensions[] = {
    DIMENSIONS(OTHER_BASE, BASE),
    {.place = ENCODER_RESNETS, .key = "num_res_blocks"},
    {.place = COLOURS, .key = "in_channels"},
    {.place = COLOURS, .key = "out_channels"},
};
static const struct dimension encoder_dimensions[] = {DIMENSIONS(BASE, OTHER_BASE)};

static const struct vae_wan_half decoder_half = {
    .image = &decoder_kinds,
    .word = "decoder",
    .from_deepest = true,
    .is_residual = true,
    .image_only = true,
    .colours = VAE_QWEN21_COLOURS,
    .level = "decoder.up_blocks.",
    .nested = {"decoder.upsamples.", "upsamples."},
};
static const struct vae_wan_half encoder_half = {
    .image = &encoder_kinds,
    .word = "encoder",
    .is_residual = true,
    .image_only = true,
    .colours = VAE_QWEN21_COLOURS,
    .level = "encoder.down_blocks.",
    .nested = {"encoder.downsamples.", "downsamples."},
};

/* True for a decoder with level shortcuts and four output channels; Wan 2.2's has 12 per 2x2 pixels. */
static bool decoder_probe(const struct tensor_index *index) {
    const struct index_entry *bias = index_find(index, "decoder.conv_out.bias");
    if (!bias) bias = index_find(index, "decoder.head.2.bias");
    return vae_wan_is_residual(index, "decoder") && bias && index_elements(bias) == VAE_QWEN21_COLOURS;
}

/* True for an encoder with level shortcuts whose conv_in has 3x3 kernels over four image channels. */
static bool encoder_probe(const struct tensor_index *index) {
    enum { KERNEL = 3 * 3 };
    const char *names[] = {"encoder.conv_in.weight", "encoder.conv1.weight", "encoder.conv_in.bias",
                           "encoder.conv1.bias"};
    const struct index_entry *weight = index_find(index, names[0]), *bias = index_find(index, names[2]);
    if (!weight) weight = index_find(index, names[1]);
    if (!bias) bias = index_find(index, names[3]);
    return vae_wan_is_residual(index, "encoder") && weight && bias &&
           index_elements(weight) == KERNEL * VAE_QWEN21_COLOURS * index_elements(bias);
}

static const char *const decoder_ignorable[] = {"encoder.", "quant_conv.", "conv1.", NULL};
static const char *const encoder_ignorable[] = {"decoder.", "post_quant_conv.", "conv2.", NULL};

/* Members of both families' config and files. */
#define QWEN21_CONFIG(rows)                                                                                  \
    .dimensions = rows, .n_dimensions = COUNT_OF(rows), .latent_norm = {.lists = lists}, .expects = expects, \
    .configure = vae_wan_configure, .derive_dims = vae_wan_derive_dims, .derive = vae_wan_derive
#define QWEN21_FILES(probe_function, prefixes)                                                               \
    .config_key = "_class_name", .config_value = "AutoencoderKLQwenImage21", .probe = probe_function,        \
    .ignorable = prefixes

/* Initialisers of predicted_block for an image of 1024 x 1024. */
#define PREDICTED_LATENT .latent_channels = VAE_QWEN21_LATENT, .latent_side = 64, .picture_side = 1024

const struct family family_vae_qwen21 = {
    .name = "vae_qwen21",
    .kind = FAMILY_DECODER,
    .display_name = "autoencoder",
    .details = &decoder_half,
    .files = {QWEN21_FILES(decoder_probe, decoder_ignorable)},
    .config = {QWEN21_CONFIG(decoder_dimensions),
               .rest = "\"attn_scales\": [], \"dropout\": 0.0, \"is_residual\": true, \"patch_size\": null, "
                       "\"scale_factor_spatial\": 16, \"scale_factor_temporal\": 8, "
                       "\"temperal_downsample\": [false, true, true, true]"},
    .blocks = {.list = vae_wan_blocks, .dims = vae_wan_block_dims},
    .state = {.bytes = sizeof(struct vae_qwen21_state), .declare = qwen21_declare},
    /* The finest level in a full-frame buffer, 1/8 of the image's side. */
    .predicted = {{.kind = "resnet", .number = 101, .tokens = 128 * 128, PREDICTED_LATENT}},
};

/* The encoder reads the decoder's config.json. */
const struct family family_vae_qwen21_encoder = {
    .name = "vae_qwen21_encoder",
    .kind = FAMILY_ENCODER,
    .display_name = "autoencoder's encoder",
    .details = &encoder_half,
    .files = {QWEN21_FILES(encoder_probe, encoder_ignorable)},
    .config = {QWEN21_CONFIG(encoder_dimensions)},
    .blocks = {.list = vae_wan_blocks, .dims = vae_wan_block_dims},
    .state = {.bytes = sizeof(struct vae_qwen21_state), .declare = qwen21_declare},
    .predicted = {{.kind = "resnet", .tokens = 1024 * 1024, PREDICTED_LATENT}},
};
