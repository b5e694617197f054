/* Weights of Wan's VAEs as lists, and macros for their tables and block kinds. vae_wan.c (Wan, Qwen-Image)
 * and vae_qwen21.c (Qwen-Image-2.1) define the tables, because prefixes and forward functions differ. */
#ifndef SLUICE_VAE_WAN_WEIGHTS_H
#define SLUICE_VAE_WAN_WEIGHTS_H

#include "models/vae_wan_half.h"

/* Further kinds of weight rows. GAMMA: weight of an RMS norm over each pixel's channels, stored in files with
 * trailing axes of size 1. CAUSAL: all time slices of a causal convolution (struct sliced_conv_weights). */
#define FIELD_GAMMA(S, field, ...) struct tensor field;
#define ROW_GAMMA(S, field, channels, axes, ...)                                                             \
    WEIGHT_ROW(S, field, (.rank = 1, .dim = {channels}, .ones = axes), ".gamma", __VA_ARGS__)
#define ROW_CAUSAL(S, field, ...) ROWS_SLICED_CONV(S, field., "", __VA_ARGS__)

/* clang-format off */
/* Lists of weights. CONV is CONV3D in blocks for one image, which use only the last time slice of a
 * kernel; in blocks for video it is CAUSAL. */
#define HALF_OUT(X, S, CONV, half, outputs)                                                                  \
    X##GAMMA(S, norm.weight, IN, NORM_AXES, half "norm_out", half "head.0")                                  \
    X##CONV(S, conv, outputs, IN, KT, K3, half "conv_out", half "head.2")
#define RESNET(X, S, CONV)                                                                                   \
    X##GAMMA(S, norm1.weight, IN, NORM_AXES, "norm1", "residual.0")                                          \
    X##CONV(S, conv1, OUT, IN, KT, K3, "conv1", "residual.2")                                                \
    X##GAMMA(S, norm2.weight, OUT, NORM_AXES, "norm2", "residual.3")                                         \
    X##CONV(S, conv2, OUT, OUT, KT, K3, "conv2", "residual.6")
/* Levels that change the number of channels have a shortcut in their first resnet. */
#define WIDER_RESNET(X, S, CONV)                                                                             \
    RESNET(X, S, CONV)                                                                                       \
    X##CONV3D(S, shortcut, OUT, IN, K1, K1, "conv_shortcut", "shortcut")
#define IMAGE_RESNET(X, S) RESNET(X, S, CONV3D)
#define IMAGE_WIDER_RESNET(X, S) WIDER_RESNET(X, S, CONV3D)
#define VIDEO_RESNET(X, S) RESNET(X, S, CAUSAL)
#define VIDEO_WIDER_RESNET(X, S) WIDER_RESNET(X, S, CAUSAL)
#define ATTENTION(X, S)                                                                                      \
    X##GAMMA(S, norm, OUT, PICTURE_AXES, "norm")                                                             \
    X##PROJECTION(S, qkv, QKV, OUT, PICTURE_AXES, "to_qkv")                                                  \
    X##PROJECTION(S, out, OUT, OUT, PICTURE_AXES, "proj")
struct vae_wan_attention_weights { ATTENTION(FIELD_, ) };
#define VIDEO_RESAMPLE(X, S)                                                                                 \
    X##KERNEL(S, weight, OUT, IN, K3, "resample.1")                                                          \
    X##BIAS(S, bias, OUT, "resample.1")
#define VIDEO_RESAMPLE_TIME(X, S)                                                                            \
    VIDEO_RESAMPLE(X, S)                                                                                     \
    X##CAUSAL(S, time, TIME_CHANNELS, IN, KT, K1, "time_conv")
/* time_conv: in the files of image models, but not used. */
#define TIME_CONV(X, S)                                                                                      \
    X##WEIGHT(WITH(S, .ones = PICTURE_AXES), weight, SHAPED(3, TIME_CHANNELS, OUT, KT), "time_conv.weight")  \
    X##BIAS(S, bias, TIME_CHANNELS, "time_conv")
#define LATENT_IN(X, S, CONV)                                                                                \
    X##CONV3D(S, post, LATENT, LATENT, K1, K1, "post_quant_conv", "conv2")                                   \
    X##CONV(S, conv, OUT, LATENT, KT, K3, "decoder.conv_in", "decoder.conv1")
