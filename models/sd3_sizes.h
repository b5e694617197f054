/* The sizes of Stable Diffusion 3's transformers: how they are read from files and chosen for one that is
 * made up, what has the same names and is refused, and what config.json has of them. */
#ifndef SLUICE_SD3_SIZES_H
#define SLUICE_SD3_SIZES_H

#include "models/models.h"

/* Of names in diffusers' files, and in the authors'. */
#define DIFFUSERS_BLOCK "transformer_blocks.%d."
#define CHECKPOINT_BLOCK "joint_blocks.%d."

/* Places in the family's dims. */
enum sd3_dim {
    DIM,
    TWO_DIM,
    SIX_DIM,
    FEED_FORWARD,
    HEAD,
    HEADS,
    LATENT,
    IN, /* as LATENT */
    SIDE,
    PATCH,
    TABLE_SIDE,
    POSITIONS,
    TEXT,
    POOLED,
    FREQUENCIES,
    LAYERS,
    NORMED,  /* whether heads are */
    DUAL_LAYERS, /* blocks in which the picture attends to itself */
    /* Of a layer and its modulation: whether they have what belongs to */
    DUAL, /* a second attention, */
    DUAL_NORMED,
    TEXT_UPDATED, /* text that goes on behind the block, */
    TEXT_UPDATED_NORMED,
    CONTEXT_PRE_ONLY,            /* or does not. */
    IMAGE_PARTS_DIM, /* and how many values the picture's parts of the modulation are */
};

enum { SD3_DUAL_LAYERS_MAX = 64, SD3_LAYERS_MAX = 400 };

struct sd3_settings {
    int head, layers, table_side;
    int latent_side; /* of the pictures that it was trained on */
    int n_dual_layers;
    float dual_layer[SD3_DUAL_LAYERS_MAX]; /* their numbers, growing */
};

enum { N_SD3_DIMENSIONS = 14, N_SD3_SETTINGS = 1, N_SD3_LISTS = 1 };
extern const struct dimension sd3_dimensions[N_SD3_DIMENSIONS];
extern const struct setting sd3_settings_rows[N_SD3_SETTINGS];
extern const struct setting_list sd3_lists[N_SD3_LISTS];

/* As the family's functions of these names. */
enum status sd3_refuse(const struct component *c, struct error *e);
enum status sd3_configure(struct component *c, const struct config *config, struct error *e);
void sd3_derive_dims(struct component *c);
void sd3_derive(struct component *c);

#endif
