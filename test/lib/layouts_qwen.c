/* Layouts of Qwen-Image: Hugging Face's folder, ComfyUI's split files, and one file with everything in it.
 * The transformer's names are diffusers' wherever it is. */
#include "test/lib/layouts.h"

static const struct layout_part parts[] = {
    {"transformer", "qwen_image.safetensors", offsetof(options, diffusion_model), NULL, NULL, NULL,
     "transformer (qwen_image)", ASKED_TRANSFORMER, "for --diffusion-model"},
    {"text_encoder", "qwen_2.5_vl_7b.safetensors", offsetof(options, llm), NULL, NULL, NULL,
     "text encoder (qwen25vl)", ASKED_LLM, "for --llm"},
    {"vae", "qwen_image_vae.safetensors", offsetof(options, vae), NULL, NULL, NULL, "autoencoder (vae_wan)",
     ASKED_VAE, "for --vae"},
};

static const struct all_in_one all_in_one[] = {
    {{"model.diffusion_model.", "text_encoders.qwen25_7b.transformer.", "vae."},
     {"transformer", "text_encoder", "vae"},
     {"text_encoders.qwen25_7b.logit_scale"}},
};

const struct layout_family layouts_of_qwen = {parts, COUNT_OF(parts), all_in_one, COUNT_OF(all_in_one)};
