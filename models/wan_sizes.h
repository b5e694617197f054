/* The sizes of WAN's transformers: how they are read from files and chosen for one that is made up, what has
 * the same names and is refused, and what config.json has of them. */
#ifndef SLUICE_WAN_SIZES_H
#define SLUICE_WAN_SIZES_H

#include "models/models.h"

/* Of names in diffusers' files. */
#define WAN_CONDITION "condition_embedder."

/* Places in the family's dims. */
enum wan_dim {
    DIM, /* as a place of slices 0 is none */
    ONE,
    TWO,
    SIX,
    SIDE, /* of a patch */
    SIX_DIM,
    FEED_FORWARD,
    HEAD,
    HEADS,
    IN,
    PATCH,
    LATENT,
    GOES_ON, /* whether it reads a picture's latent and mask beside what is drawn */
    TEXT,
    FREQUENCIES,
    LAYERS,
    IMAGE,      /* columns of a vision encoder's rows; 0: it sees none */
    IMAGE_ROWS, /* how many, where each has a place of its own; else 0 */
    IMAGE_DIM,  /* DIM, or 0 */
    HINTS,      /* blocks that lead others */
    HINTS_IN,
};

enum { WAN_HINTS_MAX = 96 };

struct wan_settings {
    float eps;
    int layers, head;
    float hinted[WAN_HINTS_MAX]; /* behind which block each hint is added */
};

enum { N_WAN_DIMENSIONS = 16, N_WAN_SETTINGS = 1, N_WAN_LISTS = 1 };
extern const struct dimension wan_dimensions[N_WAN_DIMENSIONS];
extern const struct setting wan_settings_rows[N_WAN_SETTINGS];
extern const struct setting_list wan_lists[N_WAN_LISTS];

/* As the family's functions of these names. */
enum status wan_refuse(const struct component *c, struct error *e);
enum status wan_configure(struct component *c, const struct config *config, struct error *e);
void wan_follow(struct component *c);
void wan_derive(struct component *c);

#endif
