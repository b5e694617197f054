#include "test/lib/model_paths.h"

const struct sluice_model_options *model_options(struct model_paths *from) {
    const struct sluice_part parts[MODEL_PATHS] = {{"--diffusion-model", from->diffusion_model},
                                                   {"--high-noise-diffusion-model", from->high_noise},
                                                   {"--llm", from->llm},
                                                   {"--llm_vision", from->llm_vision},
                                                   {"--llm_adapter", from->llm_adapter},
                                                   {"--clip_l", from->clip_l},
                                                   {"--clip_g", from->clip_g},
                                                   {"--clip_vision", from->clip_vision},
                                                   {"--redux", from->redux},
                                                   {"--t5xxl", from->t5xxl},
                                                   {"--vae", from->vae},
                                                   {"--taesd", from->taesd},
                                                   {"--text-projection", from->text_projection},
                                                   {"--connectors", from->connectors},
                                                   {"--audio-vae", from->audio_vae},
                                                   {"--vocoder", from->vocoder},
                                                   {"--upscaler", from->upscaler}};
    int n_parts = MODEL_PATHS - SLUICE_CONTROLS_MAX;
    for (int i = 0; i < n_parts; i++) from->parts[i] = parts[i];
    for (int i = 0; i < SLUICE_CONTROLS_MAX && from->control_net[i]; i++)
        from->parts[n_parts++] = (struct sluice_part){"--control-net", from->control_net[i]};
    from->options = (struct sluice_model_options){.struct_size = sizeof from->options,
                                                  .model = from->model,
                                                  .parts = from->parts,
                                                  .n_parts = n_parts,
                                                  .tokenizer = from->tokenizer,
                                                  .edit = from->edit,
                                                  .decodes_only = from->decodes_only,
                                                  .latent = from->latent};
    return &from->options;
}
