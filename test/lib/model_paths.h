/* Where a test's model lies, a member a flag: shorter rows than lists of pairs. */
#ifndef SLUICE_TEST_MODEL_PATHS_H
#define SLUICE_TEST_MODEL_PATHS_H

#include "engine/sluice.h"

struct model_paths {
    const char *model, *diffusion_model, *llm, *clip_l, *t5xxl, *vae, *tokenizer;
    bool decodes_only;
    /* Filled by model_options. */
    struct sluice_part parts[5];
    struct sluice_model_options options;
};

/* Borrowed from what is given. */
static inline const struct sluice_model_options *model_options(struct model_paths *from) {
    const struct sluice_part parts[5] = {{"--diffusion-model", from->diffusion_model},
                                         {"--llm", from->llm},
                                         {"--clip_l", from->clip_l},
                                         {"--t5xxl", from->t5xxl},
                                         {"--vae", from->vae}};
    for (int i = 0; i < 5; i++) from->parts[i] = parts[i];
    from->options = (struct sluice_model_options){.struct_size = sizeof from->options,
                                                  .model = from->model,
                                                  .parts = from->parts,
                                                  .n_parts = 5,
                                                  .tokenizer = from->tokenizer,
                                                  .decodes_only = from->decodes_only};
    return &from->options;
}

#endif
