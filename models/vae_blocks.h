/* What both halves of the KL autoencoder are made of: resnets and the attention in the middle, as rows of
 * weight tables and as forwards, and what a configuration says of either half.
 *
 * A resnet: x' = shortcut(x) + conv2(silu(norm2(conv1(silu(norm1(x)))))). Each operator runs over the whole
 * picture, in bands of its own; nothing is tiled or blended. Whole pictures lie in a canvas: see
 * vae_canvas.h. Reference: diffusers 0.42, models/autoencoders/{autoencoder_kl,vae}.py, models/resnet.py. */
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
    OUT,      /* of one block: set by block_dims */
    CHANNELS, /* CHANNELS + i: of level i as the half runs */
    N_DIMS = CHANNELS + CANVAS_LEVELS_MAX,
};

struct vae_settings {
    float scale, shift;
    int groups;
    bool attention;
};

struct vae_state {
    struct canvas canvas;
    int64_t front[CANVAS_LEVELS_MAX]; /* where in it each level's first picture begins */
};

enum { VAE_MID_RESNETS = 2, VAE_ATTENTION_SPARE = 2 };

/* ---- weights ---- */

struct resnet_weights {
    struct tensor norm1, norm1_bias, conv1, conv1_bias, norm2, norm2_bias, conv2, conv2_bias, shortcut,
        shortcut_bias;
};

struct attention_weights {
    struct tensor norm, norm_bias, q, q_bias, k, k_bias, v, v_bias, out, out_bias;
};

#define VAE_RESNET_WEIGHT(field, spread_, prefix, original_, name, rank_, ...)                               \
    BLOCK_WEIGHT_ORIGINALLY(resnet_weights, field, spread_, prefix name, original_ name, rank_, __VA_ARGS__)

#define VAE_RESNET(prefix, original)                                                                         \
    VAE_RESNET_WEIGHT(norm1, 0, prefix, original, "norm1.weight", 1, IN),                                    \
        VAE_RESNET_WEIGHT(norm1_bias, 1, prefix, original, "norm1.bias", 1, IN),                             \
        VAE_RESNET_WEIGHT(conv1, 1, prefix, original, "conv1.weight", 4, OUT, IN, K3, K3),                   \
        VAE_RESNET_WEIGHT(conv1_bias, 1, prefix, original, "conv1.bias", 1, OUT),                            \
        VAE_RESNET_WEIGHT(norm2, 0, prefix, original, "norm2.weight", 1, OUT),                               \
        VAE_RESNET_WEIGHT(norm2_bias, 1, prefix, original, "norm2.bias", 1, OUT),                            \
        VAE_RESNET_WEIGHT(conv2, 1, prefix, original, "conv2.weight", 4, OUT, OUT, K3, K3),                  \
        VAE_RESNET_WEIGHT(conv2_bias, 1, prefix, original, "conv2.bias", 1, OUT)

/* Of a level's first resnet where its width differs from the level before. */
#define VAE_SHORTCUT(prefix, original_)                                                                      \
    BLOCK_WEIGHT_ORIGINALLY(resnet_weights, shortcut, 1, prefix "conv_shortcut.weight",                      \
                            original_ "nin_shortcut.weight", 4, OUT, IN, K1, K1),                            \
        BLOCK_WEIGHT_ORIGINALLY(resnet_weights, shortcut_bias, 1, prefix "conv_shortcut.bias",               \
                                original_ "nin_shortcut.bias", 1, OUT)

