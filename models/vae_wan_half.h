/* Halves of the autoencoder of Wan 2.1 and Qwen-Image: rows of weight tables under diffusers' names and the
 * authors', and what files and configurations say of either half. What they compute: vae_blocks.h.
 *
 * Its kernels have three slices in time, of which a picture alone sees the last; convolutions from resolution
 * to resolution have none, and those that double or halve frames see no picture's only frame. Norms are over
 * the channels of a pixel. Reference: diffusers 0.42, models/autoencoders/autoencoder_kl_qwenimage.py. */
#ifndef SLUICE_VAE_WAN_HALF_H
#define SLUICE_VAE_WAN_HALF_H

#include "models/vae_film.h"

/* Further places in a half's dims. */
enum vae_wan_dim {
    QKV = N_DIMS, /* of one block: rows of the attention's three products */
    FRAMES,       /* of one block: rows of what doubles or halves frames */
    BASE,         /* channels that levels have multiples of */
    OTHER_BASE,   /* the same of the other half, where it has others */
    NORM_AXES,    /* of 1, behind a norm's weights */
    PICTURE_AXES, /* the same of what knows no time */
    MULTIPLE,     /* MULTIPLE + i: of the published level i from the picture */
};

/* Latent channels: of those of the published values, and of any. */
enum {
    VAE_WAN_LEVELS = 4,
    VAE_WAN_LATENT = 16,
    VAE_WAN22_LATENT = 48,
    VAE_WAN_LATENT_MAX = 48,
    VAE_WAN22_COLOURS = 12
};

struct vae_wan_settings {
    struct vae_settings half;
    int level_numbers, step_numbers; /* from a level to the next, of resnets' and steps' numbers */
    float mean[VAE_WAN_LATENT_MAX], deviation[VAE_WAN_LATENT_MAX];
};

struct latent_format vae_wan_format(const struct vae_wan_settings *settings, int32_t channels);

/* ---- weights ---- */

struct vae_wan_attention_weights {
    struct tensor norm, qkv, qkv_bias, out, out_bias;
};

/* Fields and names of a weight of a structure. */
#define VAE_WAN_NAMED(structure, field, name, original_)                                                     \
    .offset = offsetof(struct structure, field), .names = {name}, .original = original_

#define VAE_WAN_BIAS(structure, field, rows, name, original_)                                                \
    {                                                                                                        \
        VAE_WAN_NAMED(structure, field, name ".bias", original_ ".bias"), .rank = 1, .dim = {rows},          \
                                                                          .spread = 1                        \
    }
#define VAE_WAN_NORM(structure, field, channels, axes, name, original_)                                      \
    {                                                                                                        \
        VAE_WAN_NAMED(structure, field, name ".gamma", original_ ".gamma"), .rank = 1, .dim = {channels},    \
                                                                            .ones = axes                     \
    }
/* With as many slices in time as rows and columns. */
#define VAE_WAN_CAUSAL(structure, field, bias_field, outputs, inputs, side, name, original_)                 \
    {VAE_WAN_NAMED(structure, field, name ".weight", original_ ".weight"), .rank = 4,                        \
     .dim = {outputs, inputs, side, side}, .slices = side, .spread = 1},                                     \
        VAE_WAN_BIAS(structure, bias_field, outputs, name, original_)

#define VAE_WAN_IN(structure, inputs, prefix)                                                                \
    VAE_WAN_CAUSAL(structure, weight, bias, OUT, inputs, K3, prefix "conv_in", prefix "conv1")
#define VAE_WAN_OUT(outputs, prefix)                                                                         \
    VAE_WAN_NORM(out_weights, norm, IN, NORM_AXES, prefix "norm_out", prefix "head.0"),                      \
        VAE_WAN_CAUSAL(out_weights, weight, bias, outputs, IN, K3, prefix "conv_out", prefix "head.2")

#define VAE_WAN_RESNET(prefix, original)                                                                     \
    VAE_WAN_NORM(resnet_weights, norm1, IN, NORM_AXES, prefix "norm1", original "residual.0"),               \
        VAE_WAN_CAUSAL(resnet_weights, conv1, conv1_bias, OUT, IN, K3, prefix "conv1",                       \
                       original "residual.2"),                                                               \
        VAE_WAN_NORM(resnet_weights, norm2, OUT, NORM_AXES, prefix "norm2", original "residual.3"),          \
        VAE_WAN_CAUSAL(resnet_weights, conv2, conv2_bias, OUT, OUT, K3, prefix "conv2",                      \
                       original "residual.6")
/* Of a level's first resnet where its width differs from what it is given. */
#define VAE_WAN_SHORTCUT(prefix, original)                                                                   \
    VAE_WAN_CAUSAL(resnet_weights, shortcut, shortcut_bias, OUT, IN, K1, prefix "conv_shortcut",             \
                   original "shortcut")

