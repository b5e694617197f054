/* A complete synthetic pipeline with the engine features that no published pipeline uses. In the test tables
 * (tables.c) its families and its recipe follow the published families and recipes. */
#ifndef SLUICE_TEST_SYNTHETIC_PIPELINE_H
#define SLUICE_TEST_SYNTHETIC_PIPELINE_H

#include "models/models.h"

#define SYNTHETIC_FAMILIES(X)                                                                                \
    X(synthetic_text)                                                                                        \
    X(synthetic_vision)                                                                                      \
    X(synthetic_denoiser) X(synthetic_video_vae) X(synthetic_control) X(synthetic_control_union)
#define SYNTHETIC_RECIPES(X) X(synthetic)

SYNTHETIC_FAMILIES(DECLARE_FAMILY)
SYNTHETIC_RECIPES(DECLARE_RECIPE)

/* Slots of the synthetic recipe, in the order of their stages. */
enum synthetic_slot {
    SYNTHETIC_TEXT,
    SYNTHETIC_TEXT_2,
    SYNTHETIC_LLM,
    SYNTHETIC_VISION,
    SYNTHETIC_DENOISER,
    SYNTHETIC_DENOISER_2,
    SYNTHETIC_VIDEO_VAE
};

/* Sizes that tensor shapes do not give, for synthetic_reference.c. */
enum {
    SYNTHETIC_CHANNELS = 4,
    SYNTHETIC_HEADS = 4,
    SYNTHETIC_SIDE = 16,
    SYNTHETIC_PADDED = 11,
    SYNTHETIC_DROPPED = 2
};
/* Image rows of the denoiser's state [F Y X, width], for control networks (synthetic_control.c). */
struct tensor synthetic_image_rows(const struct lane *lane);
/* Rows of a table of position embeddings: see family_blocks.rows. */
int synthetic_position_rows(const struct component *c, int i_table, const struct lane *lane, int32_t *rows);

#define SYNTHETIC_EPS            1e-5f
#define SYNTHETIC_BATCH_NORM_EPS 0.25  /* published batch_norm_eps of the VAE */
#define SYNTHETIC_BOUNDARY       0.551 /* fraction of the timesteps below which the second denoiser runs */

#endif
