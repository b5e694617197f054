/* The table of families and recipes: see models.h. */
#include "models/models.h"

const struct family *const families[] = {
    &family_zimage, &family_flux,   &family_qwen3,          &family_clip,
    &family_t5,     &family_vae_kl, &family_vae_kl_encoder, NULL,
};

/* Template and limits: diffusers 0.42, pipelines/z_image (Qwen3's chat template with thinking enabled adds no
 * think block). Sizes and steps are those of the published Turbo model, which is distilled and takes no
 * guidance. Strength: pipeline_z_image_img2img.py. */
static const struct recipe recipe_zimage = {
    .name = "zimage",
    .role = {[ROLE_TEXT] = &family_qwen3,
             [ROLE_DENOISER] = &family_zimage,
             [ROLE_DECODER] = &family_vae_kl,
             [ROLE_ENCODER] = &family_vae_kl_encoder},
    .text = {{.template_before = "<|im_start|>user\n",
              .template_after = "<|im_end|>\n<|im_start|>assistant\n",
              .tokens_max = 512,
              .special = {"<|im_start|>", "<|im_end|>"},
              .tokenizer = "BPE",
              .tokenizer_from = "--tokenizer PATH: tokenizer/tokenizer.json of the model's Hugging Face "
                                "folder, or tokenizer.json of Qwen/Qwen3-4B",
              .classes = {"Qwen3Model", "Qwen2Tokenizer"}}},
    .pipelines = {"ZImagePipeline", "ZImageImg2ImgPipeline"},
    .patch = 2,
    .shift_rule = FLOW_SHIFT_FIXED,
    .flow_shift = 3.0,
    .grid = FLOW_GRID_F32,
    .timestep = TIMESTEP_OF_PICTURE,
    .samples_init = true,
    .width = 1024,
    .height = 1024,
    .steps = 8,
    .cfg_scale = 1,
    .strength = 0.6,
};

/* Flux.1: diffusers 0.42, pipelines/flux. Both encoders see the prompt as it is, padded to a fixed length
 * without a mask; CLIP's 77 are all its positions. Defaults are those of each pipeline's __call__; steps of
 * schnell and guidance of Kontext the published model cards'; shifts those of the published
 * scheduler_config.json. */
/* clang-format off */
#define FLUX(t5_tokens)                                                                                        \
    .role = {[ROLE_TEXT] = &family_clip, [ROLE_TEXT_2] = &family_t5, [ROLE_DENOISER] = &family_flux,           \
             [ROLE_DECODER] = &family_vae_kl, [ROLE_ENCODER] = &family_vae_kl_encoder},                        \
    .text = {{.first = "<|startoftext|>", .last = "<|endoftext|>", .pad = "<|endoftext|>",                     \
              .tokens_max = 77, .pools = true, .tokenizer = "CLIP BPE",                                        \
              .tokenizer_from = "--tokenizer PATH: the model's Hugging Face folder, or the tokenizer of "      \
                                "openai/clip-vit-large-patch14",                                               \
              .classes = {"CLIPTextModel", "CLIPTokenizer"}},                                                  \
             {.last = "</s>", .pad = "<pad>", .tokens_max = (t5_tokens), .tokenizer = "unigram",               \
              .tokenizer_from = "--tokenizer PATH: the model's Hugging Face folder, or spiece.model of "       \
                                "google/t5-v1_1-xxl",                                                          \
              .classes = {"T5EncoderModel", "T5TokenizerFast"}}},                                              \
    .patch = 2, .shift_line = {.base_shift = 0.5, .max_shift = 1.15, .base_tokens = 256, .max_tokens = 4096},  \
    .grid = FLOW_GRID_F64, .timestep = TIMESTEP_OF_NOISE, .samples_init = true,                                \
    .width = 1024, .height = 1024, .cfg_scale = 1
/* clang-format on */

static const struct recipe recipe_flux = {
    FLUX(512),
    .name = "flux",
    .variant = FLUX_GUIDED,
    .pipelines = {"FluxPipeline", "FluxImg2ImgPipeline"},
    .shift_rule = FLOW_SHIFT_BY_TOKENS,
    .references_max = LANE_REFERENCES_MAX,
    .references_if_unnamed = true,
    .steps = 28,
    .guidance = 3.5,
    .takes_guidance = true,
    .strength = 0.6,
};

static const struct recipe recipe_flux_schnell = {
    FLUX(256),
    .name = "flux_schnell",
    .variant = FLUX_SCHNELL,
    .dimension = {{"guidance", 0}},
    .pipelines = {"FluxPipeline", "FluxImg2ImgPipeline"},
    .shift_rule = FLOW_SHIFT_FIXED,
    .flow_shift = 1,
    .steps = 4,
    .strength = 0.6,
};

static const struct recipe recipe_flux_kontext = {
    FLUX(512),
    .name = "flux_kontext",
    .variant = FLUX_GUIDED,
    .pipelines = {"FluxKontextPipeline"},
    .shift_rule = FLOW_SHIFT_BY_TOKENS,
    .references_max = LANE_REFERENCES_MAX,
    .steps = 28,
    .guidance = 2.5,
    .takes_guidance = true,
    .strength = 0.6,
};

static const struct recipe recipe_flux_fill = {
    FLUX(512),
    .name = "flux_fill",
    .variant = FLUX_FILL,
    .dimension = {{"fill", 1}},
    .pipelines = {"FluxFillPipeline"},
    .shift_rule = FLOW_SHIFT_BY_TOKENS,
    .fills = true,
    .steps = 50,
    .guidance = 30,
    .takes_guidance = true,
    .strength = 1,
};

/* Where nothing names the pipeline the first that fits the weights is taken. */
const struct recipe *const recipes[] = {&recipe_zimage,       &recipe_flux,      &recipe_flux_schnell,
                                        &recipe_flux_kontext, &recipe_flux_fill, NULL};

int recipe_role(const struct recipe *recipe, const struct family *family) {
    int role = 0;
    while (role < N_ROLES && recipe->role[role] != family) role++;
    return role;
}
