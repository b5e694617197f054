/* Layout of a UNet: numbers of levels, resnets and transformer layers; block numbers and names; skip
 * connections.
 *
 * A position is a resnet and the transformer that may follow it. Each side (down, up) counts its levels
 * separately: down from the latent's resolution, up from the smallest resolution. The authors' checkpoints
 * number the positions of a side consecutively and count each downsampling as one more position. */
#ifndef SLUICE_UNET_LAYOUT_H
#define SLUICE_UNET_LAYOUT_H

#include "engine/run/family.h"

enum {
    UNET_LEVELS_MAX = 4,
    UNET_RESNETS_MAX = 3, /* maximum resnets per down level; up levels have one more */
    UNET_LAYERS_MAX = 64,
    UNET_SKIPS_MAX = UNET_LEVELS_MAX * (UNET_RESNETS_MAX + 1),
    UNET_POSITIONS_MAX = UNET_LEVELS_MAX * (2 * UNET_RESNETS_MAX + 1) + 2,
};

enum unet_side { UNET_DOWN, UNET_MID, UNET_UP, UNET_SIDES };

struct unet_settings {
    float norm_eps;
    int groups;
    int time_id_columns; /* sinusoid columns per add_time_ids value (SDXL) */
    int side;            /* side of the square training latents (sample_size) */
    int levels, resnets, mid_resnets;
    int heads[UNET_LEVELS_MAX];
    unsigned char
        layers[UNET_POSITIONS_MAX]; /* transformer layers after each position's resnet; 0: no transformer */
};

struct unet_position {
    enum unet_side side;
    int level, resnet; /* the mid block is level 0 */
    int layer;         /* index within the transformer, for blocks that are one transformer layer */
};

#define UNET_DOWN_RESNET               "down_blocks.%d.resnets.%d"
#define UNET_CHECKPOINT_DOWN_RESNET    "input_blocks.%d.0"
#define UNET_DOWN_ATTENTION            "down_blocks.%d.attentions.%d"
#define UNET_CHECKPOINT_DOWN_ATTENTION "input_blocks.%d.1"
#define UNET_MID_RESNET                "mid_block.resnets.%d"
#define UNET_CHECKPOINT_MID_RESNET     "middle_block.%d"
#define UNET_MID_ATTENTION             "mid_block.attentions.0"
#define UNET_CHECKPOINT_MID_ATTENTION  "middle_block.1"
#define UNET_UP_RESNET                 "up_blocks.%d.resnets.%d"
#define UNET_CHECKPOINT_UP_RESNET      "output_blocks.%d.0"
#define UNET_UP_ATTENTION              "up_blocks.%d.attentions.%d"
#define UNET_CHECKPOINT_UP_ATTENTION   "output_blocks.%d.1"

/* Block references (kind NULL): unet_ref to a resnet or projection, unet_layer_ref to a transformer layer. */
struct block_ref unet_ref(const struct unet_settings *s, struct unet_position position);
struct block_ref unet_layer_ref(const struct unet_settings *s, struct unet_position position);
/* Position of a block, from the number that unet_ref or unet_layer_ref gave it. */
struct unet_position unet_position_of(int number);
struct unet_position unet_layer_position_of(int number);

/* Positions are numbered in execution order. unet_index: number of a position; unet_n_positions: count;
 * unet_position_at: position number i. */
int unet_index(const struct unet_settings *s, struct unet_position position);
int unet_n_positions(const struct unet_settings *s);
struct unet_position unet_position_at(const struct unet_settings *s, int i);
/* Resolution level of a position: level 0 has the latent's size, each level halves the size. */
int unet_depth(const struct unet_settings *s, struct unet_position position);

/* Index of the skip connection that a down position writes or an up position reads; 0 is conv_in's output. */
int unet_skip(const struct unet_settings *s, struct unet_position position);

#endif
