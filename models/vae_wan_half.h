/* VAEs of Wan 2.1, Wan 2.2, Qwen-Image and Qwen-Image-2.1: weight table rows under diffusers' and the
 * authors' names, and configuration, shared by the two halves, encoder and decoder. Forward functions:
 * vae_blocks.h for one image, vae_causal.h for video.
 *
 * Kernels have three slices in time; one image uses only the last slice. Kernels of Qwen-Image-2.1,
 * which has no videos, have one slice. Resampling convolutions have no time axis; time_conv, which doubles or
 * halves frames, does not apply to one image. Norms are RMS norms over each pixel's channels. Reference:
 * diffusers 0.42, models/autoencoders/autoencoder_kl_qwenimage.py. */
#ifndef SLUICE_VAE_WAN_HALF_H
#define SLUICE_VAE_WAN_HALF_H

#include "models/vae_causal.h"

/* Further indices into the dims of an encoder or decoder, after enum vae_dim. */
enum vae_wan_dim {
    QKV = N_DIMS,  /* rows of to_qkv in one block, set by vae_wan_block_dims */
    TIME_CHANNELS, /* rows of time_conv in one block, set by vae_wan_block_dims */
    BASE,          /* base_dim of this encoder or decoder; divides all level widths */
    OTHER_BASE,    /* base_dim of the counterpart (decoder or encoder), if different */
    NORM_AXES,     /* number of trailing axes of size 1 in a norm's weight in files */
    PICTURE_AXES,  /* number of trailing axes of size 1, in files, of weights without a time axis */
    KT,            /* time slices of a kernel: 3, or 1 if image_only */
    CHANNEL_MULT,  /* CHANNEL_MULT + i: dim_mult of level i, counted from the image */
};

enum { VAE_WAN_LATENT = 16, VAE_WAN22_LATENT = 48, VAE_WAN_LATENT_MAX = 48, VAE_WAN22_COLOURS = 12 };

struct vae_wan_settings {
    struct vae_settings half;
    int resnet_number_stride,
        resample_number_stride; /* block number increments per level: for resnets, for resampling blocks */
};

/* Block kinds of an encoder or decoder, for one image or for video. */
struct vae_wan_kinds {
    struct block_kind in, mid_resnet, attention, resnet, wider_resnet, resample;
    /* Resampling that also doubles or halves the number of frames. name NULL: `resample` is used instead. */
    struct block_kind resample_time;
    /* Weights of time_conv in files, which a single image does not use. name NULL: not listed. */
    struct block_kind time_conv;
    struct block_kind out;
};

/* Tensor names of an encoder or decoder. The authors' files, and diffusers' encoders, number blocks
 * consecutively. */
struct vae_wan_half {
    const struct vae_wan_kinds *image, *video;
    const char *word;  /* "encoder" or "decoder" */
    bool from_deepest; /* true in decoders: level 0 is the deepest; upsampling halves the channels */
    bool is_residual;  /* Wan 2.2, Qwen-Image-2.1: resampling keeps channels; levels have shortcuts */
    bool image_only;   /* Qwen-Image-2.1: no videos; kernels have one time slice */
    int colours;       /* image-side channels of conv_in or conv_out, 12 with 2x2 patches; 0 means 3 */
    const char *level; /* diffusers' name prefix of a level, "decoder.up_blocks."; NULL: blocks are numbered
                          consecutively */
    /* Name prefix before a consecutive block number: [0] diffusers' or NULL, [1] the authors'. */
    const char *row[2];
    const char *row_bias[2]; /* name suffix of the bias of a resnet's first convolution, after row[i] */
    const char *nested[2];   /* name prefixes in the Wan 2.2 authors' files: [0] before the level number, [1]
                                before the block number */
};

/* True if the files' encoder or decoder (word) has level shortcuts, by tensor names of its first level. */
bool vae_wan_is_residual(const struct tensor_index *index, const char *word);
/* True if resampling at a level, in execution order, also doubles or halves the frames of a video. */
bool vae_wan_resamples_time(const struct component *c, const struct vae_wan_half *half, int level);
/* Forward function of the mid block's attention. */
void vae_wan_forward_attention(struct context *x, const void *weights, const struct visit_scope *scope);

/* Callbacks of families whose `details` is a struct vae_wan_half: see struct family. */
enum status vae_wan_configure(struct component *c, const struct config *config, struct error *e);
void vae_wan_derive_dims(struct component *c);
void vae_wan_derive(struct component *c);
int vae_wan_blocks(const struct component *c, struct block_ref *refs);
void vae_wan_block_dims(const struct component *c, const struct block_ref *ref, int32_t *dims);
void vae_wan_declare(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                     struct arena *pictures, bool *ok);
_Static_assert(sizeof(struct causal_state) >= sizeof(struct vae_state), "a lane's state holds either");

/* Dimension table rows that all Wan VAEs have, encoders and decoders. vae_resnets: resnets
 * of a decoder level; an encoder level has one less. */
#define VAE_WAN_LEVEL_DIMENSIONS                                                                             \
    {"vae_times0", 1, 1, 16, .place = CHANNEL_MULT, .key = "dim_mult.0"},                                    \
        {"vae_times1", 2, 1, 16, .place = CHANNEL_MULT + 1, .key = "dim_mult.1"},                            \
        {"vae_times2", 4, 1, 16, .place = CHANNEL_MULT + 2, .key = "dim_mult.2"},                            \
        {"vae_times3", 4, 1, 16, .place = CHANNEL_MULT + 3, .key = "dim_mult.3"}, {                          \
        "vae_resnets", 3, 2, 8, .place = RESNETS                                                             \
    }
/* Dimension table rows of the encoder and the decoder, with the published values of Wan 2.1 and Qwen-Image.
 */
#define VAE_WAN_DIMENSIONS                                                                                   \
    {"latent_channels", VAE_WAN_LATENT,  1,                                                                  \
     VAE_WAN_LATENT,    .place = LATENT, OF_TENSOR(1, 0, "post_quant_conv.bias", "conv2.bias"),              \
     .key = "z_dim"},                                                                                        \
        {"vae_base", 96, 1, 2048, .place = BASE, .key = "base_dim"}, VAE_WAN_LEVEL_DIMENSIONS

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
        VAE_WAN_LEVEL_DIMENSIONS

extern const struct setting_list vae_wan_lists[LATENT_LISTS], vae_wan22_lists[LATENT_LISTS];
extern const struct expectation vae_wan_expects[], vae_wan22_expects[];
/* Values of "_class_name" in configurations of video VAEs, NULL-terminated. */
extern const char *const vae_wan_video_classes[];

#endif