#define IMAGE_LATENT_IN(X, S) LATENT_IN(X, S, CONV3D)
#define VIDEO_LATENT_IN(X, S) LATENT_IN(X, S, CAUSAL)
#define IMAGE_PICTURE_OUT(X, S) HALF_OUT(X, S, CONV3D, "decoder.", COLOURS)
#define VIDEO_PICTURE_OUT(X, S) HALF_OUT(X, S, CAUSAL, "decoder.", COLOURS)
#define IMAGE_PICTURE_IN(X, S) X##CONV3D(S, conv, OUT, COLOURS, KT, K3, "encoder.conv_in", "encoder.conv1")
#define VIDEO_PICTURE_IN(X, S) X##CAUSAL(S, conv, OUT, COLOURS, KT, K3, "encoder.conv_in", "encoder.conv1")
#define MOMENTS_OUT(X, S, CONV)                                                                              \
    HALF_OUT(X, S, CONV, "encoder.", MOMENTS)                                                                \
    X##CONV3D(S, post, MOMENTS, MOMENTS, K1, K1, "quant_conv", "conv1")
#define IMAGE_MOMENTS_OUT(X, S) MOMENTS_OUT(X, S, CONV3D)
#define VIDEO_MOMENTS_OUT(X, S) MOMENTS_OUT(X, S, CAUSAL)

/* Weight tables of the ends and the middle of an encoder or decoder for one image. */
#define IMAGE_HALF_TABLES(half, IN_LIST, OUT_LIST)                                                           \
    WEIGHT_TABLE(half##_image_in_table, IMAGE_##IN_LIST, in_weights, "", "");                                \
    WEIGHT_TABLE(half##_image_mid_table, IMAGE_RESNET, resnet_weights,                                       \
                 #half ".mid_block.resnets.%d.", #half ".middle.%d.");                                       \
    WEIGHT_TABLE(half##_attention_table, ATTENTION, vae_wan_attention_weights,                               \
                 #half ".mid_block.attentions.0.", #half ".middle.1.");                                      \
    WEIGHT_TABLE(half##_image_out_table, IMAGE_##OUT_LIST, out_weights, "", "")

/* Weight tables of the levels of an encoder or decoder. R, P: diffusers' name prefixes of resnets and of
 * resampling blocks; C: the authors' prefix of both. */
#define IMAGE_LEVEL_TABLES(name, R, P, C)                                                                    \
    WEIGHT_TABLE(name##_resnet_table, IMAGE_RESNET, resnet_weights, R, C);                                   \
    WEIGHT_TABLE(name##_wider_resnet_table, IMAGE_WIDER_RESNET, resnet_weights, R, C);                       \
    CONV_TABLE(name##_resample_table, OUT, IN, K3, P "resample.1", C "resample.1");                          \
    WEIGHT_TABLE(name##_time_conv_table, TIME_CONV, linear_weights, P, C)

/* Block kinds of an encoder or decoder for one image. half: decoder or encoder; level: name of its level
 * tables; resnets, steps, frames: block names of resnets, resampling and time_conv; step: upsample or
 * downsample; forward_mid, forward_resnet, forward_step, forward_in, forward_out: forward functions. */
#define KIND(...) BLOCK_KIND(__VA_ARGS__, .never_quantised = true)
#define IMAGE_KINDS(half, level, resnets, steps, frames, step, forward_mid, forward_resnet, forward_step,    \
                    forward_in, forward_out)                                                                 \
    {                                                                                                        \
        .in = KIND("conv_in", "conv_in", half##_image_in_table, in_weights, forward_in),                     \
        .mid_resnet = KIND("mid_resnet", "mid_block.resnets.%d", half##_image_mid_table, resnet_weights,     \
                           forward_mid),                                                                     \
        .attention = KIND("attention", "mid_block.attentions.0", half##_attention_table,                     \
                          vae_wan_attention_weights, vae_wan_forward_attention),                             \
        .resnet = KIND("resnet", resnets, level##_resnet_table, resnet_weights, forward_resnet),             \
        .wider_resnet =                                                                                      \
            KIND("wider_resnet", resnets, level##_wider_resnet_table, resnet_weights, forward_resnet),       \
        .resample = KIND(#step, steps, level##_resample_table, linear_weights, forward_step),                \
        .time_conv = KIND("frames", frames, level##_time_conv_table, linear_weights, NULL),                  \
        .out = KIND("conv_out", "conv_out", half##_image_out_table, out_weights, forward_out),               \
    }
/* clang-format on */

#endif
