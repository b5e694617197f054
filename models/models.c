/* The table of families and recipes: see models.h. */
#include "models/models.h"

const struct family *const families[] = {&family_zimage, &family_qwen3, &family_vae_kl,
                                         &family_vae_kl_encoder, NULL};

/* Template and limits: diffusers 0.42, pipelines/z_image (Qwen3's chat template with thinking enabled adds no
 * think block). Sizes and steps are those of the published Turbo model, which is distilled and takes no
 * guidance. */
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
                                "folder, or tokenizer.json of Qwen/Qwen3-4B"}},
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

const struct recipe *const recipes[] = {&recipe_zimage, NULL};

int recipe_role(const struct recipe *recipe, const struct family *family) {
    int role = 0;
    while (role < N_ROLES && recipe->role[role] != family) role++;
    return role;
}
