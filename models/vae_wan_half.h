/* VAEs of Wan 2.1, Wan 2.2 and Qwen-Image: weight table rows under diffusers' names and the authors', and
 * configuration, shared by the encoder and decoder halves. Forward functions: vae_blocks.h for one image,
 * vae_causal.h for video.
 *
 * Kernels have three slices in time; with one image only the last slice contributes. Resampling convolutions
 * have no time axis; time_conv, which doubles or halves frames, does not apply to one image. Norms are RMS
 * norms over each pixel's channels. Reference: diffusers 0.42,
 * models/autoencoders/autoencoder_kl_qwenimage.py. */
#ifndef SLUICE_VAE_WAN_HALF_H
#define SLUICE_VAE_WAN_HALF_H

#include "models/vae_causal.h"

/* Further indices into the dims of a half, after enum vae_dim. */
enum vae_wan_dim {
    QKV = N_DIMS,  /* rows of one block's to_qkv */
    TIME_CHANNELS, /* rows of one block's time_conv */
    BASE,          /* base_dim: level widths are multiples of it */
    OTHER_BASE,    /* base_dim of the other half, if different */
    NORM_AXES,     /* axes of size 1 after a norm's weight in files */
    PICTURE_AXES,  /* axes of size 1 in files after weights that have no time axis */
    CHANNEL_MULT,  /* + i: dim_mult of level i, counted from the image */
};

/* Latent channels of the published models and the supported maximum. */
enum {
    VAE_WAN_LEVELS = 4,
    VAE_WAN_LATENT = 16,
    VAE_WAN22_LATENT = 48,
    VAE_WAN_LATENT_MAX = 48,
    VAE_WAN22_COLOURS = 12
};

struct vae_wan_settings {
    struct vae_settings half;
    int resnet_number_stride,
        resample_number_stride; /* block number increment per level, for resnets and for resampling blocks */
    float mean[VAE_WAN_LATENT_MAX], std[VAE_WAN_LATENT_MAX];
};

struct latent_format vae_wan_format(const struct vae_wan_settings *settings, int32_t channels);

/* ---- weights ---- */

struct vae_wan_attention_weights {
    struct tensor norm, qkv, qkv_bias, out, out_bias;
};

/* Common fields of a table row: weights structure member and tensor names. */
#define VAE_WAN_NAMED(structure, field, name, original_)                                                     \
    .offset = offsetof(struct structure, field), .names = {name}, .checkpoint_name = original_

#define VAE_WAN_BIAS(structure, field, rows, name, original_)                                                \
    {                                                                                                        \
        VAE_WAN_NAMED(structure, field, name ".bias", original_ ".bias"), .rank = 1, .dim = {rows},          \
                                                                          .init_scale = 1                    \
    }
#define VAE_WAN_NORM(structure, field, channels, axes, name, original_)                                      \
    {                                                                                                        \
        VAE_WAN_NAMED(structure, field, name ".gamma", original_ ".gamma"), .rank = 1, .dim = {channels},    \
                                                                            .ones = axes                     \
    }
/* Causal 3D convolution of which one image uses only the last time slice. Kernel: side x side x side. */
#define VAE_WAN_LAST_SLICE(structure, field, bias_field, outputs, inputs, side, name, original_)             \
    {VAE_WAN_NAMED(structure, field, name ".weight", original_ ".weight"), .rank = 4,                        \
     .dim = {outputs, inputs, side, side}, .slices = side, .init_scale = 1},                                 \
        VAE_WAN_BIAS(structure, bias_field, outputs, name, original_)

#define VAE_WAN_IN(structure, inputs, prefix)                                                                \
    VAE_WAN_LAST_SLICE(structure, weight, bias, OUT, inputs, K3, prefix "conv_in", prefix "conv1")
#define VAE_WAN_OUT(outputs, prefix)                                                                         \
    VAE_WAN_NORM(out_weights, norm, IN, NORM_AXES, prefix "norm_out", prefix "head.0"),                      \
        VAE_WAN_LAST_SLICE(out_weights, weight, bias, outputs, IN, K3, prefix "conv_out", prefix "head.2")

