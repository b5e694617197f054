#include "test/lib/model_paths.h"

const struct sluice_model_options *model_options(struct model_paths *from) {
    const struct sluice_part parts[6] = {{"--diffusion-model", from->diffusion_model},
                                         {"--llm", from->llm},
                                         {"--clip_l", from->clip_l},
                                         {"--clip_g", from->clip_g},
                                         {"--t5xxl", from->t5xxl},
                                         {"--vae", from->vae}};
    for (int i = 0; i < 6; i++) from->parts[i] = parts[i];
    from->options = (struct sluice_model_options){.struct_size = sizeof from->options,
                                                  .model = from->model,
                                                  .parts = from->parts,
                                                  .n_parts = 6,
                                                  .tokenizer = from->tokenizer,
                                                  .decodes_only = from->decodes_only};
    return &from->options;
}
