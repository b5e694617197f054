/* AutoencoderKL (Stable Diffusion, Flux, Z-Image): weight table rows, tensor names and configuration
 * shared by its two halves, encoder and decoder. Norms are group norms. Forward functions: vae_blocks.h. */
#ifndef SLUICE_VAE_KL_HALF_H
#define SLUICE_VAE_KL_HALF_H

#include "models/vae_blocks.h"

#define VAE_RESNET_WEIGHT(field, init_scale_, prefix, checkpoint_, name, rank_, ...)                         \
    BLOCK_WEIGHT_NAMED(resnet_weights, field, init_scale_, prefix name, checkpoint_ name, rank_, __VA_ARGS__)

#define VAE_RESNET(prefix, checkpoint)                                                                       \
    VAE_RESNET_WEIGHT(norm1, 0, prefix, checkpoint, "norm1.weight", 1, IN),                                  \
        VAE_RESNET_WEIGHT(norm1_bias, 1, prefix, checkpoint, "norm1.bias", 1, IN),                           \
        VAE_RESNET_WEIGHT(conv1, 1, prefix, checkpoint, "conv1.weight", 4, OUT, IN, K3, K3),                 \
        VAE_RESNET_WEIGHT(conv1_bias, 1, prefix, checkpoint, "conv1.bias", 1, OUT),                          \
        VAE_RESNET_WEIGHT(norm2, 0, prefix, checkpoint, "norm2.weight", 1, OUT),                             \
        VAE_RESNET_WEIGHT(norm2_bias, 1, prefix, checkpoint, "norm2.bias", 1, OUT),                          \
        VAE_RESNET_WEIGHT(conv2, 1, prefix, checkpoint, "conv2.weight", 4, OUT, OUT, K3, K3),                \
        VAE_RESNET_WEIGHT(conv2_bias, 1, prefix, checkpoint, "conv2.bias", 1, OUT)

/* Shortcut of a level's first resnet, present if the level changes the number of channels. */
#define VAE_SHORTCUT(prefix, checkpoint_)                                                                    \
    BLOCK_WEIGHT_NAMED(resnet_weights, shortcut, 1, prefix "conv_shortcut.weight",                           \
                       checkpoint_ "nin_shortcut.weight", 4, OUT, IN, K1, K1),                               \
        BLOCK_WEIGHT_NAMED(resnet_weights, shortcut_bias, 1, prefix "conv_shortcut.bias",                    \
                           checkpoint_ "nin_shortcut.bias", 1, OUT)

/* Projection of the mid-block attention. Older diffusers files and the authors' checkpoints store the
 * projection as a 1x1 convolution, with the name parts `old` and `checkpoint_tail`. */
#define VAE_PROJECTION(field, prefix, checkpoint_, name, old, checkpoint_tail)                               \
    {.offset = offsetof(struct attention_weights, field),                                                    \
     .names = {prefix name ".weight", prefix old ".weight"},                                                 \
     .checkpoint_name = checkpoint_ checkpoint_tail ".weight",                                               \
     .rank = 2,                                                                                              \
     .dim = {OUT, OUT},                                                                                      \
     .init_scale = 1},                                                                                       \
    {                                                                                                        \
        .offset = offsetof(struct attention_weights, field##_bias),                                          \
        .names = {prefix name ".bias", prefix old ".bias"},                                                  \
        .checkpoint_name = checkpoint_ checkpoint_tail ".bias", .rank = 1, .dim = {OUT}, .init_scale = 1     \
    }

#define VAE_ATTENTION_NORM(field, init_scale_, prefix, checkpoint_, name)                                    \
    BLOCK_WEIGHT_NAMED(attention_weights, field, init_scale_, prefix "group_norm." name,                     \
                       checkpoint_ "norm." name, 1, OUT)

#define VAE_ATTENTION(prefix, checkpoint)                                                                    \
    VAE_ATTENTION_NORM(norm, 0, prefix, checkpoint, "weight"),                                               \
        VAE_ATTENTION_NORM(norm_bias, 1, prefix, checkpoint, "bias"),                                        \
        VAE_PROJECTION(q, prefix, checkpoint, "to_q", "query", "q"),                                         \
        VAE_PROJECTION(k, prefix, checkpoint, "to_k", "key", "k"),                                           \
        VAE_PROJECTION(v, prefix, checkpoint, "to_v", "value", "v"),                                         \
        VAE_PROJECTION(out, prefix, checkpoint, "to_out.0", "proj_attn", "proj_out")

/* Tensor names of one half. Levels are counted in execution order. */
struct vae_half {
    const char *word; /* "encoder" or "decoder" */
    const char *level,
        *level_checkpoint; /* name prefixes of a level, such as "decoder.up_blocks.", "decoder.up." */
    const char *resnet, *resnet_checkpoint;       /* name prefixes of a level's resnets, with two %d */
    const char *attention, *attention_checkpoint; /* name prefixes of the mid-block attention */
    bool reversed_levels; /* true: the authors' checkpoints count levels in the opposite order */
};

/* Callback family.configure: sets and checks all dims that no dimension row sets. LATENT must be set. */
enum status vae_configure(struct component *c, const struct vae_half *half, const struct config *config,
                          struct error *e);
enum { VAE_LEVELS = 4, N_VAE_SETTINGS = 3 };

/* Dimension table rows of the encoder and the decoder, with the published values of Flux.1 and Z-Image.
 * deepest: index of the deepest level in execution order; step: index difference from the deepest to the next
 * wider level. Variadic arguments are more fields of the row for latent channels. */
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
/* Callback family.derive_dims: sets all dims that follow from the configured sizes, except RESNETS. */
void vae_derive_dims(struct component *c);
void vae_derive(struct component *c);

#endif
