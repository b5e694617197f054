/* A UNet's sizes: how they are read from files and chosen for one that is made up, what of a configuration is
 * refused, and what config.json has of them. */
#ifndef SLUICE_UNET_SIZES_H
#define SLUICE_UNET_SIZES_H

#include "models/unet_places.h"

enum { UNET_CONVOLVED = 2 }; /* axes of 1 behind a matrix that is a 1x1 convolution */

/* Places in the family's dims. */
enum unet_dim {
    READ, /* channels of latent and of what is read beside it */
    LATENT,
    FREQUENCIES,
    TIME,
    ADDED, /* columns of pooled text and numbers; 0: the model is told neither */
    POOLED,
    GUIDANCE, /* columns that it is told its guidance in; 0: it is not */
    NUMBERS,
    CONTEXT,
    CONVOLVED, /* axes of 1 that files have behind a transformer's projections */
    K1,
    K3, /* kernel sides */
    IN,
    OUT, /* of one block: set by block_dims */
    FEED_FORWARD,
    TWO_FEED_FORWARD,
    LEVELS,
    RESNETS,
    MID_LAYERS,  /* where the smallest level has none; else they are as many */
    EQUAL_HEADS, /* heads of every level, where they are as many; 0: they are 64 wide */
    GROUPS,
    FILL,                                  /* it reads a masked picture and its mask too */
    CHANNELS,                              /* + i: of level i */
    LAYERS = CHANNELS + UNET_LEVELS_MAX,   /* + i: of each transformer of level i */
    HEADS = LAYERS + UNET_LEVELS_MAX,      /* what follows config.json has, + i */
    LAYERS_TOLD = HEADS + UNET_LEVELS_MAX, /* never 0; of the last level the middle's */
    DOWN_TYPE = LAYERS_TOLD + UNET_LEVELS_MAX,
    UP_TYPE = DOWN_TYPE + UNET_LEVELS_MAX,
    LINEAR_TOLD = UP_TYPE + UNET_LEVELS_MAX,
    ADDED_KIND,
};

enum { N_UNET_DIMENSIONS = 48, N_UNET_SETTINGS = 4 };
extern const struct dimension unet_dimensions[N_UNET_DIMENSIONS];
extern const struct setting unet_settings_rows[N_UNET_SETTINGS];
extern const struct expectation unet_expects[];

/* As the family's functions of these names. */
enum status unet_refuse(const struct component *c, struct error *e);
enum status unet_configure(struct component *c, const struct config *config, struct error *e);
void unet_follow(struct component *c);
void unet_derive(struct component *c);

#endif