#define VAE_WAN_RESNET(prefix, original)                                                                     \
    VAE_WAN_NORM(resnet_weights, norm1, IN, NORM_AXES, prefix "norm1", original "residual.0"),               \
        VAE_WAN_LAST_SLICE(resnet_weights, conv1, conv1_bias, OUT, IN, K3, prefix "conv1",                   \
                           original "residual.2"),                                                           \
        VAE_WAN_NORM(resnet_weights, norm2, OUT, NORM_AXES, prefix "norm2", original "residual.3"),          \
        VAE_WAN_LAST_SLICE(resnet_weights, conv2, conv2_bias, OUT, OUT, K3, prefix "conv2",                  \
                           original "residual.6")
/* Shortcut of a level's first resnet, present if the level changes the number of channels. */
#define VAE_WAN_SHORTCUT(prefix, original)                                                                   \
    VAE_WAN_LAST_SLICE(resnet_weights, shortcut, shortcut_bias, OUT, IN, K1, prefix "conv_shortcut",         \
                       original "shortcut")

#define VAE_WAN_PRODUCT(field, rows, name, original_)                                                        \
    {VAE_WAN_NAMED(vae_wan_attention_weights, field, name ".weight", original_ ".weight"), .rank = 2,        \
     .dim = {rows, OUT}, .ones = PICTURE_AXES, .init_scale = 1},                                             \
        VAE_WAN_BIAS(vae_wan_attention_weights, field##_bias, rows, name, original_)
#define VAE_WAN_ATTENTION(prefix, original)                                                                  \
    VAE_WAN_NORM(vae_wan_attention_weights, norm, OUT, PICTURE_AXES, prefix "norm", original "norm"),        \
        VAE_WAN_PRODUCT(qkv, QKV, prefix "to_qkv", original "to_qkv"),                                       \
        VAE_WAN_PRODUCT(out, OUT, prefix "proj", original "proj")

/* Resampling convolution between two levels. */
#define VAE_WAN_RESAMPLE(prefix, original_)                                                                  \
    {VAE_WAN_NAMED(conv_weights, weight, prefix "resample.1.weight", original_ "resample.1.weight"),         \
     .rank = 4, .dim = {OUT, IN, K3, K3}, .init_scale = 1},                                                  \
        VAE_WAN_BIAS(conv_weights, bias, OUT, prefix "resample.1", original_ "resample.1")

/* ---- video: all time slices ---- */

#define VAE_WAN_SLICE(structure, field, at, outputs, inputs, side, name, original_)                          \
    {                                                                                                        \
        VAE_WAN_NAMED(structure, field.weight[at], name ".weight", original_ ".weight"),                     \
            .rank = 4, .dim = {outputs, inputs, side, side}, .slices = K3, .before_last = 2 - (at),          \
            .init_scale = 1                                                                                  \
    }
#define CAUSAL_CONV(structure, field, outputs, inputs, side, name, original_)                                \
    VAE_WAN_SLICE(structure, field, 0, outputs, inputs, side, name, original_),                              \
        VAE_WAN_SLICE(structure, field, 1, outputs, inputs, side, name, original_),                          \
        VAE_WAN_SLICE(structure, field, 2, outputs, inputs, side, name, original_),                          \
        VAE_WAN_BIAS(structure, field.bias, outputs, name, original_)

#define CAUSAL_OUT(outputs, prefix)                                                                          \
    VAE_WAN_NORM(causal_out_weights, norm, IN, NORM_AXES, prefix "norm_out", prefix "head.0"),               \
        CAUSAL_CONV(causal_out_weights, conv, outputs, IN, K3, prefix "conv_out", prefix "head.2")

#define CAUSAL_RESNET(prefix, original)                                                                      \
    VAE_WAN_NORM(causal_resnet_weights, norm1, IN, NORM_AXES, prefix "norm1", original "residual.0"),        \
        CAUSAL_CONV(causal_resnet_weights, conv1, OUT, IN, K3, prefix "conv1", original "residual.2"),       \
        VAE_WAN_NORM(causal_resnet_weights, norm2, OUT, NORM_AXES, prefix "norm2", original "residual.3"),   \
        CAUSAL_CONV(causal_resnet_weights, conv2, OUT, OUT, K3, prefix "conv2", original "residual.6")
#define CAUSAL_SHORTCUT(prefix, original)                                                                    \
    VAE_WAN_LAST_SLICE(causal_resnet_weights, shortcut, shortcut_bias, OUT, IN, K1, prefix "conv_shortcut",  \
                       original "shortcut")

#define CAUSAL_RESAMPLE(prefix, original_)                                                                   \
    {VAE_WAN_NAMED(causal_resample_weights, weight, prefix "resample.1.weight",                              \
                   original_ "resample.1.weight"),                                                           \
     .rank = 4, .dim = {OUT, IN, K3, K3}, .init_scale = 1},                                                  \
        VAE_WAN_BIAS(causal_resample_weights, bias, OUT, prefix "resample.1", original_ "resample.1")
/* Resampling convolution and time_conv. */
#define CAUSAL_RESAMPLE_TIME(prefix, original_)                                                              \
    CAUSAL_RESAMPLE(prefix, original_), CAUSAL_CONV(causal_resample_weights, time, TIME_CHANNELS, IN, K1,    \
                                                    prefix "time_conv", original_ "time_conv")

/* time_conv of a model used for one image: present in files, unused. */
#define VAE_WAN_TIME_CONV(prefix, original_)                                                                 \
    {VAE_WAN_NAMED(conv_weights, weight, prefix "time_conv.weight", original_ "time_conv.weight"),           \
     .rank = 3, .dim = {TIME_CHANNELS, OUT, K3}, .ones = PICTURE_AXES, .init_scale = 1},                     \
        VAE_WAN_BIAS(conv_weights, bias, TIME_CHANNELS, prefix "time_conv", original_ "time_conv")

/* ---- forwards ---- */

/* weights: struct vae_wan_attention_weights (attention), causal_resnet_weights (resnets),
 * causal_resample_weights (resampling). */
void vae_wan_forward_attention(struct context *x, const void *weights, const struct visit_scope *scope);
void vae_wan_forward_causal_attention(struct context *x, const void *weights,
                                      const struct visit_scope *scope);
void vae_wan_forward_causal_mid_resnet(struct context *x, const void *weights,
                                       const struct visit_scope *scope);
void vae_wan_forward_causal_resnet(struct context *x, const void *weights, const struct visit_scope *scope);
void vae_wan_forward_causal_upsample(struct context *x, const void *weights, const struct visit_scope *scope);
void vae_wan_forward_causal_downsample(struct context *x, const void *weights,
                                       const struct visit_scope *scope);

/* ---- family functions ---- */

/* Block kinds of a half, for one image or for video. */
struct vae_wan_kinds {
    const struct block_kind *in, *mid_resnet, *attention, *resnet, *wider_resnet, *resample;
    const struct block_kind
        *resample_time; /* resampling that also doubles or halves frames; NULL: same as resample */
    const struct block_kind
        *time_conv; /* time_conv weights of such a block, unused with one image; NULL: none */
    const struct block_kind *out;
};

/* Tensor names of a half. The authors, and diffusers in encoders, number blocks consecutively. */
struct vae_wan_half {
    const struct vae_wan_kinds *image, *video;
    const char *word;  /* "decoder" */
    bool from_deepest; /* decoder: level 0 is the deepest; upsampling halves the channels */
    bool is_residual;  /* Wan 2.2: resampling keeps channels; levels have shortcuts */
    const char
        *level; /* diffusers' level prefix, "decoder.up_blocks."; NULL: blocks are numbered consecutively */
    const char
        *row[2]; /* name prefix before a consecutive block number, [0] diffusers' or NULL, [1] the authors' */
    const char *row_bias[2]; /* suffix of a resnet's first convolution bias under these names */
    const char
        *nested[2]; /* Wan 2.2 authors' names: prefix before the level number, then before the block number */
};

/* Block kinds shared by the Wan 2.1 and Wan 2.2 decoder, and encoder. */
extern const struct block_kind vae_wan_causal_in, vae_wan_causal_mid_resnet, vae_wan_causal_attention,
    vae_wan_causal_out;
extern const struct block_kind vae_wan_encoder_causal_in, vae_wan_encoder_causal_mid_resnet,
    vae_wan_encoder_causal_attention, vae_wan_encoder_causal_out;

/* family.configure: sets all dims that the dimension rows leave open, and checks them. */
enum status vae_wan_configure(struct component *c, const struct vae_wan_half *half, struct error *e);
/* family.derive_dims: level widths from base_dim and dim_mult. */
void vae_wan_derive_dims(struct component *c, const struct vae_wan_half *half);
void vae_wan_derive(struct component *c, const struct vae_wan_half *half);
int vae_wan_list_blocks(const struct component *c, const struct vae_wan_half *half, struct block_ref *refs);
void vae_wan_dims_of_block(const struct component *c, const struct vae_wan_half *half,
                           const struct block_ref *ref, int32_t *dims);
enum { VAE_WAN_STATE_BYTES = sizeof(struct causal_state) };
_Static_assert(sizeof(struct causal_state) >= sizeof(struct vae_state), "a lane's state holds either");

/* Configurable sizes of both halves, with the decoder's vae_resnets. Published: Wan 2.1, Qwen-Image. */
#define VAE_WAN_DIMENSIONS                                                                                   \
    {"latent_channels", VAE_WAN_LATENT,  1,                                                                  \
     VAE_WAN_LATENT,    .place = LATENT, OF_TENSOR(1, 0, "post_quant_conv.bias", "conv2.bias"),              \
     .key = "z_dim"},                                                                                        \
        {"vae_base", 96, 1, 2048, .place = BASE, .key = "base_dim"},                                         \
        {"vae_times0", 1, 1, 16, .place = CHANNEL_MULT, .key = "dim_mult.0"},                                \
        {"vae_times1", 2, 1, 16, .place = CHANNEL_MULT + 1, .key = "dim_mult.1"},                            \
        {"vae_times2", 4, 1, 16, .place = CHANNEL_MULT + 2, .key = "dim_mult.2"},                            \
        {"vae_times3", 4, 1, 16, .place = CHANNEL_MULT + 3, .key = "dim_mult.3"}, {                          \
        "vae_resnets", 3, 2, 8, .place = RESNETS                                                             \
    }

/* The same for Wan 2.2. encoders, decoders: dims index of each half's base width. */
#define VAE_WAN22_DIMENSIONS(encoders, decoders)                                                             \
    {"latent_channels",  VAE_WAN22_LATENT, 1,                                                                \
     VAE_WAN_LATENT_MAX, .place = LATENT,  OF_TENSOR(1, 0, "post_quant_conv.bias", "conv2.bias"),            \
     .key = "z_dim"},                                                                                        \
        {"vae_base", 160, 1, 2048, .place = encoders, .key = "base_dim"},                                    \
        {"vae_decoder_base", 256, 1, 2048, .place = decoders, .key = "decoder_base_dim"},                    \
        {"vae_times0", 1, 1, 16, .place = CHANNEL_MULT, .key = "dim_mult.0"},                                \
        {"vae_times1", 2, 1, 16, .place = CHANNEL_MULT + 1, .key = "dim_mult.1"},                            \
        {"vae_times2", 4, 1, 16, .place = CHANNEL_MULT + 2, .key = "dim_mult.2"},                            \
        {"vae_times3", 4, 1, 16, .place = CHANNEL_MULT + 3, .key = "dim_mult.3"}, {                          \
        "vae_resnets", 3, 2, 8, .place = RESNETS                                                             \
    }

enum { N_VAE_WAN_LISTS = 2 };
extern const struct setting_list vae_wan_lists[N_VAE_WAN_LISTS], vae_wan22_lists[N_VAE_WAN_LISTS];
extern const struct expectation vae_wan_expects[], vae_wan22_expects[];
/* "_class_name" values of video VAE configurations, NULL-terminated. */
extern const char *const vae_wan_video_classes[];

#endif