#define VAE_WAN_PRODUCT(field, rows, name, original_)                                                        \
    {VAE_WAN_NAMED(vae_wan_attention_weights, field, name ".weight", original_ ".weight"), .rank = 2,        \
     .dim = {rows, OUT}, .ones = PICTURE_AXES, .spread = 1},                                                 \
        VAE_WAN_BIAS(vae_wan_attention_weights, field##_bias, rows, name, original_)
#define VAE_WAN_ATTENTION(prefix, original)                                                                  \
    VAE_WAN_NORM(vae_wan_attention_weights, norm, OUT, PICTURE_AXES, prefix "norm", original "norm"),        \
        VAE_WAN_PRODUCT(qkv, QKV, prefix "to_qkv", original "to_qkv"),                                       \
        VAE_WAN_PRODUCT(out, OUT, prefix "proj", original "proj")

/* From one resolution to the next. */
#define VAE_WAN_STEP(prefix, original_)                                                                      \
    {VAE_WAN_NAMED(conv_weights, weight, prefix "resample.1.weight", original_ "resample.1.weight"),         \
     .rank = 4, .dim = {OUT, IN, K3, K3}, .spread = 1},                                                      \
        VAE_WAN_BIAS(conv_weights, bias, OUT, prefix "resample.1", original_ "resample.1")

/* ---- of videos: all slices ---- */

#define VAE_WAN_SLICE(structure, field, at, outputs, inputs, side, name, original_)                          \
    {                                                                                                        \
        VAE_WAN_NAMED(structure, field.weight[at], name ".weight", original_ ".weight"),                     \
            .rank = 4, .dim = {outputs, inputs, side, side}, .slices = K3, .before_last = 2 - (at),          \
            .spread = 1                                                                                      \
    }
#define FILM_CONV(structure, field, outputs, inputs, side, name, original_)                                  \
    VAE_WAN_SLICE(structure, field, 0, outputs, inputs, side, name, original_),                              \
        VAE_WAN_SLICE(structure, field, 1, outputs, inputs, side, name, original_),                          \
        VAE_WAN_SLICE(structure, field, 2, outputs, inputs, side, name, original_),                          \
        VAE_WAN_BIAS(structure, field.bias, outputs, name, original_)

#define FILM_OUT(outputs, prefix)                                                                            \
    VAE_WAN_NORM(film_out_weights, norm, IN, NORM_AXES, prefix "norm_out", prefix "head.0"),                 \
        FILM_CONV(film_out_weights, conv, outputs, IN, K3, prefix "conv_out", prefix "head.2")

#define FILM_RESNET(prefix, original)                                                                        \
    VAE_WAN_NORM(film_resnet_weights, norm1, IN, NORM_AXES, prefix "norm1", original "residual.0"),          \
        FILM_CONV(film_resnet_weights, conv1, OUT, IN, K3, prefix "conv1", original "residual.2"),           \
        VAE_WAN_NORM(film_resnet_weights, norm2, OUT, NORM_AXES, prefix "norm2", original "residual.3"),     \
        FILM_CONV(film_resnet_weights, conv2, OUT, OUT, K3, prefix "conv2", original "residual.6")
#define FILM_SHORTCUT(prefix, original)                                                                      \
    VAE_WAN_CAUSAL(film_resnet_weights, shortcut, shortcut_bias, OUT, IN, K1, prefix "conv_shortcut",        \
                   original "shortcut")

#define FILM_STEP(prefix, original_)                                                                         \
    {VAE_WAN_NAMED(film_step_weights, weight, prefix "resample.1.weight", original_ "resample.1.weight"),    \
     .rank = 4, .dim = {OUT, IN, K3, K3}, .spread = 1},                                                      \
        VAE_WAN_BIAS(film_step_weights, bias, OUT, prefix "resample.1", original_ "resample.1")
/* What doubles or halves frames, too. */
#define FILM_STEP_IN_TIME(prefix, original_)                                                                 \
    FILM_STEP(prefix, original_),                                                                            \
        FILM_CONV(film_step_weights, time, FRAMES, IN, K1, prefix "time_conv", original_ "time_conv")

/* What doubles or halves frames. */
#define VAE_WAN_FRAMES(prefix, original_)                                                                    \
    {VAE_WAN_NAMED(conv_weights, weight, prefix "time_conv.weight", original_ "time_conv.weight"),           \
     .rank = 3, .dim = {FRAMES, OUT, K3}, .ones = PICTURE_AXES, .spread = 1},                                \
        VAE_WAN_BIAS(conv_weights, bias, FRAMES, prefix "time_conv", original_ "time_conv")

/* ---- forwards ---- */

/* weights: struct vae_wan_attention_weights, film_resnet_weights, film_step_weights. */
void vae_wan_forward_attention(struct context *x, const void *weights, const struct visit_scope *scope);
void vae_wan_forward_film_attention(struct context *x, const void *weights, const struct visit_scope *scope);
void vae_wan_forward_film_middle(struct context *x, const void *weights, const struct visit_scope *scope);
void vae_wan_forward_film_resnet(struct context *x, const void *weights, const struct visit_scope *scope);
void vae_wan_forward_film_up(struct context *x, const void *weights, const struct visit_scope *scope);
void vae_wan_forward_film_down(struct context *x, const void *weights, const struct visit_scope *scope);

/* ---- a half's family ---- */

/* The kinds of blocks of a half, for pictures or for films. */
struct vae_wan_kinds {
    const struct block_kind *in, *middle, *attention, *resnet, *wider_resnet, *step;
    const struct block_kind *step_in_time; /* of a step that doubles or halves frames; NULL: as any other */
    const struct block_kind *frames;       /* what such a step has besides, which is not used */
    const struct block_kind *out;
};

/* How a half names its levels. The authors count blocks of all levels in a row, and diffusers an encoder's.
 */
struct vae_wan_half {
    const struct vae_wan_kinds *pictures, *films;
    const char *word;        /* "decoder" */
    bool from_deepest;       /* its levels begin there, and halve channels on the way to the next */
    bool keeps;              /* the way to the next level keeps channels; what a level began with is added */
    const char *level;       /* of diffusers, where it counts levels: "decoder.up_blocks."; or NULL */
    const char *row[2];      /* before the number of a block in a row, and */
    const char *row_bias[2]; /* behind it, of a resnet; diffusers' or NULL, the authors' */
    const char *nested[2];   /* or the authors count levels too: before the level, and the block in it */
};

/* Kinds that both versions have, of a decoder and of an encoder. */
extern const struct block_kind vae_wan_film_in, vae_wan_film_mid_resnet, vae_wan_film_attention,
    vae_wan_film_out;
extern const struct block_kind vae_wan_encoder_film_in, vae_wan_encoder_film_mid_resnet,
    vae_wan_encoder_film_attention, vae_wan_encoder_film_out;

/* All dims that rows cannot say, and checks. */
enum status vae_wan_configure(struct component *c, const struct vae_wan_half *half, struct error *e);
/* Levels of the sizes that were chosen. */
void vae_wan_follow(struct component *c, const struct vae_wan_half *half);
void vae_wan_derive(struct component *c, const struct vae_wan_half *half);
int vae_wan_list_blocks(const struct component *c, const struct vae_wan_half *half, struct block_ref *refs);
void vae_wan_dims_of_block(const struct component *c, const struct vae_wan_half *half,
                           const struct block_ref *ref, int32_t *dims);
enum { VAE_WAN_STATE_BYTES = sizeof(struct film_state) };
_Static_assert(sizeof(struct film_state) >= sizeof(struct vae_state), "either state fits");

/* The sizes, the same for both halves; those of a level's resnets are a decoder's. Published: those of Wan
 * 2.1 and Qwen-Image. */
#define VAE_WAN_DIMENSIONS                                                                                   \
    {"latent_channels", VAE_WAN_LATENT,  1,                                                                  \
     VAE_WAN_LATENT,    .place = LATENT, OF_TENSOR(1, 0, "post_quant_conv.bias", "conv2.bias"),              \
     .key = "z_dim"},                                                                                        \
        {"vae_base", 96, 1, 2048, .place = BASE, .key = "base_dim"},                                         \
        {"vae_times0", 1, 1, 16, .place = MULTIPLE, .key = "dim_mult.0"},                                    \
        {"vae_times1", 2, 1, 16, .place = MULTIPLE + 1, .key = "dim_mult.1"},                                \
        {"vae_times2", 4, 1, 16, .place = MULTIPLE + 2, .key = "dim_mult.2"},                                \
        {"vae_times3", 4, 1, 16, .place = MULTIPLE + 3, .key = "dim_mult.3"}, {                              \
        "vae_resnets", 3, 2, 8, .place = RESNETS                                                             \
    }

/* Likewise, of Wan 2.2: `own` is this half's width, `other` the other's. */
#define VAE_WAN22_DIMENSIONS(encoders, decoders)                                                             \
    {"latent_channels",  VAE_WAN22_LATENT, 1,                                                                \
     VAE_WAN_LATENT_MAX, .place = LATENT,  OF_TENSOR(1, 0, "post_quant_conv.bias", "conv2.bias"),            \
     .key = "z_dim"},                                                                                        \
        {"vae_base", 160, 1, 2048, .place = encoders, .key = "base_dim"},                                    \
        {"vae_decoder_base", 256, 1, 2048, .place = decoders, .key = "decoder_base_dim"},                    \
        {"vae_times0", 1, 1, 16, .place = MULTIPLE, .key = "dim_mult.0"},                                    \
        {"vae_times1", 2, 1, 16, .place = MULTIPLE + 1, .key = "dim_mult.1"},                                \
        {"vae_times2", 4, 1, 16, .place = MULTIPLE + 2, .key = "dim_mult.2"},                                \
        {"vae_times3", 4, 1, 16, .place = MULTIPLE + 3, .key = "dim_mult.3"}, {                              \
        "vae_resnets", 3, 2, 8, .place = RESNETS                                                             \
    }

enum { N_VAE_WAN_LISTS = 2 };
extern const struct setting_list vae_wan_lists[N_VAE_WAN_LISTS], vae_wan22_lists[N_VAE_WAN_LISTS];
extern const struct expectation vae_wan_expects[], vae_wan22_expects[];
/* What configurations of films say they are. */
extern const char *const vae_wan_film_classes[];

#endif
