/* Sizes of Stable Diffusion 3 transformers: reads them from files, derives them for synthetic checkpoints,
 * writes them to config.json, and refuses unsupported related models. */
#ifndef SLUICE_SD3_SIZES_H
#define SLUICE_SD3_SIZES_H

#include "models/models.h"

/* Block name prefixes in diffusers' files and in the authors' checkpoints. */
#define DIFFUSERS_BLOCK  "transformer_blocks.%d."
#define CHECKPOINT_BLOCK "joint_blocks.%d."

/* Indices into component.dims. */
enum sd3_dim {
    DIM,
    TWO_DIM,
    SIX_DIM,
    FEED_FORWARD,
    HEAD,
    HEADS,
    LATENT,
    IN, /* in_channels, equal to LATENT */
    SIDE,
    PATCH,
    TABLE_SIDE,
    POSITIONS,
    TEXT,
    POOLED,
    FREQUENCIES,
    LAYERS,
    NORMED,      /* 1: the model has query and key norms (qk_norm) */
    DUAL_LAYERS, /* number of blocks with a second attention (attn2) */
    /* Dims of one block and of the block's modulation, set by block_dims; flags are 0 or 1. */
    DUAL, /* 1: the block has a second attention (attn2) */
    DUAL_NORMED,
    TEXT_UPDATED, /* 1: the block updates text tokens (not context_pre_only) */
    TEXT_UPDATED_NORMED,
    CONTEXT_PRE_ONLY, /* 1, in the last block: text gives keys and values only */
    IMAGE_PARTS_DIM,  /* number of values in the block's image modulation */
};

enum { SD3_DUAL_LAYERS_MAX = 64, SD3_LAYERS_MAX = 400 };

struct sd3_settings {
    int head, layers, table_side;
    int latent_side; /* side of the training images in latent pixels (sample_size) */
    int n_dual_layers;
    float dual_layer[SD3_DUAL_LAYERS_MAX]; /* blocks with attn2, ascending (dual_attention_layers) */
};

enum { N_SD3_DIMENSIONS = 14, N_SD3_SETTINGS = 1, N_SD3_LISTS = 1 };
extern const struct dimension sd3_dimensions[N_SD3_DIMENSIONS];
extern const struct setting sd3_settings_rows[N_SD3_SETTINGS];
extern const struct setting_list sd3_lists[N_SD3_LISTS];

/* Callbacks of family_sd3: see struct family. */
enum status sd3_refuse(const struct component *c, struct error *e);
enum status sd3_configure(struct component *c, const struct config *config, struct error *e);
void sd3_derive_dims(struct component *c);
void sd3_derive(struct component *c);

#endif
