/* Shared by the two files of the UNets: unet.c (mathematics and layout) and unet_recipes.c (sizes, recipes).
 * Layout: numbers of levels, resnets and transformer layers; block numbers and names; skip connections.
 *
 * A position is a resnet and the transformer that may follow it. Each side (down, up) counts its levels
 * separately: down from the latent's resolution, up from the smallest resolution. The authors' checkpoints
 * number the positions of a side consecutively and count each downsampling as one more position. */
#ifndef SLUICE_MODELS_UNET_H
#define SLUICE_MODELS_UNET_H

#include "models/models.h"

/* Variants of the UNet that tensor shapes distinguish. GUIDED: with a guidance scale embedding (LCM). */
enum {
    UNET_SD1,
    UNET_SD1_INPAINT,
    UNET_SD2,
    UNET_SD2_INPAINT,
    UNET_SDXL,
    UNET_SDXL_INPAINT,
    UNET_SDXL_REFINER,
    UNET_SD1_GUIDED,
    UNET_SDXL_GUIDED,
};

enum {
    UNET_LEVELS_MAX = 4,
    UNET_RESNETS_MAX = 3, /* maximum number of resnets per down level; up levels have one resnet more */
    UNET_LAYERS_MAX = 64,
    UNET_SKIPS_MAX = UNET_LEVELS_MAX * (UNET_RESNETS_MAX + 1),
    UNET_POSITIONS_MAX = UNET_LEVELS_MAX * (2 * UNET_RESNETS_MAX + 1) + 2,
};

enum unet_side { UNET_DOWN, UNET_MID, UNET_UP, UNET_SIDES };

struct unet_settings {
    float norm_eps;
    int groups;
    int time_id_columns; /* number of sinusoid columns per add_time_ids value (SDXL) */
    int side;            /* height and width of the training latents in latent pixels (sample_size) */
    int levels, resnets, mid_resnets;
    int heads[UNET_LEVELS_MAX];
    unsigned char
        layers[UNET_POSITIONS_MAX]; /* transformer layers after each position's resnet; 0: no transformer */
};

struct unet_position {
    enum unet_side side;
    int level, resnet; /* resolution level and resnet number within the side; the mid block has level 0 */
    int layer; /* index of the layer within its transformer, for blocks that are one transformer layer */
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

/* Block references without kind. unet_ref: to a resnet or a timestep projection; unet_layer_ref: to a
 * transformer layer. */
struct block_ref unet_ref(const struct unet_settings *s, struct unet_position position);
struct block_ref unet_layer_ref(const struct unet_settings *s, struct unet_position position);
/* Position of a block, from its number in the reference of unet_ref or unet_layer_ref. */
struct unet_position unet_position_of(int number);
struct unet_position unet_layer_position_of(int number);

/* Positions are numbered in execution order. unet_index: number of a position; unet_n_positions: count;
 * unet_position_at: position number i. */
int unet_index(const struct unet_settings *s, struct unet_position position);
int unet_n_positions(const struct unet_settings *s);
struct unet_position unet_position_at(const struct unet_settings *s, int i);
/* Resolution level of a position: level 0 has the latent's size, each level halves the size. */
int unet_depth(const struct unet_settings *s, struct unet_position position);

/* Index of the skip connection that a down position writes or an up position reads. Index 0 is the output of
 * conv_in. */
int unet_skip(const struct unet_settings *s, struct unet_position position);

enum { UNET_CONV_AXES = 2 }; /* trailing 1s in the shape of a matrix that files store as a 1x1 convolution */

/* Indices into component.dims. */
enum unet_dim {
    IN_CHANNELS, /* input channels of conv_in: latent and concatenated conditioning (inpainting) */
    LATENT,
    FREQUENCIES,
    TIME,
    ADDED, /* input columns of add_embedding (pooled text and add_time_ids sinusoids); 0: no add_embedding */
    POOLED,
    GUIDANCE, /* width of the guidance embedding (LCM); 0: none */
    TIME_IDS, /* number of add_time_ids values (SDXL) */
    CONTEXT,
    CONV_AXES, /* number of trailing axes of size 1 in the shape of projections: 0 linear, 2 convolution */
    K1,
    K3, /* kernel sizes 1 and 3 of convolutions, as dims */
    IN,
    OUT, /* input and output channels of one block, set by unet_block_dims */
    FEED_FORWARD,
    TWO_FEED_FORWARD,
    LEVELS,
    RESNETS,
    MID_LAYERS,  /* number of transformer layers of the mid block, if the smallest level has none */
    EQUAL_HEADS, /* number of attention heads, if equal in all levels; 0: heads are 64 wide */
    GROUPS,
    INPAINTS, /* 1: inpainting model, which also reads the mask and the masked image's latent */
    CHANNELS, /* CHANNELS + i: width of level i */
    LAYERS = CHANNELS + UNET_LEVELS_MAX,     /* LAYERS + i: number of layers of each transformer at level i */
    CONFIG_HEADS = LAYERS + UNET_LEVELS_MAX, /* CONFIG_HEADS + i: heads of level i; this and later dims are
                                                used for config.json only */
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

/* Callbacks of family_unet; struct family documents each. */
enum status unet_refuse(const struct component *c, struct error *e);
enum status unet_configure(struct component *c, const struct config *config, struct error *e);
void unet_derive_dims(struct component *c);
void unet_derive(struct component *c);

#endif
