/* AutoencoderKL (Stable Diffusion, Flux, Z-Image): weight table rows, tensor names and configuration shared
 * by its two halves, encoder and decoder. Forward functions: vae_blocks.h. Norms are group norms. */
#ifndef SLUICE_VAE_KL_HALF_H
#define SLUICE_VAE_KL_HALF_H

#include "models/vae_blocks.h"

/* ---- weights ---- */

#define VAE_RESNET_WEIGHT(field, spread_, prefix, original_, name, rank_, ...)                               \
    BLOCK_WEIGHT_NAMED(resnet_weights, field, spread_, prefix name, original_ name, rank_, __VA_ARGS__)

#define VAE_RESNET(prefix, original)                                                                         \
    VAE_RESNET_WEIGHT(norm1, 0, prefix, original, "norm1.weight", 1, IN),                                    \
        VAE_RESNET_WEIGHT(norm1_bias, 1, prefix, original, "norm1.bias", 1, IN),                             \
        VAE_RESNET_WEIGHT(conv1, 1, prefix, original, "conv1.weight", 4, OUT, IN, K3, K3),                   \
        VAE_RESNET_WEIGHT(conv1_bias, 1, prefix, original, "conv1.bias", 1, OUT),                            \
        VAE_RESNET_WEIGHT(norm2, 0, prefix, original, "norm2.weight", 1, OUT),                               \
        VAE_RESNET_WEIGHT(norm2_bias, 1, prefix, original, "norm2.bias", 1, OUT),                            \
        VAE_RESNET_WEIGHT(conv2, 1, prefix, original, "conv2.weight", 4, OUT, OUT, K3, K3),                  \
        VAE_RESNET_WEIGHT(conv2_bias, 1, prefix, original, "conv2.bias", 1, OUT)

/* Shortcut of a level's first resnet, present if the level changes the number of channels. */
#define VAE_SHORTCUT(prefix, original_)                                                                      \
    BLOCK_WEIGHT_NAMED(resnet_weights, shortcut, 1, prefix "conv_shortcut.weight",                           \
                       original_ "nin_shortcut.weight", 4, OUT, IN, K1, K1),                                 \
        BLOCK_WEIGHT_NAMED(resnet_weights, shortcut_bias, 1, prefix "conv_shortcut.bias",                    \
                           original_ "nin_shortcut.bias", 1, OUT)

/* Older diffusers files and original checkpoints store projections as 1x1 convolutions, other names. */
#define VAE_PROJECTION(field, prefix, original_, name, old, own)                                             \
    {.offset = offsetof(struct attention_weights, field),                                                    \
     .names = {prefix name ".weight", prefix old ".weight"},                                                 \
     .checkpoint_name = original_ own ".weight",                                                             \
     .rank = 2,                                                                                              \
     .dim = {OUT, OUT},                                                                                      \
     .init_scale = 1},                                                                                       \
    {                                                                                                        \
        .offset = offsetof(struct attention_weights, field##_bias),                                          \
        .names = {prefix name ".bias", prefix old ".bias"}, .checkpoint_name = original_ own ".bias",        \
        .rank = 1, .dim = {OUT}, .init_scale = 1                                                             \
    }

#define VAE_ATTENTION_NORM(field, spread_, prefix, original_, name)                                          \
    BLOCK_WEIGHT_NAMED(attention_weights, field, spread_, prefix "group_norm." name, original_ "norm." name, \
                       1, OUT)

#define VAE_ATTENTION(prefix, original)                                                                      \
    VAE_ATTENTION_NORM(norm, 0, prefix, original, "weight"),                                                 \
        VAE_ATTENTION_NORM(norm_bias, 1, prefix, original, "bias"),                                          \
        VAE_PROJECTION(q, prefix, original, "to_q", "query", "q"),                                           \
        VAE_PROJECTION(k, prefix, original, "to_k", "key", "k"),                                             \
        VAE_PROJECTION(v, prefix, original, "to_v", "value", "v"),                                           \
        VAE_PROJECTION(out, prefix, original, "to_out.0", "proj_attn", "proj_out")

/* ---- family functions ---- */

/* Tensor names of the encoder or decoder. Levels are counted in execution order. */
struct vae_half {
    const char *word;                             /* "decoder" */
    const char *level, *level_checkpoint;         /* "decoder.up_blocks.", "decoder.up." */
    const char *resnet, *resnet_checkpoint;       /* prefix of a level's resnets, with two %d */
    const char *attention, *attention_checkpoint; /* prefix of the mid-block attention */
    bool reversed_levels; /* original checkpoints count levels in the opposite order */
};

/* family.configure: sets and checks all dims that the dimension rows leave open. LATENT is set. */
enum status vae_configure(struct component *c, const struct vae_half *half, const struct config *config,
                          struct error *e);
enum { VAE_LEVELS = 4, N_VAE_SETTINGS = 3 };

/* Configurable sizes of both halves: latent channels; level widths, where level `deepest` (in execution
 * order) is the deepest and each next wider one is `step` further; resnets per decoder level; norm groups.
 * Published values: Flux.1 and Z-Image. The variadic fields go to the row of latent channels. */
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
/* family.derive_dims for both halves: everything that follows from the configured sizes, except RESNETS. */
void vae_derive_dims(struct component *c);
void vae_derive(struct component *c);

#endif
