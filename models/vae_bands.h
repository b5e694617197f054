/* Last levels of an image VAE's decoder, computed together in bands of rows.
 *
 * Norms over each pixel's channels (Wan) let a row depend on a few rows of the layer before it. The layers of
 * the last levels therefore advance together, and of each feature map only the current band exists, with the
 * few rows above it that the next layers read again (struct strip). Every row is computed once. At 1024 x
 * 1024 Qwen-Image-2.1's decoder needs 328 MiB for strips, 168 MiB for weights and 216 MiB for full-frame
 * buffers of coarser levels, instead of 1.9 GB of full-frame buffers.
 *
 * The blocks of these levels only keep their weights, in f32, in the lanes' state; the decoder's last block
 * computes all bands. f32 holds each stored type exactly, and bands depend on the image's width alone (R3,
 * kernels/README.md), so pixels do not depend on the plan. */
#ifndef SLUICE_VAE_BANDS_H
#define SLUICE_VAE_BANDS_H

#include "models/tiny_blocks.h"
#include "models/vae_blocks.h"

enum { VAE_BANDS_LEVELS = 3, VAE_BANDS_RESNETS = 8 };

/* Kept weights of the levels. Their tensors are made from `memory` anew for each use, because a lane's state
 * is host memory that every plan counts. All lanes of a stage share `memory`. */
struct vae_bands {
    int first, n, n_resnets; /* first: number of the first of n levels, in execution order */
    int32_t before;          /* channels of the level before the first */
    int32_t in_channels[VAE_BANDS_LEVELS], channels[VAE_BANDS_LEVELS];
    /* Adds the input of the level before, upsampled, to each level's input. Set by the caller. */
    struct shortcut shortcut[VAE_BANDS_LEVELS];
    struct tensor memory; /* [rows, FULL_FRAME_ROW] f32 */
};

/* First level that is computed in bands; at least 1, because the mid block's level is not. */
int vae_bands_first(const struct component *c);
/* Takes the memory of the kept weights from the arena. The caller sets the shortcuts. */
struct vae_bands vae_bands_declare(const struct component *c, struct arena *arena, bool *ok);
/* Keep the weights of resnet i of a level, or of the upsampling to this level. level: from bands->first on.
 */
void vae_bands_keep_resnet(struct context *x, const struct vae_bands *bands, int level, int i,
                           const struct resnet_weights *w);
void vae_bands_keep_up(struct context *x, const struct vae_bands *bands, int level,
                       const struct linear_weights *w);
/* Computes the image [Y, X, C] from the output and the input, both [y, x, c], of the level before the first
 * level in bands. */
void vae_bands_forward(struct context *x, const struct vae_bands *bands, const struct out_weights *w,
                       struct tensor image, struct tensor from, struct tensor level_input);

#endif
