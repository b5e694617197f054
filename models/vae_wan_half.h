/* VAEs of Wan 2.1, Wan 2.2 and Qwen-Image: weight table rows under diffusers' and the authors' names, and
 * configuration, shared by the two halves, encoder and decoder. Forward functions: vae_blocks.h for one
 * image, vae_causal.h for video.
 *
 * Kernels have three slices in time; one image uses only the last slice. Resampling convolutions have no
 * time axis; time_conv, which doubles or halves frames, does not apply to one image. Norms are RMS norms
 * over each pixel's channels. Reference: diffusers 0.42, models/autoencoders/autoencoder_kl_qwenimage.py. */
#ifndef SLUICE_VAE_WAN_HALF_H
#define SLUICE_VAE_WAN_HALF_H

#include "models/vae_causal.h"

/* Further indices into the dims of an encoder or decoder, after enum vae_dim. */
enum vae_wan_dim {
    QKV = N_DIMS,  /* rows of to_qkv in one block, set by block_dims */
    TIME_CHANNELS, /* rows of time_conv in one block, set by block_dims */
    BASE,          /* base_dim of this encoder or decoder; divides all level widths */
    OTHER_BASE,    /* base_dim of the counterpart (decoder or encoder), if different */
    NORM_AXES,     /* number of trailing axes of size 1 in a norm's weight in files */
    PICTURE_AXES,  /* number of trailing axes of size 1, in files, of weights without a time axis */
    CHANNEL_MULT,  /* CHANNEL_MULT + i: dim_mult of level i, counted from the image */
};

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
        resample_number_stride; /* block number increments per level: for resnets, for resampling blocks */
};

/* Rows of weight lists. GAMMA: RMS norm over each pixel's channels, which files store with axes of size 1 at
 * the end of its shape. CAUSAL: all time slices of a causal convolution (struct causal_conv_weights). */
#define FIELD_GAMMA(S, field, ...) struct tensor field;
#define ROW_GAMMA(S, field, channels, axes, ...)                                                             \
    WEIGHT_ROW(S, field, (.rank = 1, .dim = {channels}, .ones = axes), ".gamma", __VA_ARGS__)
#define ROW_CAUSAL_SLICE(S, field, i, out, in, frames, side, ...)                                            \
    WEIGHT_ROW(S, field.weight[i],                                                                           \
               (.rank = 4, .dim = {out, in, side, side}, .slices = frames,                                   \
                .before_last = CAUSAL_SLICES - 1 - (i), .init_scale = 1),                                    \
               ".weight", __VA_ARGS__)
#define ROW_CAUSAL(S, field, ...)                                                                            \
    ROW_CAUSAL_SLICE(S, field, 0, __VA_ARGS__)                                                               \
    ROW_CAUSAL_SLICE(S, field, 1, __VA_ARGS__)                                                               \
    ROW_CAUSAL_SLICE(S, field, 2, __VA_ARGS__)                                                               \
    ROW_CAUSAL_BIAS(S, field, __VA_ARGS__)
#define ROW_CAUSAL_BIAS(S, field, out, in, frames, side, ...) ROW_BIAS(S, field.bias, out, __VA_ARGS__)

/* clang-format off */
/* Lists of weights. CONV is CONV3D in blocks for one image, which use only the last time slice of kernels,
 * and CAUSAL in blocks for video. */
#define VAE_WAN_OUT(X, S, CONV, half, outputs)                                                               \
    X##GAMMA(S, norm.weight, IN, NORM_AXES, half "norm_out", half "head.0")                                  \
    X##CONV(S, conv, outputs, IN, K3, K3, half "conv_out", half "head.2")
#define VAE_WAN_RESNET(X, S, CONV)                                                                           \
    X##GAMMA(S, norm1.weight, IN, NORM_AXES, "norm1", "residual.0")                                          \
    X##CONV(S, conv1, OUT, IN, K3, K3, "conv1", "residual.2")                                                \
    X##GAMMA(S, norm2.weight, OUT, NORM_AXES, "norm2", "residual.3")                                         \
    X##CONV(S, conv2, OUT, OUT, K3, K3, "conv2", "residual.6")
/* Levels that change the number of channels have a shortcut in their first resnet. */
#define VAE_WAN_WIDER_RESNET(X, S, CONV)                                                                     \
    VAE_WAN_RESNET(X, S, CONV)                                                                               \
    X##CONV3D(S, shortcut, OUT, IN, K1, K1, "conv_shortcut", "shortcut")
#define VAE_WAN_IMAGE_RESNET(X, S)  VAE_WAN_RESNET(X, S, CONV3D)
#define VAE_WAN_IMAGE_WIDER_RESNET(X, S)  VAE_WAN_WIDER_RESNET(X, S, CONV3D)
#define CAUSAL_RESNET(X, S)  VAE_WAN_RESNET(X, S, CAUSAL)
#define CAUSAL_WIDER_RESNET(X, S)  VAE_WAN_WIDER_RESNET(X, S, CAUSAL)
#define VAE_WAN_ATTENTION(X, S)                                                                              \
    X##GAMMA(S, norm, OUT, PICTURE_AXES, "norm")                                                             \
    X##PROJECTION(S, qkv, QKV, OUT, PICTURE_AXES, "to_qkv")                                                  \
    X##PROJECTION(S, out, OUT, OUT, PICTURE_AXES, "proj")
