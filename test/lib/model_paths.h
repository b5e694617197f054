/* Paths of a test's model, one struct member per command line flag. */
#ifndef SLUICE_TEST_MODEL_PATHS_H
#define SLUICE_TEST_MODEL_PATHS_H

#include "engine/sluice.h"

enum { MODEL_PATHS = 17 + SLUICE_CONTROLS_MAX };

struct model_paths {
    const char *model, *diffusion_model, *high_noise, *llm, *llm_vision, *llm_adapter, *clip_l, *clip_g,
        *clip_vision, *redux, *t5xxl, *vae, *text_projection, *connectors, *audio_vae, *vocoder, *taesd,
        *tokenizer, *upscaler;
    const char *control_net[SLUICE_CONTROLS_MAX]; /* NULL: none */
    const char *edit;
    bool decodes_only;
    const char *latent;
    /* Filled by model_options. */
    struct sluice_part parts[MODEL_PATHS];
    struct sluice_model_options options;
};

/* Returns options with the paths in `from`. The options borrow the strings and the storage of `from`. */
const struct sluice_model_options *model_options(struct model_paths *from);

#endif
