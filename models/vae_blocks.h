/* Forward functions of image VAE blocks: resnets, mid-block attention, upsampling and downsampling, and the
 * first and last convolutions. Tensor names and configuration: vae_kl.c, vae_wan_half.h.
 *
 * Resnet: x' = shortcut(x) + conv2(silu(norm2(conv1(silu(norm1(x)))))). Norms are group norms over the whole
 * feature map (AutoencoderKL) or RMS norms over each pixel's channels (Wan). Each operator runs over the
 * whole feature map, in bands of its own; nothing is tiled or blended. Feature maps lie in a full-frame
 * buffer: see vae_full_frame.h. Reference: diffusers 0.42,
 * models/autoencoders/{autoencoder_kl,vae,autoencoder_kl_qwenimage}.py, models/resnet.py. */
#ifndef SLUICE_VAE_BLOCKS_H
#define SLUICE_VAE_BLOCKS_H

#include "engine/run/family.h"
#include "kernels/ops.h"
#include "models/vae_full_frame.h"

#define VAE_EPS 1e-6f

/* Indices into the dims of a VAE encoder or decoder. */
enum vae_dim {
    LATENT,  /* latent channels before packing (vae_settings.packing) */
    PACKED,  /* latent channels after packing, as the denoiser has them */
    MOMENTS, /* channels of the encoder's output, 2 * LATENT: mean and log variance of the latent */
    COLOURS, /* image channels */
    K1,
    K3, /* kernel sizes 1 and 3 of convolutions, as dims */
    LEVELS,
    RESNETS,         /* resnets per level */
    ENCODER_RESNETS, /* number of resnets per encoder level: one less than in the decoder */
    GROUPS,
    QUANT, /* 1: the model has quant_conv (encoder) or post_quant_conv (decoder), a 1x1 convolution next to
              the latent */
    IN,
    OUT,      /* input and output channels of one block, set by the callback family_blocks.dims */
    CHANNELS, /* CHANNELS + i: channels of level i, in execution order */
    IN_CHANNELS =
        CHANNELS + VAE_LEVELS_MAX, /* IN_CHANNELS + i: input channels of the first resnet of level i */
    N_DIMS = IN_CHANNELS + VAE_LEVELS_MAX,
};

struct vae_settings {
    int groups; /* group count of the group norms; 0: RMS norms over each pixel's channels */
    bool attention;
    /* Packing p: a latent pixel consists of p x p pixels of the VAE's convolutions. Channel p^2 c + p y + x
     * of the latent is channel c of VAE pixel (y, x) in that square. Flux.2: 2; other VAEs: 1. */
    int packing;
};

struct vae_state {
    struct full_frame full_frame;
    int64_t front[VAE_LEVELS_MAX]; /* start row of each level's first feature map */
};

enum { VAE_MID_RESNETS = 2, VAE_ATTENTION_BUFFERS = 2 };

struct in_weights {
    struct linear_weights post; /* post_quant_conv; absent in encoders and in decoders without it */
    struct linear_weights conv;
};

struct out_weights {
    struct linear_weights norm, conv; /* norm: without bias in Wan VAEs (RMS norm) */
    struct linear_weights post;       /* quant_conv of an encoder; absent in decoders */
};

struct resnet_weights {
    struct linear_weights norm1, conv1, norm2, conv2, shortcut;
};

struct attention_weights {
    struct linear_weights norm, q, k, v, out;
};

/* RMS norm epsilon that reproduces x / max(|x|, 1e-12) * sqrt(C). weight: [C]. */
float vae_pixel_eps(struct tensor weight);

/* Single-head self-attention over the picture's pixels, in place. normed, queries: scratch tensors of the
 * picture's shape. */
void vae_attend(struct context *x, const struct attention_weights *w, const struct vae_settings *settings,
                struct tensor picture, struct tensor normed, struct tensor queries);

/* Returns the VAE's latent z [p Y, p X, C] of the lane's latent [p^2 C, Y, X]: scaling undone, unpacked, in
 * scratch memory. packing: p, see vae_settings. */
struct tensor vae_unpacked_latent(struct context *x, const struct visit_scope *scope, int32_t packing);

/* Resnet and mid-block attention. The output replaces the full-frame buffer's current feature map; the
 * block's number determines the level. weights: struct resnet_weights, struct attention_weights. */
void vae_forward_resnet(struct context *x, const void *weights, const struct visit_scope *scope);
void vae_forward_attention(struct context *x, const void *weights, const struct visit_scope *scope);

/* Forward functions of a decoder's blocks. weights: struct in_weights, linear_weights, out_weights. */
void vae_forward_latent_in(struct context *x, const void *weights, const struct visit_scope *scope);
void vae_forward_upsample(struct context *x, const struct linear_weights *weights,
                          const struct visit_scope *scope, int level);
void vae_forward_picture_out(struct context *x, const void *weights, const struct visit_scope *scope);

/* Forward functions of an encoder's blocks. weights: struct in_weights, linear_weights, out_weights. */
void vae_forward_picture_in(struct context *x, const void *weights, const struct visit_scope *scope);
void vae_forward_downsample(struct context *x, const struct linear_weights *weights,
                            const struct visit_scope *scope, int level);
void vae_forward_moments(struct context *x, const void *weights, const struct visit_scope *scope);

/* True if the level's first resnet changes the number of channels and so has a 1x1 shortcut convolution. */
bool vae_level_has_shortcut(const struct component *c, int level);
/* Declares the full-frame buffer of a decoder whose first n levels, the deepest, work in it. */
void vae_declare_levels(const struct component *c, int n, struct lane *lanes, int n_lanes,
                        struct arena *pictures, bool *ok);
/* Callback family_state.declare. All lanes share one full-frame buffer because they run one after another. */
void vae_declare_decoder(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                         struct arena *pictures, bool *ok);
void vae_declare_encoder(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                         struct arena *pictures, bool *ok);

#endif
