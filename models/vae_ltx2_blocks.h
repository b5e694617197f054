/* Forward functions of the blocks of LTX-2's video VAE. Tensor names and configuration: vae_ltx2.c.
 *
 * A convolution over time and space is the sum of three 2D convolutions: of input frames o - 1, o and o + 1
 * for output frame o (decoder), or of frames o - 2, o - 1 and o (causal). The first frame is repeated before
 * the video, the last one after it. A decoder's convolution therefore lags its input by one frame, and a
 * resnet by two.
 *
 * A chunk is `chunk` latent frames long. In each evaluation the frames of one chunk enter the first level,
 * and every layer computes the output frames whose input is complete: as many frames as the chunk has, but
 * later by the layer's lag (struct ltx_vae_level). Evaluations after the last latent frame complete the
 * video. Each convolution keeps its last two input frames in a feature cache, so each frame is computed once,
 * and its bits do not depend on the chunk. A latent of one or two frames is one chunk, without caches.
 *
 * The frames of a level lie in a ring. Two earlier frames, loaded from the feature cache, precede a block's
 * input in the ring. The block writes its output three places before its input, over input frames that no
 * convolution reads any more.
 *
 * With reflection padding (LTX-2.0's decoder) feature maps have a border of one pixel, which is filled with
 * reflected pixels; the border that a convolution itself writes is overwritten. Reference: diffusers 0.42,
 * models/autoencoders/autoencoder_kl_ltx2.py. */
#ifndef SLUICE_VAE_LTX2_BLOCKS_H
#define SLUICE_VAE_LTX2_BLOCKS_H

#include "engine/run/family.h"
#include "kernels/ops.h"
#include "models/conv_slices.h"

/* LTX_VAE_BEFORE: frames before the current one that a causal convolution reads. LTX_VAE_ROW: floats per row
 * of a ring's memory, enough that the largest published models need fewer than 2^31 rows. */
enum { LTX_VAE_LEVELS_MAX = 6, LTX_VAE_BEFORE = CONV_SLICES - 1, LTX_VAE_ROW = 1024 };

/* A level in execution order: resnets, then resampling to the next level, or the last convolution. */
struct ltx_vae_level {
    int32_t channels, resnets;
    int32_t rate;       /* frames per latent frame; the first latent frame is one frame */
    int32_t time, side; /* factors of the resampling to the next level, 1 or 2 each */
    int32_t lag;        /* number of frames by which the level's input lags */
    bool residual;      /* the upsampling has a shortcut: it adds its shuffled input */
};

struct ltx_vae_settings {
    int n_levels;
    int lookahead; /* 1: convolutions read one later frame; 0: they are causal */
    int border;    /* 1: feature maps have a border for reflection padding */
    int patch;     /* side of the patches of pixels at the image's end */
    int chunk;     /* latent frames per chunk; 0: computed from the length (ltx_chunk). Only tests set it. */
    struct ltx_vae_level level[LTX_VAE_LEVELS_MAX];
};

/* Frames and feature caches of a level. */
struct ltx_vae_level_state {
    struct tensor ring; /* [frames, Y, X, C], border included */
    /* Feature caches [2 * convolutions, Y, X, C]: frame t of a convolution's input is entry t % 2. Two
     * convolutions per resnet (the first one's input is the resnet's), then the last one of the level. Rank
     * 0: the video is a single chunk. */
    struct tensor caches;
};

struct ltx_vae_state {
    int32_t frames; /* latent frames; in encoders of a video, a number above that of any video */
    int32_t chunk;  /* latent frames per chunk */
    struct ltx_vae_level_state level[LTX_VAE_LEVELS_MAX];
    struct tensor in; /* encoder: feature cache of the first convolution's input */
};

struct ltx_vae_resnet_weights {
    struct sliced_conv_weights conv1, conv2;
};

/* Runs resnet i of a level. */
void ltx_vae_forward_resnet(struct context *x, const struct ltx_vae_resnet_weights *w,
                            const struct visit_scope *scope, int level, int i);
/* Forward functions of the other blocks. level: the level before the resampling. */
void ltx_vae_forward_latent_in(struct context *x, const void *weights, const struct visit_scope *scope);
void ltx_vae_forward_upsample(struct context *x, const struct sliced_conv_weights *w,
                              const struct visit_scope *scope, int level);
void ltx_vae_forward_picture_out(struct context *x, const void *weights, const struct visit_scope *scope);
void ltx_vae_forward_picture_in(struct context *x, const void *weights, const struct visit_scope *scope);
void ltx_vae_forward_downsample(struct context *x, const struct sliced_conv_weights *w,
                                const struct visit_scope *scope, int level);
/* Writes the mean to the first half of the columns of lane.moments, and 0 to the other half. */
void ltx_vae_forward_moments(struct context *x, const void *weights, const struct visit_scope *scope);

/* Sets the levels' rates and lags. first_rate: frames per latent frame at the first level. */
void ltx_vae_derive_levels(struct ltx_vae_settings *settings, int32_t first_rate, bool encodes);
/* Callbacks family_lanes.chunks and family_state.declare. */
int ltx_vae_decoder_chunks(const struct component *c, int32_t latent_frames, struct frame_chunk *chunks);
void ltx_vae_declare_decoder(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                             struct arena *pictures, bool *ok);
void ltx_vae_declare_encoder(const struct component *c, struct lane *lanes, int n_lanes, struct arena *arena,
                             struct arena *pictures, bool *ok);

#endif