/* Older files and the authors' name the projections differently and store them as 1x1 convolutions. */
#define VAE_PROJECTION(field, prefix, original_, name, old, own)                                             \
    {.offset = offsetof(struct attention_weights, field),                                                    \
     .names = {prefix name ".weight", prefix old ".weight"},                                                 \
     .original = original_ own ".weight",                                                                    \
     .rank = 2,                                                                                              \
     .dim = {OUT, OUT},                                                                                      \
     .spread = 1},                                                                                           \
    {                                                                                                        \
        .offset = offsetof(struct attention_weights, field##_bias),                                          \
        .names = {prefix name ".bias", prefix old ".bias"}, .original = original_ own ".bias", .rank = 1,    \
        .dim = {OUT}, .spread = 1                                                                            \
    }

#define VAE_ATTENTION_NORM(field, spread_, prefix, original_, name)                                          \
    BLOCK_WEIGHT_ORIGINALLY(attention_weights, field, spread_, prefix "group_norm." name,                    \
                            original_ "norm." name, 1, OUT)

#define VAE_ATTENTION(prefix, original)                                                                      \
    VAE_ATTENTION_NORM(norm, 0, prefix, original, "weight"),                                                 \
        VAE_ATTENTION_NORM(norm_bias, 1, prefix, original, "bias"),                                          \
        VAE_PROJECTION(q, prefix, original, "to_q", "query", "q"),                                           \
        VAE_PROJECTION(k, prefix, original, "to_k", "key", "k"),                                             \
        VAE_PROJECTION(v, prefix, original, "to_v", "value", "v"),                                           \
        VAE_PROJECTION(out, prefix, original, "to_out.0", "proj_attn", "proj_out")

/* ---- forwards ---- */

/* The norm of a picture, its statistics taken. */
struct group_norm vae_measure(struct context *x, const struct vae_settings *settings, struct tensor picture,
                              struct tensor weight, struct tensor bias);
/* On the canvas's picture. weights: struct resnet_weights, struct attention_weights. */
void vae_forward_resnet(struct context *x, const void *weights, const struct visit_scope *scope);
void vae_forward_attention(struct context *x, const void *weights, const struct visit_scope *scope);

/* ---- a half's family ---- */

/* How a half names its levels, which are counted as it runs. */
struct vae_half {
    const char *word;                           /* "decoder" */
    const char *level, *level_original;         /* "decoder.up_blocks.", "decoder.up." */
    const char *resnet, *resnet_original;       /* what a level's resnets begin with; two %d */
    const char *attention, *attention_original; /* likewise; none */
    bool turned;                                /* the authors count levels the other way */
};

/* LATENT is set. All other dims that rows cannot say, and checks. */
enum status vae_configure(struct component *c, const struct vae_half *half, const struct config *config,
                          struct error *e);
/* The resnet of such a level is wider (or narrower) than what it is given. */
bool vae_widens(const struct component *c, int level);

enum { VAE_LEVELS = 4, N_VAE_SETTINGS = 3 };

/* The sizes that can be chosen, the same for both halves: latent channels; widths from the deepest level,
 * which is the `deepest` one that the half runs, the next `step` further; a decoder level's resnets; groups.
 * Published: Flux.1's and Z-Image's. Last come fields of the row of latent channels. */
#define VAE_DIMENSIONS(deepest, step, ...)                                                                   \
    {"latent_channels", 16, 1, 1024, .place = LATENT, __VA_ARGS__},                                          \
        {"vae0", 512, 1, 8192, .place = CHANNELS + (deepest)},                                               \
        {"vae1", 512, 1, 8192, .place = CHANNELS + (deepest) + (step)},                                      \
        {"vae2", 256, 1, 8192, .place = CHANNELS + (deepest) + 2 * (step)},                                  \
        {"vae3", 128, 1, 8192, .place = CHANNELS + (deepest) + 3 * (step)},                                  \
        {"vae_resnets", 3, 2, 8, .place = RESNETS}, {                                                        \
        "vae_groups", 32, 1, 4096, .place = GROUPS                                                           \
    }

extern const struct setting vae_settings_rows[N_VAE_SETTINGS];
extern const struct expectation vae_expects[];
/* What follows from the sizes that were chosen, but RESNETS. */
void vae_follow(struct component *c);
void vae_derive(struct component *c);

#endif
