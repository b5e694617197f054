/* Forward functions of causal video VAE blocks (Wan): vae_blocks.h's blocks over the frames of a chunk, with
 * convolutions that also read earlier frames.
 *
 * A causal convolution over time is the sum of three 2D convolutions: of frames t - 2, t - 1 and t, added in
 * this order. Its feature cache keeps the normed, activated input of the last two frames, so each input is
 * computed once. A frame's bits therefore do not depend on the chunk size, nor memory on the number of
 * chunks. Terms of frames before the first are omitted.
 *
 * The frames of a chunk pass through a block one by one and lie in one buffer (struct chunk_buffer). Feature
 * caches may lie in host memory; a visit then works on device copies, which saves eight of the twelve frame
 * reads per four frames. With lane.tiled there are no copies, and the chunk buffer lies in the same memory as
 * the caches. Reference: diffusers 0.42, models/autoencoders/autoencoder_kl_wan.py. */
#ifndef SLUICE_VAE_CAUSAL_H
#define SLUICE_VAE_CAUSAL_H

#include "models/conv_slices.h"
#include "models/vae_blocks.h"

/* CAUSAL_PATCH: patch size in pixels of VAEs that patchify the image (Wan 2.2). CAUSAL_ROW: floats per
 * buffer row, enough that the largest published models need fewer than 2^31 rows. */
enum { CAUSAL_RESNETS_MAX = 8, CAUSAL_PATCH = 2, CAUSAL_ROW = 1024 };
/* Minimum number of VAE levels: with fewer, time is not resampled and a latent frame is one video frame. */
enum { CAUSAL_LEVELS_MIN = 3 };
/* Index of the mid block in causal_state.resnet and level_input. */
enum { CAUSAL_MIDDLE = VAE_LEVELS_MAX };

/* Feature maps of a chunk's frames. A block reads frames at one end of the memory and writes its output at
 * the other end, over frames already read. An output as large as the input replaces the input. */
struct chunk_buffer {
    struct tensor memory; /* [rows, CAUSAL_ROW] f32 */
    struct tensor frames; /* output of the last computed block: [N, Y, X, C] */
    bool at_end;          /* true: the frames lie at the end of memory; false: at its start */
};

/* State of a causal video VAE. Feature caches are [2, Y, X, C] with frame t in entry t % 2; rank 0 if the
 * latent has a single frame. */
struct causal_state {
    struct chunk_buffer buffer;
    bool starts_at_end; /* the first feature map of a chunk is placed at the end of the chunk buffer, not at
                           its start */
    struct tensor in, out; /* feature caches of the VAE's first convolution (encoder only) and of its last */
    /* Feature caches of the time_conv after each level: two frames, in encoders one frame [1, Y, X, C]. */
    struct tensor time[VAE_LEVELS_MAX];
    struct tensor resnet[VAE_LEVELS_MAX + 1][CAUSAL_RESNETS_MAX][2];
    /* Device copies of the two feature caches of a resnet during a visit; rank 0: no copy, the caches are
     * used directly. */
    struct tensor cache_copy[2];
    /* Input of each level, [N, Y, X, C], for Wan 2.2's level shortcuts; rank 0: no such shortcut. All levels
     * share one memory block. The encoder's mid block uses its last level's entry. */
    struct tensor level_input[VAE_LEVELS_MAX + 1];
};

static inline int64_t causal_rows(int64_t floats) {
    return (floats + CAUSAL_ROW - 1) / CAUSAL_ROW;
}

/* Weights of video blocks; the fields are those of in_weights, resnet_weights and out_weights. */
struct causal_in_weights {
    struct linear_weights post;
    struct sliced_conv_weights conv;
};

struct causal_resnet_weights {
    struct linear_weights norm1, norm2, shortcut;
    struct sliced_conv_weights conv1, conv2;
};

struct causal_out_weights {
    struct linear_weights norm, post;
    struct sliced_conv_weights conv;
};

/* Weights of resampling to the next level. time: slices [2 C, C, 1, 1] double the frames, [C, C, 1, 1]
 * halve them; absent: time is not resampled. */
struct causal_resample_weights {
    struct tensor weight, bias;
    struct sliced_conv_weights time;
};

void causal_forward_latent_in(struct context *x, const void *weights, const struct visit_scope *scope);
/* Runs resnet i of a resolution level. Level CAUSAL_MIDDLE is the mid block. */
void causal_forward_resnet(struct context *x, const struct causal_resnet_weights *w,
                           const struct visit_scope *scope, int level, int i);
/* Self-attention of the mid block over the pixels of each frame separately. */
void causal_forward_attention(struct context *x, const struct attention_weights *w,
                              const struct visit_scope *scope);
/* Upsamples frames from `level`, adds the level shortcut. Time weights double all frames but the first. */
void causal_forward_upsample(struct context *x, const struct causal_resample_weights *w,
                             const struct visit_scope *scope, int level);
void causal_forward_picture_out(struct context *x, const void *weights, const struct visit_scope *scope);

void causal_forward_picture_in(struct context *x, const void *weights, const struct visit_scope *scope);
/* Downsamples the frames of `level`. Time weights merge pairs of frames; the video's first frame is not
 * merged. */
void causal_forward_downsample(struct context *x, const struct causal_resample_weights *w,
                               const struct visit_scope *scope, int level);
void causal_forward_moments(struct context *x, const void *weights, const struct visit_scope *scope);

/* Number of frames that a latent frame, except the first, has at a level. Each level up from the deepest
 * doubles the number, except the last. from_deepest: levels above the deepest. */
int causal_frame_rate(const struct component *c, int from_deepest);
/* Callback family_state.declare. is_residual: the VAE has level shortcuts (Wan 2.2). */
void causal_declare_decoder(const struct component *c, struct lane *lanes, int n_lanes, bool is_residual,
                            struct arena *arena, struct arena *pictures, bool *ok);
void causal_declare_encoder(const struct component *c, struct lane *lanes, int n_lanes, bool is_residual,
                            struct arena *arena, struct arena *pictures, bool *ok);

#endif
