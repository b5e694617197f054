/* Shared by the two files of WAN's transformers: wan.c (mathematics) and wan_recipes.c (sizes, recipes). */
#ifndef SLUICE_MODELS_WAN_H
#define SLUICE_MODELS_WAN_H

#include "models/models.h"

/* Variants of WAN that tensor shapes distinguish; other WAN models differ in the number of transformers or in
 * the VAE. WAN_I2V (2.1) reads CLIP vision tokens, WAN22_I2V does not. */
enum { WAN_T2V, WAN_I2V, WAN22_I2V, WAN_VACE };

/* Name prefix of the timestep, text and image embedders in diffusers' files. */
#define WAN_CONDITION "condition_embedder."

/* Indices into component.dims. */
enum wan_dim {
    DIM, /* DIM has index 0, which weight_spec.slices reads as "none"; DIM is never a number of slices */
    ONE,
    TWO,
    SIX,
    SIDE, /* patch size in latent pixels */
    SIX_DIM,
    FEED_FORWARD,
    HEAD,
    HEADS,
    IN,
    PATCH,
    LATENT,
    CONCAT_IMAGE, /* 1: the model reads an input image's mask and latent as concatenated channels (I2V) */
    TEXT,
    FREQUENCIES,
    LAYERS,
    IMAGE,      /* columns of the vision encoder's rows; 0: no vision input */
    IMAGE_ROWS, /* number of vision rows in models with a position embedding for them (FLF2V); else 0 */
    IMAGE_DIM,  /* DIM if there is a vision input, else 0 */
    HINTS,      /* number of hint blocks (VACE) */
    HINTS_IN,   /* channels of the control input (VACE) */
};

enum { WAN_HINTS_MAX = 96 };

struct wan_settings {
    float eps;
    int layers, head;
    float vace_layers[WAN_HINTS_MAX]; /* number of the main block after which each hint is added */
};

enum { N_WAN_DIMENSIONS = 16, N_WAN_SETTINGS = 1, N_WAN_LISTS = 1 };
extern const struct dimension wan_dimensions[N_WAN_DIMENSIONS];
extern const struct setting wan_settings_rows[N_WAN_SETTINGS];
extern const struct setting_list wan_lists[N_WAN_LISTS];

/* Callbacks of family_wan; struct family documents each. */
enum status wan_refuse(const struct component *c, struct error *e);
enum status wan_configure(struct component *c, const struct config *config, struct error *e);
void wan_derive_dims(struct component *c);
void wan_derive(struct component *c);

#endif
