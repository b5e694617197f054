/* What a UNet is made of, before any mathematics: how many levels and resnets there are, behind which of them
 * stand transformers of how many layers, and how blocks are numbered and named.
 *
 * A place is a resnet and the transformer behind it. Levels are counted as each side counts them: on the way
 * down from the latent's size, on the way up from the smallest. The authors count places of a side in one
 * row; downsampling stands in it as a place of its own. */
#ifndef SLUICE_UNET_PLACES_H
#define SLUICE_UNET_PLACES_H

#include "engine/run/family.h"

enum {
    UNET_LEVELS_MAX = 4,
    UNET_RESNETS_MAX = 3, /* of a level on the way down */
    UNET_LAYERS_MAX = 64,
    UNET_SKIPS_MAX = UNET_LEVELS_MAX * (UNET_RESNETS_MAX + 1),
    UNET_PLACES_MAX = UNET_LEVELS_MAX * (2 * UNET_RESNETS_MAX + 1) + 2,
};

enum unet_side { UNET_DOWN, UNET_MID, UNET_UP, UNET_SIDES };

struct unet_settings {
    float norm_eps;
    int groups;
    int number_columns; /* of each number that it is told */
    int side;           /* of the square latents that it was trained on */
    int levels, resnets, mid_resnets;
    int heads[UNET_LEVELS_MAX];
    unsigned char layers[UNET_PLACES_MAX]; /* of the transformer behind a place; 0: none */
};

struct unet_place {
    enum unet_side side;
    int level, resnet; /* the middle is level 0 */
    int layer;         /* of a transformer's block */
};

#define UNET_DOWN_RESNET             "down_blocks.%d.resnets.%d"
#define UNET_DOWN_RESNET_ORIGINAL    "input_blocks.%d.0"
#define UNET_DOWN_ATTENTION          "down_blocks.%d.attentions.%d"
#define UNET_DOWN_ATTENTION_ORIGINAL "input_blocks.%d.1"
#define UNET_MID_RESNET              "mid_block.resnets.%d"
#define UNET_MID_RESNET_ORIGINAL     "middle_block.%d"
#define UNET_MID_ATTENTION           "mid_block.attentions.0"
#define UNET_MID_ATTENTION_ORIGINAL  "middle_block.1"
#define UNET_UP_RESNET               "up_blocks.%d.resnets.%d"
#define UNET_UP_RESNET_ORIGINAL      "output_blocks.%d.0"
#define UNET_UP_ATTENTION            "up_blocks.%d.attentions.%d"
#define UNET_UP_ATTENTION_ORIGINAL   "output_blocks.%d.1"

/* The block that is a place's resnet, or what belongs to it; or a layer of its transformer. kind stays NULL.
 */
struct block_ref unet_ref(const struct unet_settings *s, struct unet_place place);
struct block_ref unet_layer_ref(const struct unet_settings *s, struct unet_place place);
/* The way back, from such a block's number. */
struct unet_place unet_place_of(int number);
struct unet_place unet_layer_place_of(int number);

/* Places in the order of their visits. The number of place i, and how many there are. */
int unet_index(const struct unet_settings *s, struct unet_place place);
int unet_n_places(const struct unet_settings *s);
struct unet_place unet_place_at(const struct unet_settings *s, int i);
/* The level, counted downwards. */
int unet_depth(const struct unet_settings *s, struct unet_place place);

/* Which skip a place on the way down writes, or one on the way up reads; skip 0 is the latent's convolution.
 */
int unet_skip(const struct unet_settings *s, struct unet_place place);

#endif