struct vae_wan_attention_weights { VAE_WAN_ATTENTION(FIELD_, ) };
#define CAUSAL_RESAMPLE(X, S)                                                                                \
    X##KERNEL(S, weight, OUT, IN, K3, "resample.1")                                                          \
    X##BIAS(S, bias, OUT, "resample.1")
#define CAUSAL_RESAMPLE_TIME(X, S)                                                                           \
    CAUSAL_RESAMPLE(X, S)                                                                                    \
    X##CAUSAL(S, time, TIME_CHANNELS, IN, K3, K1, "time_conv")
/* time_conv, which models of single images do not use. */
#define VAE_WAN_TIME_CONV(X, S)                                                                              \
    X##WEIGHT(WITH(S, .ones = PICTURE_AXES), weight,                                                         \
              (.rank = 3, .dim = {TIME_CHANNELS, OUT, K3}, .init_scale = 1), "time_conv.weight")             \
    X##BIAS(S, bias, TIME_CHANNELS, "time_conv")
/* clang-format on */

/* Forward functions of Wan VAE blocks. weights: struct vae_wan_attention_weights (attention),
 * causal_resnet_weights (resnets), causal_resample_weights (resampling). */
void vae_wan_forward_attention(struct context *x, const void *weights, const struct visit_scope *scope);
void vae_wan_forward_causal_attention(struct context *x, const void *weights,
                                      const struct visit_scope *scope);
void vae_wan_forward_causal_mid_resnet(struct context *x, const void *weights,
                                       const struct visit_scope *scope);
void vae_wan_forward_causal_resnet(struct context *x, const void *weights, const struct visit_scope *scope);
void vae_wan_forward_causal_upsample(struct context *x, const void *weights, const struct visit_scope *scope);
void vae_wan_forward_causal_downsample(struct context *x, const void *weights,
                                       const struct visit_scope *scope);

/* Block kinds of an encoder or decoder, for one image or for video. */
struct vae_wan_kinds {
    const struct block_kind *in, *mid_resnet, *attention, *resnet, *wider_resnet, *resample;
    const struct block_kind
        *resample_time; /* resampling that also doubles or halves frames; NULL: use `resample` */
    const struct block_kind
        *time_conv; /* time_conv weights of a resample_time block, unused with one image; NULL: none */
    const struct block_kind *out;
};

/* Tensor names of an encoder or decoder. The authors' files, and diffusers' encoders, number blocks
 * consecutively. */
struct vae_wan_half {
    const struct vae_wan_kinds *image, *video;
    const char *word;  /* "encoder" or "decoder" */
    bool from_deepest; /* true in decoders: level 0 is the deepest; upsampling halves the channels */
    bool is_residual;  /* Wan 2.2: resampling keeps channels; levels have shortcuts */
    const char *level; /* diffusers' name prefix of a level, "decoder.up_blocks."; NULL: blocks are numbered
                          consecutively */
    const char
        *row[2]; /* name prefix before a consecutive block number: [0] diffusers' or NULL, [1] the authors' */
    const char
        *row_bias[2]; /* name suffix of the bias of a resnet's first convolution, for row[0] and row[1] */
    const char *nested[2]; /* name prefixes in the Wan 2.2 authors' files: [0] before the level number, [1]
                              before the block number */
};

extern const struct block_kind vae_wan_causal_in, vae_wan_causal_mid_resnet, vae_wan_causal_attention,
    vae_wan_causal_out;
extern const struct block_kind vae_wan_encoder_causal_in, vae_wan_encoder_causal_mid_resnet,
    vae_wan_encoder_causal_attention, vae_wan_encoder_causal_out;

/* Callback family_config.configure: sets all dims that no dimension row sets, and checks them. */
enum status vae_wan_configure(struct component *c, const struct vae_wan_half *half, struct error *e);
/* Callback family_config.derive_dims: level widths from base_dim and dim_mult. */
void vae_wan_derive_dims(struct component *c, const struct vae_wan_half *half);
void vae_wan_derive(struct component *c, const struct vae_wan_half *half);
int vae_wan_list_blocks(const struct component *c, const struct vae_wan_half *half, struct block_ref *refs);
void vae_wan_dims_of_block(const struct component *c, const struct vae_wan_half *half,
                           const struct block_ref *ref, int32_t *dims);
enum { VAE_WAN_STATE_BYTES = sizeof(struct causal_state) };
_Static_assert(sizeof(struct causal_state) >= sizeof(struct vae_state), "a lane's state holds either");

/* Dimension table rows of the encoder and the decoder, with the published values of Wan 2.1 and Qwen-Image.
 * vae_resnets is the number of resnets of a decoder level. */
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

/* Input size of the predicted block: four frames of 1280 x 704; the decoder produces 2x2 pixels at each
 * position. */
#define VAE_WAN22_PREDICTED                                                                                  \
    .tokens = 4 * 352 * 640, .latent_channels = VAE_WAN22_LATENT, .latent_frames = 3, .latent_side = 44,     \
    .latent_columns = 80, .picture_side = 704, .chunk = 2
/* Dimension table rows of Wan 2.2's VAE. encoders, decoders: dims index of the encoder's and the decoder's
 * base width. */
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

extern const struct setting_list vae_wan_lists[LATENT_LISTS], vae_wan22_lists[LATENT_LISTS];
extern const struct expectation vae_wan_expects[], vae_wan22_expects[];
/* Values of "_class_name" in configurations of video VAEs, NULL-terminated. */
extern const char *const vae_wan_video_classes[];

#endif
