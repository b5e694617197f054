/* Sizes of a UNet: read from files, chosen for generated weights, checked, written to config.json. */
#ifndef SLUICE_UNET_SIZES_H
#define SLUICE_UNET_SIZES_H

#include "models/unet_layout.h"

enum { UNET_CONV_AXES = 2 }; /* trailing 1s in the shape of a matrix that files store as a 1x1 convolution */

/* Indices into component.dims. */
enum unet_dim {
    IN_CHANNELS, /* input channels: latent and concatenated conditioning (inpainting) */
    LATENT,
    FREQUENCIES,
    TIME,
    ADDED, /* input columns of add_embedding: pooled text and add_time_ids sinusoids; 0: none */
    POOLED,
    GUIDANCE, /* width of the guidance embedding (LCM); 0: none */
    TIME_IDS, /* number of add_time_ids values (SDXL) */
    CONTEXT,
    CONV_AXES, /* trailing 1s in the shape of projections: 0 linear, 2 convolution */
    K1,
    K3, /* kernel sizes 1 and 3 */
    IN,
    OUT, /* input and output channels of one block, set by block_dims */
    FEED_FORWARD,
    TWO_FEED_FORWARD,
    LEVELS,
    RESNETS,
    MID_LAYERS,  /* number of transformer layers of the mid block, if the smallest level has none */
    EQUAL_HEADS, /* number of attention heads, if equal in all levels; 0: heads are 64 wide */
    GROUPS,
    INPAINTS, /* 1: inpainting model, which also reads the mask and the masked image's latent */
    CHANNELS, /* CHANNELS + i: width of level i */
    LAYERS = CHANNELS + UNET_LEVELS_MAX,     /* LAYERS + i: number of layers of each transformer of level i */
    CONFIG_HEADS = LAYERS + UNET_LEVELS_MAX, /* heads of level i: CONFIG_HEADS + i; this and later dims are
                                                only for config.json */
    CONFIG_LAYERS = CONFIG_HEADS + UNET_LEVELS_MAX, /* CONFIG_LAYERS + i: transformer layers of level i, never
                                                       0; the last entry may be the mid block's */
    DOWN_TYPE = CONFIG_LAYERS + UNET_LEVELS_MAX,
    UP_TYPE = DOWN_TYPE + UNET_LEVELS_MAX,
    CONFIG_LINEAR = UP_TYPE + UNET_LEVELS_MAX,
    CONFIG_ADDITION,
};

enum { N_UNET_DIMENSIONS = 48, N_UNET_SETTINGS = 4 };
extern const struct dimension unet_dimensions[N_UNET_DIMENSIONS];
extern const struct setting unet_settings_rows[N_UNET_SETTINGS];
extern const struct expectation unet_expects[];

/* Callbacks of family_unet: see struct family. */
enum status unet_refuse(const struct component *c, struct error *e);
enum status unet_configure(struct component *c, const struct config *config, struct error *e);
void unet_derive_dims(struct component *c);
void unet_derive(struct component *c);

#endif
