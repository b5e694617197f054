/* Published models: see published_models.h. The first table has a row for each repository, the second for
 * each recipe. */
#include "models/published_models.h"

#include <string.h>

#define ALL_FLUX                                                                                             \
    { &recipe_flux, &recipe_flux_schnell, &recipe_flux_kontext, &recipe_flux_fill }
#define ALL_SD3                                                                                              \
    { &recipe_sd3, &recipe_sd35_medium, &recipe_sd35_large, &recipe_sd35_large_turbo }
#define ALL_QWEN                                                                                             \
    {                                                                                                        \
        &recipe_qwen_image, &recipe_qwen_image_edit, &recipe_qwen_image_edit_plus,                           \
            &recipe_qwen_image_edit_2511                                                                     \
    }

/* File name pattern of a tiny VAE, encoder and decoder, in diffusers' format. */
#define TAE "diffusion_*"

/* clang-format off */
const struct hf_source hf_sources[] = {
    {"Tongyi-MAI/Z-Image-Turbo", NULL, NULL, 0, {&recipe_zimage}},
    {"Comfy-Org/z_image_turbo", "--diffusion-model", "z_image_turbo_bf16.safetensors", 12300, {&recipe_zimage}},
    {"leejet/Z-Image-Turbo-GGUF", "--diffusion-model", "z_image_turbo-Q4_K.gguf", 0, {&recipe_zimage}},
    {"Comfy-Org/z_image_turbo", "--llm", "qwen_3_4b.safetensors", 8040, {&recipe_zimage}},
    {"unsloth/Qwen3-4B-Instruct-2507-GGUF", "--llm", "Qwen3-4B-Instruct-2507-Q4_K_M.gguf", 2500, {&recipe_zimage}},
    {"Comfy-Org/z_image_turbo", "--vae", "ae.safetensors", 335, {&recipe_zimage}},
    {"madebyollin/taef1", "--taesd", TAE, 0, {&recipe_zimage}},

    {"black-forest-labs/FLUX.1-dev", NULL, NULL, 0, {&recipe_flux}},
    {"black-forest-labs/FLUX.1-schnell", NULL, NULL, 0, {&recipe_flux_schnell}},
    {"black-forest-labs/FLUX.1-Kontext-dev", NULL, NULL, 0, {&recipe_flux_kontext}},
    {"black-forest-labs/FLUX.1-Fill-dev", NULL, NULL, 0, {&recipe_flux_fill}},
    {"Comfy-Org/flux1-dev", NULL, "flux1-dev-fp8.safetensors", 17200, {&recipe_flux}},
    {"Comfy-Org/flux1-schnell", NULL, "flux1-schnell-fp8.safetensors", 0, {&recipe_flux_schnell}},
    {"black-forest-labs/FLUX.1-dev", "--diffusion-model", "flux1-dev.safetensors", 23800, {&recipe_flux}},
    {"city96/FLUX.1-dev-gguf", "--diffusion-model", "flux1-dev-Q4_K_S.gguf", 6810, {&recipe_flux}},
    {"city96/FLUX.1-schnell-gguf", "--diffusion-model", "flux1-schnell-Q4_K_S.gguf", 0, {&recipe_flux_schnell}},
    {"comfyanonymous/flux_text_encoders", "--clip_l", "clip_l.safetensors", 246, ALL_FLUX},
    {"comfyanonymous/flux_text_encoders", "--t5xxl", "t5xxl_fp16.safetensors", 9790, ALL_FLUX},
    {"comfyanonymous/flux_text_encoders", "--t5xxl", "t5xxl_fp8_e4m3fn.safetensors", 4890, ALL_FLUX},
    {"city96/t5-v1_1-xxl-encoder-gguf", "--t5xxl", "t5-v1_1-xxl-encoder-Q8_0.gguf", 5060, ALL_FLUX},
    {"black-forest-labs/FLUX.1-dev", "--vae", "ae.safetensors", 335, ALL_FLUX},
    {"madebyollin/taef1", "--taesd", TAE, 0, ALL_FLUX},

    {"Qwen/Qwen-Image", NULL, NULL, 0, {&recipe_qwen_image}},
    {"Qwen/Qwen-Image-2512", NULL, NULL, 0, {&recipe_qwen_image}},
    {"Qwen/Qwen-Image-Edit", NULL, NULL, 0, {&recipe_qwen_image_edit}},
    {"Qwen/Qwen-Image-Edit-2509", NULL, NULL, 0, {&recipe_qwen_image_edit_plus}},
    {"Qwen/Qwen-Image-Edit-2511", NULL, NULL, 0, {&recipe_qwen_image_edit_plus}},
    {"Comfy-Org/Qwen-Image_ComfyUI", "--diffusion-model", "qwen_image_bf16.safetensors", 40900, {&recipe_qwen_image}},
    {"city96/Qwen-Image-gguf", "--diffusion-model", "qwen-image-*.gguf", 0, {&recipe_qwen_image}},
    {"Comfy-Org/Qwen-Image_ComfyUI", "--llm", "qwen_2.5_vl_7b*.safetensors", 0, ALL_QWEN},
    {"unsloth/Qwen2.5-VL-7B-Instruct-GGUF", "--llm", "Qwen2.5-VL-7B-Instruct-Q4_K_M.gguf", 0, ALL_QWEN},
    {"unsloth/Qwen2.5-VL-7B-Instruct-GGUF", "--llm_vision", "mmproj-F16.gguf", 0, ALL_QWEN},
    {"Comfy-Org/Qwen-Image_ComfyUI", "--vae", "qwen_image_vae.safetensors", 0, ALL_QWEN},
    {"lightx2v/Autoencoders", "--taesd", "taew2_1.safetensors", 0, ALL_QWEN},

    {"stable-diffusion-v1-5/stable-diffusion-v1-5", NULL, NULL, 0, {&recipe_sd1}},
    {"stable-diffusion-v1-5/stable-diffusion-v1-5", NULL, "v1-5-pruned-emaonly.safetensors", 4270, {&recipe_sd1}},
    {"stable-diffusion-v1-5/stable-diffusion-inpainting", NULL, NULL, 0, {&recipe_sd1_inpaint}},
    {"stabilityai/stable-diffusion-2-1", NULL, NULL, 0, {&recipe_sd2}},
    {"stabilityai/sd-turbo", NULL, NULL, 0, {&recipe_sd2}},
    {"stabilityai/stable-diffusion-2-inpainting", NULL, NULL, 0, {&recipe_sd2_inpaint}},
    {"stabilityai/stable-diffusion-xl-base-1.0", NULL, NULL, 0, {&recipe_sdxl}},
    {"stabilityai/stable-diffusion-xl-base-1.0", NULL, "sd_xl_base_1.0.safetensors", 6940, {&recipe_sdxl}},
    {"stabilityai/sdxl-turbo", NULL, NULL, 0, {&recipe_sdxl}},
    {"diffusers/stable-diffusion-xl-1.0-inpainting-0.1", NULL, NULL, 0, {&recipe_sdxl_inpaint}},
    {"stabilityai/stable-diffusion-xl-refiner-1.0", NULL, NULL, 0, {&recipe_sdxl_refiner}},
    {"SimianLuo/LCM_Dreamshaper_v7", NULL, NULL, 0, {&recipe_sd1_lcm}},
    {"latent-consistency/lcm-sdxl", "--diffusion-model", "diffusion_pytorch_model.safetensors", 0, {&recipe_sdxl_lcm}},
    {"madebyollin/taesd", "--taesd", TAE, 0,
     {&recipe_sd1, &recipe_sd1_inpaint, &recipe_sd1_lcm, &recipe_sd2, &recipe_sd2_inpaint}},
    {"madebyollin/taesdxl", "--taesd", TAE, 0,
     {&recipe_sdxl, &recipe_sdxl_inpaint, &recipe_sdxl_lcm, &recipe_sdxl_refiner}},

    {"Wan-AI/Wan2.1-T2V-1.3B-Diffusers", NULL, NULL, 0, {&recipe_wan}},
    {"Wan-AI/Wan2.1-T2V-14B-Diffusers", NULL, NULL, 0, {&recipe_wan}},
    {"Wan-AI/Wan2.1-I2V-14B-480P-Diffusers", NULL, NULL, 0, {&recipe_wan_i2v}},
    {"Wan-AI/Wan2.1-FLF2V-14B-720P-diffusers", NULL, NULL, 0, {&recipe_wan_i2v}},
    {"Wan-AI/Wan2.1-VACE-1.3B-diffusers", NULL, NULL, 0, {&recipe_wan_vace}},
    {"Wan-AI/Wan2.1-VACE-14B-diffusers", NULL, NULL, 0, {&recipe_wan_vace}},
    {"Wan-AI/Wan2.2-T2V-A14B-Diffusers", NULL, NULL, 0, {&recipe_wan22}},
    {"Wan-AI/Wan2.2-I2V-A14B-Diffusers", NULL, NULL, 0, {&recipe_wan22_i2v}},
    {"Wan-AI/Wan2.2-TI2V-5B-Diffusers", NULL, NULL, 0, {&recipe_wan_ti2v}},
    {"lightx2v/Autoencoders", "--taesd", "taew2_1.safetensors", 0,
     {&recipe_wan, &recipe_wan_i2v, &recipe_wan_vace, &recipe_wan22, &recipe_wan22_i2v}},
    {"lightx2v/Autoencoders", "--taesd", "taew2_2.safetensors", 0, {&recipe_wan_ti2v}},

    {"stabilityai/stable-diffusion-3-medium-diffusers", NULL, NULL, 0, {&recipe_sd3}},
    {"stabilityai/stable-diffusion-3-medium", NULL, "sd3_medium_incl_clips_t5xxlfp8.safetensors", 10900, {&recipe_sd3}},
    {"stabilityai/stable-diffusion-3-medium", NULL, "sd3_medium_incl_clips.safetensors", 5970, {&recipe_sd3}},
    {"stabilityai/stable-diffusion-3-medium", NULL, "sd3_medium.safetensors", 4340, {&recipe_sd3}},
    {"stabilityai/stable-diffusion-3.5-medium", NULL, NULL, 0, {&recipe_sd35_medium}},
    {"stabilityai/stable-diffusion-3.5-medium", NULL, "sd3.5_medium.safetensors", 0, {&recipe_sd35_medium}},
    {"city96/stable-diffusion-3.5-medium-gguf", "--diffusion-model", "sd3.5_medium-Q8_0.gguf", 0, {&recipe_sd35_medium}},
    {"Comfy-Org/stable-diffusion-3.5-fp8", NULL, "sd3.5_medium_incl_clips_*.safetensors", 11600, {&recipe_sd35_medium}},
    {"stabilityai/stable-diffusion-3.5-large", NULL, NULL, 0, {&recipe_sd35_large}},
    {"stabilityai/stable-diffusion-3.5-large", NULL, "sd3.5_large.safetensors", 16500, {&recipe_sd35_large}},
    {"Comfy-Org/stable-diffusion-3.5-fp8", NULL, "sd3.5_large_fp8_scaled.safetensors", 14900, {&recipe_sd35_large}},
    {"city96/stable-diffusion-3.5-large-gguf", "--diffusion-model", "sd3.5_large-Q8_0.gguf", 0, {&recipe_sd35_large}},
    {"stabilityai/stable-diffusion-3.5-large-turbo", NULL, NULL, 0, {&recipe_sd35_large_turbo}},
    {"stabilityai/stable-diffusion-3.5-large-turbo", NULL, "sd3.5_large_turbo.safetensors", 16500, {&recipe_sd35_large_turbo}},
    {"city96/stable-diffusion-3.5-large-turbo-gguf", "--diffusion-model", "*-Q8_0.gguf", 0, {&recipe_sd35_large_turbo}},
    {"Comfy-Org/stable-diffusion-3.5-fp8", "--clip_l", "clip_l.safetensors", 246, ALL_SD3},
    {"Comfy-Org/stable-diffusion-3.5-fp8", "--clip_g", "clip_g.safetensors", 1390, ALL_SD3},
    {"Comfy-Org/stable-diffusion-3.5-fp8", "--t5xxl", "t5xxl_fp16.safetensors", 9790, ALL_SD3},
    {"Comfy-Org/stable-diffusion-3.5-fp8", "--t5xxl", "t5xxl_fp8_e4m3fn_scaled.safetensors", 5160, ALL_SD3},
    {"city96/t5-v1_1-xxl-encoder-gguf", "--t5xxl", "t5-v1_1-xxl-encoder-Q8_0.gguf", 5060, ALL_SD3},
    {"stabilityai/stable-diffusion-3.5-large", "--vae", "vae/diffusion_pytorch_model.safetensors", 0, ALL_SD3},
    {"madebyollin/taesd3", "--taesd", TAE, 0, ALL_SD3},
    {NULL, NULL, NULL, 0, {NULL}},
};
/* clang-format on */

