/* What halves of autoencoders are made of, as forwards: resnets, the attention in the middle, what goes from
 * one resolution to the next, and what stands at the latent's and at the picture's end. Their weights' names
 * and what files say of them: vae_kl_half.h, vae_wan_half.h.
 *
 * A resnet: x' = shortcut(x) + conv2(silu(norm2(conv1(silu(norm1(x)))))). Norms are over groups of a
 * picture's channels, or over the channels of each pixel. Each operator runs over the whole picture, in bands
 * of its own; nothing is tiled or blended. Whole pictures lie in a canvas: see vae_canvas.h. Reference:
 * diffusers 0.42, models/autoencoders/{autoencoder_kl,vae,autoencoder_kl_qwenimage}.py, models/resnet.py. */
#ifndef SLUICE_VAE_BLOCKS_H
#define SLUICE_VAE_BLOCKS_H

#include "engine/run/family.h"
#include "kernels/ops.h"
#include "models/vae_canvas.h"

#define VAE_EPS 1e-6f

/* Places in a half's dims. */
enum vae_dim {
    LATENT,  /* channels */
    MOMENTS, /* twice as many: mean and logarithm of the variance */
    COLOURS,
    K1,
    K3, /* kernel sides */
    LEVELS,
    RESNETS,         /* a level */
    ENCODER_RESNETS, /* a level of an encoder: one less than a decoder's */
    GROUPS,
    QUANT, /* whether a 1x1 convolution stands between it and the latent */
    IN,
    OUT,                                   /* of one block: set by block_dims */
    CHANNELS,                              /* CHANNELS + i: of level i as the half runs */
    BEFORE = CHANNELS + CANVAS_LEVELS_MAX, /* likewise: what its first resnet is given */
    N_DIMS = BEFORE + CANVAS_LEVELS_MAX,
};

struct vae_settings {
    float scale, shift; /* of all latent channels; where each has its own they are not here */
    int groups;         /* of norms; 0: a pixel by itself */
    bool attention;
};

struct vae_state {
    struct canvas canvas;
    int64_t front[CANVAS_LEVELS_MAX]; /* where in it each level's first picture begins */
};

enum { VAE_MID_RESNETS = 2, VAE_ATTENTION_SPARE = 2 };

/* ---- weights ---- */

struct conv_weights {
    struct tensor weight, bias;
};

struct latent_in_weights {
    struct tensor post, post_bias, weight, bias;
};

struct out_weights {
    struct tensor norm, norm_bias, weight, bias;
    struct tensor post, post_bias; /* of an encoder, where it has them */
};

struct resnet_weights {
    struct tensor norm1, norm1_bias, conv1, conv1_bias, norm2, norm2_bias, conv2, conv2_bias, shortcut,
        shortcut_bias;
};

struct attention_weights {
    struct tensor norm, norm_bias, q, q_bias, k, k_bias, v, v_bias, out, out_bias;
};

/* ---- forwards ---- */

/* Of a norm over a pixel, x / max(|x|, 1e-12) sqrt(C), as a root mean square. weight: [C]. */
float vae_pixel_eps(struct tensor weight);

/* Attention within a picture, in place; normed and queries: room for two of its size. */
void vae_attend(struct context *x, const struct attention_weights *w, const struct vae_settings *settings,
                struct tensor picture, struct tensor normed, struct tensor queries);

/* All on the canvas's picture, which is of the level that the block's number says. weights: the structure
 * that the name says. */
void vae_forward_resnet(struct context *x, const void *weights, const struct visit_scope *scope);
void vae_forward_attention(struct context *x, const void *weights, const struct visit_scope *scope);

/* Of a decoder; weights: struct latent_in_weights, conv_weights, out_weights. */
void vae_forward_latent_in(struct context *x, const void *weights, const struct visit_scope *scope,
                           const struct latent_format *format);
/* To level `level`. */
void vae_forward_upsample(struct context *x, const struct conv_weights *weights,
                          const struct visit_scope *scope, int level);
void vae_forward_colours(struct context *x, const void *weights, const struct visit_scope *scope);

/* Of an encoder; weights: struct conv_weights twice, out_weights. */
void vae_forward_picture_in(struct context *x, const void *weights, const struct visit_scope *scope);
void vae_forward_downsample(struct context *x, const struct conv_weights *weights,
                            const struct visit_scope *scope, int level);
void vae_forward_moments(struct context *x, const void *weights, const struct visit_scope *scope);

/* ---- a half's family ---- */

/* The resnet of such a level is wider (or narrower) than what it is given. */
bool vae_widens(const struct component *c, int level);
/* family.declare: lanes share the canvas, for they run one after another. */
void vae_declare_decoder(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                         struct arena *pictures, bool *ok);
void vae_declare_encoder(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                         struct arena *pictures, bool *ok);

#endif
