/* Halves of the KL autoencoder (Stable Diffusion, Flux, Z-Image): rows of weight tables under their names,
 * and what a configuration says of either half. What they compute: vae_blocks.h. Norms are over groups. */
#ifndef SLUICE_VAE_KL_HALF_H
#define SLUICE_VAE_KL_HALF_H

#include "models/vae_blocks.h"

/* ---- weights ---- */

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