/* Reference implementation that made the committed fixtures; version as in test/golden/requirements.txt. */
#define DIFFUSERS "diffusers 0.42.1"

const struct published_model published_models[] = {
    {&recipe_zimage, "Z-Image, Z-Image-Turbo", DIFFUSERS, NULL},
    {&recipe_flux, "Flux.1 dev; Kontext as a single file", DIFFUSERS, NULL},
    {&recipe_flux_schnell, "Flux.1 schnell", DIFFUSERS, NULL},
    {&recipe_flux_kontext, "Flux.1 Kontext", DIFFUSERS, NULL},
    {&recipe_flux_fill, "Flux.1 Fill", DIFFUSERS, NULL},
    {&recipe_qwen_image, "Qwen-Image, 2512; Edit as a single file", DIFFUSERS, NULL},
    {&recipe_qwen_image_edit, "Qwen-Image-Edit", DIFFUSERS, NULL},
    {&recipe_qwen_image_edit_plus, "Qwen-Image-Edit 2509, 2511", DIFFUSERS, NULL},
    {&recipe_qwen_image_edit_2511, "Qwen-Image-Edit 2511, single files", NULL, &recipe_qwen_image_edit_plus},
    {&recipe_sd1, "Stable Diffusion 1.5 and finetunes", DIFFUSERS, NULL},
    {&recipe_sd1_inpaint, "Stable Diffusion 1.5 inpainting", DIFFUSERS, NULL},
    {&recipe_sd2, "Stable Diffusion 2.1, SD-Turbo", DIFFUSERS, NULL},
    {&recipe_sd2_inpaint, "Stable Diffusion 2 inpainting", NULL, &recipe_sd1_inpaint},
    {&recipe_sdxl, "SDXL, SDXL-Turbo and finetunes", DIFFUSERS, NULL},
    {&recipe_sdxl_inpaint, "SDXL inpainting", NULL, &recipe_sd1_inpaint},
    {&recipe_sdxl_refiner, "SDXL refiner", DIFFUSERS, NULL},
    {&recipe_sd1_lcm, "LCM of Stable Diffusion 1.5", NULL, &recipe_sd1},
    {&recipe_sdxl_lcm, "LCM of SDXL", NULL, &recipe_sdxl},
    {&recipe_wan, "WAN 2.1 T2V", DIFFUSERS, NULL},
    {&recipe_wan_i2v, "WAN 2.1 I2V, FLF2V (with `--end-img`)", DIFFUSERS, NULL},
    {&recipe_wan22, "WAN 2.2 T2V A14B", DIFFUSERS, NULL},
    {&recipe_wan22_i2v, "WAN 2.2 I2V A14B", DIFFUSERS, NULL},
    {&recipe_wan_ti2v, "WAN 2.2 TI2V 5B", DIFFUSERS, NULL},
    {&recipe_wan_vace, "WAN 2.1 VACE", DIFFUSERS, NULL},
    {&recipe_sd3, "Stable Diffusion 3 medium", DIFFUSERS, NULL},
    {&recipe_sd35_medium, "Stable Diffusion 3.5 medium", DIFFUSERS, NULL},
    {&recipe_sd35_large, "Stable Diffusion 3.5 large", DIFFUSERS, NULL},
    {&recipe_sd35_large_turbo, "Stable Diffusion 3.5 large turbo", NULL, &recipe_sd35_large},
    {NULL, NULL, NULL, NULL},
};

/* Compares by name, because tests may use tables with copies of recipes. */
static bool is_recipe(const struct recipe *a, const struct recipe *b) {
    return !strcmp(a->name, b->name);
}

const struct published_model *published_model_of(const struct recipe *recipe) {
    for (const struct published_model *p = published_models; p->recipe; p++)
        if (is_recipe(p->recipe, recipe)) return p;
    return NULL;
}

bool hf_source_has_recipe(const struct hf_source *source, const struct recipe *recipe) {
    for (const struct recipe *const *r = source->recipe; *r; r++)
        if (is_recipe(*r, recipe)) return true;
    return false;
}
